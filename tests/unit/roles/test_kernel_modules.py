# SPDX-License-Identifier: Apache-2.0
"""Kernels and modules from outside the kernel: what counts as installed, what modinfo, dkms and modprobe mean."""

import os
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.kernel_modules import (
    KERNEL_STILL_GONE,
    DkmsBuild,
    explain_modprobe,
    installed_kernels,
    module_files,
    newest_make_log,
    parse_dkms_status,
)
from ansible.module_utils.gpufleet.modinfo import KernelModule, parse_modinfo

MODINFO = """filename:       /lib/modules/6.12.118+deb13-cloud-amd64/updates/dkms/zfs.ko.xz
version:        2.3.9-0+deb13u1
license:        CDDL
srcversion:     533BB7E5866E52F63B9ACCB
vermagic:       6.12.118+deb13-cloud-amd64 SMP preempt mod_unload modversions
"""


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
    found = [path[len(str(tmp_path)) + 1 :] for path in module_files("k", "zfs", str(tmp_path))]
    assert found == ["k/extra/zfs.ko", "k/kernel/zfs/zfs.ko.zst", "k/updates/dkms/zfs.ko.xz"]


def test_modinfo_is_read_or_refused() -> None:
    path = "/lib/modules/6.12.118+deb13-cloud-amd64/updates/dkms/zfs.ko.xz"
    assert parse_modinfo(MODINFO) == KernelModule(
        path, "2.3.9-0+deb13u1", "CDDL", "6.12.118+deb13-cloud-amd64 SMP preempt mod_unload modversions"
    )
    with pytest.raises(ValueError, match="no version"):
        parse_modinfo("filename:       /lib/modules/k/zfs.ko\nversion:        \nsrcversion: 5\n")
    with pytest.raises(ValueError, match="no filename and no version"):
        parse_modinfo("")


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
        (
            "could not insert 'zfs': Unknown symbol in module, or unknown parameter",
            "6.1",
            "asks for a symbol",
            "one build",
        ),
        ("FATAL: Module zfs not found in directory /lib/modules/6.1", "6.1", "no zfs module for the running", "depmod"),
        ("FATAL: Module zfs not found in directory /lib/modules/5.0", "5.0", "5.0 is no longer installed", "reboot"),
        ("could not insert 'zfs': No such device", "6.1", "no device that it drives", "lspci"),
        ("could not insert 'zfs': Cannot allocate memory", "6.1", "modprobe failed", "dmesg"),
    ],
)
def test_modprobe_failures_are_told_apart(said: str, running: str, what: str, step: str) -> None:
    found = explain_modprobe("zfs", said, running, ["6.1"])
    assert what in found.what and step in found.next_step


@pytest.mark.parametrize(
    "header",
    [
        "DKMS make.log for zfs-2.1.11 for kernel 6.1.0-26-amd64 (x86_64)",
        "DKMS (dkms-3.2.2) make.log for zfs/2.3.9 for kernel 6.1.0-26-amd64 (x86_64)",
    ],
)
def test_the_newest_make_log_is_shown(tmp_path: Path, header: str) -> None:
    assert newest_make_log("zfs", str(tmp_path)) is None
    for number, name in enumerate(("zfs/2.3.2/build", "zfs/2.3.9/build", "nvidia/5/build")):
        (tmp_path / name).mkdir(parents=True)
        log = tmp_path / name / "make.log"
        log.write_text(f"{header}\n\n" + "".join(f"line {line}\n" for line in range(40)) + "\n")
        os.utime(log, (number, number))
    log_of_build = newest_make_log("zfs", str(tmp_path), lines=3)
    assert log_of_build is not None
    assert log_of_build.path.endswith("zfs/2.3.9/build/make.log") and log_of_build.release == "6.1.0-26-amd64"
    assert log_of_build.tail == "line 37\nline 38\nline 39"


def test_dkms_status_of_both_generations() -> None:
    status = parse_dkms_status(
        "nvidia, 396.45, 4.17.14-202.fc28.x86_64, x86_64: installed (original_module exists)\n"
        "nvidia/570.148.08, 5.15.0-139-generic, x86_64: installed\n"
        "zfs/2.1.5, 5.15.0-140-generic, x86_64: built\n"
        "nvidia-current-open/535.261.03: added\n"
    )
    assert status.broken == []
    assert status.builds == [
        DkmsBuild("nvidia", "396.45", "4.17.14-202.fc28.x86_64", "installed"),
        DkmsBuild("nvidia", "570.148.08", "5.15.0-139-generic", "installed"),
        DkmsBuild("zfs", "2.1.5", "5.15.0-140-generic", "built"),
        DkmsBuild("nvidia-current-open", "535.261.03", None, "added"),
    ]


def test_dkms_status_that_ends_at_a_broken_entry_is_no_complete_one() -> None:
    """Bug 102: one entry without its sources hides the state of all that come after it."""
    status = parse_dkms_status(
        "nvidia/570.148.08, 5.15.0-139-generic, x86_64: installed\n"
        "Error! Could not locate dkms.conf file.\n"
        "File: /var/lib/dkms/nvidia/390.48/source/dkms.conf does not exist.\n"
    )
    assert len(status.builds) == 1
    assert status.broken == [
        "Error! Could not locate dkms.conf file.",
        "File: /var/lib/dkms/nvidia/390.48/source/dkms.conf does not exist.",
    ]
