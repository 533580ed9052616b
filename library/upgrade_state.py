#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: which versions of the stack a node has, against those that its profile wants."""

from __future__ import annotations

DOCUMENTATION = r"""
module: upgrade_state
short_description: Say which parts of the stack are not what the profile wants
description:
  - Reads installed packages, the loaded driver and open requests for a reboot. Changes nothing.
  - With O(demanded), a part that is not right fails the task.
author: The gpufleet authors
attributes:
  check_mode:
    description: The same.
    support: full
  diff_mode:
    description: Nothing to show.
    support: none
options:
  wanted:
    description: For each part (C(driver), C(rdma), C(docker), C(toolkit), C(dcgm), C(exporter)) its C(version), its
      C(source) (C(vendor), C(mirror) or C(distro)), and C(image), true where the version is the name of an image.
    type: dict
    required: true
  demanded:
    description: Whether all parts must be right.
    type: bool
    default: false
  requests:
    description: Folder of the requests for a reboot.
    type: path
    default: /run/gpufleet/reboot.d
  driver_version:
    description: File in which the kernel says which driver is loaded.
    type: path
    default: /sys/module/nvidia/version
  container:
    description: Name of the exporter's container, where it runs from an image.
    type: str
    default: gpufleet-dcgm-exporter
"""

EXAMPLES = r"""
- name: Compare the driver with the profile
  upgrade_state:
    wanted:
      driver: {version: 580.105.08, source: vendor}
"""

RETURN = r"""
parts:
  description: For each part what was found and wanted, whether it is right, and what is not.
  type: dict
  returned: always
right:
  description: Whether all parts are.
  type: bool
  returned: always
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

import contextlib

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.apt_packages import ENVIRONMENT
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.reboot_requests import judge as judge_requests
from ansible.module_utils.gpufleet.reboot_requests import read_boot_id, read_folder
from ansible.module_utils.gpufleet.upgrade_evidence import PARTS, REBOOTS_ASKED_BY, Wanted, judge

DOCKER_LIMIT_S = 30


def installed_packages(module):
    """Name -> version of everything that is installed."""
    argv = ["dpkg-query", "--show", "--showformat=${Package}|${db:Status-Abbrev}|${Version}\n"]
    rc, out, err = module.run_command(argv, environ_update=ENVIRONMENT)
    if rc != 0:
        module.fail_json(
            msg=f"dpkg-query cannot tell what is installed (exit status {rc}): {err.strip()}",
            next_step="look after the node's dpkg database (/var/lib/dpkg), then run again",
        )
    rows = (line.split("|") for line in out.splitlines() if line.count("|") == 2)
    # half-installed and half-configured packages are not there yet
    return {name: version for name, status, version in rows if status[1:2] == "i"}


def loaded_driver(path):
    """Version of the driver that is in the kernel; None where none is."""
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.read().strip() or None
    return None


def running_image(container):
    """Image of a container; None where it does not run."""
    done = run_bounded(["docker", "container", "inspect", "--format", "{{.Config.Image}}", container], DOCKER_LIMIT_S)
    return done.stdout.strip() or None if done.outcome == "done" and done.rc == 0 else None


def main():
    module = AnsibleModule(
        argument_spec={
            "wanted": {"type": "dict", "required": True},
            "demanded": {"type": "bool", "default": False},
            "requests": {"type": "path", "default": "/run/gpufleet/reboot.d"},
            "driver_version": {"type": "path", "default": "/sys/module/nvidia/version"},
            "container": {"type": "str", "default": "gpufleet-dcgm-exporter"},
        },
        supports_check_mode=True,
    )
    options = module.params
    unknown = sorted(set(options["wanted"]) - set(PARTS))
    if unknown:
        module.fail_json(
            msg=f"unknown parts: {', '.join(unknown)}; known are {', '.join(PARTS)}", next_step="correct it"
        )
    installed = installed_packages(module)
    requests, problems = read_folder(options["requests"])
    # What a reload has mended meanwhile asks for nothing any more.
    pending = judge_requests(requests, [], read_boot_id()).pending
    parts = {}
    for part, values in options["wanted"].items():
        wanted = Wanted(str(values["version"]), values.get("source", "vendor"), bool(values.get("image")))
        asked_by = REBOOTS_ASKED_BY.get(part, ())
        reboots = [request.reason for request in pending if request.requested_by in asked_by]
        loaded = loaded_driver(options["driver_version"]) if part == "driver" else None
        image = running_image(options["container"]) if wanted.image else None
        parts[part] = judge(part, wanted, installed, loaded, reboots, image).as_dict()
    right = all(found["right"] for found in parts.values())
    result = {"changed": False, "parts": parts, "right": right, "problems": [str(problem) for problem in problems]}
    if options["demanded"] and not right:
        wrong = [
            f"{part}: {found['why']}, wanted {found['wanted']}" for part, found in parts.items() if not found["right"]
        ]
        module.fail_json(
            msg="not what the profile wants: " + "; ".join(wrong),
            next_step="see what the roles and the reboot said of this node above, mend it, then run the same command "
            "again: it goes on with what is left",
            **result,
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
