# SPDX-License-Identifier: Apache-2.0
"""Whether each GPU has a NIC of its own below its PCIe switch, by the PCI tree, with `nvidia-smi topo -m` as witness.

GPUDirect RDMA takes the way over the switch; a pair that is torn apart sends everything through the CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .check import Check, Profile
from .finding import Evidence, Finding
from .gpu_topology import BELOW_ONE_SWITCH, GpuTopology
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .pci_tree import LSPCI, PciDevice, PciTree, devices_of_class
from .probe import NoEvidence, ParseError, Probe, ProbeResult

TOPOLOGY = "nvidia_smi.topology"
RDMA_DEVICES = "infiniband.pci_addresses"
REFERENCE = "NVIDIA GPUDirect RDMA documentation, supported systems; profile, devices.*.pair_with"

_UEVENT_LINE = re.compile(r"/sys/class/infiniband/([^/]+)/device/uevent:(.*)")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CARD_ADVICE = (
    "compare the slots of the node with a healthy one: a card may sit in another slot, a switch may have lost a port, "
    "or a device below it is missing from lspci; take the node out of service until the pair is together again"
)


def parse_rdma_devices(result: ProbeResult) -> dict[str, str]:
    """PCI address (0000:9c:00.0) by name of the RDMA device (mlx5_3). Raises ParseError for a device without one."""
    found: dict[str, str] = {}
    seen: dict[str, None] = {}
    for line in result.stdout.splitlines():
        match = _UEVENT_LINE.fullmatch(line)
        if match is None:
            raise ParseError(f"no line of a device's uevent file: {line!r}")
        name, text = match.groups()
        seen[name] = None
        key, _, value = text.partition("=")
        if key == "PCI_SLOT_NAME":
            if not _ADDRESS.fullmatch(value.lower()):
                raise ParseError(f"no PCI address: {line!r}")
            found[name] = value.lower()
    lost = [name for name in seen if name not in found]
    if lost or not found:
        raise ParseError(f"no PCI_SLOT_NAME for {', '.join(lost) or 'any RDMA device'}")
    return found


def check_pairing(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Each GPU has a NIC of its own, nearer than any other: both below the same PCIe switch.

    Where `nvidia-smi topo -m` lists the NICs it must say the same (PIX or PXB), and a GPU's NUMA node must be the same
    for both. A NUMA node that nobody knows (-1, N/A) is no NUMA node 0.

    Source: NVIDIA GPUDirect RDMA documentation, supported systems; the kinds are paired by devices.*.pair_with.
    """
    kinds: Mapping[str, Any] = profile.get("devices") or {}
    pairings = [
        (kind, str(device["pair_with"]))
        for kind, device in kinds.items()
        if device.get("pair_with") in kinds and "gpu" in (kind, device["pair_with"])
    ]
    if not pairings:
        yield Finding("node", "skipped", "the profile pairs GPUs with nothing (devices.gpu.pair_with)")
        return
    tree: PciTree = evidence.facts(LSPCI)
    found: list[Finding] = []
    pairs: dict[str, str] = {}
    for kind, other in pairings:
        mine, others = devices_of_class(tree, kinds[kind]), devices_of_class(tree, kinds[other])
        if not mine or not others:
            raise NoEvidence(LSPCI, f"lists {len(mine)} devices of kind {kind} and {len(others)} of kind {other}")
        if not any(tree.shared_bridge(one.address, two.address) for one in mine for two in others):
            what = f"no {kind} shares a bridge with any {other}: the tree shows no switches (a virtual machine?)"
            raise NoEvidence(LSPCI, what)
        for device in mine:
            near = _nearest(tree, device, others)
            back = _nearest(tree, near[0], mine) if len(near) == 1 else []
            if [one.slot for one in back] == [device.slot]:
                gpu, nic = (device, near[0]) if kind == "gpu" else (near[0], device)
                pairs.setdefault(gpu.address, nic.address)
            else:
                found.append(_torn_apart(tree, kind, device, other, near))
    numbers = _gpu_numbers(evidence)
    found = [finding._replace(component=_named(finding.component, numbers)) for finding in found]
    witness, contradictions = _second_witness(evidence, tree, pairs, numbers)
    yield from found
    yield from contradictions
    if not found and not contradictions:
        yield _all_paired(tree, pairs, witness)


def _nearest(tree: PciTree, device: PciDevice, others: Iterable[PciDevice]) -> list[PciDevice]:
    """Those of the others that share the most bridges with the device; of a card with two ports its first function."""
    best, near = 0, []
    for other in others:
        bridge = tree.shared_bridge(device.address, other.address)
        depth = 0 if bridge is None else 1 + len(tree.path_to_root(bridge.address))
        if depth > best:
            best, near = depth, [other]
        elif depth == best and depth and other.slot not in [one.slot for one in near]:
            near.append(other)
    return near


