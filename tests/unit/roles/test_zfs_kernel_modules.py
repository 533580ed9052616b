# SPDX-License-Identifier: Apache-2.0
"""Kernels and their ZFS modules: what counts as installed, what fits, what modprobe means, when only a boot helps."""

import os
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.zfs_kernel_modules import (
    KERNEL_STILL_GONE,
    MODULE_STILL_DIFFERS,
    KernelModule,
    ZfsPackagesError,
    explain_modprobe,
    fits,
    installed_kernels,
    kernels_without_module,
    minor_release,
    module_files,
    module_package_of,
    newest_make_log,
    parse_modinfo,
    reboot_need,
    same_upstream,
    unfit_modules,
    upstream_version,
)

MODINFO = """filename:       /lib/modules/6.12.118+deb13-cloud-amd64/updates/dkms/zfs.ko.xz
version:        2.3.9-0+deb13u1
license:        CDDL
srcversion:     533BB7E5866E52F63B9ACCB
vermagic:       6.12.118+deb13-cloud-amd64 SMP preempt mod_unload modversions
"""


def module(version: str, path: str = "/lib/modules/k/extra/zfs.ko") -> KernelModule:
    return KernelModule(path, version)


def test_installed_kernels_have_modules_and_an_image(tmp_path: Path) -> None:
    modules, boot = tmp_path / "modules", tmp_path / "boot"
    boot.mkdir()
    for release in ("6.1.0-9-amd64", "6.1.0-26-amd64", "5.15.0-1030-nvidia", "6.1.0-8-amd64"):
        (modules / release).mkdir(parents=True)
        (boot / f"vmlinuz-{release}").touch()
    (modules / "6.1.0-7-amd64").mkdir()  # what a removed kernel leaves
    (modules / "6.1.0-6-amd64").touch()
    (boot / "vmlinuz-6.1.0-6-amd64").touch()
    (boot / "vmlinuz-6.1.0-99-amd64").touch()
    expected = ["5.15.0-1030-nvidia", "6.1.0-8-amd64", "6.1.0-9-amd64", "6.1.0-26-amd64"]
    assert installed_kernels(str(modules), str(boot)) == expected
    assert installed_kernels(str(tmp_path / "none"), str(boot)) == []


def test_module_files(tmp_path: Path) -> None:
    for name in (
        "k/updates/dkms/zfs.ko.xz",
        "k/kernel/zfs/zfs.ko.zst",
        "k/extra/zfs.ko",
        "k/extra/zfs.ko.new",
        "j/zfs.ko",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path[len(str(tmp_path)) + 1 :] for path in module_files("k", str(tmp_path))]
    assert found == ["k/extra/zfs.ko", "k/kernel/zfs/zfs.ko.zst", "k/updates/dkms/zfs.ko.xz"]


@pytest.mark.parametrize(
    ("version", "upstream", "minor"),
    [
        ("2.1.5-1ubuntu6~22.04.4", "2.1.5", "2.1"),
        ("2.1.11-1+deb12u1", "2.1.11", "2.1"),
        ("2.3.9-0+deb13u1", "2.3.9", "2.3"),
        ("1:2.3.2-2~bpo12+1", "2.3.2", "2.3"),
        ("2.3.0-rc4-1", "2.3.0-rc4", "2.3"),
        ("2.10.1-1", "2.10.1", "2.10"),
        ("2.2.2", "2.2.2", "2.2"),
        ("the candidate", "the candidate", None),
    ],
)
def test_versions(version: str, upstream: str, minor: "str | None") -> None:
    assert (upstream_version(version), minor_release(version)) == (upstream, minor)


@pytest.mark.parametrize(
    ("have", "package", "expected"),
    [
        ("2.3.9-0+deb13u1", "2.3.9-0+deb13u1", True),
        ("2.2.2-0ubuntu9", "2.2.2-0ubuntu9.4", True),
        ("2.3.2-2", "2.3.9-0+deb13u1", False),
        (None, "2.3.9", False),
    ],
)
def test_same_upstream(have: "str | None", package: str, expected: bool) -> None:
    assert same_upstream(module(have) if have else None, package) is expected


