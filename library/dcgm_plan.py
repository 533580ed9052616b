#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: which packages make up DCGM on this node, and what stands against installing them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dcgm_plan
short_description: Say which packages make up DCGM on this node
description:
  - Reads the driver's CUDA, the installed packages and the PCI bus of the node, and returns arguments for C(apt_stack)
    and what the role's files need. It alters nothing.
  - Refuses beforehand DCGM of another major release, unless O(replace_older_release) is set, and binaries for a newer
    CUDA than the driver has.
author: The gpufleet authors
attributes:
  check_mode:
    description: The same, since nothing is altered. On a node whose driver is not installed yet the CUDA may be
      unknown; RV(apt) is then null.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
options:
  version:
    description: Exact version of DCGM. Without it the installed one is kept, else the newest is installed.
    type: str
  cuda_major:
    description: CUDA that the packages are for. Without it the one that the node's driver has.
    type: int
  driver_branch:
    description: Branch of the driver by the profile, for a node that has no driver yet.
    type: str
  watches:
    description: What the host engine watches.
    type: list
    elements: str
    choices: [pcie, memory, inforom, thermal, nvlink]
    default: []
  replace_older_release:
    description: Whether DCGM of another major release may be removed.
    type: bool
    default: false
  upgrade:
    description: Whether an upgrade of what is installed is wanted.
    type: bool
    default: false
  downgrade_to:
    description: Version that DCGM may go back to. Must be O(version).
    type: str
  supported_os:
    description: Operating systems as C(<ID> <VERSION_ID>) of os-release. Any other is refused. Empty means any.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Plan DCGM's packages
  dcgm_plan:
    version: 4.5.3
    watches: [pcie, memory, nvlink]
"""

RETURN = r"""
apt:
  description: Arguments for C(apt_stack), without source and name. Null in check mode where the CUDA is not known yet.
  type: dict
  returned: success
cuda_major:
  description: CUDA that the packages are for.
  type: int
  returned: success
gpus:
  description: PCI addresses of the node's GPUs.
  type: list
  elements: str
  returned: success
set_watches:
  description: The command that makes the host engine watch what it should.
  type: str
  returned: success
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.dcgm_host_engine import WATCHES, set_watches_command
from ansible.module_utils.gpufleet.dcgm_node import driver_cuda_major, gpus_on_bus, installed_packages
from ansible.module_utils.gpufleet.dcgm_packages import (
    DcgmError,
    apt_arguments,
    choose_cuda_major,
    older_release,
    warnings,
)
from ansible.module_utils.gpufleet.os_release import read_os_release, unsupported
from ansible.module_utils.gpufleet.planned_downgrade import goes_back


def plan(module):
    wanted = module.params
    going_back = goes_back(wanted, DcgmError, "DCGM", "packages.dcgm.version", "dcgm_downgrade_to")
    installed = installed_packages(("datacenter-gpu-manager*", "nv-hostengine", "libdcgm*", "dcgmi"))
    # First of all: this does not depend on the driver.
    older_release(installed, wanted["replace_older_release"])
    driver = driver_cuda_major(wanted["driver_branch"])
    result = {
        "changed": False,
        "apt": None,
        "cuda_major": None,
        "gpus": gpus_on_bus(),
        "set_watches": " ".join(set_watches_command(wanted["watches"])),
    }
    try:
        major = choose_cuda_major(wanted["cuda_major"], driver)
    except DcgmError as error:
        if not (module.check_mode and driver.major is None):
            raise
        # On a fresh node site.yml installs the driver first, which a dry run does not do.
        module.warn(f"{error}. A run without --check installs the driver first")
        return result
    attention = [
        {"reason": reason, "next_step": step, "severity": "warn"}
        for reason, step in warnings(wanted["cuda_major"], major, driver, installed)
    ]
    apt = apt_arguments(
        major, wanted["version"], installed, wanted["replace_older_release"], wanted["upgrade"], going_back
    )
    result.update(apt=apt, cuda_major=major)
    if attention:
        result["gpufleet"] = {"attention": attention}
    return result


def main():
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str"},
            "cuda_major": {"type": "int"},
            "driver_branch": {"type": "str"},
            "watches": {"type": "list", "elements": "str", "choices": list(WATCHES), "default": []},
            "replace_older_release": {"type": "bool", "default": False},
            "upgrade": {"type": "bool", "default": False},
            "downgrade_to": {"type": "str"},
            "supported_os": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    refusal = unsupported(read_os_release(), module.params["supported_os"])
    if refusal:
        module.fail_json(msg=refusal, next_step="see docs/compatibility.md")
    try:
        result = plan(module)
    except DcgmError as error:
        module.fail_json(msg=str(error), next_step=error.next_step)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
