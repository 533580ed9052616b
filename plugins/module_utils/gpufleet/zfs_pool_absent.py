# SPDX-License-Identifier: Apache-2.0
"""A pool that is not imported: import it, create it, or say why neither may be done."""

from __future__ import annotations

from collections.abc import Sequence

from .zfs_disk_choice import WIPE_VARIABLE, Choice, Refusal
from .zfs_file_system_plan import all_properties, plan_file_systems, refuse_hidden_entries
from .zfs_pool_shape import in_words, path_for, refuse_another_layout, wanted_layout, wipe
from .zfs_pool_types import FOREIGN_VARIABLE, RUNBOOK, NodeState, Step, WantedPool
from .zpool_import import ImportablePool
from .zpool_status import leaves


def find_importable(wanted: WantedPool, state: NodeState) -> ImportablePool | None:
    """The node's own pool among those that could be imported. Raises Refusal where it must not be, or is not clear."""
    named = [
        pool
        for pool in state.importable
        if pool.name == wanted.name and not pool.destroyed and not _may_be_wiped(pool, wanted, state)
    ]
    known = state.record.guid if state.record else None
    own = [pool for pool in named if pool.guid == known]
    if known and named and not own:
        raise Refusal(
            f"this node's pool {wanted.name} has the id {known}, but its disks hold another pool of that name "
            f"({', '.join(pool.guid for pool in named)})",
            f"put the node's own disks back; if it shall have the other pool, remove {state.record_path} on the node",
        )
    candidates = own or named
    if not candidates:
        return None
    if len(candidates) > 1:
        raise Refusal(
            f"there are {len(candidates)} pools named {wanted.name} on the node's disks "
            f"({', '.join(pool.guid for pool in candidates)}); which one is meant cannot be told",
            f"import the right one by hand (zpool import <id> {wanted.name}), or take the other's disks out",
        )
    pool = candidates[0]
    if pool.foreign and pool.guid not in wanted.import_foreign:
        raise _foreign(pool, wanted, state)
    if not pool.importable:
        raise _not_importable(pool, wanted, state)
    refuse_another_layout(wanted, pool.data, f"pool {wanted.name} (id {pool.guid}), found on the node's disks,")
    return pool


def _may_be_wiped(pool: ImportablePool, wanted: WantedPool, state: NodeState) -> bool:
    """Whether a pool of the wanted name is in the way only as content of disks that are all listed for wiping.

    Never the node's own pool: a list that was forgotten in the inventory must not destroy it after a new installation.
    """
    serials = state.labelled.get(pool.guid, ())
    cut_off = state.intent is not None and state.record is None and not pool.importable
    return bool(serials) and set(serials) <= set(wanted.wipe_serials) and (pool.foreign or cut_off)


def _foreign(pool: ImportablePool, wanted: WantedPool, state: NodeState) -> Refusal:
    by = f" ({pool.hostname})" if pool.hostname else ""
    serials = state.labelled.get(pool.guid, ())
    disks = f" (on disks {', '.join(serials)})" if serials else ""
    if not pool.importable:
        return Refusal(
            f"the node's disks hold parts of a pool named {wanted.name}, id {pool.guid}, of another machine{by}{disks}",
            f"put the disks back where they belong, or let them be wiped: {_wipe_option(serials)}",
        )
    return Refusal(
        f"pool {wanted.name}, id {pool.guid}, on this node's disks was last used by another machine{by}{disks}. If "
        "that machine still uses it, importing it here would destroy it",
        "make sure that it does not, then name the pool: "
        f"-e '{{\"{FOREIGN_VARIABLE}\": [\"{pool.guid}\"]}}' ({RUNBOOK}, 'Move')",
    )


