# SPDX-License-Identifier: Apache-2.0
"""What the kernel tells of machine, firmware, processors and memory. No check needs it: nodes are compared by it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .probe import ParseError, Probe, ProbeResult

MACHINE = "platform.machine"
KERNEL = "platform.kernel"
PROCESSORS = "platform.processors"

_DMI = "/sys/class/dmi/id"
_CPU = "/sys/devices/system/cpu"
_NODES = "/sys/devices/system/node"


class Machine(NamedTuple):
    """SMBIOS types 0 and 1; None where the firmware leaves a field out."""

    manufacturer: str | None
    product: str | None
    bios_version: str | None


class Kernel(NamedTuple):
    """release: as uname -r prints it. arguments: of the kernel's command line, in its order."""

    release: str
    arguments: tuple[str, ...]


class Processors(NamedTuple):
    """online: CPUs, as the kernel writes lists ("0-111"). sockets: 0 where unknown. numa_nodes: those with CPUs.

    governor: frequency governors in use, sorted, none where frequencies are not scaled. memory_gib: whole GiB.
    """

    online: str
    sockets: int
    numa_nodes: int
    governors: tuple[str, ...]
    memory_gib: int


def _files(result: ProbeResult) -> dict[str, list[str]]:
    """Lines by path."""
    files: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        path, colon, text = line.partition(":")
        if not colon or not path.startswith("/"):
            raise ParseError(f"no path and line: {line!r}")
        files.setdefault(path, []).append(text.strip())
    return files


def _line(files: Mapping[str, list[str]], path: str) -> str:
    if not files.get(path):
        raise ParseError(f"{path} is missing or empty")
    return files[path][0]


def parse_machine(result: ProbeResult) -> Machine:
    """From /sys/class/dmi/id. Raises ParseError."""
    files = _files(result)
    names = ("sys_vendor", "product_name", "bios_version")
    lines = [files.get(f"{_DMI}/{name}") for name in names]
    return Machine(*(line[0] if line else None for line in lines))


def parse_kernel(result: ProbeResult) -> Kernel:
    """From /proc. Raises ParseError."""
    files = _files(result)
    release = _line(files, "/proc/sys/kernel/osrelease")
    return Kernel(release, tuple(_line(files, "/proc/cmdline").split()))


def parse_processors(result: ProbeResult) -> Processors:
    """From /sys/devices/system and /proc/meminfo. Raises ParseError."""
    files = _files(result)
    sockets = {lines[0] for path, lines in files.items() if path.endswith("/topology/physical_package_id") and lines}
    governors = {lines[0] for path, lines in files.items() if path.endswith("/scaling_governor") and lines}
    with_cpus = [path for path, lines in files.items() if re.fullmatch(rf"{_NODES}/node\d+/cpulist", path) and lines[0]]
    total = next((line for line in files.get("/proc/meminfo", []) if line.startswith("MemTotal:")), "")
    found = re.fullmatch(r"MemTotal:\s+(\d+) kB", total)
    if not found:
        raise ParseError("/proc/meminfo has no line MemTotal with kB")
    memory_gib = round(int(found[1]) / (1 << 20))
    return Processors(
        _line(files, f"{_CPU}/online"), len(sockets), len(with_cpus), tuple(sorted(governors)), memory_gib
    )


PROBES: tuple[Probe, ...] = (
    Probe(
        MACHINE,
        parse_machine,
        paths=tuple(f"{_DMI}/{name}" for name in ("sys_vendor", "product_name", "bios_version")),
        deadline_s=5,
    ),
    Probe(KERNEL, parse_kernel, paths=("/proc/sys/kernel/osrelease", "/proc/cmdline"), deadline_s=5),
    Probe(
        PROCESSORS,
        parse_processors,
        paths=(
            f"{_CPU}/online",
            f"{_CPU}/cpu[0-9]*/topology/physical_package_id",
            f"{_CPU}/cpufreq/policy*/scaling_governor",
            f"{_NODES}/node[0-9]*/cpulist",
            "/proc/meminfo",
        ),
        deadline_s=5,
    ),
)
