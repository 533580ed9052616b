# SPDX-License-Identifier: Apache-2.0
"""What lies on a disk that nothing uses: signatures, and data without any.

A disk counts as blank only where no signature is found and every byte that was looked at has the same value, 0x00 or
0xff (what an NVMe disk returns for blocks never written, NVM Express base specification, DLFEAT). Looked at are both
ends and samples in between, not every byte: reading a 3.84 TB disk through takes twenty minutes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from .block_devices import BlockDeviceError, Disk
from .bounded_command import CommandResult

WIPEFS_LIMIT_S = 120
# ZFS keeps its labels in the first and the last 512 KiB, GPT in the first and last 34 sectors, LVM and RAID within the
# first and last MiB; file systems begin within the first 64 KiB (btrfs) and go on.
END_BYTES = 4 * 2**20
SAMPLES = 64
SAMPLE_BYTES = 64 * 2**10

# Metadata of tools that combine disks. Such a disk is a part of something bigger, which the tool has to release.
_GROUPS = {
    "LVM2_member": ("LVM", "vgreduce and pvremove"),
    "LVM1_member": ("LVM", "vgreduce and pvremove"),
    "linux_raid_member": ("a RAID (md)", "mdadm --stop and mdadm --zero-superblock"),
    "mpath_member": ("a multipath device", "multipath -f"),
    "bcache": ("bcache", "bcache unregister"),
    "VMFS_volume_member": ("a VMFS volume", "the hypervisor that made it"),
}
_RAID_SUFFIX = "_raid_member"  # isw_raid_member, ddf_raid_member, ...: firmware RAID, known to libblkid by such names


class Signature(NamedTuple):
    """One thing that libblkid knows, at an offset in bytes of the device; uuid and label empty where it has none."""

    device: str
    type: str
    offset: int
    uuid: str
    label: str

    def __str__(self) -> str:
        label = f" {self.label!r}" if self.label else ""
        return f"{_TYPE_WORDS.get(self.type, self.type)}{label} on {self.device}"


_TYPE_WORDS = {
    "gpt": "a GPT partition table",
    "dos": "an MBR partition table",
    "PMBR": "a protective MBR",
    "zfs_member": "the label of ZFS pool",
    "swap": "a swap area",
}


class Content(NamedTuple):
    """signatures: those of the disk and its partitions. data: where bytes that are not blank lie, None = nowhere."""

    signatures: tuple[Signature, ...]
    data: str | None

    @property
    def blank(self) -> bool:
        return not self.signatures and self.data is None

    @property
    def group(self) -> str | None:
        """Why the disk belongs to something bigger ("is part of LVM ..."), or None."""
        for signature in self.signatures:
            what = _GROUPS.get(signature.type)
            if what is None and signature.type.endswith(_RAID_SUFFIX):
                what = ("a firmware RAID", "the controller's own tool")
            if what:
                return f"is part of {what[0]} ({signature}); release it with {what[1]} first"
        return None

    def __str__(self) -> str:
        """What lies there, for a message; each kind of signature once."""
        said = list(dict.fromkeys(str(signature) for signature in self.signatures if signature.type != "PMBR"))
        return ", ".join(said) or self.data or "nothing"


def parse_wipefs(text: str) -> list[Signature]:
    """Signatures of `wipefs --json --no-act`; an empty text means none. Raises ValueError."""
    if not text.strip():
        return []
    return [
        Signature(
            device=entry["device"],
            type=entry["type"],
            offset=int(entry["offset"], 16),
            uuid=entry.get("uuid") or "",
            label=entry.get("label") or "",
        )
        for entry in json.loads(text)["signatures"]
    ]


def read_contents(
    disks: Sequence[Disk],
    run: Callable[[Sequence[str], float], CommandResult],
    sample: Callable[[str, int], str | None] | None = None,
) -> Mapping[str, Content]:
    """Content of each disk by its kernel name; one wipefs for all. Raises BlockDeviceError."""
    if not disks:
        return {}
    devices = [path for disk in disks for path in disk.device_paths]
    result = run(["wipefs", "--json", "--no-act", *devices], WIPEFS_LIMIT_S)
    if result.outcome != "done" or result.rc != 0:
        raise BlockDeviceError(f"wipefs could not say what lies on {', '.join(devices)}: {result.said()}")
    try:
        signatures = parse_wipefs(result.stdout)
    except (ValueError, KeyError, TypeError) as error:
        raise BlockDeviceError(f"wipefs printed something else than a list ({error})") from error
    contents = {}
    for disk in disks:
        names = {disk.kernel_name, *(part.kernel_name for part in disk.partitions)}
        mine = tuple(signature for signature in signatures if signature.device in names)
        # A signature says it all: sampling is for disks that seem empty.
        contents[disk.kernel_name] = Content(mine, None if mine else (sample or sample_data)(disk.path, disk.size))
    return contents


def sample_data(path: str, size: int) -> str | None:
    """Where the first byte lies that is not blank, None where all bytes looked at are. Raises BlockDeviceError."""
    step = max(size // SAMPLES, SAMPLE_BYTES)
    places = [(0, END_BYTES), (max(size - END_BYTES, 0), END_BYTES)]
    places += [(place, SAMPLE_BYTES) for place in range(step, size, step)]
    blank = None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for place, length in places:
                data = os.pread(handle, min(length, size - place), place)
                if blank is None:
                    blank = data[:1] if data[:1] in (b"\0", b"\xff") else b"\0"
                if data.strip(blank):
                    first = place + len(data) - len(data.lstrip(blank))
                    return f"data of an unknown kind (a byte that is not blank at offset {first})"
        finally:
            os.close(handle)
    except OSError as error:
        raise BlockDeviceError(f"{path} cannot be read: {error.strerror}. A new disk must be readable.") from error
    return None