def _not_importable(pool: ImportablePool, wanted: WantedPool, state: NodeState) -> Refusal:
    """Short of disks, or never finished."""
    remembered = state.record.members if state.record else ()
    names = []
    for leaf in (leaf for top in pool.data for leaf in leaves(top) if leaf.state != "ONLINE"):
        item = next(
            (item for item in remembered if item.guid == leaf.name or item.path in (leaf.name, leaf.was_path)), None
        )
        what = f"disk {item.serial} (last seen in {item.place})" if item else (leaf.was_path or leaf.name)
        names.append(f"{what} is {leaf.state}")
    listed = "; ".join(names) or "no disk is named as lost"
    if state.intent is not None and state.record is None:
        return Refusal(
            f"the creation of pool {wanted.name} was cut off at {state.intent.when} and has left labels that make no "
            f"pool (id {pool.guid}, {pool.state}: {listed}). Nothing was ever stored in it",
            f"let its disks be wiped: {_wipe_option(state.intent.serials)}",
        )
    return Refusal(
        f"pool {wanted.name}, id {pool.guid}, is on this node's disks but cannot be imported, it is {pool.state}: "
        f"{listed}. {pool.status}".rstrip(),
        "put the lost disks back and run again; without them its data are lost "
        f"({RUNBOOK}, 'A pool that cannot be used')",
    )


def _wipe_option(serials: Sequence[str]) -> str:
    listed = ", ".join(f'"{serial}"' for serial in serials) or '"<serial>"'
    return f"-e '{{\"{WIPE_VARIABLE}\": [{listed}]}}'"


def refuse_to_make_anew_what_is_gone(wanted: WantedPool, state: NodeState) -> None:
    """A node that had a pool and does not find it has lost its disks, not its wish for a pool."""
    if state.record is None:
        return
    there = {disk.serial: disk for disk in state.disks}
    lines = [
        f"disk {item.serial}: " + (f"there ({there[item.serial].place}), without the pool's label"
                                   if item.serial in there else f"missing (last seen in {item.place})")
        for item in state.record.members
    ]  # fmt: skip
    raise Refusal(
        f"pool {wanted.name}, id {state.record.guid}, which this node had, is not there: " + "; ".join(lines),
        f"look for its disks; if it was destroyed on purpose, remove {state.record_path} on the node and run again",
    )


def plan_import(wanted: WantedPool, pool: ImportablePool) -> Step:
    force = ("-f",) if pool.foreign else ()
    return Step(
        "command",
        f"import pool {wanted.name} (id {pool.guid}{', last used by another machine' if force else ''})",
        argv=("zpool", "import", *force, "-d", "/dev/disk/by-id", "-o", "cachefile=none", pool.guid, wanted.name),
        limit_s=600,
        before=f"pool {wanted.name} is not imported",
    )


def plan_look_once_zfs_is_there(wanted: WantedPool, state: NodeState, guids: Sequence[str]) -> Step:
    """Check mode on a node that was installed anew: the labels name a pool, but only ZFS knows in what state it is."""
    serials = sorted(serial for guid in guids for serial in state.labelled.get(guid, ()))
    return Step(
        "command",
        f"import pool {wanted.name} (id {', '.join(guids)}) or say why not, once ZFS is installed",
        f"labels of a pool {wanted.name} on {', '.join(serials)}",
    )


def plan_creation(wanted: WantedPool, state: NodeState, choice: Choice) -> list[Step]:
    top = wanted.file_systems[0]
    refuse_hidden_entries(top, state)
    contents = state.contents(choice.wipe)
    steps = [wipe(disk, contents[disk.kernel_name]) for disk in choice.wipe]
    options = ["-o", "cachefile=none", "-o", f"ashift={wanted.ashift}"]
    for name, value in wanted.properties.items():
        options += ["-o", f"{name}={value}"]
    for name, value in all_properties(top, is_top=True).items():
        options += ["-O", f"{name}={value}"]
    groups: list[str] = []
    size = wanted.rules.count if wanted.layout == "stripe" else wanted.group_size
    for first in range(0, len(choice.disks), size):
        groups += [] if wanted.layout == "stripe" else [wanted.layout]
        groups += [path_for(disk, state.disks) for disk in choice.disks[first : first + size]]
    steps.append(
        Step(
            "command",
            f"create pool {wanted.name}: {in_words(wanted_layout(wanted))}: "
            + ", ".join(f"{disk.serial} ({disk.place})" for disk in choice.disks),
            argv=("zpool", "create", *options, wanted.name, *groups),
            limit_s=900,
            before=f"no pool {wanted.name}",
        )
    )
    return steps + plan_file_systems(wanted, state._replace(file_systems={top.name: None}))
