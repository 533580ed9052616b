# SPDX-License-Identifier: Apache-2.0
"""From what a node's pool should be and what it is to the steps between, or to the reason why there is no way.

Pure: reads nothing, runs nothing. The order of the checks is the order of harm: first what must never happen (taking a
disk of somebody else, making a pool anew over one that is only gone), then what has to be done.
"""

from __future__ import annotations

from .zfs_arc import ArcLimits, wanted_limits
from .zfs_disk_choice import choose_disks
from .zfs_file_system_plan import plan_file_systems
from .zfs_pool_absent import (
    find_importable,
    plan_creation,
    plan_import,
    plan_look_once_zfs_is_there,
    refuse_to_make_anew_what_is_gone,
)
from .zfs_pool_present import (
    plan_attention,
    plan_pool_properties,
    plan_replacements,
    plan_returned_members,
    refuse_a_pool_that_cannot_work,
    refuse_another_ashift,
)
from .zfs_pool_shape import is_leftover, refuse_another_layout
from .zfs_pool_types import Attention, NodeState, Plan, Step, WantedPool


def make_plan(wanted: WantedPool, state: NodeState) -> Plan:
    """The way from the state to the wish; no steps where they agree. Raises Refusal: then nothing may be touched."""
    steps: list[Step] = []
    attention: list[Attention] = []
    overwritten: tuple[str, ...] = ()
    purpose = ""
    if state.host_id is None:
        steps.append(
            Step(
                "host_id",
                f"write host id {state.own_host_id:08x} to /etc/hostid",
                before="no host id",
                host_id=state.own_host_id,
            )
        )
    if state.pool is not None:
        refuse_a_pool_that_cannot_work(state.pool, state.members, wanted)
        refuse_another_layout(wanted, state.pool.data, f"pool {wanted.name}")
        refuse_another_ashift(wanted, state)
        replacing, overwritten = plan_replacements(wanted, state)
        purpose = f"replace disks of pool {wanted.name}"
        steps += plan_returned_members(wanted, state)
        steps += replacing
        attention = plan_attention(wanted, state, bool(replacing))
        steps += plan_pool_properties(wanted, state)
        steps += plan_file_systems(wanted, state)
    elif not state.loaded and (guids := [guid for guid, name in state.labelled_names.items() if name == wanted.name]):
        steps.append(plan_look_once_zfs_is_there(wanted, state, guids))
    elif (found := find_importable(wanted, state)) is not None:
        steps.append(plan_import(wanted, found))
    else:
        refuse_to_make_anew_what_is_gone(wanted, state)
        choice = choose_disks(state.disks, wanted.rules, state.contents, wanted.wipe_serials, is_leftover(state.intent))
        steps += plan_creation(wanted, state, choice)
        overwritten = tuple(disk.serial for disk in choice.disks)
        purpose = f"create pool {wanted.name}"
    steps += _plan_arc(wanted, state.arc)
    return Plan(tuple(steps), tuple(attention), overwritten, purpose)


def _plan_arc(wanted: WantedPool, arc: ArcLimits | None) -> list[Step]:
    if arc is None:
        return []
    minimum, maximum = wanted_limits(wanted.arc_max_bytes)
    works = wanted.arc_max_bytes is None or arc.effective == maximum
    if (arc.minimum, arc.maximum) == (minimum, maximum) and works:
        return []
    now = f"ARC limit {arc.effective / 2**30:g} GiB"
    words = f"{maximum / 2**30:g} GiB" if maximum else "ZFS' own choice (after the next boot)"
    return [Step("arc", f"set the ARC limit to {words}", before=now)]