@pytest.mark.parametrize(
    ("have", "package", "source", "expected"),
    [
        ("2.3.2-2", "2.3.9-0+deb13u1", "prebuilt", True),
        ("2.2.2-0ubuntu9", "2.1.5-1ubuntu6", "prebuilt", False),
        ("2.2.2-0ubuntu9", "2.1.5-1ubuntu6", "distro", True),  # Ubuntu 22.04 with an HWE kernel
        ("2.1.5", "2.2.2", "distro", False),
        ("3.0.0", "2.2.2", "distro", False),
        ("2.1.5", "2.10.5", "distro", False),
        ("2.1.5", "2.10.5", "dkms", False),
        (None, "2.3.9", "dkms", False),
        ("unknown", "none", "distro", False),
    ],
)
def test_fits(have: "str | None", package: str, source: str, expected: bool) -> None:
    assert fits(module(have) if have else None, package, source) is expected


def test_modinfo_is_read_or_refused() -> None:
    path = "/lib/modules/6.12.118+deb13-cloud-amd64/updates/dkms/zfs.ko.xz"
    assert parse_modinfo(MODINFO) == KernelModule(path, "2.3.9-0+deb13u1")
    with pytest.raises(ValueError, match="no version"):
        parse_modinfo("filename:       /lib/modules/k/zfs.ko\nversion:        \nsrcversion: 5\n")
    with pytest.raises(ValueError, match="no filename and no version"):
        parse_modinfo("")


@pytest.mark.parametrize(
    "pattern", [None, "", "zfs-modules", "zfs {kernel}", "-o{kernel}", "{kernel}-", "ZFS-{kernel}"]
)
def test_a_package_name_that_cannot_be_is_refused(pattern: "str | None") -> None:
    with pytest.raises(ZfsPackagesError) as raised:
        module_package_of(pattern, "6.1.0-26-amd64")
    assert "packages.zfs.module_package" in raised.value.next_step
    assert module_package_of("zfs-modules-{kernel}", "6.12+deb13-amd64") == "zfs-modules-6.12+deb13-amd64"


def test_kernels_without_module_are_named() -> None:
    modules = {"5.1": None, "6.1": module("2.3.9"), "6.2": None}
    fault = kernels_without_module(modules, "6.2", "dkms")
    assert fault is not None and "kernel 5.1, 6.2 (running) (source dkms)" in fault and "3 installed kernels" in fault
    assert kernels_without_module({"6.1": module("2.3.9")}, "6.1", "dkms") is None


def test_modules_of_another_release_are_named() -> None:
    fault = unfit_modules({"6.1": module("2.3.9"), "6.8": module("2.2.2-0ubuntu9")}, "2.3.2-2", "dkms")
    assert fault == (
        "the zfs module does not fit the user land, zfsutils-linux 2.3.2-2: kernel 6.8 has 2.2.2-0ubuntu9 "
        "(/lib/modules/k/extra/zfs.ko)"
    )
    assert unfit_modules({"6.1": module("2.3.9"), "6.8": None}, "2.3.2-2", "dkms") is None


@pytest.mark.parametrize(
    ("loaded", "running", "expected"),
    [
        (None, "6.1", None),
        (None, "5.0", None),
        ("2.3.9-1", "6.1", None),
        ("2.3.2-1", "6.1", "zfs module 2.3.2-1 is loaded, 2.3.9-1 is installed for the running kernel 6.1"),
        ("2.3.9-1", "5.0", "the running kernel 5.0 is no longer installed (installed: 6.1, 6.2)"),
        ("2.3.9-1", "6.2", None),
    ],
)
def test_only_a_boot_helps(loaded: "str | None", running: str, expected: "str | None") -> None:
    need = reboot_need(loaded, {"6.1": module("2.3.9-1"), "6.2": None}, running)
    assert (need is None) == (expected is None)
    assert need is None or (expected is not None and need[0].startswith(expected))


