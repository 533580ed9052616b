# SPDX-License-Identifier: Apache-2.0
"""Make a disk blank whose content the operator has given up."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from .block_devices import Disk
from .bounded_command import CommandResult
from .disk_content import END_BYTES

LIMIT_S = 300


class WipeError(Exception):
    """The disk could not be wiped; the message says which step failed and why."""


def wipe_disk(
    disk: Disk, run: Callable[[Sequence[str], float], CommandResult], by_id_folder: str = "/dev/disk/by-id"
) -> None:
    """Remove all signatures, discard all blocks where the disk can, and write zeros to both ends.

    A disk that came into use, or whose kernel name went to another one, since it was looked at is left alone. Raises
    WipeError.
    """
    moved = [name for name in disk.by_id if os.path.realpath(os.path.join(by_id_folder, name)) != disk.path]
    if moved or not disk.by_id:
        raise WipeError(f"{disk} is not where it was when it was looked at ({', '.join(moved)}); nothing was changed")
    try:
        handle = os.open(disk.path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        raise WipeError(f"{disk} came into use meanwhile ({error.strerror}); nothing on it was changed") from error
    os.close(handle)
    # Partitions first: their signatures (RAID, LVM, ZFS) would show again in a partition of the same place.
    devices = [*(part.path for part in disk.partitions), disk.path]
    result = run(["wipefs", "--all", *devices], LIMIT_S)
    if result.outcome != "done" or result.rc != 0:
        raise WipeError(f"wipefs --all failed on {disk}: {result.said()}")
    # Frees the flash; a disk that cannot do it keeps its old blocks, which no label leads to any more.
    run(["blkdiscard", disk.path], LIMIT_S)
    zeros = bytes(END_BYTES)
    try:
        handle = os.open(disk.path, os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC)
        try:
            for place in (0, max(disk.size - END_BYTES, 0)):
                os.pwrite(handle, zeros[: disk.size - place], place)
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise WipeError(f"{disk} cannot be written: {error.strerror}") from error
    run(["blockdev", "--rereadpt", disk.path], LIMIT_S)
    run(["udevadm", "settle", "--timeout=60"], LIMIT_S)
