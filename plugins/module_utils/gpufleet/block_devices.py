# SPDX-License-Identifier: Apache-2.0
"""The node's disks: what identifies each, where it sits, and what uses it now.

Kernel names (nvme0n1) change from boot to boot. A disk is known by its serial number, its names in /dev/disk/by-id
and its PCI function; the kernel name is only the way to it in this boot.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .bounded_command import CommandResult

LSBLK = (
    "lsblk",
    "--json",
    "--bytes",
    "--output",
    # MOUNTPOINTS: util-linux 2.37 and later (Ubuntu 22.04 has it)
    "NAME,KNAME,PATH,TYPE,SIZE,RO,SERIAL,MODEL,WWN,PARTUUID,PARTLABEL,MOUNTPOINTS",
)
# lsblk reads sysfs and udev's data base; a hung device must not hold it up for ever.
LSBLK_LIMIT_S = 60

_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# A disk with one of these mounted is the one that the system runs from.
_SYSTEM_MOUNTS = ("/", "/boot", "/boot/efi", "/efi", "/usr", "/var")
# lsblk's TYPE of what can lie on a disk or a partition
_HOLDERS = {
    "lvm": "is part of LVM (logical volume {name} is active)",
    "mpath": "is a path of the multipath device {name}",
    "crypt": "is opened as the encrypted device {name}",
    "bcache": "is part of the bcache device {name}",
}


class BlockDeviceError(Exception):
    """The disks could not be read; the message says which command or file, and why."""


class PciFunction(NamedTuple):
    """address such as 0000:05:00.0; vendor, device and class (base class and subclass) in four hexadecimal digits."""

    address: str
    vendor: str
    device: str
    class_code: str


class Partition(NamedTuple):
    """partuuid and partlabel are empty where the partition table has none."""

    kernel_name: str
    path: str
    partuuid: str
    partlabel: str


class Disk(NamedTuple):
    """One whole disk.

    size in bytes; serial, model and wwn empty where the disk reports none; by_id: its names in /dev/disk/by-id (no
    partitions); slot: the name of the physical slot, empty where the platform has none; uses: why nobody else may
    write to it now, in words ("is mounted at /srv"), empty where nothing uses it.
    """

    kernel_name: str
    path: str
    size: int
    serial: str
    model: str
    wwn: str
    by_id: tuple[str, ...]
    pci: PciFunction | None
    slot: str
    partitions: tuple[Partition, ...]
    uses: tuple[str, ...]

    @property
    def device_paths(self) -> tuple[str, ...]:
        """The disk's own path and those of its partitions."""
        return (self.path, *(part.path for part in self.partitions))

    @property
    def place(self) -> str:
        """Where a technician finds it: slot, else PCI address, else the kernel name."""
        if self.slot:
            return f"slot {self.slot}"
        return f"PCI {self.pci.address}" if self.pci else f"kernel name {self.kernel_name}"

    def __str__(self) -> str:
        serial = f"serial {self.serial}" if self.serial else "no serial number"
        return f"{self.kernel_name} ({serial}, {self.model or 'no model'}, {self.size / 1e9:.1f} GB, {self.place})"


class Roots(NamedTuple):
    """Where the kernel's trees are; tests have their own."""

    sys: str = "/sys"
    dev: str = "/dev"


HERE = Roots()


def read_disks(run: Callable[[Sequence[str], float], CommandResult], roots: Roots = HERE) -> list[Disk]:
    """All physical disks of the node, by kernel name.

    Left out: what has no device of its own (loop, zram, zvol, dm, md), hidden paths of NVMe multipath, and drives
    without a medium. Raises BlockDeviceError.
    """
    result = run(LSBLK, LSBLK_LIMIT_S)
    if result.outcome != "done" or result.rc != 0:
        raise BlockDeviceError(f"lsblk gave no list of disks: {result.said()}")
    try:
        devices = json.loads(result.stdout)["blockdevices"]
    except (ValueError, KeyError, TypeError) as error:
        raise BlockDeviceError(f"lsblk printed no list of disks ({error}): {result.stdout[:200]!r}") from error
    names = _read_by_id(roots)
    slots = _read_slots(roots)
    disks = [_read_disk(device, names, slots, roots) for device in devices if _is_physical(device, roots)]
    return sorted(disks, key=lambda disk: disk.kernel_name)


def _is_physical(device: Mapping[str, Any], roots: Roots) -> bool:
    if device.get("type") != "disk" or not int(device.get("size") or 0):
        return False
    folder = os.path.join(roots.sys, "block", device["kname"])
    return os.path.exists(os.path.join(folder, "device")) and _read(os.path.join(folder, "hidden")) != "1"


