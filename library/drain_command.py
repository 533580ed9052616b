#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: drain or give back nodes by a command of the operator's."""

from __future__ import annotations

DOCUMENTATION = r"""
module: drain_command
short_description: Drain or give back nodes by a command
description:
  - Runs a command once for all nodes. It finds them, separated by blanks, in C(GPUFLEET_NODES), and beside that
    C(GPUFLEET_CAMPAIGN), C(GPUFLEET_REASON) and C(GPUFLEET_TIMEOUT_S).
  - Exit status 0 means that every node is free (or is back), except those that the command names in lines such as
    C(refused gpu-001 a job of alice still runs) (it could not be freed) and C(left gpu-002 in repair) (it is somebody
    else's). Any other exit status means that nothing is known of any node.
  - A run that was cut off calls the command again for the same nodes, so it must bear that.
author: The gpufleet authors
attributes:
  check_mode:
    description: Does not run the command.
    support: full
  diff_mode:
    description: Nothing to show.
    support: none
options:
  argv:
    description: The command as a list of words.
    type: list
    elements: str
    required: true
  nodes:
    description: Names of the nodes.
    type: list
    elements: str
    required: true
  campaign:
    description: Id of the campaign.
    type: str
    required: true
  environment:
    description: More variables for the command.
    type: dict
    default: {}
  timeout_s:
    description: Seconds that the command has. What does not end by then is ended, with its children.
    type: float
    required: true
"""

EXAMPLES = r"""
- name: Cordon two nodes
  drain_command:
    argv: [/usr/local/sbin/cordon]
    nodes: [gpu-001, gpu-002]
    campaign: 20261130T194500Z-driver
    timeout_s: 3600
"""

RETURN = r"""
refused:
  description: Nodes that could not be freed, with the reason.
  type: dict
  returned: success
left:
  description: Nodes that are somebody else's, with the reason.
  type: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.drain_answer import parse_answer


def main():
    module = AnsibleModule(
        argument_spec={
            "argv": {"type": "list", "elements": "str", "required": True},
            "nodes": {"type": "list", "elements": "str", "required": True},
            "campaign": {"type": "str", "required": True},
            "environment": {"type": "dict", "default": {}},
            "timeout_s": {"type": "float", "required": True},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    if not wanted["nodes"] or module.check_mode:
        module.exit_json(changed=bool(wanted["nodes"]), refused={}, left={})
    if not wanted["argv"]:
        module.fail_json(msg="the command is empty", next_step="name it as a list of words")
    environment = {str(name): str(value) for name, value in wanted["environment"].items()}
    environment["GPUFLEET_NODES"] = " ".join(wanted["nodes"])
    environment["GPUFLEET_CAMPAIGN"] = wanted["campaign"]
    environment["GPUFLEET_REASON"] = "gpufleet:" + wanted["campaign"]
    environment["GPUFLEET_TIMEOUT_S"] = f"{wanted['timeout_s']:g}"
    result = run_bounded(wanted["argv"], wanted["timeout_s"], environment)
    if result.outcome != "done" or result.rc != 0:
        how = f"ended with exit status {result.rc}" if result.outcome == "done" else result.outcome
        module.fail_json(
            msg=f"{' '.join(wanted['argv'])} {how}: {result.said()}",
            next_step="run it by hand with GPUFLEET_NODES set (roles/drain/README.md), then run the playbook again",
        )
    answer = parse_answer(result.stdout, wanted["nodes"])
    module.exit_json(changed=True, refused=answer.refused, left=answer.left)


if __name__ == "__main__":
    main()
