# SPDX-License-Identifier: Apache-2.0
"""What `nvidia-smi topo -m` prints: how each pair of GPUs and NICs is connected, and the NUMA node of each GPU.

The header is underlined by escape sequences even where the output is no terminal. Columns are separated by one tab, the
last ones by two. Drivers up to 470 print NICs by the name of their RDMA device (mlx5_0); later ones as NIC0 with a
"NIC Legend". The NUMA columns hold a number, "N/A", or a range or list ("0-1", "0,2"); none of them stands for 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .probe import ParseError, Probe, ProbeResult

# From near to far, as the legend explains them. NV<n>, the number of NVLinks, is a connection of its own.
PCIE_PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
# Traffic of these stays below one PCIe switch or a chain of them, and does not pass the CPU's host bridge.
BELOW_ONE_SWITCH = ("PIX", "PXB")

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_DEVICE = re.compile(r"GPU\d+|NIC\d+|mlx\d+_\w+")
_CELL = re.compile(rf"X|NV\d+|{'|'.join(PCIE_PATHS)}")
_AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_NIC_NAME = re.compile(r"\s+(NIC\d+): (\S+)\s*")
_NUMA = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
# The legend's last line of the drivers recorded (525 to 590).
_LAST_OF_LEGEND = re.compile(r"\s*NV#\s+= ")


class GpuTopology(NamedTuple):
    """devices: names in the order of the columns (GPU0 ... NIC0 ...).

    paths: by pair of names, X, NV<n> or one of PCIE_PATHS. numa: NUMA nodes by name of the GPU; None where the tool
    gives none ("N/A", or nothing). nic_names: RDMA device (mlx5_0) by column name.
    """

    devices: tuple[str, ...]
    paths: Mapping[tuple[str, str], str]
    numa: Mapping[str, frozenset[int] | None]
    nic_names: Mapping[str, str]

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(name for name in self.devices if name.startswith("GPU"))

    @property
    def nics(self) -> tuple[str, ...]:
        return tuple(name for name in self.devices if not name.startswith("GPU"))


def parse_topology(result: ProbeResult) -> GpuTopology:
    """The whole matrix. Raises ParseError naming the line, also where a row, a column or the legend is missing."""
    return topology_of(result.stdout)


def topology_of(text: str) -> GpuTopology:
    """The same from the text alone."""
    lines = _ESCAPE.sub("", text).splitlines()
    start = next((number for number, line in enumerate(lines) if line.strip()), None)
    if start is None:
        raise ParseError("the output is empty")
    devices, affinities = _header(lines[start], start + 1)
    paths: dict[tuple[str, str], str] = {}
    numa: dict[str, frozenset[int] | None] = {}
    for number, name in enumerate(devices, start + 1):
        line = lines[number] if number < len(lines) else ""
        cells = [cell.strip() for cell in line.split("\t")]
        if cells[0] != name:
            raise ParseError(f"line {number + 1}: the row of {name} is missing: {line!r}")
        _row(name, cells[1:], devices, number + 1, paths)
        if name.startswith("GPU"):
            numa[name] = _numa(cells[1 + len(devices) :], affinities, number + 1)
    _check_symmetry(devices, paths)
    return GpuTopology(devices, paths, numa, _legend(lines[start + 1 + len(devices) :], devices))


def _header(line: str, number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    cells = [cell.strip() for cell in line.split("\t") if cell.strip()]
    devices = tuple(cell for cell in cells if _DEVICE.fullmatch(cell))
    affinities = tuple(cells[len(devices) :])
    gpus = [name for name in devices if name.startswith("GPU")]
    whole = (
        devices
        and gpus == [f"GPU{index}" for index in range(len(gpus))]
        and affinities == _AFFINITIES[: len(affinities)]
    )
    if not whole or len(affinities) < 2:
        raise ParseError(f"line {number}: not the header of a matrix of GPUs: {line!r}")
    return devices, affinities


def _row(
    name: str, cells: Sequence[str], devices: Sequence[str], number: int, paths: dict[tuple[str, str], str]
) -> None:
    if len(cells) < len(devices):
        raise ParseError(f"line {number}: the row of {name} has {len(cells)} of {len(devices)} columns")
    for column, other in enumerate(devices):
        cell = cells[column]
        if not _CELL.fullmatch(cell) or (cell == "X") != (name == other):
            raise ParseError(f"line {number}: no connection of {name} and {other} is called {cell!r}")
        paths[name, other] = cell


def _numa(cells: Sequence[str], affinities: Sequence[str], number: int) -> frozenset[int] | None:
    values = [cell for cell in cells if cell]
    if len(values) != len(affinities):
        return None  # a virtual machine without affinity leaves columns blank: which one is not to be told
    text = values[affinities.index("NUMA Affinity")]
    if text == "N/A":
        return None
    if not _NUMA.fullmatch(text):
        raise ParseError(f"line {number}: no NUMA node, list of them or N/A: {text!r}")
    nodes: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) - int(first) > 1024:
            raise ParseError(f"line {number}: no range of NUMA nodes: {text!r}")
        nodes.update(range(int(first), int(last or first) + 1))
    return frozenset(nodes)


def _check_symmetry(devices: Sequence[str], paths: Mapping[tuple[str, str], str]) -> None:
    """A PCIe path has the same length in both directions; NVLink counts may differ while links are down."""
    for one in devices:
        for other in devices:
            there, back = paths[one, other], paths[other, one]
            if there != back and not (there.startswith("NV") and back.startswith("NV")):
                raise ParseError(f"{one} to {other} is {there}, but {other} to {one} is {back}: a garbled matrix")


def _legend(lines: Sequence[str], devices: Sequence[str]) -> dict[str, str]:
    if not any(_LAST_OF_LEGEND.match(line) for line in lines):
        raise ParseError("the legend behind the matrix is missing or not whole: the output was cut")
    named = [name for name in devices if name.startswith("NIC")]
    names = {match.group(1): match.group(2) for match in map(_NIC_NAME.fullmatch, lines) if match}
    lost = [name for name in named if name not in names]
    if lost:
        raise ParseError(f"the NIC legend does not name {', '.join(lost)}: the output was cut")
    itself = {name: name for name in devices if not name.startswith(("NIC", "GPU"))}
    return {**itself, **{name: names[name] for name in named}}


PROBES: tuple[Probe, ...] = (Probe("nvidia_smi.topology", parse_topology, argv=("nvidia-smi", "topo", "-m")),)
