# SPDX-License-Identifier: Apache-2.0
"""Kernels and their ZFS modules: what fits the user land, and when only a boot helps."""

import os
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.modinfo import KernelModule
from ansible.module_utils.gpufleet.package_version import upstream_version
from ansible.module_utils.gpufleet.zfs_kernel_modules import (
    MODULE_STILL_DIFFERS,
    ZfsPackagesError,
    fits,
    kernels_without_module,
    minor_release,
    module_package_of,
    reboot_need,
    same_upstream,
    unfit_modules,
)


def module(version: str, path: str = "/lib/modules/k/extra/zfs.ko") -> KernelModule:
    return KernelModule(path, version)


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
