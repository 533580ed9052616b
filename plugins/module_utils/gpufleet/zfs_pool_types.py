# SPDX-License-Identifier: Apache-2.0
"""What a node's pool should be, what it is, and the steps between: the types that the planning shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from .block_devices import Disk
from .disk_content import Content
from .zfs_arc import ArcLimits
from .zfs_disk_choice import DiskRules
from .zfs_pool_members import Member
from .zfs_pool_record import Intent, PoolRecord
from .zfs_properties import Property
from .zpool_import import ImportablePool
from .zpool_status import Pool

REPLACE_VARIABLE = "zfs_pool_replace"
FOREIGN_VARIABLE = "zfs_pool_import_foreign"
RUNBOOK = "docs/storage.md"


class WantedFileSystem(NamedTuple):
    """mountpoint: a path, "none", or None = as inherited."""

    name: str
    mountpoint: str | None
    properties: Mapping[str, str]


class Replacement(NamedTuple):
    """Serial numbers."""

    old: str
    new: str


class WantedPool(NamedTuple):
    """What the profile and the operator want. file_systems: the top one first, parents before children.

    group_size: disks of each redundant group. arc_max_bytes: None = ZFS' own choice.
    """

    name: str
    layout: str
    group_size: int
    ashift: int
    rules: DiskRules
    properties: Mapping[str, str]
    file_systems: tuple[WantedFileSystem, ...]
    arc_max_bytes: int | None
    wipe_serials: tuple[str, ...]
    replacements: tuple[Replacement, ...]
    import_foreign: tuple[str, ...]


class NodeState(NamedTuple):
    """All that was read from the node.

    disks           all physical disks, each with what uses it, pools included
    pool            the pool of the wanted name, None where it is not imported
    members         all leaves of that pool, logs, cache and spares included
    guid            the pool's id, as digits
    ashift          of its first group of disks; None where unknown
    pool_properties, file_systems
                    as zpool get and zfs get print them; a file system that is not there is missing
    importable      what could be imported; read only where the pool is not imported
    loaded          whether the zfs module is: without it nothing is known of pools but the labels on the disks
    labelled        serial numbers of the disks that bear a pool's label, by the pool's id
    labelled_names  the name of the pool, by its id, that such labels tell
    contents        reads what lies on disks, by their kernel names
    hidden_entries  how many entries a directory has that a file system mounted there would hide
    record, intent  what the node remembers (zfs_pool_record); record_path is for messages
    host_id         of /etc/hostid, None where there is none; own_host_id: the one the file should get then
    arc             None where the module is not loaded
    zfs_version     (major, minor) of the user land; None where it is not installed
    """

    disks: Sequence[Disk]
    pool: Pool | None
    members: Sequence[Member]
    guid: str
    ashift: int | None
    pool_properties: Mapping[str, Property]
    file_systems: Mapping[str, Mapping[str, Property] | None]
    importable: Sequence[ImportablePool]
    loaded: bool
    labelled: Mapping[str, Sequence[str]]
    labelled_names: Mapping[str, str]
    contents: Callable[[Sequence[Disk]], Mapping[str, Content]]
    hidden_entries: Callable[[str], int]
    record: PoolRecord | None
    record_path: str
    intent: Intent | None
    host_id: int | None
    own_host_id: int
    arc: ArcLimits | None
    zfs_version: tuple[int, int] | None


class Step(NamedTuple):
    """One thing to do.

    kind: command (argv, limit_s seconds), wipe (disk), host_id or arc. text: for people and for the diff. before: what
    the step changes.
    """

    kind: str
    text: str
    before: str
    argv: tuple[str, ...] = ()
    limit_s: int = 120
    disk: Disk | None = None
    host_id: int = 0


class Attention(NamedTuple):
    """Something that somebody has to look at. severity: warn or fail."""

    reason: str
    next_step: str
    severity: str


class Plan(NamedTuple):
    """steps: in order. overwritten: serial numbers of the disks that the steps overwrite, and what for."""

    steps: tuple[Step, ...]
    attention: tuple[Attention, ...]
    overwritten: tuple[str, ...]
    purpose: str
