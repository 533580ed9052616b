# SPDX-License-Identifier: Apache-2.0
"""The shape of a lab node: what hardware it has, as data from the inventory, checked."""

import difflib
import re
from dataclasses import asdict, dataclass
from typing import Any

from lab.errors import LabError

# NVMe serial numbers have at most 20 characters; QEMU ids allow these only.
SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,19}")
OFFSET = re.compile(r"([+-]?)(\d+)([smhdy]?)")
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "y": 365 * 86400}
PLACES = ("root_ports", "switch")
# Root ports sit at 00:02.0 to 00:1d.0; a node needs them for two NICs, the OS disk and the data disks' switch.
MAX_ROOT_PORTS = 28


@dataclass(frozen=True)
class DataDisk:
    """An NVMe disk for the hot-plug bays (one switch with a slot for each data disk)."""

    serial: str
    size_mib: int


@dataclass(frozen=True)
class PciPath:
    """A GPU stand-in and an HCA stand-in that talk to each other.

    `below` is `root_ports` (each has a root port of its own, which has ACS) or
    `switch` (both below one switch, whose ports have no ACS capability).
    """

    name: str
    below: str


@dataclass(frozen=True)
class NodeShape:
    """All of a node's virtual hardware. Memory in MiB, clock offset in seconds.

    There is a bay for each of `data_disks`; `spare_disks` start in none.
    """

    sockets: int
    numa_nodes_per_socket: int
    cores: int
    memory_mib: int
    manufacturer: str
    product: str
    service_tag: str
    clock_offset_s: int
    data_disks: tuple[DataDisk, ...]
    pci_paths: tuple[PciPath, ...]
    bridges_outside_paths: int
    spare_disks: tuple[DataDisk, ...] = ()

    @property
    def disks(self) -> tuple[DataDisk, ...]:
        """Every disk that can be in a bay, wherever it is."""
        return self.data_disks + self.spare_disks

    @property
    def numa_nodes(self) -> int:
        """Number of NUMA nodes in the whole machine."""
        return self.sockets * self.numa_nodes_per_socket

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as `parse_shape` reads it."""
        data = asdict(self)
        for key in ("data_disks", "spare_disks", "pci_paths"):
            data[key] = list(data[key])
        data["clock_offset"] = data.pop("clock_offset_s")
        data["smbios"] = {key: data.pop(key) for key in ("manufacturer", "product", "service_tag")}
        return data


def parse_offset(text: str | int) -> int:
    """Seconds of `+3y`, `-90d`, `12h`, `0` or a plain number. Raises LabError on anything else."""
    found = OFFSET.fullmatch(str(text).strip())
    if not found:
        raise LabError(f"clock offset {text!r} is not understood; write for example +3y, -90d, 2h or 0")
    sign, number, unit = found.groups()
    return (-1 if sign == "-" else 1) * int(number) * SECONDS[unit]


def merge(base: Any, override: Any) -> Any:
    """`override` laid over `base`: dicts are merged deep, everything else is replaced."""
    if isinstance(base, dict) and isinstance(override, dict):
        return {**base, **{key: merge(base.get(key), value) for key, value in override.items()}}
    return override


class _Reader:
    """Reads one dict of the shape, collecting every problem instead of stopping at the first."""

    def __init__(self, data: Any, where: str, problems: list[str]) -> None:
        self.where, self.problems = where, problems
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        self.read: set[str] = set()
        if not isinstance(data, dict):
            problems.append(f"{where} must be a mapping, not {data!r}")

    def get(self, key: str, kind: type[Any], least: int | None = None, default: Any = None) -> Any:
        self.read.add(key)
        value: Any = self.data.get(key, default)
        name = f"{self.where}.{key}"
        if value is None:
            self.problems.append(f"{name} is missing")
        elif not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.problems.append(f"{name} must be a {kind.__name__}, not {value!r}")
        elif least is not None and value < least:
            self.problems.append(f"{name} must be at least {least}, not {value}")
        else:
            return value
        return kind() if least is None else kind(least)

    def done(self) -> None:
        for key in sorted(set(self.data) - self.read):
            near = difflib.get_close_matches(key, self.read, 1)
            hint = f"did you mean {near[0]}?" if near else ""
            self.problems.append(
                f"{self.where}.{key} is unknown; {hint or 'allowed are ' + ', '.join(sorted(self.read))}"
            )


def parse_shape(data: Any, default_service_tag: str, where: str = "lab_node_shape") -> NodeShape:
    """Check the inventory's data and return the shape. Raises LabError listing all that is wrong."""
    problems: list[str] = []
    top = _Reader(data, where, problems)
    sockets = top.get("sockets", int, 1)
    per_socket = top.get("numa_nodes_per_socket", int, 1)
    cores = top.get("cores", int, 1)
    memory = top.get("memory_mib", int, 1024)
    if cores % sockets:
        problems.append(f"{where}.cores ({cores}) must be a multiple of sockets ({sockets})")
    elif (cores // sockets) % per_socket:
        problems.append(f"{where}.cores ({cores}): each of the {sockets * per_socket} NUMA nodes needs equally many")
    if memory % (sockets * per_socket):
        problems.append(f"{where}.memory_mib ({memory}) must divide by the {sockets * per_socket} NUMA nodes")
    smbios = _Reader(top.get("smbios", dict), f"{where}.smbios", problems)
    manufacturer = smbios.get("manufacturer", str)
    product = smbios.get("product", str)
    service_tag = smbios.get("service_tag", str, default=default_service_tag)
    smbios.done()
    offset = 0
    top.read.add("clock_offset")
    try:
        offset = parse_offset(top.data.get("clock_offset", 0))
    except LabError as error:
        problems.append(f"{where}.clock_offset: {error}")
    disks: dict[str, list[DataDisk]] = {"data_disks": [], "spare_disks": []}
    for key, found in disks.items():
        for index, item in enumerate(top.get(key, list, default=[] if key == "spare_disks" else None)):
            disk = _Reader(item, f"{where}.{key}[{index}]", problems)
            serial, size = disk.get("serial", str), disk.get("size_mib", int, 1)
            disk.done()
            if serial and not SERIAL.fullmatch(serial):
                problems.append(f"{disk.where}.serial {serial!r}: 1 to 20 letters, digits, '.', '_' or '-'")
            if serial in [other.serial for others in disks.values() for other in others]:
                problems.append(f"{disk.where}.serial {serial!r} is used twice")
            found.append(DataDisk(serial, size))
    paths: list[PciPath] = []
    for index, item in enumerate(top.get("pci_paths", list)):
        path = _Reader(item, f"{where}.pci_paths[{index}]", problems)
        name, below = path.get("name", str), path.get("below", str)
        path.done()
        if name and not SERIAL.fullmatch(name):
            problems.append(f"{path.where}.name {name!r}: 1 to 20 letters, digits, '.', '_' or '-'")
        if name in [other.name for other in paths]:
            problems.append(f"{path.where}.name {name!r} is used twice")
        if below and below not in PLACES:
            problems.append(f"{path.where}.below {below!r} must be one of {', '.join(PLACES)}")
        paths.append(PciPath(name, below))
    outside = top.get("bridges_outside_paths", int, 0, default=0)
    top.done()
    ports = 4 + outside + sum(2 if path.below == "root_ports" else 1 for path in paths)
    if ports > MAX_ROOT_PORTS:
        problems.append(f"{where} needs {ports} PCIe root ports, {MAX_ROOT_PORTS} are possible")
    if problems:
        raise LabError("the lab node's shape is wrong:\n  " + "\n  ".join(problems))
    return NodeShape(
        sockets, per_socket, cores, memory, manufacturer, product, service_tag, offset,
        tuple(disks["data_disks"]), tuple(paths), outside, tuple(disks["spare_disks"]),
    )  # fmt: skip
