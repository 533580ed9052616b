#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: zfs_pool
short_description: Create a ZFS pool over the node's data disks, and keep it as wanted
description:
  - Reads disks, pools, file systems and limits in one pass, and brings about the difference; a second run changes
    nothing.
  - Disks are chosen by what they are, never by kernel name. A disk that something uses is never taken; one with data
    only where its serial number is in O(wipe_serials).
  - A pool that is there is never made anew. Another layout, disks that are missing, unequal or cannot be told apart,
    and a pool of another machine are refused before anything is written.
  - A member that is gone is reported with serial number and slot; it is replaced only by O(replace).
  - community.general.zpool compares by-id names with resolved paths and wants to change an existing pool on each run;
    community.general.zfs sets sizes such as 1M again on each run (tests/modules/test_community_general_zfs.py shows
    both). One module also reads everything once.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says what would be done, from the same plan.
    support: full
  diff_mode:
    description: Shows each step with the state before it.
    support: full
options:
  name:
    description: Name of the pool.
    type: str
    required: true
  layout:
    description: Redundancy of each group of disks.
    type: str
    choices: [raidz1, raidz2, raidz3, mirror, stripe]
    required: true
  disks_per_group:
    description: Disks of each redundant group; all in one where it is left out.
    type: int
  pci_match:
    description: Rules with any of the keys vendor, device and class (four hexadecimal digits); a data disk's PCI
      function matches one of them.
    type: list
    elements: dict
    required: true
  disks:
    description: Rules for data disks as the profile has them (C(storage.pool.disks)).
    type: dict
    required: true
    suboptions:
      by_id: {description: Patterns of names in /dev/disk/by-id., type: list, elements: str, default: []}
      serial: {description: Patterns of serial numbers., type: list, elements: str, default: []}
      model: {description: Patterns of models., type: list, elements: str, default: []}
      min_gb: {description: Least size in GB., type: float}
      max_gb: {description: Greatest size in GB., type: float}
      max_size_difference_percent:
        description: By how much the smallest may be smaller than the largest.
        type: float
        default: 1
  count:
    description: Number of data disks.
    type: int
    required: true
  ashift:
    description: Sector size as a power of two.
    type: int
    default: 12
  properties:
    description: Properties of the pool.
    type: dict
    default: {}
  file_system:
    description: Properties of the top file system.
    type: dict
    default: {}
  mountpoint:
    description: Where the top file system is mounted; nowhere where it is left out.
    type: path
  datasets:
    description: File systems below the top one, by name; each with C(mountpoint) (null = as inherited) and
      C(properties).
    type: dict
    default: {}
  arc_max_gib:
    description: Limit of ZFS' cache in memory, set live. ZFS' own choice where it is left out.
    type: float
  wipe_serials:
    description: Serial numbers of disks whose content may be destroyed where the pool needs them.
    type: list
    elements: str
    default: []
  replace:
    description: Disks to replace, by serial number.
    type: list
    elements: dict
    default: []
    suboptions:
      old: {description: Serial number of the member., type: str, required: true}
      new: {description: Serial number of the disk that takes its place., type: str, required: true}
  import_foreign:
    description: Ids of pools that may be imported although another machine used them last.
    type: list
    elements: str
    default: []
  resilver_timeout_s:
    description: Seconds to follow the resilver that O(replace) starts. When they are over, it goes on by itself, and
      the next run follows it again.
    type: float
    default: 14400
  supported_os:
    description: Systems as C(<ID> <VERSION_ID>) of os-release; another one is refused.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Keep the data pool
  zfs_pool:
    name: data
    layout: raidz1
    pci_match: [{class: "0108"}]
    disks: {model: ["Dell Ent NVMe *"], min_gb: 1000}
    count: 5
    datasets: {scratch: {mountpoint: /scratch, properties: {quota: 10T}}}
"""

RETURN = r"""
pool:
  description: The pool after the run; in check mode before it. Null where there is none.
  type: dict
  returned: success
  contains:
    name: {description: Name., type: str}
    guid: {description: Id., type: str}
    state: {description: State as zpool status prints it., type: str}
    scan: {description: Last or current scan., type: str}
    members:
      description: One entry a member, with serial, place (slot, else PCI address), path, partuuid and state.
      type: list
      elements: dict
arc_limits:
  description: What the module's options have to say for O(arc_max_gib), as minimum and maximum in bytes; 0 is ZFS' own
    choice.
  type: dict
  returned: success
