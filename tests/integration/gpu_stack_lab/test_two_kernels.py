# SPDX-License-Identifier: Apache-2.0
"""Debian's real driver on the virtual node: modules for two kernels, a boot into each, and no GPU to be found.

The image brings both kernels, and packages with the modules that DKMS has built for each. The tests follow each other
on one node, since a boot takes over a minute; they begin on a node in any state and end on one with the stack as
profiled, in the kernel that it boots by default.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import LabNode
from tests.playbook import PlaybookRun, run_playbook

pytestmark = pytest.mark.lab

# What the open module says to the kernel log, and modprobe to the caller.
NO_GPU = "NVRM: No NVIDIA GPU found."
MODULES = ("nvidia-current-open", "nvidia-current-open-uvm", "nvidia-current-open-peermem")
# The image's first grub.cfg knows one kernel; update-grub's has the entry of each below a submenu.
BOOT_ONCE = r"""
set -e
grep -q gnulinux-advanced /boot/grub/grub.cfg || update-grub 2>/dev/null
root=$(findmnt --noheadings --output UUID /)
grub-reboot "gnulinux-advanced-$root>gnulinux-{kernel}-advanced-$root"
sync
systemctl reboot
"""


class Driver:
    """The node's driver: the role's runs over it, and what the node itself says."""

    def __init__(self, node: LabNode, work: Path) -> None:
        self.node, self.work = node, work
        self.kernels = node.run("ls /lib/modules").split()

    def run(self, tags: str) -> PlaybookRun:
        """The driver's part of playbooks/gpu_stack.yml."""
        return run_playbook("playbooks/gpu_stack.yml", self.work / str(time.monotonic_ns()), "--tags", tags)

    def succeeds(self, tags: str = "nvidia_driver") -> dict[str, Any]:
        """The report's entry of the node after a run that must not fail."""
        done = self.run(tags)
        assert done.code == 0, done.output
        return done.host(self.node.name)

    def running(self) -> str:
        return self.node.run("uname -r").strip()

    def other(self) -> str:
        (other,) = set(self.kernels) - {self.running()}
        return other

    def module_field(self, kernel: str, module: str, field: str) -> str:
        return self.node.run(f"modinfo -k {kernel} -F {field} {module}").strip()

    def finds_no_gpu(self) -> bool:
        """Whether the kernel takes the module in, and the module refuses for the reason that fits this node."""
        self.node.run("dmesg --clear")
        said = self.node.run("modprobe nvidia 2>&1; echo status $?")
        assert "No such device" in said and "status 0" not in said, said
        assert NO_GPU in self.node.run("dmesg")
        return "nvidia" not in self.node.run("cut -d ' ' -f 1 /proc/modules").split()


@pytest.fixture(scope="module")
def driver(lab_node: LabNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    yield Driver(lab_node, tmp_path_factory.mktemp("driver"))


def test_both_kernels_have_the_module_and_it_says_that_there_is_no_gpu(driver: Driver) -> None:
    driver.succeeds()
    assert len(driver.kernels) == 2
    version = driver.node.run("dpkg-query --show --showformat '${Version}' nvidia-smi").partition("-")[0]
    for kernel in driver.kernels:
        for module in MODULES:
            assert driver.module_field(kernel, module, "vermagic").split()[0] == kernel
            assert driver.module_field(kernel, module, "version") == version
    assert driver.finds_no_gpu()


def test_the_real_nvidia_smi_gives_way_to_the_labs_stand_in(driver: Driver) -> None:
    node = driver.node
    node.fault("gpu", "none")
    assert node.run("command -v nvidia-smi").strip() == "/usr/bin/nvidia-smi"
    said = node.run("nvidia-smi -L; echo status $?", check=False)
    assert "couldn't communicate with the NVIDIA driver" in said and "status 9" in said
    node.fault("gpu", "535.261.03-h100-healthy")
    try:
        assert node.run("command -v nvidia-smi").strip() == "/usr/local/bin/nvidia-smi"
        assert "GPU 0: NVIDIA H100" in node.run("nvidia-smi -L")
    finally:
        node.fault("gpu", "none")


def test_a_kernel_without_module_is_found_and_mended(driver: Driver) -> None:
    """By the part that verifies alone; the whole role brings the package again."""
    other = driver.other()
    driver.node.run(f"dpkg --remove nvidia-modules-{other}")
    done = driver.run("nvidia_driver_verify")
    assert done.code == 2, done.output
    said = json.dumps(done.host(driver.node.name)["attention"])
    assert f"{other} has no module" in said and f"{driver.running()} has no module" not in said
    assert "packages.nvidia_driver.module_package" in said
    assert driver.succeeds()["changed"] > 0
    assert driver.module_field(other, MODULES[0], "vermagic").split()[0] == other


def test_a_boot_into_the_other_kernel_and_back(driver: Driver) -> None:
    first, second = driver.running(), driver.other()
    for kernel, command in ((second, BOOT_ONCE.format(kernel=second)), (first, "systemctl reboot")):
        driver.node.run(command, check=False)
        driver.node.wait_for_new_boot()
        assert driver.running() == kernel
        assert driver.node.run("systemctl --failed --no-legend").strip() == "", "a node without GPU boots clean"
        assert driver.finds_no_gpu()
        if kernel == second:
            entry = driver.succeeds()
            assert entry["changed"] == 0 and entry["attention"] == [], entry
