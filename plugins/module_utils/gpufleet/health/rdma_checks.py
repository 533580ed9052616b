# SPDX-License-Identifier: Apache-2.0
"""RDMA stack and HCAs: what is loaded is what is installed and profiled, and each HCA has its RDMA device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..package_version import upstream_version
from ..rdma_facts import (
    MELLANOX,
    ORIGIN_OF_SOURCE,
    STACK_MODULES,
    ModuleFile,
    RdmaDevice,
    differs_from_file,
    misnamed,
    named_by,
    stack_name,
)
from .check import Check, Profile
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .pci_tree import LSPCI, PciDevice, PciTree, devices_of_class
from .probe import NoEvidence
from .rdma_stack import LIBRARY, STACK, STACK_PACKAGES, RdmaStack

_PLAYBOOK = "run playbooks/gpu_stack.yml on this node"
_ROLE = "role rdma_stack"
# In the versions of the libraries that DOCA-OFED brings in the place of the distribution's: 2507mlnx58-1.2507097
_VENDOR_LIBRARY = "mlnx"


def no_hcas(profile: Profile) -> Finding | None:
    """The `skipped` of a node whose profile has no HCAs; None where something is to be judged."""
    kind = (profile.get("devices") or {}).get("hca")
    if kind is not None and kind["count"]:
        return None
    return Finding("node", "skipped", "the profile has no HCA (devices.hca)")


def _hcas(evidence: NodeEvidence, profile: Profile) -> list[PciDevice]:
    tree: PciTree = evidence.facts(LSPCI)
    if not tree.with_ids:
        raise NoEvidence(LSPCI, "lspci was called without -nn, so there are no vendor and device ids")
    return devices_of_class(tree, profile["devices"]["hca"])


def check_stack(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """The RDMA stack is the profiled one, of the profiled version, and the kernel runs what is installed.

    After an install the old modules stay loaded until a reboot, or for good where one cannot be built; openibd says OK
    all the same. The modules in the kernel decide, not what a tool prints.

    Source: packages.rdma of the profile; role rdma_stack; bugs 111, 112
    """
    nothing = no_hcas(profile)
    if nothing is not None:
        yield nothing
        return
    wanted = profile["packages"]["rdma"]
    stack: RdmaStack = evidence.facts(STACK)
    needed = any(device.vendor == MELLANOX for device in _hcas(evidence, profile))
    found = list(_packages(stack, wanted))
    for name in STACK_MODULES:
        found += _module(stack, name, wanted, needed)
    if wanted["manage"] and needed:
        found += _other_kernels(stack, wanted)
    yield from found
    if not found:
        yield Finding("node", "ok", _described(stack, wanted, needed), evidence=(Evidence(STACK), Evidence(LSPCI)))


def _packages(stack: RdmaStack, wanted: Mapping[str, Any]) -> Iterator[Finding]:
    name, version = STACK_PACKAGES[wanted["source"]], wanted["version"]
    installed = stack.packages.get(name)
    expected = f"{name} {version} (packages.rdma.version)" if version is not None else f"{name} (packages.rdma.source)"
    if installed is None:
        if wanted["manage"] or version is not None:
            yield _finding("warn", f"package {name} is not installed", expected, "none", f"{_PLAYBOOK}", name)
        return
    if version is not None and upstream_version(installed) != version:
        yield _finding(
            "warn", f"package {name} {installed}", expected, "none", f"drain the node, then {_PLAYBOOK}", installed
        )
    library = stack.packages.get(LIBRARY)
    if wanted["manage"] and library is not None and (_VENDOR_LIBRARY in library) != (name == "doca-ofed"):
        whose = "DOCA-OFED" if _VENDOR_LIBRARY in library else "the distribution"
        yield _finding(
            "warn",
            f"{LIBRARY} {library} is of {whose}",
            f"the library that belongs to {name}",
            "none",
            f"libraries and kernel modules are of two stacks: {_PLAYBOOK}, which pins one of them out",
            library,
        )


def _module(stack: RdmaStack, name: str, wanted: Mapping[str, Any], needed: bool) -> Iterator[Finding]:
    loaded, file = stack.loaded.get(name), stack.files[name]
    origin = ORIGIN_OF_SOURCE[wanted["source"]]
    expected = f"{name} of the {stack_name(origin)} (packages.rdma.source {wanted['source']})"
    if loaded is None:
        if needed:
            advice = f"see dmesg for why {name} was not loaded; modprobe {name}"
            if file is None:
                advice = f"kernel {stack.running} has no {name}: {_PLAYBOOK}, or boot a kernel that has it"
            yield _finding("fail", f"{name} is not loaded", f"{name} is loaded: there are HCAs", "none", advice, name)
        return
    judged = wanted["manage"] and file is not None
    if judged and file is not None and file.origin != origin:
        yield _finding(
            "fail",
            f"kernel {stack.running} would load {name} of the {stack_name(file.origin)} ({file.path or 'built in'})",
            expected,
            "none",
            f"drain the node, then {_PLAYBOOK}; where DOCA-OFED is installed, its modules were not built for this "
            "kernel: dkms status",
            file.path,
        )
        return
    differs = differs_from_file(loaded, file) if file is not None else None
    if differs is not None:
        wrong_stack = judged and loaded.origin != origin
        yield _finding(
            "fail" if wrong_stack else "warn",
            differs,
            expected if wrong_stack else "the installed module is loaded",
            "reboot",
            "the stack was installed while the old modules were loaded: drain the node and reboot it",
            differs,
        )


def _other_kernels(stack: RdmaStack, wanted: Mapping[str, Any]) -> Iterator[Finding]:
    """Kernels that would boot with another stack, or with none."""
    origin = ORIGIN_OF_SOURCE[wanted["source"]]
    for release, path in stack.other_kernels.items():
        file = ModuleFile("" if path == "(builtin)" else path, None, None, False, (), None, None, None)
        if path and file.origin == origin:
            continue
        yield Finding(
            f"kernel {release}",
            "warn",
            f"it would boot with the {stack_name(file.origin)} ({path})"
            if path
            else "it would boot without mlx5 drivers",
            f"the {stack_name(origin)} in each installed kernel",
            "none",
            f"{_PLAYBOOK}: it says why the modules are not there (dkms status; headers of this kernel), or remove the "
            "kernel",
            (Evidence(STACK, f"{release} {path}"),),
            _ROLE,
        )


def _described(stack: RdmaStack, wanted: Mapping[str, Any], needed: bool) -> str:
    name = STACK_PACKAGES[wanted["source"]]
    says = [f"{name} {stack.packages.get(name, 'not installed')}"]
    core = stack.loaded.get(STACK_MODULES[0])
    if needed and core is not None:
        version = stack.loaded["mlx5_core"].version if "mlx5_core" in stack.loaded else None
        says.append(f"the {stack_name(core.origin)} is loaded" + f" ({version})" * bool(version))
    else:
        says.append("no HCA that needs mlx5 drivers")
    return ", ".join(says)


def check_devices(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Each HCA has its RDMA device, as many as the profile says, named by the rule that the profile says.

    An HCA whose driver gave up stays in lspci; a job then runs on fewer rails, or not at all. Names by another rule
    make NCCL_IB_HCA and the fabric's inventory point to other cards.

    Source: devices.hca and packages.rdma.device_names of the profile; rdma-core, kernel-boot/rdma_rename.c
    """
    nothing = no_hcas(profile)
    if nothing is not None:
        yield nothing
        return
    wanted, rule = profile["devices"]["hca"]["count"], profile["packages"]["rdma"]["device_names"]
    stack: RdmaStack = evidence.facts(STACK)
    functions = _hcas(evidence, profile)
    by_address = {device.pci_address: device for device in stack.devices}
    named = {one.address: by_address[one.address] for one in functions if one.address in by_address}
    found = [_no_device(one) for one in functions if one.address not in named]
    if len(functions) != wanted:
        found.append(
            Finding(
                "node",
                "fail" if len(functions) < wanted else "warn",
                f"{len(named)} HCAs with an RDMA device, {len(functions)} on PCIe",
                f"{wanted} (devices.hca.count)",
                "power_cycle" if len(functions) < wanted else "observe",
                "see pcie.devices for the card that is missing"
                if len(functions) < wanted
                else "the profile is of another kind of node: choose the right one (node_profile)",
                (Evidence(STACK, _listing(stack.devices)), Evidence(LSPCI)),
                "profile, devices.hca",
            )
        )
    odd = misnamed(list(named.values()), rule)
    if odd:
        found.append(
            Finding(
                "node",
                "warn",
                f"{_names(odd)} named by rule {' and '.join(sorted({named_by(device) for device in odd}))}",
                f"{rule} (packages.rdma.device_names)",
                "reboot",
                f"{_PLAYBOOK}: it sets the rule, which counts from the next boot on",
                (Evidence(STACK, _listing(stack.devices)),),
                "rdma-core, kernel-boot/rdma_rename.c",
            )
        )
    yield from found
    if not found:
        text = f"{len(named)} HCAs: {_names(named.values())}"
        yield Finding("node", "ok", text, evidence=(Evidence(STACK, _listing(stack.devices)), Evidence(LSPCI)))


def _no_device(function: PciDevice) -> Finding:
    return Finding(
        f"NIC {function.address}",
        "fail",
        f"it has no RDMA device (driver {function.driver or 'none'})",
        "an RDMA device in /sys/class/infiniband",
        "reboot",
        f"see dmesg for {function.address}: firmware that does not answer, mlx5_ib not loaded (rdma.stack), or a port "
        "without RDMA; reboot, then power-cycle the node",
        (Evidence(LSPCI, function.heading), Evidence(STACK)),
        "profile, devices.hca",
    )


def _names(devices: Iterable[RdmaDevice]) -> str:
    return ", ".join(device.name for device in devices)


def _listing(devices: Iterable[RdmaDevice]) -> str:
    return "\n".join(f"{device.name} {device.pci_address or 'virtual'}" for device in devices)


def _finding(status: str, observed: str, expected: str, action: str, advice: str, excerpt: str) -> Finding:
    return Finding("node", status, observed, expected, action, advice, (Evidence(STACK, excerpt),), _ROLE)


CHECKS: tuple[Check, ...] = (
    Check("rdma.stack", check_stack, needs=(STACK, LSPCI)),
    Check("rdma.devices", check_devices, needs=(STACK, LSPCI)),
)