def _torn_apart(tree: PciTree, kind: str, device: PciDevice, other: str, near: list[PciDevice]) -> Finding:
    path = " < ".join(bridge.address for bridge in tree.path_to_root(device.address)) or "the root complex"
    if not near:
        observed = f"no {other} below any bridge above it ({path}): traffic between them passes the CPU"
    else:
        names = ", ".join(one.address for one in near)
        observed = f"no {other} of its own: {names} is as near to it as to another {kind} ({path})"
    return Finding(
        device.address if kind == "gpu" else f"NIC {device.address}",
        "fail",
        observed,
        f"one {other} of its own below the same PCIe switch (devices.{kind}.pair_with: {other})",
        "inspect",
        _CARD_ADVICE,
        (Evidence(LSPCI, device.heading),),
        REFERENCE,
    )


def _gpu_numbers(evidence: NodeEvidence) -> dict[str, int]:
    """nvidia-smi's number of each GPU by address; empty where nvidia-smi said nothing."""
    try:
        return {gpu.address: gpu.index for gpu in evidence.facts(QUERY).gpus}
    except NoEvidence:
        return {}


def _named(address: str, numbers: Mapping[str, int]) -> str:
    if not _ADDRESS.fullmatch(address):
        return address
    return f"GPU {numbers[address]} ({address})" if address in numbers else f"GPU {address}"


def _second_witness(
    evidence: NodeEvidence, tree: PciTree, pairs: Mapping[str, str], numbers: Mapping[str, int]
) -> tuple[str, list[Finding]]:
    """What topo -m says of the pairs, in words, and where it says something else."""
    try:
        topology: GpuTopology = evidence.facts(TOPOLOGY)
    except NoEvidence as error:
        return f"topo -m could not be asked: {error.reason}", []
    found = list(_other_numa_nodes(topology, tree, numbers))
    if not topology.nics:
        return "topo -m lists no NIC, so it bears nothing out", found
    try:
        addresses: Mapping[str, str] = evidence.facts(RDMA_DEVICES)
    except NoEvidence as error:
        return f"the names of the NICs in topo -m cannot be told: {error.reason}", found
    columns = {addresses.get(name, ""): column for column, name in topology.nic_names.items()}
    said = []
    for gpu, nic in pairs.items():
        row, column = f"GPU{numbers.get(gpu, -1)}", columns.get(nic)
        if row not in topology.gpus or column is None:
            continue
        path = topology.paths[row, column]
        said.append(path)
        if path not in BELOW_ONE_SWITCH:
            found.append(_contradiction(gpu, nic, row, column, path, numbers))
    if not said:
        return "topo -m names none of these pairs", found
    return f"topo -m says {', '.join(sorted(set(said)))} for {len(said)} of {len(pairs)} pairs", found


def _contradiction(gpu: str, nic: str, row: str, column: str, path: str, numbers: Mapping[str, int]) -> Finding:
    return Finding(
        _named(gpu, numbers),
        "warn",
        f"by lspci NIC {nic} is below its switch, but topo -m calls the way from {row} to {column} {path}",
        "PIX or PXB, as lspci says",
        "observe",
        "the two disagree: look at both with the tree of `lspci -tv`; renamed RDMA devices or a change of bus numbers "
        "since the driver was loaded explain it, and a reboot puts it right",
        (Evidence(TOPOLOGY, f"{row} {column}: {path}"), Evidence(LSPCI, f"{gpu} and {nic} share a switch")),
        REFERENCE,
    )


def _other_numa_nodes(topology: GpuTopology, tree: PciTree, numbers: Mapping[str, int]) -> Iterator[Finding]:
    for address, number in numbers.items():
        nodes = topology.numa.get(f"GPU{number}")
        device = tree.devices.get(address)
        if nodes is None or device is None or device.numa_node is None or device.numa_node in nodes:
            continue
        yield Finding(
            _named(address, numbers),
            "warn",
            f"NUMA node {device.numa_node} by lspci, {', '.join(map(str, sorted(nodes)))} by topo -m",
            "the same NUMA node",
            "observe",
            "jobs are pinned by one of the two: compare with /sys/bus/pci/devices/" + address + "/numa_node",
            (Evidence(TOPOLOGY, f"GPU{number} NUMA Affinity"), Evidence(LSPCI, device.heading)),
            "bugs 018 and 021: an unknown NUMA node taken for node 0",
        )


def _all_paired(tree: PciTree, pairs: Mapping[str, str], witness: str) -> Finding:
    unknown_numa = sum(tree.devices[gpu].numa_node is None for gpu in pairs)
    numa = f"; the NUMA node of {unknown_numa} GPUs is not known" if unknown_numa else ""
    names = ", ".join(f"{gpu} and {nic}" for gpu, nic in pairs.items())
    return Finding(
        "node",
        "ok",
        f"{len(pairs)} GPUs, each with a NIC of its own below its switch; {witness}{numa}",
        evidence=(Evidence(LSPCI, names), Evidence(TOPOLOGY)),
        reference=REFERENCE,
    )


PROBES: tuple[Probe, ...] = (Probe(RDMA_DEVICES, parse_rdma_devices, paths=("/sys/class/infiniband/*/device/uevent",)),)
CHECKS: tuple[Check, ...] = (
    Check("gpu.nic_pairing", check_pairing, needs=(LSPCI,), also=(TOPOLOGY, RDMA_DEVICES, QUERY)),
)
