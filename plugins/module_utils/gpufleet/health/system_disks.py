# SPDX-License-Identifier: Apache-2.0
"""Which PCI functions are the disks that the running system lives on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .probe import ParseError, Probe, ProbeResult

LINKS = "block_devices.links"
MOUNTS = "block_devices.mounts"

# The same places as in block_devices.py, whose role leaves such a disk out of the pool.
_SYSTEM_MOUNTS = ("/", "/boot", "/boot/efi", "/efi", "/usr", "/var")
_LINK = re.compile(r"(\S+) ((?:\.\./)+devices/\S+)$")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def parse_block_device_links(text: str) -> dict[str, tuple[str, ...]]:
    """PCI addresses by kernel name: those of the functions that lead to a block device; none for a virtual one.

    From `find /sys/class/block -mindepth 1 -maxdepth 1 -printf '%f %l\\n'`. An NVMe disk with two ports is virtual
    (nvme0n1); the hidden paths to it (nvme0c0n1) have the addresses. Raises ParseError.
    """
    targets: dict[str, str] = {}
    for line in text.splitlines():
        if not (found := _LINK.match(line)):
            raise ParseError(f"no name and link of a block device: {line!r}")
        targets[found[1]] = found[2]
    if not targets:
        raise ParseError("no block device is listed")
    own = {name: _ADDRESS.findall(target)[-1:] for name, target in targets.items()}
    addresses = {}
    for name in targets:
        paths = re.compile(re.sub(r"^nvme(\d+)n", r"nvme\1c\\d+n", name) + "$")
        hidden = [address for path, found_at in own.items() if paths.match(path) for address in found_at]
        addresses[name] = tuple(own[name] or sorted(set(hidden)))
    return addresses


def parse_system_disks(text: str) -> tuple[str, ...]:
    """Kernel names of the whole disks with a part of the running system on them, from `lsblk --json`.

    None where the system runs from elsewhere (network, memory). Raises ParseError.
    """
    try:
        devices = json.loads(text)["blockdevices"]
        return tuple(device["kname"] for device in devices if any(_mounts(device, 0)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ParseError(f"lsblk printed no list of disks ({error}): {text[:100]!r}") from error


def _mounts(device: Mapping[str, Any], depth: int) -> Iterator[bool]:
    # disk, partition, crypt, volume group, RAID: never deeper than a few
    if depth > 16:
        raise ValueError("nested too deep")
    for place in device["mountpoints"]:
        yield place in _SYSTEM_MOUNTS
    for child in device.get("children", ()):
        yield from _mounts(child, depth + 1)


def system_disk_addresses(links: Mapping[str, tuple[str, ...]], disks: tuple[str, ...]) -> set[str]:
    """PCI addresses of the system's disks."""
    return {address for disk in disks for address in links.get(disk, ())}


def _parse_links(result: ProbeResult) -> dict[str, tuple[str, ...]]:
    return parse_block_device_links(result.stdout)


def _parse_mounts(result: ProbeResult) -> tuple[str, ...]:
    return parse_system_disks(result.stdout)


PROBES = (
    Probe(
        LINKS,
        _parse_links,
        argv=("find", "/sys/class/block", "-mindepth", "1", "-maxdepth", "1", "-printf", "%f %l\\n"),
        deadline_s=15,
    ),
    # MOUNTPOINTS: util-linux 2.37 and later (Ubuntu 22.04 has it)
    Probe(MOUNTS, _parse_mounts, argv=("lsblk", "--json", "--output", "NAME,KNAME,TYPE,MOUNTPOINTS"), deadline_s=15),
)
