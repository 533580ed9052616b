# SPDX-License-Identifier: Apache-2.0
"""The profile of a node that is known to be good, from its capture: nobody types a hundred expectations."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..profile_schema import SCHEMA, validate
from ..rdma_facts import named_by
from .capture import read_capture
from .check import Check
from .evaluation import evaluate
from .finding import Finding
from .gpu_facts import Absent, Gpu, GpuReport
from .gpu_peer_memory_check import PEER_MEMORY, PeerMemoryFacts
from .health_run import known_names
from .iommu import GROUPS, IommuGroups
from .node_evidence import NodeEvidence
from .nvidia_driver_version import DRIVER_VERSION
from .nvidia_smi_query import QUERY
from .pci_tree import LSPCI, PciDevice, PciTree
from .platform_facts import KERNEL, MACHINE, PROCESSORS, Kernel, Machine, Processors
from .probe import NoEvidence, Probe
from .profile_proposal_containers import container_packages, docker_platform
from .rdma_stack import STACK, RdmaStack
from .system_disks import LINKS, MOUNTS, system_disk_addresses

# PCI base class and subclass: 3D and VGA controller, other bridge, InfiniBand, Ethernet, NVM Express
_GPU, _SWITCH_CHIP, _INFINIBAND, _ETHERNET, _NVME = ("0302", "0300"), ("0680",), ("0207",), ("0200",), ("0108",)
_NVIDIA = "10de"
# How the node is booted, not what it must be.
_OWN_ARGUMENTS = re.compile(
    r"(?:BOOT_IMAGE|root|rootflags|resume|initrd|console|crashkernel|ro|rw|quiet|splash)(?:=|$)"
)
_IOMMU_TYPES = {"identity": "passthrough", "DMA": "translated", "DMA-FQ": "translated"}
_SPEEDS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
_GOVERNORS = ("performance", "powersave", "schedutil", "ondemand", "conservative")
MAX_REASONS = 20


class ProposalError(Exception):
    """No profile can be made of this capture; the message says why."""


def propose_profile(path: str, probes: Sequence[Probe], checks: Sequence[Check]) -> tuple[float | None, dict[str, Any]]:
    """When the capture was made (seconds since the epoch, None where it does not say), and the profile.

    The capture must be healthy by the profile made of it: what the node shows of itself, and the limits of its GPU
    model. Required are the checks that it passes, so that a node on which one cannot be judged is not ok. Raises
    CaptureError, and ProposalError for a capture that is not healthy, or lacks what a profile must say.
    """
    created, results = read_capture(path)
    profile = _complete(SCHEMA, _profile(NodeEvidence(probes, results)))
    findings = evaluate(checks, probes, results, profile, {})
    _refuse(findings)
    statuses: dict[str, set[str]] = {}
    for finding in findings:
        statuses.setdefault(finding.check, set()).add(finding.status)
    profile["required_checks"] = sorted(check for check, found in statuses.items() if found == {"ok"})
    problems = validate(profile, known_names(checks))
    if problems:
        raise ProposalError("the profile is not valid: " + "; ".join(map(str, problems)))
    return created, profile


def _complete(schema: Mapping[str, Any], value: Any) -> Any:
    """The value with what it leaves out: null or empty, which means not judged, or judged by defaults."""
    if schema["type"] == "map" and isinstance(value, Mapping):
        return {key: _complete(schema["values"], inner) for key, inner in value.items()}
    if schema["type"] != "section" or not isinstance(value, Mapping):
        return value
    keys = schema["keys"]
    missing = {key: inner for key, inner in keys.items() if key not in value and not inner.get("optional")}
    return {
        **{key: _complete(keys[key], inner) if key in keys else inner for key, inner in value.items()},
        **{key: _open(inner) for key, inner in missing.items()},
    }


def _open(schema: Mapping[str, Any]) -> Any:
    if schema.get("nullable"):
        return None
    return [] if schema["type"] == "list" else _complete(schema, {})


def _refuse(findings: Sequence[Finding]) -> None:
    bad = [finding for finding in findings if finding.status in ("fail", "unknown", "warn")]
    if not bad:
        return
    bad.sort(key=lambda finding: ("fail", "unknown", "warn").index(finding.status))
    lines = [f"{one.status}: {one.check} {one.component}: {one.observed}" for one in bad[:MAX_REASONS]]
    if len(bad) > MAX_REASONS:
        lines.append(f"and {len(bad) - MAX_REASONS} more")
    raise ProposalError("\n  ".join(["this node is not known to be good:", *lines]))


def _profile(evidence: NodeEvidence) -> dict[str, Any]:
    try:
        tree: PciTree = evidence.facts(LSPCI)
        machine: Machine = evidence.facts(MACHINE)
        kernel: Kernel = evidence.facts(KERNEL)
        processors: Processors = evidence.facts(PROCESSORS)
        devices = _devices(tree, evidence)
        report: GpuReport | None = evidence.facts(QUERY) if "gpu" in devices else None
        iommu = _iommu(evidence.facts(GROUPS), [address for one in devices.values() for address in one["addresses"]])
        rdma, peer_memory = _rdma(evidence), _peer_memory(evidence)
    except NoEvidence as error:
        raise ProposalError(f"the capture lacks what a profile must say: {error}") from error
    missing = [name for name in ("manufacturer", "product") if getattr(machine, name) is None]
    if missing:
        raise ProposalError(f"probe {MACHINE}: the firmware names no {' and no '.join(missing)}")
    gpus = report.gpus if report is not None else ()
    return {
        "schema": 1,
        "description": _description(machine, gpus, devices),
        "devices": {name: _without_addresses(device) for name, device in devices.items()},
        "platform": {
            "system": {"manufacturer": machine.manufacturer, "product": machine.product},
            "clock": {"servers": [], "max_offset_s": 1.0, "max_tracking_offset_s": 0.1},
            "cpu": _cpu(processors),
            "kernel": {
                "version": kernel.release,
                "arguments": [one for one in kernel.arguments if not _OWN_ARGUMENTS.match(one)],
            },
            "iommu": iommu,
            "acs_redirect": "keep" if _redirects(tree, devices) else "off",
            "bios": {},
            **({"gpu": _gpu_modes(gpus)} if gpus else {}),
            "gpu_peer_memory": peer_memory,
            "docker": docker_platform(evidence),
        },
        "packages": {
            "nvidia_driver": {**_DRIVER, "version": _driver(report), "kernel_modules": _flavour(evidence)},
            "rdma": rdma,
            **container_packages(evidence),
            "chrony": {"version": None},
            "node_exporter": {"source": "distro", "version": None, "sha256": None, "distro_version": None},
            "zfs": {"source": "distro", "version": None, "module_package": None},
        },
        "storage": {"pool": _POOL},
        "firmware": _firmware(machine, gpus),
        "limits": {
            "gpu": _gpu_limits(gpus),
            "infiniband": None,
            "kernel_log": _KERNEL_LOG,
            "file_system_used_percent": 95,
        },
        "required_checks": [],
    }


def _description(machine: Machine, gpus: Sequence[Gpu], devices: Mapping[str, Any]) -> str:
    parts = [f"{machine.manufacturer} {machine.product}"]
    parts += [f"{count} x {name}" for name, count in Counter(str(gpu.name) for gpu in gpus).items()]
    parts += [f"{device['count']} x {name}" for name, device in devices.items() if name not in ("gpu",)]
    return ", ".join(parts)


def _devices(tree: PciTree, evidence: NodeEvidence) -> dict[str, Any]:
    """The kinds of devices that a profile describes, each with the addresses found."""

    def of_class(classes: Sequence[str], vendor: str | None = None) -> list[PciDevice]:
        every = [one for one in tree.devices.values() if one.class_code in classes and not one.orphan]
        return [one for one in every if vendor is None or one.vendor == vendor]

    gpus = of_class(_GPU, _NVIDIA)
    hcas, paired = _hcas(tree, gpus, of_class(_INFINIBAND) + of_class(_ETHERNET))
    system = system_disk_addresses(evidence.facts(LINKS), evidence.facts(MOUNTS))
    found = {
        "gpu": gpus,
        "nvswitch": of_class(_SWITCH_CHIP, _NVIDIA),
        "hca": hcas,
        "ethernet": [one for one in of_class(_ETHERNET) if one not in hcas],
        "data_disk": [one for one in of_class(_NVME) if one.address not in system],
    }
    devices = {name: _device_class(tree, some) for name, some in found.items() if some}
    if "data_disk" in devices:
        devices["data_disk"]["without_os_disk"] = True
    if paired:
        devices["gpu"]["pair_with"], devices["hca"]["pair_with"] = "hca", "gpu"
    return devices


def _hcas(tree: PciTree, gpus: Sequence[PciDevice], cards: Sequence[PciDevice]) -> tuple[list[PciDevice], bool]:
    """The cards that serve the GPUs, and whether each GPU has one of its own.

    An HCA whose ports run Ethernet has Ethernet's class: what tells it is that it lies beside a GPU.
    """
    kinds: dict[tuple[str | None, ...], list[PciDevice]] = {}
    for card in cards:
        kinds.setdefault((card.vendor, card.device, card.class_code), []).append(card)
    for kind in kinds.values():
        if gpus and _pairs(tree, gpus, kind):
            return kind, True
    return [card for card in cards if card.class_code in _INFINIBAND], False


def _pairs(tree: PciTree, gpus: Sequence[PciDevice], cards: Sequence[PciDevice]) -> bool:
    """Whether each GPU has one card of its own below the nearest bridge that leads to both."""
    if len(gpus) != len(cards):
        return False
    nearest = set()
    for gpu in gpus:
        above = [bridge.address for bridge in tree.path_to_root(gpu.address)]
        steps = {}
        for card in cards:
            shared = tree.shared_bridge(gpu.address, card.address)
            if shared is not None:
                steps[card.address] = above.index(shared.address)
        best = [card for card, count in steps.items() if count == min(steps.values())]
        if len(best) != 1:
            return False
        nearest.update(best)
    return len(nearest) == len(gpus)


def _device_class(tree: PciTree, found: Sequence[PciDevice]) -> dict[str, Any]:
    ids = sorted({(str(one.vendor), str(one.device), str(one.class_code)) for one in found})
    reads = {one.max_read_request_bytes for one in found}
    links = {_link(tree, one) for one in found}
    link = links.pop() if len(links) == 1 else None
    return {
        "match": [{"vendor": vendor, "device": device, "class": code} for vendor, device, code in ids],
        "count": len(found),
        "link": None if link is None else {"speed_gts": _plain(link[0]), "width": link[1]},
        **({"max_read_request_bytes": reads.pop()} if len(reads) == 1 and None not in reads else {}),
        "pair_with": None,
        "addresses": [one.address for one in found],
    }


def _link(tree: PciTree, device: PciDevice) -> tuple[float, int] | None:
    """What the link of a healthy device trains to under load: an idle one is slower, but not narrower."""
    if device.link_capability is None or device.link_status is None:
        return None
    above = tree.path_to_root(device.address)
    ends = [device.link_capability, *([above[0].link_capability] if above and above[0].link_capability else [])]
    speeds = [end.speed_gts for end in ends if end is not None and end.speed_gts is not None]
    if not speeds or min(speeds) not in _SPEEDS or device.link_status.width not in (1, 2, 4, 8, 16):
        return None
    return min(speeds), device.link_status.width


def _redirects(tree: PciTree, devices: Mapping[str, Any]) -> bool:
    """Whether a bridge above a paired device sends traffic between the two up to the root complex."""
    paired = [address for one in devices.values() if one["pair_with"] for address in one["addresses"]]
    bridges = [bridge for address in paired for bridge in tree.path_to_root(address)]
    return any(bridge.acs_control is not None and bridge.acs_control.redirects for bridge in bridges)


def _without_addresses(device: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in device.items() if key != "addresses"}


def _iommu(groups: IommuGroups, addresses: Sequence[str]) -> str:
    if not groups.types:
        return "off"
    kinds = {groups.types[groups.group_of[address]] for address in addresses if address in groups.group_of}
    modes = {_IOMMU_TYPES.get(kind, kind) for kind in kinds}
    if len(modes) != 1 or not modes <= set(_IOMMU_TYPES.values()):
        raise ProposalError(f"probe {GROUPS}: the IOMMU groups of the devices have no one type: {sorted(kinds)}")
    return modes.pop()


def _cpu(processors: Processors) -> dict[str, Any]:
    if not processors.sockets or processors.numa_nodes % processors.sockets:
        raise ProposalError(
            f"probe {PROCESSORS}: {processors.numa_nodes} NUMA nodes on {processors.sockets} sockets is no even number"
        )
    governor = processors.governors[0] if len(processors.governors) == 1 else None
    return {
        "sockets": processors.sockets,
        "numa_nodes_per_socket": processors.numa_nodes // processors.sockets,
        "governor": governor if governor in _GOVERNORS else None,
    }


def _one(values: Sequence[Any]) -> Any:
    """The value that all parts have, None where they have none, or differ."""
    found = {value for value in values if not isinstance(value, Absent)}
    return found.pop() if len(found) == 1 and len(values) else None


def _plain(number: float | None) -> float | None:
    """32 instead of 32.0."""
    return int(number) if number is not None and number == int(number) else number


def _mode(values: Sequence[Any], words: Mapping[str, str]) -> str | None:
    return words.get(str(_one(values)))


_SWITCH = {"Enabled": "enabled", "Disabled": "disabled"}


def _gpu_modes(gpus: Sequence[Gpu]) -> dict[str, Any]:
    compute = {"Default": "Default", "Exclusive_Process": "Exclusive_Process", "Prohibited": "Prohibited"}
    return {
        "ecc": _mode([gpu.ecc.current for gpu in gpus], _SWITCH),
        "persistence": _mode([gpu.persistence for gpu in gpus], _SWITCH),
        "compute_mode": _mode([gpu.compute_mode for gpu in gpus], compute),
        "mig": _mode([gpu.mig_current for gpu in gpus], _SWITCH),
        "confidential_compute": None,
        "power_limit_w": _plain(_one([gpu.power.limit for gpu in gpus])),
    }


def _gpu_limits(gpus: Sequence[Gpu]) -> dict[str, Any] | None:
    """What the node shows; everything else is left to the GPU model."""
    return {"memory_mib": _one([gpu.memory.total for gpu in gpus])} if gpus else None


def _driver(report: GpuReport | None) -> str | None:
    version = report.driver_version if report is not None else None
    return version if isinstance(version, str) else None


def _flavour(evidence: NodeEvidence) -> str:
    try:
        flavour: str = evidence.facts(DRIVER_VERSION).flavour
    except NoEvidence:
        return "open"  # no driver is loaded: NVIDIA's choice for new GPUs
    return flavour


def _rdma(evidence: NodeEvidence) -> dict[str, Any]:
    stack: RdmaStack = evidence.facts(STACK)
    loaded = {module.origin for module in stack.loaded.values()}
    by_address = [device for device in stack.devices if named_by(device) == "pci"]
    return {
        "manage": False,
        "source": "vendor" if loaded == {"ofed"} else "distro",
        "device_names": "pci" if by_address else "kernel",
    }


def _peer_memory(evidence: NodeEvidence) -> str:
    """The module where it is loaded. That DMA-BUF would work does not say that somebody relies on it."""
    facts: PeerMemoryFacts = evidence.facts(PEER_MEMORY)
    return "nvidia_peermem" if facts.loaded is not None else "none"


def _firmware(machine: Machine, gpus: Sequence[Gpu]) -> dict[str, Any]:
    versions = {"bios": machine.bios_version, "gpu_vbios": _one([gpu.vbios for gpu in gpus])}
    return {name: {"version": version} for name, version in versions.items() if version is not None}


# What installs them is said by a person: a capture does not show where packages came from.
_DRIVER: dict[str, Any] = {
    "manage": False,
    "source": "distro",
    "modules_from": "dkms",
    "module_options": {},
    "profiling_for_all_users": False,
}

# A pool holds data: that gpufleet shall look after it is said by a person, never proposed.
_POOL: dict[str, Any] = {
    "manage": False,
    "name": "data",
    "layout": "raidz1",
    "disks_per_group": None,
    "disks": {
        "by_id": [],
        "serial": [],
        "model": [],
        "min_gb": None,
        "max_gb": None,
        "max_size_difference_percent": 1,
    },
    "ashift": 12,
    "properties": {},
    "file_system": {},
    "mountpoint": None,
    "datasets": {},
    "arc_max_gib": None,
    "scrub": None,
    "trim": None,
    "max_delay_h": 24,
}

# No node shows how much is too much. A test holds these equal to those of profiles/xe9680-h100.yml, which say why.
_KERNEL_LOG: dict[str, Any] = {
    "known_messages": [],
    "max_unknown_messages_shown": 10,
    "max_age_h": 24,
    "repeated_fault": {"jobs": 2, "within_h": 24, "max_units_per_job": 2, "job_gap_s": 180},
    "stopped_channels": {"count": 3, "hung_task_within_s": 600},
    "start_up_s": 600,
    "standstills": {"count": 2, "apart_s": 300},
    "corrected_memory_errors": {"count": 10, "within_h": 24},
    "corrected_pcie_errors": {"count": 100, "within_h": 24},
}

_HEAD = """\
# Proposed by node-health propose-profile from a healthy node{when}. Read it before you use it:
# platform.clock.servers is site data and belongs into the inventory (node_profile_overrides_fleet), storage.pool is not
# looked after until you say so, and required_checks are the checks that this node passed. Every key is explained in
# plugins/module_utils/gpufleet/profile_schema.py.
"""


def profile_text(profile: Mapping[str, Any], created: float | None) -> str:
    """The profile as a file of profiles/ for a person to go over."""
    when = time.strftime(" on %Y-%m-%d", time.gmtime(created)) if created else ""
    return _HEAD.format(when=when) + "".join(f"{line}\n" for line in yaml_lines(profile))


def yaml_lines(mapping: Mapping[str, Any], indent: str = "") -> list[str]:
    """A mapping of plain data as lines of YAML: sections as blocks, lists and scalars as JSON, which YAML reads."""
    lines = []
    for key, value in mapping.items():
        name = key if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", key) else json.dumps(key)
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{name}:", *yaml_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {json.dumps(value, ensure_ascii=True)}")
    return lines
