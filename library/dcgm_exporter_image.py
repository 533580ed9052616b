#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the DCGM exporter's image is in the container engine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dcgm_exporter_image
short_description: Have the container engine fetch the image of the DCGM exporter
description:
  - Fetches the image before anything that runs is touched, so that the start of the unit needs no registry. All
    commands are bounded. community.docker's module would need Docker's Python library on the node.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says whether the image is missing. A node without the engine counts as one that lacks the image.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
options:
  image:
    description: The image with tag or digest.
    type: str
    required: true
  timeout_s:
    description: Seconds that the download may take.
    type: int
    default: 1800
"""

EXAMPLES = r"""
- name: Fetch the image
  dcgm_exporter_image:
    image: nvcr.io/nvidia/k8s/dcgm-exporter:4.5.3-4.8.2-distroless
"""

RETURN = r"""
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.bounded_command import run_bounded

INSPECT_LIMIT_S = 60


def main():
    module = AnsibleModule(
        argument_spec={"image": {"type": "str", "required": True}, "timeout_s": {"type": "int", "default": 1800}},
        supports_check_mode=True,
    )
    image, limit = module.params["image"], module.params["timeout_s"]
    there = run_bounded(["docker", "image", "inspect", "--format", "{{.Id}}", image], INSPECT_LIMIT_S)
    if there.outcome == "done" and there.rc == 0:
        module.exit_json(changed=False)
    if module.check_mode:
        module.exit_json(changed=True)
    if there.outcome != "done" or "Cannot connect to the Docker daemon" in there.stderr:
        module.fail_json(
            msg=f"the container engine does not answer: {there.said()}",
            next_step="see systemctl status docker; playbooks/gpu_stack.yml installs it",
        )
    done = run_bounded(["docker", "pull", "--quiet", image], limit)
    if done.outcome != "done" or done.rc != 0:
        module.fail_json(
            msg=f"image {image} cannot be fetched: {done.said()}",
            next_step="check packages.dcgm_exporter.image in the profile, and the node's way to that registry (proxy, "
            "mirror, login)",
        )
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