steps:
  description: What was done (in check mode, would be), in order.
  type: list
  elements: str
  returned: success
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.block_devices import BlockDeviceError
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.disk_wipe import WipeError, wipe_disk
from ansible.module_utils.gpufleet.host_id import write_host_id
from ansible.module_utils.gpufleet.os_release import read_os_release, unsupported
from ansible.module_utils.gpufleet.zfs_arc import set_limits, wanted_limits
from ansible.module_utils.gpufleet.zfs_disk_choice import Refusal, rules_from
from ansible.module_utils.gpufleet.zfs_pool_members import remember
from ansible.module_utils.gpufleet.zfs_pool_plan import make_plan
from ansible.module_utils.gpufleet.zfs_pool_record import PoolMemory, new_intent
from ansible.module_utils.gpufleet.zfs_pool_state import StateError, read_state
from ansible.module_utils.gpufleet.zfs_pool_types import Attention, Replacement, WantedFileSystem, WantedPool
from ansible.module_utils.gpufleet.zpool_status import ZpoolParseError

# Import brings to light what only an imported pool tells, and creation is one round: the third finds nothing to do.
MAX_ROUNDS = 3
RESILVER_LOOK_S = 5


class StepError(Exception):
    """A step failed; the message says which one and why."""


def wanted_from(params):
    """The parameters as a WantedPool."""
    count = params["count"]
    top = WantedFileSystem(params["name"], params["mountpoint"] or "none", params["file_system"])
    below = [
        WantedFileSystem(f"{params['name']}/{name}", dataset.get("mountpoint"), dataset.get("properties") or {})
        for name, dataset in sorted(params["datasets"].items())
    ]
    arc = params["arc_max_gib"]
    return WantedPool(
        name=params["name"],
        layout=params["layout"],
        group_size=params["disks_per_group"] or count,
        ashift=params["ashift"],
        rules=rules_from(params["pci_match"], params["disks"], count),
        properties=params["properties"],
        file_systems=(top, *below),
        arc_max_bytes=None if arc is None else int(arc * 2**30),
        wipe_serials=tuple(params["wipe_serials"]),
        replacements=tuple(Replacement(item["old"], item["new"]) for item in params["replace"]),
        import_foreign=tuple(params["import_foreign"]),
    )


def execute(plan, wanted, memory):
    """All steps, in order. What is about to be overwritten is noted first, so that a power cut is understood later."""
    if plan.overwritten:
        memory.write_intent(new_intent(plan.purpose, plan.overwritten))
    for step in plan.steps:
        if step.kind == "wipe":
            wipe_disk(step.disk, run_bounded)
        elif step.kind == "host_id":
            write_host_id(step.host_id)
        elif step.kind == "arc":
            try:
                set_limits(*wanted_limits(wanted.arc_max_bytes))
            except OSError as error:
                raise StepError(f"could not {step.text}: ZFS refused it ({error.strerror})") from error
        else:
            result = run_bounded(step.argv, step.limit_s)
            if result.outcome != "done" or result.rc != 0:
                raise StepError(f"could not {step.text}: {' '.join(step.argv)}: {result.said()}")


def follow_resilver(state, wanted, memory, timeout_s):
    """Wait until the resilver has ended or the time is over; returns the state then."""
    end = time.monotonic() + timeout_s
    while state.pool and state.pool.scan.kind == "resilver" and state.pool.scan.running and time.monotonic() < end:
        time.sleep(min(RESILVER_LOOK_S, max(end - time.monotonic(), 0)))
        state = read_state(wanted, memory, run_bounded)
    return state


def facts_of(state):
    """What the role needs to know of the pool."""
    if state.pool is None:
        return None
    return {
        "name": state.pool.name,
        "guid": state.guid,
        "state": state.pool.state,
        "scan": state.pool.scan.text,
        "members": [
            {
                "serial": member.serial,
                "place": member.place,
                "path": member.path,
                "partuuid": member.partuuid,
                "state": member.vdev.state,
            }
            for member in state.members
        ],
    }


