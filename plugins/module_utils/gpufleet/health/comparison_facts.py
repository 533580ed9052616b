# SPDX-License-Identifier: Apache-2.0
"""What should be equal on all nodes of a fleet, also where the profile says nothing of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from . import platform_facts
from .check import Profile
from .gpu_facts import Absent, Gpu, GpuReport
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .pci_tree import LSPCI, PciDevice, PciTree
from .probe import NoEvidence

# Kernel arguments that name a disk, which each node has its own of.
_OWN_ARGUMENTS = ("BOOT_IMAGE=", "root=", "resume=", "initrd=")
# Bridges, memory controllers and the like say nothing that these do not: what a job uses, and what holds its data.
_COUNTED_CLASSES = {"02": "network", "03": "display", "01": "storage"}
_COUNTED_BRIDGES = "0680"  # NVSwitches are "other bridges"


def comparison(evidence: NodeEvidence, profile: Profile) -> dict[str, Any]:
    """kind: nodes of one kind are compared with each other (the profile's description). values: text by name.

    A value that its probe does not give is left out: the checks say so.
    """
    values: dict[str, str] = {}
    for probe, read in _READ.items():
        try:
            values.update(read(evidence.facts(probe)))
        except (NoEvidence, KeyError):  # KeyError: a table without this probe
            continue
    return {"kind": str(profile.get("description", "")), "values": values}


def equal_or_counted(values: Iterable[object]) -> str:
    """One text for the parts of a node: the value that all have, or each value with its number."""
    counts = Counter(str(value) for value in values)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{value} ({count})" for value, count in sorted(counts.items()))


_GPU_VALUES: dict[str, Callable[[Gpu], object]] = {
    "GPU model": lambda gpu: gpu.name,
    "GPU VBIOS": lambda gpu: gpu.vbios,
    "GPU GSP firmware": lambda gpu: gpu.gsp_firmware,
    "GPU InfoROM image": lambda gpu: gpu.inforom.image,
    "GPU memory in MiB": lambda gpu: gpu.memory.total,
    "GPU persistence mode": lambda gpu: gpu.persistence,
    "GPU compute mode": lambda gpu: gpu.compute_mode,
    "GPU MIG mode": lambda gpu: gpu.mig_current,
    "GPU ECC mode": lambda gpu: gpu.ecc.current,
    "GPU power limit in W": lambda gpu: gpu.power.limit,
    "GPU highest SM clock in MHz": lambda gpu: gpu.clocks.max_sm,
    "GPU application clock in MHz": lambda gpu: gpu.clocks.applications_graphics,
    "GPU PCIe generation": lambda gpu: gpu.link.max_generation,
    "GPU PCIe width": lambda gpu: gpu.link.width,
}


def _of_gpus(report: GpuReport) -> Iterator[tuple[str, str]]:
    yield "number of GPUs", str(len(report.gpus))
    for name, value in (("NVIDIA driver", report.driver_version), ("CUDA version", report.cuda_version)):
        if not isinstance(value, Absent):
            yield name, value
    for name, of_gpu in _GPU_VALUES.items():
        values = [of_gpu(gpu) for gpu in report.gpus]
        if values and not any(isinstance(value, Absent) for value in values):
            yield name, equal_or_counted(values)


def _of_pci(tree: PciTree) -> Iterator[tuple[str, str]]:
    kinds: dict[str, list[PciDevice]] = {}
    for device in tree.devices.values():
        code = device.class_code or ""
        if device.vendor and (code[:2] in _COUNTED_CLASSES or code == _COUNTED_BRIDGES) and not device.orphan:
            kinds.setdefault(f"{device.name} [{device.vendor}:{device.device}]", []).append(device)
    for name, devices in kinds.items():
        yield f"number of {name}", str(len(devices))
        links = [device.link_capability for device in devices]
        if all(links):
            yield f"PCIe link that {name} can have", equal_or_counted(link for link in links if link)


def _of_machine(machine: platform_facts.Machine) -> Iterator[tuple[str, str]]:
    names = {"manufacturer": machine.manufacturer, "product": machine.product, "BIOS version": machine.bios_version}
    yield from ((name, value) for name, value in names.items() if value is not None)


def _of_kernel(kernel: platform_facts.Kernel) -> Iterator[tuple[str, str]]:
    yield "kernel", kernel.release
    yield "kernel arguments", " ".join(sorted(one for one in kernel.arguments if not one.startswith(_OWN_ARGUMENTS)))


def _of_processors(processors: platform_facts.Processors) -> Iterator[tuple[str, str]]:
    yield "CPUs online", processors.online
    yield "NUMA nodes with CPUs", str(processors.numa_nodes)
    yield "memory in GiB", str(processors.memory_gib)
    if processors.governors:
        yield "CPU frequency governor", ", ".join(processors.governors)


_READ: Mapping[str, Callable[[Any], Iterable[tuple[str, str]]]] = {
    QUERY: _of_gpus,
    LSPCI: _of_pci,
    platform_facts.MACHINE: _of_machine,
    platform_facts.KERNEL: _of_kernel,
    platform_facts.PROCESSORS: _of_processors,
}
# Ids of the probes whose answers are compared; asked also where no check needs them.
COMPARED = frozenset(_READ)
