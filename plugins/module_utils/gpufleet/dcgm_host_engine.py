# SPDX-License-Identifier: Apache-2.0
"""What DCGM's host engine says by way of dcgmi, from text alone: versions, GPUs, health watches.

Texts: NVIDIA/DCGM (release 4.6.0), dcgmi/Version.cpp, dcgmi/Health.cpp, dcgmi/Query.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

UNIT = "nvidia-dcgm.service"
PORT = 5555
# dcgmi's exit status is of little use: it is 0 for an unknown watch in some releases, so what it prints counts.


class Watch(NamedTuple):
    """letter: for `dcgmi health --set`. systems: what it switches on, as `dcgmi health --fetch` names it."""

    letter: str
    systems: tuple[str, ...]


# packages.dcgm.watches of the profile
WATCHES: Mapping[str, Watch] = {
    "pcie": Watch("p", ("PCIe",)),
    "memory": Watch("m", ("Memory",)),
    "inforom": Watch("i", ("InfoROM",)),
    "thermal": Watch("t", ("Thermal", "Power")),
    "nvlink": Watch("n", ("NVLINK",)),
}


class DcgmParseError(ValueError):
    """dcgmi did not say what was expected; the message holds what it said."""


class Versions(NamedTuple):
    """Of the installed command, and of the running host engine; None where that did not answer."""

    local: str
    running: str | None


def parse_versions(text: str) -> Versions:
    """`dcgmi -v`: a block "Local build info" and, where the host engine answers, "Hostengine build info"."""
    found: dict[str, str] = {}
    for block in re.split(r"^(?=(?:Local|Hostengine) build info:)", text, flags=re.MULTILINE):
        version = re.search(r"^\s*Version\s*: *(\d+(?:\.\d+)+)", block, re.MULTILINE)
        if version:
            found.setdefault(block.partition(" ")[0], version.group(1))
    if "Local" not in found:
        raise DcgmParseError(f"expected 'Local build info:' with a version, got: {text.strip()[:200]!r}")
    return Versions(found["Local"], found.get("Hostengine"))


def parse_gpu_count(text: str) -> int:
    """`dcgmi discovery -l`: "8 GPUs found."."""
    found = re.search(r"^\s*(\d+) GPUs? found", text, re.MULTILINE)
    if not found:
        raise DcgmParseError(f"expected '<n> GPUs found', got: {text.strip()[:200]!r}")
    return int(found.group(1))


def parse_watches(text: str) -> dict[str, bool]:
    """`dcgmi health --fetch`: system -> whether it is watched; raises DcgmParseError where none is listed."""
    rows = re.findall(r"^\|\s*([A-Za-z][\w ]*?)\s*\|\s*(On|Off)\s*\|", text, re.MULTILINE)
    if not rows:
        raise DcgmParseError(f"expected a table of health systems with On or Off, got: {text.strip()[:200]!r}")
    return {name: state == "On" for name, state in rows}


def differing_watches(wanted: Collection[str], seen: Mapping[str, bool]) -> list[str]:
    """A line for each system that is not as the profile's watches say; systems that none of them is about are free."""
    lines = []
    for name, watch in WATCHES.items():
        for system in watch.systems:
            state = seen.get(system)
            if name in wanted and not state:
                lines.append(f"{system} is not watched")
            elif name not in wanted and state:
                lines.append(f"{system} is watched")
    return lines


def set_watches_command(wanted: Sequence[str]) -> list[str]:
    """The command that makes the watches so: of all GPUs, everything else off."""
    if not wanted:
        return ["dcgmi", "health", "--clear"]
    return ["dcgmi", "health", "--set", "".join(watch.letter for name, watch in WATCHES.items() if name in wanted)]


def foreign_listener(table: str, port: int) -> list[str]:
    """Addresses other than loopback that something listens on at `port`, from the text of /proc/net/tcp or tcp6."""
    found = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        # 0A: net/tcp_states.h, TCP_LISTEN
        if len(fields) < 10 or fields[3] != "0A":
            continue
        address, _colon, number = fields[1].rpartition(":")
        if int(number, 16) == port and not _is_loopback(address):
            found.append(address)
    return found


def _is_loopback(address: str) -> bool:
    # Each group of four bytes is a number of the machine's own byte order: x86 and arm64 are little-endian.
    if len(address) == 8:
        return address.endswith("7F")
    return address in ("00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
