#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: what must be known on the node before and after a reboot. Its action plugin does the reboot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: reboot_node
short_description: Serve the open requests by one reboot, if the node may be rebooted now
description:
  - One task from the decision to the proof, so that every node of a batch is finished before the roll-out goes on or
    stops.
  - Before the reboot, it looks for processes on the GPUs, runs the guard command, and asks each request whether its
    reason still stands. A node that may not be rebooted is left as it is, and the summary of the run says why.
  - The reboot is the one of M(ansible.builtin.reboot). The kernel's boot id proves that it happened.
  - After the reboot it asks each request again. A reason that stands still fails the task, and a record on the node
    keeps every later run from trying again.
  - Over a local connection, and in a container, nothing is rebooted.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says whether the node would be rebooted.
    support: full
  diff_mode:
    description: Nothing to show.
    support: none
options:
  guard:
    description: Command on the node; the node is rebooted only if it ends with exit status 0.
    type: list
    elements: str
    default: []
  guard_timeout_s:
    description: Seconds that the guard has. One that hangs means no reboot.
    type: float
    default: 60
  without_gpu_evidence:
    description: Whether to reboot where it cannot be told if the GPUs are in use, because nvidia-smi gives no answer
      and open device files cannot be seen.
    type: bool
    default: false
  include_os_requests:
    description: Whether a request of the operating system counts.
    type: bool
    default: false
  timeout_s:
    description: Seconds that the node has to come back.
    type: int
    default: 1800
  settle_timeout_s:
    description: Seconds after the boot until the reasons must be gone, since services start after sshd.
    type: float
    default: 120
  phase:
    description: Set by the action plugin. C(decide) before the reboot, C(prove) after it.
    type: str
    choices: [decide, prove]
  boot_id:
    description: Set by the action plugin. The boot before the reboot.
    type: str
  directory:
    description: Folder of the requests.
    type: path
    default: /run/gpufleet/reboot.d
  records:
    description: Folder of the records of earlier reboots.
    type: path
    default: /var/lib/gpufleet/reboot
  os_request:
    description: File by which the operating system asks.
    type: path
    default: /run/reboot-required
"""

EXAMPLES = r"""
- name: Reboot the node if it may be rebooted now
  reboot_node:
    guard: [/usr/local/sbin/node-is-idle]
  # longer than the reboot may take, see roles/reboot
  timeout: 4200
"""

RETURN = r"""
rebooted:
  description: Whether the node was rebooted.
  type: bool
  returned: always
reasons:
  description: What the reboot was for, or would be for.
  type: list
  elements: str
  returned: always
refusals:
  description: Why the node was not rebooted.
  type: list
  elements: str
  returned: when it was not
boot_id:
  description: The kernel's id of the boot before the reboot.
  type: str
  returned: always
stuck:
  description: Reasons that stand after the reboot, each with name, reason and why.
  type: list
  elements: dict
  returned: after a reboot
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.gpu_processes import find_gpu_processes
from ansible.module_utils.gpufleet.reboot_requests import (
    judge,
    read_boot_id,
    read_folder,
    read_os_request,
    reason_stands,
    remove_request,
    write_request,
)

SETTLE_PAUSE_S = 5


def refusals_of(wanted):
    """Why this node may not be rebooted now, all reasons at once."""
    refusals = []
    if os.path.exists("/run/systemd/container"):
        refusals.append("it is a container: reboot its host, or start it again there")
    state = run_bounded(["systemctl", "is-system-running"], 30)
    if state.outcome == "done" and state.stdout.strip() == "stopping":
        refusals.append("it is shutting down already")
    gpus = find_gpu_processes()
    if gpus.processes:
        refusals.append("GPU processes are running: " + ", ".join(gpus.processes[:10]))
    if gpus.unknown and not wanted["without_gpu_evidence"]:
        refusals.append(
            f"whether its GPUs are in use cannot be told: {gpus.unknown} (reboot_without_gpu_evidence: true "
            "reboots nevertheless)"
        )
    # Last, and only if nothing else speaks against it: a guard may drain the node.
    if wanted["guard"] and not refusals:
        guard = run_bounded(wanted["guard"], wanted["guard_timeout_s"])
        if guard.outcome != "done" or guard.rc != 0:
            how = f"ended with exit status {guard.rc}" if guard.outcome == "done" else guard.outcome
            refusals.append(f"the guard {' '.join(wanted['guard'])} says no ({how}): {guard.said()}")
    return refusals


def decide(module):
    wanted = module.params
    boot_id = read_boot_id()
    requests, dummy = read_folder(wanted["directory"])
    records, dummy = read_folder(wanted["records"])
    found = judge(requests, records, boot_id)
    reasons = [request.reason for request in found.pending]
    os_request = read_os_request(wanted["os_request"])
    if os_request and wanted["include_os_requests"]:
        reasons.append(os_request)
    result = {"changed": False, "rebooted": False, "reasons": reasons, "boot_id": boot_id}
    if found.stuck:
        module.exit_json(refusals=["a reason stands although the node was rebooted for it"], **result)
    if not reasons:
        module.exit_json(refusals=[], **result)
    refusals = refusals_of(wanted)
    if not refusals and not module.check_mode:
        # Written before the reboot: whatever happens to this run, the next one knows what was tried.
        for request in found.pending:
            write_request(wanted["records"], request._replace(boot_id=boot_id))
    module.exit_json(refusals=refusals, **result)


def prove(module):
    wanted = module.params
    if read_boot_id() == wanted["boot_id"]:
        module.fail_json(msg="the node answers, but it is the same boot as before: it was not rebooted", rebooted=False)
    records, dummy = read_folder(wanted["records"])
    mine = [record for record in records if record.boot_id == wanted["boot_id"]]
    end = time.monotonic() + wanted["settle_timeout_s"]
    standing = {record.name: record for record in mine if record.still_needed is not None}
    why = {}
    while standing:
        for name, record in list(standing.items()):
            why[name] = reason_stands(record)
            if why[name] is None:
                remove_request(wanted["records"], name)
                del standing[name]
        if not standing or time.monotonic() >= end:
            break
        time.sleep(SETTLE_PAUSE_S)
    module.exit_json(
        changed=True,
        rebooted=True,
        stuck=[{"name": name, "reason": record.reason, "why": why[name]} for name, record in standing.items()],
    )


def main():
    module = AnsibleModule(
        argument_spec={
            "guard": {"type": "list", "elements": "str", "default": []},
            "guard_timeout_s": {"type": "float", "default": 60},
            "without_gpu_evidence": {"type": "bool", "default": False},
            "include_os_requests": {"type": "bool", "default": False},
            "timeout_s": {"type": "int", "default": 1800},
            "settle_timeout_s": {"type": "float", "default": 120},
            "phase": {"type": "str", "choices": ["decide", "prove"]},
            "boot_id": {"type": "str"},
            "directory": {"type": "path", "default": "/run/gpufleet/reboot.d"},
            "records": {"type": "path", "default": "/var/lib/gpufleet/reboot"},
            "os_request": {"type": "path", "default": "/run/reboot-required"},
        },
        required_if=[("phase", "prove", ["boot_id"])],
        supports_check_mode=True,
    )
    if module.params["phase"] == "decide":
        decide(module)
    elif module.params["phase"] == "prove":
        prove(module)
    module.fail_json(msg="this module needs its action plugin: run it from the gpufleet repository (ansible.cfg)")


if __name__ == "__main__":
    main()
