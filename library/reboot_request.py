#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: ask for a reboot, and say why. Whether and when it happens, the reboot stage decides."""

from __future__ import annotations

DOCUMENTATION = r"""
module: reboot_request
short_description: Ask for a reboot of the node
description:
  - Writes a file with the reason below C(/run), which the next boot removes by itself.
  - Never reboots. The reboot stage (C(playbooks/reboot.yml)) serves the requests of all roles together.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says whether the request would be written or withdrawn.
    support: full
  diff_mode:
    description: Shows the request before and after.
    support: full
options:
  name:
    description: Name of the request, usually the role and what it waits for. A second request of this name replaces
      the first.
    type: str
    required: true
  state:
    description: Whether a reboot is asked for, or the request is withdrawn.
    type: str
    choices: [present, absent]
    default: present
  reason:
    description: What a reboot is needed for, in words that tell an operator enough to allow it. Name the value that
      will take effect, since a reboot is never tried twice for the same reason.
    type: str
  still_needed:
    description:
      - Command that exits 0 while the reason stands and with another status once it is gone. It is run before the
        reboot and after it. It must change nothing.
      - Without it the reason counts as gone after a reboot.
    type: list
    elements: str
  requested_by:
    description: Who asks; a role's name.
    type: str
  directory:
    description: Folder of the requests.
    type: path
    default: /run/gpufleet/reboot.d
"""

EXAMPLES = r"""
- name: Ask for a reboot, since the kernel runs without the new arguments
  reboot_request:
    name: kernel_arguments
    reason: "kernel argument iommu=pt takes effect at boot"
    still_needed: ["/bin/sh", "-c", "! grep -qw iommu=pt /proc/cmdline"]
    requested_by: "{{ ansible_role_name }}"
"""

RETURN = r"""
path:
  description: The file of the request.
  type: str
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.reboot_requests import (
    NAME,
    Request,
    read_boot_id,
    read_folder,
    remove_request,
    utc_now,
    write_request,
)


def same_need(one, other):
    """Whether two requests ask for the same, whenever they were made."""
    return one is not None and one._replace(when="") == other._replace(when="")


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "reason": {"type": "str"},
            "still_needed": {"type": "list", "elements": "str"},
            "requested_by": {"type": "str"},
            "directory": {"type": "path", "default": "/run/gpufleet/reboot.d"},
        },
        required_if=[("state", "present", ["reason", "requested_by"])],
        supports_check_mode=True,
    )
    wanted = module.params
    name, folder = wanted["name"], wanted["directory"]
    if not NAME.fullmatch(name):
        module.fail_json(msg=f"name {name!r} is not made of a-z, 0-9, '_', '.' and '-' (64 characters at most)")
    path = os.path.join(folder, name + ".json")
    for key in ("reason", "requested_by"):
        if wanted["state"] == "present" and not (wanted[key] or "").strip():
            module.fail_json(msg=f"{key} must not be empty")
    if wanted["still_needed"] is not None and not wanted["still_needed"]:
        module.fail_json(msg="still_needed must be a command, or be left out")

    requests, problems = read_folder(folder)
    distrusted = [problem for problem in problems if problem.path == folder]
    if distrusted:
        module.fail_json(msg=f"{distrusted[0]}. A request there would not be trusted. Remove the folder, run again.")
    before = next((request for request in requests if request.name == name), None)
    there = before is not None or any(problem.path == path for problem in problems)
    if wanted["state"] == "absent":
        if there and not module.check_mode:
            remove_request(folder, name)
        diff = {"before": before.as_json() if before else "", "after": ""}
        module.exit_json(changed=there, path=path, diff=diff)

    after = Request(
        name=name,
        reason=wanted["reason"],
        still_needed=None if wanted["still_needed"] is None else tuple(wanted["still_needed"]),
        requested_by=wanted["requested_by"],
        boot_id=read_boot_id(),
        when=utc_now(),
    )
    if same_need(before, after):
        module.exit_json(changed=False, path=path)
    if not module.check_mode:
        write_request(folder, after)
    module.exit_json(
        changed=True, path=path, diff={"before": before.as_json() if before else "", "after": after.as_json()}
    )


if __name__ == "__main__":
    main()