def bring_about(wanted, memory, state):
    """Rounds of planning and acting until nothing is left to do; returns (state, last plan, all steps)."""
    done = []
    for _round in range(MAX_ROUNDS):
        plan = make_plan(wanted, state)
        if not plan.steps:
            return state, plan, done
        execute(plan, wanted, memory)
        done += plan.steps
        state = read_state(wanted, memory, run_bounded)
    plan = make_plan(wanted, state)
    if plan.steps:
        raise StepError("the run ended without an error, but this is still to be done: " + "; ".join(
            f"{step.text} (now: {step.before})" for step in plan.steps))  # fmt: skip
    return state, plan, done


def note_what_is_there(memory, state):
    """Remember the members while they can be seen; the work that was noted as begun is done."""
    if state.pool is None or not state.guid:
        return
    record = remember(state.guid, state.host_id or state.own_host_id, state.members, state.record)
    if record != state.record:
        memory.write_record(record)
    if state.intent is not None:
        memory.remove_intent()


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "layout": {
                "type": "str",
                "required": True,
                "choices": ["raidz1", "raidz2", "raidz3", "mirror", "stripe"],
            },
            "disks_per_group": {"type": "int"},
            "pci_match": {"type": "list", "elements": "dict", "required": True},
            "disks": {
                "type": "dict",
                "required": True,
                "options": {
                    "by_id": {"type": "list", "elements": "str", "default": []},
                    "serial": {"type": "list", "elements": "str", "default": []},
                    "model": {"type": "list", "elements": "str", "default": []},
                    "min_gb": {"type": "float"},
                    "max_gb": {"type": "float"},
                    "max_size_difference_percent": {"type": "float", "default": 1},
                },
            },
            "count": {"type": "int", "required": True},
            "ashift": {"type": "int", "default": 12},
            "properties": {"type": "dict", "default": {}},
            "file_system": {"type": "dict", "default": {}},
            "mountpoint": {"type": "path"},
            "datasets": {"type": "dict", "default": {}},
            "arc_max_gib": {"type": "float"},
            "wipe_serials": {"type": "list", "elements": "str", "default": []},
            "replace": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"old": {"type": "str", "required": True}, "new": {"type": "str", "required": True}},
            },
            "import_foreign": {"type": "list", "elements": "str", "default": []},
            "resilver_timeout_s": {"type": "float", "default": 14400},
            "supported_os": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    problem = unsupported(read_os_release(), module.params["supported_os"])
    if problem:
        module.fail_json(msg=problem)
    wanted = wanted_from(module.params)
    memory = PoolMemory(wanted.name)
    again = "mend the cause, then run again: what is done already is not done again"
    try:
        state = read_state(wanted, memory, run_bounded)
        if not module.check_mode and not state.loaded:
            module.fail_json(
                msg="ZFS is not installed, or its module is not loaded; nothing was changed.",
                next_step="run the whole role, or first its part that installs: --tags zfs_pool_install",
            )
        if module.check_mode:
            plan = make_plan(wanted, state)
            steps = plan.steps
        else:
            state, plan, steps = bring_about(wanted, memory, state)
            note_what_is_there(memory, state)
            if wanted.replacements:
                state = follow_resilver(state, wanted, memory, module.params["resilver_timeout_s"])
                plan = make_plan(wanted, state)
                note_what_is_there(memory, state)
    except (Refusal, StateError) as error:
        module.fail_json(msg=f"{error}.", next_step=error.next_step)
    except (BlockDeviceError, ZpoolParseError, StepError, WipeError, ValueError, OSError) as error:
        module.fail_json(msg=str(error), next_step=again)
    arc_minimum, arc_maximum = wanted_limits(wanted.arc_max_bytes)
    module.exit_json(
        changed=bool(steps),
        steps=[step.text for step in steps],
        pool=facts_of(state),
        arc_limits={"minimum": arc_minimum, "maximum": arc_maximum},
        gpufleet={"attention": [note._asdict() for note in (*plan.attention, *resilver_notes(state))]},
        diff={
            "before": "".join(f"{step.before}\n" for step in steps),
            "after": "".join(f"{step.text}\n" for step in steps),
        },
    )


def resilver_notes(state):
    """A resilver that goes on is worth to know; the pool must not lose another disk meanwhile."""
    if state.pool is None or state.pool.scan.kind != "resilver" or not state.pool.scan.running:
        return []
    return [
        Attention(
            f"pool {state.pool.name} is being resilvered: {state.pool.scan.text}",
            "nothing to do but to wait: it goes on by itself, over restarts too",
            "warn",
        )
    ]


if __name__ == "__main__":
    main()
