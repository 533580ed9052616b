#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: what reboots a node's roles (and its operating system) ask for. Its action plugin sorts the hosts."""

from __future__ import annotations

DOCUMENTATION = r"""
module: reboot_status
short_description: Report the open requests for a reboot
description:
  - Reads the requests that roles left with M(reboot_request), asks the command of each whether its reason still
    stands, and reports those that need a reboot.
  - The action plugin adds hosts with open requests to the group C(gpufleet_reboot_pending) by itself, as
    C(group_by) does, so that a node without requests costs one host-task, and no skipped ones. It does so only
    where O(allowed) is true; otherwise the requests go to the summary of the run.
  - Fails where the reason of a request stands although the node was rebooted for it. A second reboot is never tried.
  - A file that is no valid request (cut short, foreign owner, writable by others) is reported. It never leads to a
    reboot.
author: The gpufleet authors
attributes:
  check_mode:
    description: The same, except that records of earlier reboots are not tidied up.
    support: full
  diff_mode:
    description: Nothing to show.
    support: none
options:
  allowed:
    description: Whether the reboot stage may act on this host.
    type: bool
    default: false
  include_os_requests:
    description: Whether C(/run/reboot-required) of the operating system counts as a request. Otherwise it is only
      reported.
    type: bool
    default: false
  directory:
    description: Folder of the requests.
    type: path
    default: /run/gpufleet/reboot.d
  records:
    description: Folder of the records of earlier reboots.
    type: path
    default: /var/lib/gpufleet/reboot
  os_request:
    description: File by which the operating system asks. Its packages stand in a file of the same name with C(.pkgs).
    type: path
    default: /run/reboot-required
"""

EXAMPLES = r"""
- name: Look for open requests for a reboot
  reboot_status:
    allowed: "{{ reboot_allowed }}"
"""

RETURN = r"""
requests:
  description: Open requests, each with name, reason, requested_by and when.
  type: list
  elements: dict
  returned: always
stuck:
  description: Reasons that stand although the node was rebooted for them, each with name, reason and why.
  type: list
  elements: dict
  returned: always
problems:
  description: Files that are no valid requests, and what is wrong with them.
  type: list
  elements: str
  returned: always
os_request:
  description: What the operating system asks a reboot for; empty where it asks for none.
  type: str
  returned: always
boot_id:
  description: The kernel's id of this boot.
  type: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.reboot_requests import (
    judge,
    read_boot_id,
    read_folder,
    read_os_request,
    remove_request,
)


def main():
    module = AnsibleModule(
        argument_spec={
            "allowed": {"type": "bool", "default": False},
            "include_os_requests": {"type": "bool", "default": False},
            "directory": {"type": "path", "default": "/run/gpufleet/reboot.d"},
            "records": {"type": "path", "default": "/var/lib/gpufleet/reboot"},
            "os_request": {"type": "path", "default": "/run/reboot-required"},
        },
        supports_check_mode=True,
    )
    folders = module.params["directory"], module.params["records"]
    requests, problems = read_folder(folders[0])
    records, record_problems = read_folder(folders[1])
    boot_id = read_boot_id()
    found = judge(requests, records, boot_id)
    tidy = [(folders[0], request.name) for request in found.stale] + [(folders[1], name) for name in found.settled]
    if not module.check_mode:
        for folder, name in tidy:
            remove_request(folder, name)
    module.exit_json(
        # Files in /run and the own records are no change of what the node is.
        changed=False,
        requests=[
            {"name": one.name, "reason": one.reason, "requested_by": one.requested_by, "when": one.when}
            for one in found.pending
        ],
        stuck=[{"name": one.name, "reason": one.reason, "when": one.when, "why": why} for one, why in found.stuck],
        problems=[str(problem) for problem in problems + record_problems],
        os_request=read_os_request(module.params["os_request"]),
        boot_id=boot_id,
    )


if __name__ == "__main__":
    main()
