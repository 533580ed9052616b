# SPDX-License-Identifier: Apache-2.0
"""Packages, modules, loaded module and GPUs: what does not fit together, and when only a boot helps."""

import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.kernel_modules import parse_show_depends
from ansible.module_utils.gpufleet.modinfo import KernelModule
from ansible.module_utils.gpufleet.nvidia_driver_verdict import (
    MODULE_STILL_DIFFERS,
    PARAMETER_STILL_DIFFERS,
    DriverError,
    differing_parameters,
    kernels_fault,
    reboot_need,
    release_of,
    unfit_kernels,
    unseen_gpus,
)
from ansible.module_utils.gpufleet.nvidia_loaded_driver import LoadedDriver
from ansible.module_utils.gpufleet.nvidia_module_facts import LogReason

OLD, NEW = "580.95.05", "580.105.08"
MIT = "Dual MIT/GPL"


def module(version: str = NEW, license_text: str = MIT, vermagic: str = "k SMP") -> KernelModule:
    return KernelModule("/lib/modules/k/updates/dkms/nvidia.ko", version, license_text, vermagic)


def test_packages_of_one_driver_are_equal_to_the_last_digit() -> None:
    """Bug 100, peers' items 18 and 23."""
    assert (
        release_of({"nvidia-open": f"{NEW}-0ubuntu1", "nvidia-fabricmanager": f"{NEW}-1"}, "nvidia-fabricmanager")
        == NEW
    )
    with pytest.raises(DriverError) as raised:
        release_of({"nvidia-open": "580.95.05-1", "nvidia-fabricmanager": "580.95.04-1"}, "nvidia-fabricmanager")
    assert "nvidia-fabricmanager 580.95.04-1" in str(raised.value) and "last digit" in str(raised.value)
    assert "nvidia_driver_upgrade" in raised.value.next_step


def test_kernels_that_would_come_up_without_the_driver_are_named() -> None:
    modules = {
        "k": module(),
        "none": None,
        "old": module(OLD, vermagic="old SMP"),
        "other": module(vermagic="k SMP"),
        "closed": module(license_text="NVIDIA", vermagic="closed SMP"),
    }
    found = unfit_kernels(modules, NEW, "open")
    assert list(found) == ["none", "old", "other", "closed"]
    assert found["none"] == "no module" and found["old"].startswith(OLD) and "built for k" in found["other"]
    assert "proprietary" in found["closed"] and "no module" in kernels_fault(found, NEW, "open", "none")
    assert "none (running)" in kernels_fault(found, NEW, "open", "none")
    assert set(unfit_kernels(modules, None, "open")) == {"none", "other", "closed"}, "any version"


@pytest.mark.parametrize(
    ("loaded", "modules", "running", "nouveau", "said"),
    [
        (None, {"k": module()}, "k", False, None),
        ((NEW, "open"), {"k": module()}, "k", False, None),
        ((OLD, "open"), {"k": module()}, "k", False, f"{OLD} (open) is loaded, {NEW} (open) is installed"),
        ((NEW, "proprietary"), {"k": module()}, "k", False, "(proprietary) is loaded"),
        ((NEW, "open"), {"j": module()}, "k", False, "k is no longer installed"),
        (None, {"k": module()}, "k", True, "nouveau is loaded"),
        ((NEW, "open"), {"k": None}, "k", False, None),
    ],
)
def test_when_only_a_boot_brings_what_is_installed(
    loaded: "tuple[str, str] | None",
    modules: "dict[str, KernelModule | None]",
    running: str,
    nouveau: bool,
    said: "str | None",
) -> None:
    """Bug 098, peers' item 2."""
    need = reboot_need(LoadedDriver(*loaded) if loaded else None, modules, running, {}, nouveau)
    assert (need is None) if said is None else (need is not None and said in need.reason)


def test_options_that_the_loaded_module_does_not_have() -> None:
    """Peers' item on ansible-role-nvidia-driver: a changed file of options was followed by nothing."""
    wanted = {"NVreg_RestrictProfilingToAdminUsers": "0", "NVreg_EnableStreamMemOPs": "0x1", "NVreg_Unlisted": "1"}
    loaded = {"RmProfilingAdminOnly": "1", "EnableStreamMemOPs": "1"}
    differing = differing_parameters(wanted, loaded)
    assert differing == {"NVreg_RestrictProfilingToAdminUsers": ("RmProfilingAdminOnly", "0", "1")}
    need = reboot_need(LoadedDriver(NEW, "open"), {"k": module()}, "k", differing, False)
    assert need is not None and "NVreg_RestrictProfilingToAdminUsers=1" in need.reason
    assert need.still_needed == (*PARAMETER_STILL_DIFFERS, "RmProfilingAdminOnly", "0")


