#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: wait, bounded, until chrony really follows a configured server."""

from __future__ import annotations

DOCUMENTATION = r"""
module: chrony_tracking
short_description: Verify that chrony follows one of its servers
description:
  - Asks C(chronyc) for tracking and sources until the clock is synchronised, follows one of O(servers) and is within
    O(max_offset_s), or O(timeout_s) is over.
  - Fails with one line for each server that says whether it answered.
  - Changes nothing.
author: The gpufleet authors
attributes:
  check_mode:
    description: Looks once, reports what it sees as RV(fault) and never fails, since the run that would mend it has
      not happened.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
options:
  servers:
    description: Names or addresses of the servers as they stand in chrony's configuration.
    type: list
    elements: str
    required: true
  max_offset_s:
    description: Seconds that the clock may be off its servers.
    type: float
    required: true
  timeout_s:
    description: Seconds to wait for the first synchronisation.
    type: float
    default: 120
"""

EXAMPLES = r"""
- name: Verify that the clock follows its servers
  chrony_tracking:
    servers: [10.0.0.1, 10.0.0.2]
    max_offset_s: 0.1
"""

RETURN = r"""
reference:
  description: The server that the clock follows.
  type: str
  returned: when synchronised
offset_s:
  description: Seconds that the clock is ahead of its servers.
  type: float
  returned: when synchronised
fault:
  description: In check mode, why the clock would not pass.
  type: str
  returned: in check mode, when something is wrong
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.chrony import (
    SOURCES,
    TRACKING,
    ChronyParseError,
    describe_servers,
    parse_sources,
    parse_tracking,
    tracking_fault,
)

PAUSE_S = 2
# chronyc gives up by itself after about 5 s without chronyd.
COMMAND_LIMIT_S = 15


def look(servers, max_offset_s):
    """One look: (tracking, fault, lines about the servers); tracking is None where chronyd gave no answer."""
    answers = []
    for argv in (TRACKING, SOURCES):
        result = run_bounded(argv, COMMAND_LIMIT_S)
        if result.outcome != "done" or result.rc != 0:
            return None, f"{' '.join(argv)} gave no answer: {result.said()}", []
        answers.append(result.stdout)
    try:
        tracking = parse_tracking(answers[0])
        sources = parse_sources(answers[1])
    except ChronyParseError as error:
        return None, str(error), []
    fault = tracking_fault(tracking, sources, servers, max_offset_s)
    return tracking, fault, describe_servers(sources, servers)


def main():
    module = AnsibleModule(
        argument_spec={
            "servers": {"type": "list", "elements": "str", "required": True},
            "max_offset_s": {"type": "float", "required": True},
            "timeout_s": {"type": "float", "default": 120},
        },
        supports_check_mode=True,
    )
    servers = module.params["servers"]
    max_offset_s = module.params["max_offset_s"]
    # Monotonic: the wall clock is what may be stepped meanwhile.
    end = time.monotonic() + module.params["timeout_s"]
    while True:
        tracking, fault, lines = look(servers, max_offset_s)
        if fault is None:
            module.exit_json(changed=False, reference=tracking.reference, offset_s=tracking.offset_s)
        if module.check_mode:
            module.exit_json(changed=False, fault=fault)
        if time.monotonic() >= end:
            break
        time.sleep(PAUSE_S)
    module.fail_json(
        msg=f"{fault} after {module.params['timeout_s']:g} s. Servers: {'; '.join(lines) or 'none known'}.",
        next_step="check that the node reaches its NTP servers over UDP (chronyc sources on the node), and "
        "platform.clock.servers in the profile",
    )


if __name__ == "__main__":
    main()
