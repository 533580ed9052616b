# SPDX-License-Identifier: Apache-2.0
"""The members of a pool as disks: which serial number, in which slot, also of those that are gone."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .block_devices import BlockDeviceError, Disk
from .bounded_command import CommandResult
from .zfs_pool_record import PoolRecord, RememberedMember
from .zpool_status import Vdev, leaves

BLKID_LIMIT_S = 120


class ZfsLabel(NamedTuple):
    """What the label on a device says: names and numbers of the pool and of this member, as blkid prints them."""

    device: str
    pool: str
    pool_guid: str
    member_guid: str


class Member(NamedTuple):
    """A leaf of the pool.

    vdev: the row of zpool status. path: as ZFS was given it. guid: empty where neither the label nor the record tells.
    disk: None while the disk is gone, or where the member is no whole disk; there: whether its device exists. serial,
    place (slot, else PCI address) and partuuid come from the disk, else from the record; empty where nobody knows.
    """

    vdev: Vdev
    path: str
    guid: str
    disk: Disk | None
    serial: str
    place: str
    partuuid: str
    there: bool

    @property
    def trouble(self) -> str:
        """Why the pool cannot use it; "" where it can. ZFS calls a disk ONLINE until it has tried to use it."""
        if self.vdev.state not in ("ONLINE", "AVAIL", "INUSE", ""):
            return self.vdev.state
        return "" if self.there else "gone, though ZFS has not noticed yet"

    @property
    def handle(self) -> str:
        """What `zpool replace` and `zpool online` take for this member, whether its disk is there or not."""
        return self.guid or re.sub(r"-part\d+$", "", self.path)

    def __str__(self) -> str:
        place = self.place if self.disk else f"last seen in {self.place}"
        if not self.serial:
            return f"member {self.path}"
        return f"disk {self.serial} ({place})" if self.place else f"disk {self.serial}"


def parse_blkid(text: str) -> list[ZfsLabel]:
    """The ZFS labels in the output of `blkid --probe --output export`; blocks are divided by empty lines."""
    labels = []
    for block in re.split(r"\n\s*\n", text.strip()):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if values.get("TYPE") == "zfs_member":
            # blkid escapes what a shell would take apart
            values = {key: value.replace("\\", "") for key, value in values.items()}
            labels.append(
                ZfsLabel(
                    values.get("DEVNAME", ""),
                    values.get("LABEL", ""),
                    values.get("UUID", ""),
                    values.get("UUID_SUB", ""),
                )
            )
    return labels


def read_labels(disks: Sequence[Disk], run: Callable[[Sequence[str], float], CommandResult]) -> list[ZfsLabel]:
    """The ZFS labels on all disks and partitions. Raises BlockDeviceError."""
    devices = [path for disk in disks for path in disk.device_paths]
    if not devices:
        return []
    result = run(["blkid", "--probe", "--output", "export", *devices], BLKID_LIMIT_S)
    # blkid(8): 2 = nothing found, 8 = a device with more than one signature
    if result.outcome != "done" or result.rc not in (0, 2, 8):
        raise BlockDeviceError(f"blkid could not read the labels on {', '.join(devices)}: {result.said()}")
    return parse_blkid(result.stdout)


def find_members(
    tops: Iterable[Vdev],
    disks: Sequence[Disk],
    labels: Sequence[ZfsLabel],
    record: PoolRecord | None,
    real_path: Callable[[str], str] = os.path.realpath,
    exists: Callable[[str], bool] = os.path.exists,
) -> list[Member]:
    """One Member for each leaf below `tops`, in their order.

    :arg labels: those of this pool only.
    """
    by_guid = {label.member_guid: label.device for label in labels if label.member_guid}
    by_device = {device: guid for guid, device in by_guid.items()}
    remembered = record.members if record else ()
    members = []
    for leaf in (leaf for top in tops for leaf in leaves(top)):
        path = leaf.name if leaf.name.startswith("/") else (leaf.was_path or "")
        guid = leaf.name if leaf.name.isdigit() else ""
        old = next((item for item in remembered if guid and item.guid == guid), None) or next(
            (item for item in remembered if path and item.path == path), None
        )
        # Only while ZFS holds the disk open is the path right: later it may lead to the disk that is in the bay now.
        held = leaf.state in ("ONLINE", "DEGRADED")
        real = real_path(path) if held and path else ""
        guid = guid or by_device.get(real, "") or (old.guid if old else "")
        device = by_guid.get(guid, "") or real
        found = _disk_of(device, disks)
        if found:
            disk, partuuid = found
            members.append(Member(leaf, path or device, guid, disk, disk.serial, disk.place, partuuid, True))
        elif old:
            members.append(
                Member(leaf, path or old.path, guid, None, old.serial, old.place, old.partuuid, exists(path))
            )
        else:
            members.append(Member(leaf, path or leaf.name, guid, None, "", "", "", exists(path)))
    return members


def _disk_of(device: str, disks: Iterable[Disk]) -> tuple[Disk, str] | None:
    for disk in disks:
        if device == disk.path:
            return disk, ""
        for part in disk.partitions:
            if device == part.path:
                return disk, part.partuuid
    return None


def remember(guid: str, host_id: int, members: Sequence[Member], record: PoolRecord | None) -> PoolRecord:
    """The record that these members make; what is known of a member that is gone stays."""
    old = {item.guid: item for item in record.members} if record and record.guid == guid else {}
    items = []
    for member in members:
        if member.disk is not None and member.guid:
            items.append(
                RememberedMember(
                    guid=member.guid,
                    serial=member.serial,
                    model=member.disk.model,
                    size=member.disk.size,
                    place=member.place,
                    partuuid=member.partuuid,
                    path=member.path,
                )
            )
        elif member.guid in old:
            items.append(old[member.guid])
    return PoolRecord(guid, host_id, tuple(items))


def in_use_by_pools(disks: Sequence[Disk], pool_leaves: Mapping[str, str]) -> Iterator[Disk]:
    """The disks with the pool named in their uses.

    :arg pool_leaves: imported pool by the kernel path (/dev/nvme0n1p1) of each of its leaves.
    """
    for disk in disks:
        pools = {pool_leaves[path] for path in disk.device_paths if path in pool_leaves}
        words = tuple(f"is a member of the imported pool {pool}" for pool in sorted(pools))
        others = tuple(use for use in disk.uses if not (words and use.startswith("is claimed by")))
        yield disk._replace(uses=words + others)
