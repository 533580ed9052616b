#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: read, drain or give back nodes of Slurm, where scontrol is."""

from __future__ import annotations

DOCUMENTATION = r"""
module: drain_slurm
short_description: Read, drain or give back nodes of Slurm
description:
  - Runs C(scontrol) on the host where it is, once for all nodes. It never waits, and never cancels a job.
  - A node that somebody else keeps from jobs (drained, down, failed) is left as it is. Only a node whose reason begins
    with one of O(marks) is given back.
  - The action plugin M(drain_nodes) is what roles use; it waits for jobs between calls of this module.
author: The gpufleet authors
attributes:
  check_mode:
    description: Reads, and says what would be drained or given back.
    support: full
  diff_mode:
    description: Nothing to show.
    support: none
options:
  state:
    description: C(present) only reads. C(drained) drains what is free. C(released) gives back what carries a mark.
    type: str
    choices: [present, drained, released]
    default: present
  nodes:
    description: Names of the nodes in Slurm.
    type: list
    elements: str
    required: true
  reason:
    description: Reason of the drain; one of O(marks).
    type: str
  marks:
    description: Beginnings of reasons that are ours.
    type: list
    elements: str
    required: true
  jobs:
    description: Whether to name the jobs on busy nodes.
    type: bool
    default: false
  timeout_s:
    description: Seconds that each command has.
    type: float
    default: 60
"""

EXAMPLES = r"""
- name: Drain two nodes
  drain_slurm:
    state: drained
    nodes: [gpu-001, gpu-002]
    reason: gpufleet:20261130T194500Z-driver
    marks: [gpufleet:20261130T194500Z-driver]
"""

RETURN = r"""
nodes:
  description: For each node that Slurm knows its states, reason, reason_by, owner (ours, other or free), busy,
    in_service.
  type: dict
  returned: success
before:
  description: The same as they were before this call acted.
  type: dict
  returned: success
unknown:
  description: Nodes that Slurm does not know.
  type: list
  elements: str
  returned: success
acted_on:
  description: Nodes that were drained or given back by this call, or would be in check mode.
  type: list
  elements: str
  returned: success
jobs:
  description: Jobs on busy nodes, each as id, user and nodes.
  type: list
  elements: dict
  returned: with O(jobs)
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.drain_slurm import (
    SlurmAnswerError,
    parse_jobs,
    parse_nodes,
    to_drain,
    to_resume,
)

NEXT_STEP = "try it by hand on the host that drain_host names: scontrol show node"


def run(module, argv, tolerated=()):
    """Standard output of a command of Slurm; fails the module where it is missing, hangs or refuses."""
    result = run_bounded(argv, module.params["timeout_s"])
    if result.outcome == "missing":
        module.fail_json(
            msg=f"there is no {argv[0]} on this host ({result.stderr})",
            next_step="set drain_host to a host of the inventory where scontrol works, such as a login node",
        )
    said = result.stderr + result.stdout
    if result.outcome != "done" or (result.rc != 0 and not any(text in said for text in tolerated)):
        how = "gave no answer in time" if result.outcome != "done" else f"ended with exit status {result.rc}"
        module.fail_json(msg=f"{' '.join(argv[:4])} {how}: {result.said()}", next_step=NEXT_STEP)
    return result.stdout


def read(module):
    """All wanted nodes that Slurm knows. One that it does not know makes scontrol fail, after it showed the others."""
    names = module.params["nodes"]
    out = run(module, ["scontrol", "--oneliner", "show", "node", ",".join(names)], tolerated=("not found",))
    try:
        return parse_nodes(out)
    except SlurmAnswerError as error:
        module.fail_json(msg=str(error), next_step=NEXT_STEP)


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "drained", "released"], "default": "present"},
            "nodes": {"type": "list", "elements": "str", "required": True},
            "reason": {"type": "str"},
            "marks": {"type": "list", "elements": "str", "required": True},
            "jobs": {"type": "bool", "default": False},
            "timeout_s": {"type": "float", "default": 60},
        },
        required_if=[("state", "drained", ["reason"])],
        supports_check_mode=True,
    )
    wanted = module.params
    if wanted["state"] == "drained" and wanted["reason"] not in wanted["marks"]:
        module.fail_json(msg="reason must be one of marks, or the node could not be given back", next_step="correct it")
    names = list(dict.fromkeys(wanted["nodes"]))
    if not names:
        module.exit_json(changed=False, nodes={}, before={}, unknown=[], acted_on=[], jobs=[])
    nodes = before = read(module)
    acting = []
    if wanted["state"] == "drained":
        acting = to_drain(nodes, names, wanted["marks"])
        update = ["state=drain", f"reason={wanted['reason']}"]
    elif wanted["state"] == "released":
        acting = to_resume(nodes, names, wanted["marks"])
        update = ["state=resume"]
    if acting and not module.check_mode:
        run(module, ["scontrol", "update", f"nodename={','.join(acting)}", *update])
        nodes = read(module)
    jobs = []
    busy = [name for name in names if name in nodes and nodes[name].busy]
    if wanted["jobs"] and busy:
        lines = run(module, ["squeue", "--noheader", "--format=%A|%u|%N", f"--nodelist={','.join(busy)}"])
        jobs = [{"id": job, "user": user, "nodes": where} for job, user, where in parse_jobs(lines)]
    module.exit_json(
        changed=bool(acting),
        nodes={name: node.as_dict(wanted["marks"]) for name, node in nodes.items()},
        before={name: node.as_dict(wanted["marks"]) for name, node in before.items()},
        unknown=[name for name in names if name not in nodes],
        acted_on=acting,
        jobs=jobs,
    )


if __name__ == "__main__":
    main()