@pytest.mark.parametrize(
    ("text", "stands"), [("RmProfilingAdminOnly: 1\n", True), ("RmProfilingAdminOnly: 0\n", False)]
)
def test_the_command_of_an_option_tells_whether_it_still_differs(tmp_path: Path, text: str, stands: bool) -> None:
    (tmp_path / "params").write_text(text)
    script = PARAMETER_STILL_DIFFERS[2].replace("/proc/driver/nvidia/params", str(tmp_path / "params"))
    argv = [*PARAMETER_STILL_DIFFERS[:2], script, "RmProfilingAdminOnly", "0"]
    assert (subprocess.run(argv, timeout=30, check=False).returncode == 0) is stands


@pytest.mark.parametrize(
    "shown", ["insmod /lib/modules/k/nvidia.ko NVreg_X=1", "install modprobe -i nvidia-current $X"]
)
@pytest.mark.parametrize(
    ("loaded", "installed", "license_text", "stands"),
    [(NEW, NEW, MIT, False), (OLD, NEW, MIT, True), (NEW, NEW, "NVIDIA", True), (None, NEW, MIT, False)],
)
def test_the_command_of_the_module_tells_whether_it_still_differs(
    tmp_path: Path, shown: str, loaded: "str | None", installed: str, license_text: str, stands: bool
) -> None:
    name = "/lib/modules/k/nvidia.ko" if shown.startswith("insmod") else "nvidia-current"
    for program, text in (
        ("modprobe", f"echo 'insmod /lib/modules/k/drm.ko'; echo '{shown}'"),
        (
            "modinfo",
            f'[ "$3" = {name} ] || exit 1; case $2 in version) echo {installed};; *) echo "{license_text}";; esac',
        ),
    ):
        (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / program).chmod(0o755)
    if loaded:
        (tmp_path / "version").write_text(f"{loaded}\n")
    (tmp_path / "proc").write_text(f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {loaded}  Release\n")
    script = MODULE_STILL_DIFFERS[2].replace("/sys/module/nvidia/version", str(tmp_path / "version"))
    script = script.replace("/proc/driver/nvidia/version", str(tmp_path / "proc"))
    script = script.replace("PATH=$PATH", f"PATH={tmp_path}:$PATH")
    done = subprocess.run([*MODULE_STILL_DIFFERS[:2], script], timeout=30, check=False)
    assert (done.returncode == 0) is stands


def test_the_module_that_modprobe_would_take() -> None:
    """Debian's own line, which modinfo does not know of."""
    debian = parse_show_depends("install modprobe -i nvidia-current-open $CMDLINE_OPTS \n")
    assert debian is not None and (debian.path, debian.name) == (None, "nvidia-current-open")
    plain = parse_show_depends("insmod /lib/modules/k/drm.ko.xz \ninsmod /lib/modules/k/updates/dkms/nvidia.ko a=1\n")
    assert plain is not None and plain.path == "/lib/modules/k/updates/dkms/nvidia.ko"
    assert parse_show_depends("modprobe: FATAL: Module nvidia not found in directory /lib/modules/k\n") is None


def test_a_driver_that_does_not_see_its_gpus_says_why() -> None:
    assert unseen_gpus(["0000:1b:00.0"], 1, "", []) is None
    none = unseen_gpus([], 0, "", [])
    assert none is not None and "no NVIDIA GPU" in str(none) and "platform.gpu" in str(none)
    reason = LogReason("other_driver", "GPU 0000:1b:00.0 is already bound to vfio-pci")
    some = unseen_gpus(["0000:1b:00.0", "0000:43:00.0"], 1, "GPU 0: H100", [reason])
    assert some is not None and "1 of 2 GPUs" in str(some) and "bound to vfio-pci" in str(some)
    silent = unseen_gpus(["0000:1b:00.0"], 0, "No devices were found", [])
    assert silent is not None and "does not say why" in str(silent)