def _read_disk(
    device: Mapping[str, Any], names: Mapping[str, list[str]], slots: Mapping[str, str], roots: Roots
) -> Disk:
    kernel_name = device["kname"]
    folder = os.path.join(roots.sys, "block", kernel_name)
    addresses = _pci_addresses(folder)
    in_slots = [slots[where] for where in (address.rpartition(".")[0] for address in addresses) if where in slots]
    return Disk(
        kernel_name=kernel_name,
        path=device["path"],
        size=int(device["size"]),
        # sysfs first: udev replaces blanks in the serial that it hands to lsblk
        serial=_read(os.path.join(folder, "device", "serial")) or (device.get("serial") or "").strip(),
        model=_read(os.path.join(folder, "device", "model")) or (device.get("model") or "").strip(),
        wwn=(device.get("wwn") or "").strip(),
        by_id=tuple(sorted(names.get(kernel_name, ()))),
        pci=_read_pci_function(addresses[-1], roots) if addresses else None,
        slot=in_slots[-1] if in_slots else "",
        partitions=tuple(
            Partition(part["kname"], part["path"], part.get("partuuid") or "", part.get("partlabel") or "")
            for part in device.get("children") or ()
            if part.get("type") == "part"
        ),
        uses=_uses(device, roots),
    )


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip().strip("\0").strip()
    except OSError:
        return ""


def _read_by_id(roots: Roots) -> dict[str, list[str]]:
    """Names in /dev/disk/by-id by the kernel name that they lead to; partitions have kernel names of their own."""
    folder = os.path.join(roots.dev, "disk", "by-id")
    names: dict[str, list[str]] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            names.setdefault(os.path.basename(os.path.realpath(os.path.join(folder, name))), []).append(name)
    return names


def _read_slots(roots: Roots) -> dict[str, str]:
    """Physical slots by the PCI address (without the function) of the device in it."""
    folder = os.path.join(roots.sys, "bus", "pci", "slots")
    slots = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            address = _read(os.path.join(folder, name, "address"))
            if address:
                slots[address] = name
    return slots


def _pci_addresses(folder: str) -> list[str]:
    """PCI functions on the way to a disk, the nearest last."""
    addresses = _PCI.findall(os.path.realpath(folder))
    if not addresses:
        # NVMe disks with two ports hang below a virtual subsystem, which links to its controllers.
        subsystem = os.path.join(folder, "device")
        controllers = []
        with contextlib.suppress(OSError):
            controllers = [name for name in os.listdir(subsystem) if re.fullmatch(r"nvme\d+", name)]
        if len(controllers) == 1:
            addresses = _PCI.findall(os.path.realpath(os.path.join(subsystem, controllers[0])))
    return addresses


def _read_pci_function(address: str, roots: Roots) -> PciFunction:
    folder = os.path.join(roots.sys, "bus", "pci", "devices", address)
    vendor, device, class_code = (_read(os.path.join(folder, name)).removeprefix("0x") for name in _PCI_FILES)
    return PciFunction(address, vendor, device, class_code[:4])


_PCI_FILES = ("vendor", "device", "class")


def _uses(device: Mapping[str, Any], roots: Roots) -> tuple[str, ...]:
    """Why a disk may not be written to: from what lies on it, from the kernel's own lock, from write protection."""
    uses = []
    for node in _walk(device):
        for place in node.get("mountpoints") or ():
            if place == "[SWAP]":
                uses.append(f"is swap ({node['name']})")
            elif place in _SYSTEM_MOUNTS:
                uses.append(f"holds the running system ({place} is on {node['name']})")
            elif place:
                uses.append(f"is mounted at {place} ({node['name']})")
        if node is not device and node.get("type") != "part":
            kind = str(node.get("type"))
            text = "is part of the RAID {name}" if kind.startswith("raid") else _HOLDERS.get(kind, "is held by {name}")
            uses.append(text.format(name=node["name"]))
    if device.get("ro") in (True, "1", 1):
        uses.append("is write-protected")
    for node in (device, *(device.get("children") or ())):
        if node is not device and node.get("type") != "part":
            continue
        path = os.path.join(roots.dev, node["path"].removeprefix("/dev/"))
        problem = None if uses else _lock_problem(path)
        if problem:
            uses.append(problem)
    return tuple(dict.fromkeys(uses))


def _walk(device: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield device
    for child in device.get("children") or ():
        yield from _walk(child)


def _lock_problem(path: str) -> str | None:
    """Try the lock that the kernel takes for file systems, RAID, LVM, pools and swap; None where it is free.

    What no list shows (the second disk of a btrfs, a pool of a container, a program that claimed the disk) shows here.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return f"is claimed by the kernel or a program ({path} is busy)"
        return f"cannot be opened ({path}: {error.strerror})"
    os.close(handle)
    return None


def stable_path(disk: Disk, disks: Iterable[Disk], folder: str = "/dev/disk/by-id") -> str | None:
    """The by-id path to give to ZFS: one that names the serial number, so that `zpool status` shows it.

    A name that ends in the namespace's number is preferred: where a controller has several namespaces, the name
    without it jumps between them (systemd issue 31448), so it is taken only where no other disk has this serial.
    World-wide names (eui, wwn, nvme.) come last. None where the disk has no name at all.
    """
    serial = re.sub(r"\s+", "_", disk.serial)
    with_serial = [name for name in disk.by_id if serial and serial in name and not name.startswith("nvme-nvme.")]
    numbered = [name for name in with_serial if re.search(re.escape(serial) + r"_\d+$", name)]
    alone = sum(1 for other in disks if other.serial == disk.serial) == 1
    world_wide = [name for name in disk.by_id if re.match(r"(nvme-eui\.|nvme-uuid\.|wwn-|nvme-nvme\.|scsi-3)", name)]
    for choice in (numbered, with_serial if alone else [], world_wide):
        if choice:
            return f"{folder}/{choice[0]}"
    return None
