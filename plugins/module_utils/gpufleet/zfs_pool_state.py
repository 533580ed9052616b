# SPDX-License-Identifier: Apache-2.0
"""Read all that the planning of a pool needs to know of a node."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

from .block_devices import BlockDeviceError, Disk, read_disks
from .bounded_command import CommandResult
from .disk_content import Content, read_contents
from .host_id import derive_host_id, read_host_id
from .zfs_arc import read_limits
from .zfs_pool_members import ZfsLabel, find_members, in_use_by_pools, read_labels
from .zfs_pool_record import PoolMemory
from .zfs_pool_types import NodeState, WantedPool
from .zfs_properties import Property, parse_properties
from .zpool_import import ImportablePool, parse_label, parse_zpool_import
from .zpool_status import Pool, leaves, parse_zpool_status

MODULE = "/sys/module/zfs"
# zpool answers from memory; with a hung device it may wait for a lock that is never given back.
LIMIT_S = 120
# Reads the labels of all devices.
IMPORT_LIMIT_S = 300
# What decides whether a file system is mounted, beside the properties that are wanted.
_ALWAYS = ("mountpoint", "mounted", "canmount")

Run = Callable[[Sequence[str], float], CommandResult]


class StateError(Exception):
    """The state could not be read; the message says which command said what. next_step says what to do."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


def read_state(wanted: WantedPool, memory: PoolMemory, run: Run) -> NodeState:
    """One pass over the node. Raises StateError, BlockDeviceError or ValueError (a file that is not understood)."""
    loaded = os.path.isdir(MODULE)
    version = _read_version(run)
    pools = _read_pools(run) if loaded and version else []
    disks = list(in_use_by_pools(read_disks(run), _leaf_paths(pools)))
    labels = read_labels(disks, run)
    record = memory.read_record()
    pool = next((pool for pool in pools if pool.name == wanted.name), None)
    pool_properties: Mapping[str, Property] = {}
    file_systems: Mapping[str, Mapping[str, Property]] = {}
    importable: list[ImportablePool] = []
    host_id = read_host_id()
    if pool is not None and not pool.suspended and pool.state in ("ONLINE", "DEGRADED"):
        pool_properties = _read_pool_properties(wanted, run)
        file_systems = _read_file_systems(wanted, run)
    elif pool is None and loaded and version:
        importable = [_with_owner(found, labels, host_id, run) for found in _read_importable(run)]
    guid = pool_properties["guid"].value if "guid" in pool_properties else ""
    own_labels = [label for label in labels if label.pool == wanted.name and guid in ("", label.pool_guid)]
    members = find_members((pool.root, *pool.others), disks, own_labels, record) if pool else []
    return NodeState(
        disks=disks,
        pool=pool,
        members=members,
        guid=guid,
        ashift=_read_ashift(pool_properties, labels, guid, run),
        pool_properties=pool_properties,
        file_systems=file_systems,
        importable=importable,
        loaded=loaded and version is not None,
        labelled=_labelled(labels, disks),
        labelled_names={label.pool_guid: label.pool for label in labels},
        contents=lambda chosen: _contents(chosen, run),
        hidden_entries=_hidden_entries,
        record=record,
        record_path=memory.record_path,
        intent=memory.read_intent(),
        host_id=host_id,
        own_host_id=record.host_id if record else derive_host_id(),
        arc=read_limits() if loaded else None,
        zfs_version=version,
    )


def _answer(run: Run, argv: Sequence[str], limit_s: float = LIMIT_S, harmless: str = "") -> str:
    """Output of a command. Raises StateError where it fails, unless its error matches `harmless`: then "" or what it
    printed before."""
    result = run(argv, limit_s)
    if result.outcome == "done" and (result.rc == 0 or (harmless and re.search(harmless, result.stderr))):
        return result.stdout
    raise _no_answer(argv, result)


def _no_answer(argv: Sequence[str], result: CommandResult) -> StateError:
    status = "" if result.rc is None else f" (exit status {result.rc})"
    return StateError(
        f"{' '.join(argv)} gave no answer{status}: {result.said()}",
        "run it on the node; a command that hangs means a device that does not answer: see the kernel log",
    )


def _read_version(run: Run) -> tuple[int, int] | None:
    """User land version; None where it is not installed. Without the module zfs fails, but prints it first."""
    result = run(("zfs", "version"), LIMIT_S)
    found = re.search(r"^zfs-(\d+)\.(\d+)", result.stdout, re.MULTILINE)
    return (int(found.group(1)), int(found.group(2))) if found else None


