# SPDX-License-Identifier: Apache-2.0
"""A pool that is imported: what must not be changed, what has to be, and what somebody has to look at."""

from __future__ import annotations

from collections.abc import Sequence

from .block_devices import Disk
from .zfs_disk_choice import WIPE_VARIABLE, Refusal, content_problem, free_disks, mismatch
from .zfs_pool_members import Member
from .zfs_pool_shape import is_leftover, path_for, wipe
from .zfs_pool_types import REPLACE_VARIABLE, RUNBOOK, Attention, NodeState, Step, WantedPool
from .zpool_status import Concern, Pool, Vdev, judge, leaves


def refuse_a_pool_that_cannot_work(pool: Pool, members: Sequence[Member], wanted: WantedPool) -> None:
    """Suspended, faulted or unavailable: every command that writes would hang or fail."""
    listed = "; ".join(f"{member} is {member.trouble}" for member in members if member.trouble) or "no member is lost"
    if pool.suspended:
        raise Refusal(
            f"pool {pool.name} is suspended: more disks are lost than its layout survives, and all programs that use "
            f"it hang ({listed}). {pool.status}".rstrip("."),
            f"put the disks back, then on the node: zpool clear {pool.name}. Without them the node has to be "
            f"restarted, and what is left be saved ({RUNBOOK}, 'A suspended pool')",
        )
    if pool.state not in ("ONLINE", "DEGRADED"):
        raise Refusal(
            f"pool {pool.name} is {pool.state} ({listed}). {pool.status}".rstrip(" ."),
            f"see {RUNBOOK}, 'A pool that cannot be used'",
        )


def refuse_another_ashift(wanted: WantedPool, state: NodeState) -> None:
    if state.ashift is not None and state.ashift != wanted.ashift:
        raise Refusal(
            f"pool {wanted.name} was made with ashift {state.ashift}, the profile wants {wanted.ashift}. ZFS fixes it "
            "when a disk becomes a member",
            f"set storage.pool.ashift: {state.ashift}, or make the pool anew by hand after saving its data "
            f"({RUNBOOK}, 'Destroy')",
        )


def plan_returned_members(wanted: WantedPool, state: NodeState) -> list[Step]:
    """A disk that was gone and is back holds its member's label. OFFLINE is left: somebody took it out on purpose."""
    named = {replacement.old for replacement in wanted.replacements}
    return [
        Step(
            "command",
            f"take {member} into pool {wanted.name} again",
            argv=("zpool", "online", wanted.name, member.handle),
            before=f"{member} is {member.vdev.state}",
        )
        for member in state.members
        if member.vdev.state in ("REMOVED", "UNAVAIL") and member.disk is not None and member.serial not in named
    ]


def plan_replacements(wanted: WantedPool, state: NodeState) -> tuple[list[Step], tuple[str, ...]]:
    """Replacements that the operator named and that are still to be begun, and the serials of their new disks."""
    steps: list[Step] = []
    overwritten: list[str] = []
    by_serial = {member.serial: member for member in state.members if member.serial}
    for old_serial, new_serial in wanted.replacements:
        if new_serial in by_serial:
            continue  # begun by an earlier run; ZFS goes on with it by itself
        old = by_serial.get(old_serial)
        if old is None:
            raise Refusal(
                f"{REPLACE_VARIABLE} names {old_serial} as the old disk, but pool {wanted.name} has no such member; it "
                f"has {', '.join(map(str, state.members))}",
                "correct the serial number",
            )
        new = _new_disk(wanted, state, new_serial)
        content = state.contents([new])[new.kernel_name]
        problem = content_problem(new, content, wanted.wipe_serials, is_leftover(state.intent))
        if problem:
            raise Refusal(
                f"the new disk cannot be taken: {problem}",
                "look at what lies there; if it may be destroyed, list the disk for wiping: "
                f'-e \'{{"{WIPE_VARIABLE}": ["{new_serial}"]}}\'',
            )
        if not content.blank:
            steps.append(wipe(new, content))
        steps.append(
            Step(
                "command",
                f"replace {old} by {new}",
                argv=("zpool", "replace", wanted.name, old.handle, path_for(new, state.disks)),
                limit_s=600,
                before=f"{old} is {old.vdev.state}",
            )
        )
        overwritten.append(new_serial)
    return steps, tuple(overwritten)


def _new_disk(wanted: WantedPool, state: NodeState, serial: str) -> Disk:
    found = [disk for disk in state.disks if disk.serial == serial]
    if len(found) != 1:
        there = f"{len(found)} disks report it: {'; '.join(map(str, found))}" if found else "no disk reports it"
        free = ", ".join(map(str, free_disks(state.disks, wanted.rules))) or "none"
        raise Refusal(
            f"{REPLACE_VARIABLE} names {serial} as the new disk, but {there}. Free data disks: {free}",
            "put the disk in, or correct the serial number",
        )
    disk = found[0]
    reason = mismatch(disk, wanted.rules)
    if disk.uses or reason:
        raise Refusal(
            f"the new disk cannot be taken: {disk} {', '.join(disk.uses) or f'is no data disk: {reason}'}",
            "name another disk, or correct the rules (storage.pool.disks, devices.data_disk) in the profile",
        )
    least = min((member.disk.size for member in state.members if member.disk and member.vdev.role == "data"), default=0)
    if disk.size < least * (1 - wanted.rules.max_size_difference_percent / 100):
        raise Refusal(
            f"the new disk cannot be taken: {disk} is smaller than the members of pool {wanted.name} "
            f"({least / 1e9:.1f} GB)",
            "name a disk of the members' size",
        )
    return disk


