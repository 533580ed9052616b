# SPDX-License-Identifier: Apache-2.0
"""What stands between a node and the RDMA stack that its profile wants: what no run can mend, and what a boot mends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .kernel_modules import KERNEL_STILL_GONE
from .rdma_devices import NAMES_STILL_DIFFER
from .rdma_facts import (
    ORIGIN_OF_SOURCE,
    STACK_MODULES,
    LoadedModule,
    ModuleFile,
    OfedVersion,
    RdmaDevice,
    differs_from_file,
    misnamed,
    stack_name,
)

DKMS_PACKAGE = "mlnx-ofed-kernel-dkms"


def still_other_modules(sys_module: str = "/sys/module") -> tuple[str, ...]:
    """argv that exits 0 while a module of the stack is loaded that is another one than modprobe would load now.

    The same comparison as differs_from_file: where it comes from, then version, then srcversion. A modinfo that cannot
    tell leaves the reason standing.
    """
    return (
        "/bin/sh",
        "-c",
        "PATH=$PATH:/usr/sbin:/sbin\n"
        f"for name in {' '.join(STACK_MODULES)}; do\n"
        f"  module={sys_module}/$name\n"
        "  test -e $module/taint || continue\n"
        "  file=$(modinfo -n $name) || exit 0\n"
        "  case $file in */kernel/drivers/*|*/kernel/net/*|*builtin*) want=inbox;; *) want=ofed;; esac\n"
        "  case $(cat $module/taint) in *O*) have=ofed;; *) have=inbox;; esac\n"
        "  test $want = $have || exit 0\n"
        "  for what in version srcversion; do\n"
        "    test -e $module/$what || continue\n"
        "    stated=$(modinfo -F $what $name)\n"
        '    test -z "$stated" || test "$stated" = "$(cat $module/$what)" || exit 0\n'
        "  done\n"
        "done\n"
        "exit 1",
    )


class RdmaStack(NamedTuple):
    """What is on a node.

    source: vendor, mirror or distro. kernels: release -> module of STACK_MODULES -> what that kernel would load, None
    where it has none. running: release. loaded: STACK_MODULES that are in the kernel. ofed: what ofed_info says, None
    where there is none. devices: below /sys/class/infiniband. hcas: PCI addresses of the HCAs that mlx5 drives.
    device_names: kernel or pci.
    """

    source: str
    kernels: Mapping[str, Mapping[str, ModuleFile | None]]
    running: str
    loaded: Mapping[str, LoadedModule]
    ofed: OfedVersion | None
    devices: Sequence[RdmaDevice]
    hcas: Sequence[str]
    device_names: str

    @property
    def origin(self) -> str:
        """ "ofed" or "inbox", as the source brings it."""
        return ORIGIN_OF_SOURCE[self.source]


class Fault(NamedTuple):
    """what: what is wrong and where. next_step: what to do."""

    what: str
    next_step: str


def installation_fault(stack: RdmaStack) -> Fault | None:
    """What is wrong with what is on disk, for any installed kernel, or None.

    A kernel with the modules of the other stack would boot with that one (bug 112); one without any comes up without
    HCAs. A node without HCAs needs no inbox modules (cloud kernels leave them out).
    """
    if stack.origin == "ofed" and stack.ofed is None:
        return Fault(
            f"ofed_info is not there, although source {stack.source} brings DOCA-OFED",
            "look at /var/log/apt/term.log on the node; the package doca-ofed must bring ofed-scripts",
        )
    for release, modules in stack.kernels.items():
        named = f"kernel {release}" + (" (running)" if release == stack.running else "")
        fault = _fault_of_kernel(stack, named, modules)
        if fault:
            return fault
    return None


def _fault_of_kernel(stack: RdmaStack, named: str, modules: Mapping[str, ModuleFile | None]) -> Fault | None:
    missing = [name for name, module in modules.items() if module is None]
    if missing and (stack.origin == "ofed" or stack.hcas):
        what = f"{named} has no module {', '.join(missing)}, so a boot into it comes up without HCAs"
        if stack.origin == "inbox":
            return Fault(what, "install the package with the drivers of that kernel (not a cloud kernel), or remove it")
        return Fault(what, _rebuild_step())
    foreign = [module for module in modules.values() if module is not None and module.origin != stack.origin]
    if foreign and stack.origin == "ofed":
        return Fault(
            f"{named} would load {foreign[0].path}, which is of the {stack_name('inbox')}, although "
            f"{stack.ofed.name if stack.ofed else 'DOCA-OFED'} is installed (bug 112)",
            _rebuild_step(),
        )
    if foreign:
        return Fault(
            f"{named} would load {foreign[0].path}, which is of the {stack_name('ofed')}, although "
            f"packages.rdma.source is {stack.source}",
            f"purge what brought it (apt-get purge --allow-change-held-packages {DKMS_PACKAGE} and what depends on it; "
            "README of role rdma_stack), or set packages.rdma.source",
        )
    driver = modules.get("mlx5_core")
    # MLNX_OFED_LINUX-23.10-1.1.9.0 holds OFED-23.10-1.1.9 (hca_self_test.ofed, imbue.md)
    if (
        stack.origin == "ofed"
        and stack.ofed
        and driver is not None
        and driver.version is not None
        and not f"{stack.ofed.version}.".startswith(f"{driver.version}.")
    ):
        return Fault(
            f"{named} would load mlx5_core {driver.version} ({driver.path}), and {stack.ofed.name} is installed",
            _rebuild_step(),
        )
    return None


def _rebuild_step() -> str:
    return (
        f"see dkms status and the make.log below /var/lib/dkms/mlnx-ofed-kernel; with the headers of that kernel "
        f"installed run dpkg-reconfigure {DKMS_PACKAGE}, or remove the kernel if it is an old one"
    )


class RebootNeed(NamedTuple):
    """reason, and the argv that exits 0 while it stands."""

    reason: str
    still_needed: tuple[str, ...]


def modules_need(stack: RdmaStack) -> RebootNeed | None:
    """Why only a boot (or a restart of the stack) brings what is installed, or None."""
    if stack.running not in stack.kernels:
        if not stack.loaded and not stack.hcas:
            return None
        installed = ", ".join(stack.kernels)
        return RebootNeed(
            f"the running kernel {stack.running} is no longer installed (installed: {installed}), so modules of its "
            "RDMA stack cannot be loaded any more",
            KERNEL_STILL_GONE,
        )
    files = stack.kernels[stack.running]
    for name in STACK_MODULES:
        loaded, file = stack.loaded.get(name), files.get(name)
        difference = differs_from_file(loaded, file) if loaded is not None and file is not None else None
        if difference:
            return RebootNeed(f"RDMA stack: {difference}", still_other_modules())
    return None


def names_need(stack: RdmaStack) -> RebootNeed | None:
    """Why only a boot gives the HCAs the names that the profile wants, or None.

    A device that is renamed while it is there breaks what has been told its name.
    """
    wrong = misnamed(stack.devices, stack.device_names)
    if not wrong:
        return None
    names = ", ".join(f"{device.name} ({device.pci_address})" for device in wrong[:3])
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return RebootNeed(
        f"HCA {names}{more} has another name than packages.rdma.device_names: {stack.device_names} gives",
        NAMES_STILL_DIFFER[stack.device_names],
    )


def hcas_without_device(stack: RdmaStack) -> list[str]:
    """PCI addresses of HCAs that no RDMA device belongs to, while mlx5_ib is loaded.

    Two functions that are bonded share one device (mlx5_bond_0, bug 045), so a bond hides the missing.
    """
    if "mlx5_ib" not in stack.loaded or any("_bond_" in device.name for device in stack.devices):
        return []
    have = {device.pci_address for device in stack.devices}
    return [address for address in stack.hcas if address not in have]