def _read_pools(run: Run) -> list[Pool]:
    # -v: the damaged files; -P: paths instead of shortened names; -p: exact numbers
    text = _answer(run, ("zpool", "status", "-v", "-P", "-p"))
    return parse_zpool_status(text) if text.strip() else _no_pools(run)


def _no_pools(run: Run) -> list[Pool]:
    """zpool status prints nothing on stdout without a pool: the list of pools has to agree."""
    names = _answer(run, ("zpool", "list", "-H", "-o", "name")).split()
    if names:
        raise StateError(f"zpool status printed nothing, but there are pools: {', '.join(names)}", "run it on the node")
    return []


def _leaf_paths(pools: Sequence[Pool]) -> dict[str, str]:
    """Pool by the kernel path of each of its leaves, spares and cache included."""
    return {
        os.path.realpath(leaf.name): pool.name
        for pool in pools
        for top in (pool.root, *pool.others)
        for leaf in leaves(top)
        if leaf.name.startswith("/") and leaf.state not in ("REMOVED", "UNAVAIL")
    }


def _read_pool_properties(wanted: WantedPool, run: Run) -> Mapping[str, Property]:
    names = ",".join(dict.fromkeys(("guid", "ashift", "cachefile", *wanted.properties)))
    text = _answer(run, ("zpool", "get", "-Hp", "-o", "name,property,value,source", names, wanted.name))
    return parse_properties(text).get(wanted.name, {})


def _read_file_systems(wanted: WantedPool, run: Run) -> Mapping[str, Mapping[str, Property]]:
    """Only the wanted ones: Docker's storage driver makes thousands more."""
    names = dict.fromkeys(_ALWAYS)
    for file_system in wanted.file_systems:
        names.update(dict.fromkeys(file_system.properties))
    argv = ["zfs", "get", "-Hp", "-t", "filesystem", "-o", "name,property,value,source", ",".join([*names, *_USER])]
    argv += [file_system.name for file_system in wanted.file_systems]
    return parse_properties(_answer(run, argv, harmless="dataset does not exist"))


_USER = ("org.debian:periodic-scrub", "org.debian:periodic-trim")


def _read_importable(run: Run) -> list[ImportablePool]:
    argv = ("zpool", "import", "-d", "/dev/disk/by-id")
    result = run(argv, IMPORT_LIMIT_S)
    # Silence is no proof: without a pool zpool says so, on stderr.
    if result.outcome == "done" and not result.stdout.strip() and "no pools available to import" in result.stderr:
        return []
    if result.outcome != "done" or result.rc != 0:
        raise _no_answer(argv, result)
    return parse_zpool_import(result.stdout)


def _with_owner(pool: ImportablePool, labels: Sequence[ZfsLabel], host_id: int | None, run: Run) -> ImportablePool:
    """Whose pool it is, from the label: the listing hides it behind a resilver that was cut off."""
    device = next((label.device for label in labels if label.pool_guid == pool.guid), None)
    if device is None:
        return pool
    label = parse_label(_answer(run, ("zdb", "-l", device)))
    # An exported pool (state 1) belongs to nobody.
    other = label.state == 0 and label.hostid not in (None, 0, host_id)
    return pool._replace(foreign=pool.foreign or other, hostname=pool.hostname or label.hostname)


def _read_ashift(properties: Mapping[str, Property], labels: Sequence[ZfsLabel], guid: str, run: Run) -> int | None:
    """The pool's property is what was asked for when it was created; 0 = ZFS chose, then the label knows."""
    if "ashift" not in properties:
        return None
    asked = int(properties["ashift"].value)
    device = next((label.device for label in labels if label.pool_guid == guid), None)
    if asked or device is None:
        return asked or None
    return parse_label(_answer(run, ("zdb", "-l", device))).ashift


def _labelled(labels: Sequence[ZfsLabel], disks: Sequence[Disk]) -> dict[str, list[str]]:
    serials = {path: disk.serial for disk in disks for path in disk.device_paths}
    found: dict[str, list[str]] = {}
    for label in labels:
        serial = serials.get(label.device, "")
        if label.pool_guid and serial not in found.setdefault(label.pool_guid, []):
            found[label.pool_guid].append(serial)
    return found


def _contents(disks: Sequence[Disk], run: Run) -> Mapping[str, Content]:
    """read_contents with its error turned into one that says that nothing was touched."""
    try:
        return read_contents(disks, run)
    except BlockDeviceError as error:
        raise StateError(str(error), "replace the disk, or mend its bay; nothing was changed") from error


def _hidden_entries(place: str) -> int:
    """Entries of a directory; 0 where there is none, or where a file system is mounted already."""
    if os.path.ismount(place):
        return 0
    try:
        return len(os.listdir(place))
    except FileNotFoundError:
        return 0
    except NotADirectoryError:
        return 1