def plan_attention(wanted: WantedPool, state: NodeState, replacing: bool) -> list[Attention]:
    assert state.pool is not None
    by_path = {member.vdev.name: member for member in state.members}
    spare = free_disks(state.disks, wanted.rules)
    leaving = {leaf.name for top in state.pool.data for leaf in _leaves_being_replaced(top)}
    notes = []
    for concern in judge(state.pool):
        member = by_path.get(concern.component)
        if concern.component in leaving and concern.kind != "member_errors":
            continue  # its successor is being filled
        if concern.kind == "degraded" and member is None and any(item.vdev.state != "ONLINE" for item in state.members):
            continue  # its members say why
        if concern.kind == "resilvering" or (replacing and member is not None):
            continue  # followed, or mended by a step of this run
        notes.append(_attention(concern, member, wanted, spare))
    notes += [
        _lost(member, wanted, spare) for member in state.members if member.vdev.state == "ONLINE" and member.trouble
    ]
    used = {replacement.new for replacement in wanted.replacements}
    for disk in spare:
        if disk.serial not in used and not notes:
            notes.append(
                Attention(
                    f"{disk} fits the rules of the data disks but is no member of pool {wanted.name}",
                    "take it out, or keep it as a spare on the shelf: a pool does not grow by itself",
                    "warn",
                )
            )
    return notes


def _leaves_being_replaced(vdev: Vdev) -> list[Vdev]:
    """The old one of each pair: zpool lists it before its successor, whose own trouble has to be told."""
    if vdev.kind == "replacing":
        return leaves(vdev.children[0])
    return [leaf for child in vdev.children for leaf in _leaves_being_replaced(child)]


_STEPS = {
    "member_errors": "look at the disk (smartctl -a, kernel log) and its bay; then on the node: zpool clear {pool}",
    "data_errors": "zpool status -v {pool} names the damaged files: restore them, then run zpool scrub {pool}",
    "scrub_errors": "look at the disks (smartctl -a, kernel log), then run zpool scrub {pool} again",
    "hostid_mismatch": "the pool is marked as another machine's: export and import it once, with nothing using it "
    "(see {runbook}, 'Move')",
    "offline_member": "somebody took it out of service: zpool online {pool} {handle} when that is over",
    "faulted_member": "the disk fails: replace it, or after mending its bay: zpool clear {pool}. To replace: {replace}",
    "unknown_status": "see zpool status {pool} on the node",
}


_PUT_BACK = "put the disk back and run again, or put in another one and run with {replace}"
_LOOK = "see zpool status {pool} on the node"


def _attention(concern: Concern, member: Member | None, wanted: WantedPool, spare: Sequence[Disk]) -> Attention:
    who = str(member) if member else concern.component
    step = _STEPS.get(concern.kind) or (_PUT_BACK if member else _LOOK)
    severity = "fail" if concern.severity == "fail" else "warn"
    return Attention(f"pool {wanted.name}: {who}: {concern.what}", _fill(step, member, wanted, spare), severity)


def _lost(member: Member, wanted: WantedPool, spare: Sequence[Disk]) -> Attention:
    reason = f"pool {wanted.name}: {member} is {member.trouble}"
    return Attention(reason, _fill(_PUT_BACK, member, wanted, spare), "fail")


def _fill(step: str, member: Member | None, wanted: WantedPool, spare: Sequence[Disk]) -> str:
    """A next step with the names that it is about."""
    new = spare[0].serial if len(spare) == 1 else "<serial of the new disk>"
    old = member.serial if member and member.serial else "<serial of the old disk>"
    replace = f'-e \'{{"{REPLACE_VARIABLE}": [{{"old": "{old}", "new": "{new}"}}]}}\''
    return step.format(pool=wanted.name, runbook=RUNBOOK, replace=replace, handle=member.handle if member else "")


def plan_pool_properties(wanted: WantedPool, state: NodeState) -> list[Step]:
    # Without a cache file the boot imports by the pool's id, whatever udev calls the disks by then.
    steps = []
    for name, value in {**wanted.properties, "cachefile": "none"}.items():
        now = state.pool_properties[name].value if name in state.pool_properties else None
        if now != value:
            argv = ("zpool", "set", f"{name}={value}", wanted.name)
            steps.append(Step("command", f"set {name}={value} on pool {wanted.name}", f"{name}={now}", argv))
    return steps
