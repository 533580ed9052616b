# SPDX-License-Identifier: Apache-2.0
"""The size limit of ZFS' cache in memory (ARC): what it should be, what it is, and setting it live."""

from __future__ import annotations

from typing import NamedTuple

PARAMETERS = "/sys/module/zfs/parameters"
ARCSTATS = "/proc/spl/kstat/zfs/arcstats"
# OpenZFS takes no smaller arc_min (twice the largest block, zfs(4)).
LEAST_ARC_MIN = 32 * 2**20


class ArcLimits(NamedTuple):
    """Bytes. maximum and minimum as set (0 = ZFS' own choice), effective = what ZFS really uses (c_max)."""

    minimum: int
    maximum: int
    effective: int


def wanted_limits(arc_max_bytes: int | None) -> tuple[int, int]:
    """(zfs_arc_min, zfs_arc_max) in bytes for a wanted maximum; (0, 0) = ZFS' own choice.

    The minimum has to be set as well: OpenZFS ignores a maximum that is not above its minimum, whose default is a
    32nd of the memory (arc_tuning_update), 64 GiB on a node with 2 TiB.
    """
    if arc_max_bytes is None:
        return 0, 0
    return max(arc_max_bytes // 8, LEAST_ARC_MIN), arc_max_bytes


def read_limits(parameters: str = PARAMETERS, arcstats: str = ARCSTATS) -> ArcLimits:
    """Of the loaded module. Raises OSError without it, ValueError for files that are not understood."""
    with open(f"{parameters}/zfs_arc_min", encoding="ascii") as file:
        minimum = int(file.read())
    with open(f"{parameters}/zfs_arc_max", encoding="ascii") as file:
        maximum = int(file.read())
    with open(arcstats, encoding="ascii") as file:
        rows = [line.split() for line in file]
    effective = [row[2] for row in rows if row[:1] == ["c_max"] and len(row) == 3]
    if not effective:
        raise ValueError(f"{arcstats} has no c_max")
    return ArcLimits(minimum, maximum, int(effective[0]))


def set_limits(minimum: int, maximum: int, parameters: str = PARAMETERS) -> None:
    """Set both, the minimum first (see wanted_limits). Raises OSError where ZFS refuses the value."""
    for name, value in (("zfs_arc_min", minimum), ("zfs_arc_max", maximum)):
        with open(f"{parameters}/{name}", "w", encoding="ascii") as file:
            file.write(f"{value}\n")