@pytest.mark.parametrize(
    ("loaded", "installed", "stands"),
    [("2.3.2-1", "2.3.9-1", True), ("2.3.9-1", "2.3.9-1", False), (None, "2.3.9-1", False), ("2.3.9-1", None, True)],
)
def test_still_needed_exits_0_while_the_loaded_module_differs(
    tmp_path: Path, loaded: "str | None", installed: "str | None", stands: bool
) -> None:
    """The command itself, with /sys and modinfo put in its place."""
    (tmp_path / "modinfo").write_text(
        f"#!/bin/sh\n[ \"$*\" = '-F version zfs' ] && {f'echo {installed}' if installed else 'exit 1'}\n"
    )
    (tmp_path / "modinfo").chmod(0o755)
    if loaded:
        (tmp_path / "version").write_text(f"{loaded}\n")
    argv = [part.replace("/sys/module/zfs/version", str(tmp_path / "version")) for part in MODULE_STILL_DIFFERS]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=30, check=False)
    assert (done.returncode == 0) is stands, done


@pytest.mark.parametrize("there", [True, False])
def test_still_needed_exits_0_while_the_running_kernel_has_no_image(tmp_path: Path, there: bool) -> None:
    if there:
        (tmp_path / f"vmlinuz-{os.uname().release}").touch()
    argv = [part.replace("/boot/", f"{tmp_path}/") for part in KERNEL_STILL_GONE]
    assert (subprocess.run(argv, timeout=30, check=False).returncode == 0) is not there


@pytest.mark.parametrize(
    ("said", "running", "what", "step"),
    [
        ("modprobe: ERROR: could not insert 'zfs': Key was rejected by service", "6.1", "Secure Boot is on", "mokutil"),
        ("could not insert 'zfs': Required key not available", "6.1", "Secure Boot is on", "switch Secure Boot off"),
        ("could not insert 'zfs': Operation not permitted", "6.1", "lockdown", "in a container do not load"),
        ("could not insert 'zfs': Exec format error", "6.1", "built for another kernel than 6.1", "vermagic"),
        ("could not insert 'zfs': Invalid module format", "6.1", "version magic", "vermagic"),
        ("could not insert 'zfs': Unknown symbol in module, or unknown parameter", "6.1", "asks for a symbol", "spl"),
        ("FATAL: Module zfs not found in directory /lib/modules/6.1", "6.1", "no zfs module for the running", "depmod"),
        ("FATAL: Module zfs not found in directory /lib/modules/5.0", "5.0", "5.0 is no longer installed", "reboot"),
        ("could not insert 'zfs': Cannot allocate memory", "6.1", "modprobe failed", "dmesg"),
    ],
)
def test_modprobe_failures_are_told_apart(said: str, running: str, what: str, step: str) -> None:
    found = explain_modprobe(said, running, ["6.1"])
    assert what in found[0] and step in found[1]


@pytest.mark.parametrize(
    "header",
    [
        "DKMS make.log for zfs-2.1.11 for kernel 6.1.0-26-amd64 (x86_64)",
        "DKMS (dkms-3.2.2) make.log for zfs/2.3.9 for kernel 6.1.0-26-amd64 (x86_64)",
    ],
)
def test_the_newest_make_log_is_shown(tmp_path: Path, header: str) -> None:
    assert newest_make_log(str(tmp_path)) is None
    for number, name in enumerate(("zfs/2.3.2/build", "zfs/2.3.9/build", "nvidia/5/build")):
        (tmp_path / name).mkdir(parents=True)
        log = tmp_path / name / "make.log"
        log.write_text(f"{header}\n\n" + "".join(f"line {line}\n" for line in range(40)) + "\n")
        os.utime(log, (number, number))
    log_of_build = newest_make_log(str(tmp_path), lines=3)
    assert log_of_build is not None
    assert log_of_build.path.endswith("zfs/2.3.9/build/make.log") and log_of_build.release == "6.1.0-26-amd64"
    assert log_of_build.tail == "line 37\nline 38\nline 39"
