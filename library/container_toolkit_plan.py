#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the packages of the NVIDIA Container Toolkit on this node, as arguments for apt_stack."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container_toolkit_plan
short_description: Say which versions the four packages of the NVIDIA Container Toolkit get
description:
  - Reads the installed packages and returns arguments for C(apt_stack). It alters nothing.
  - Four packages of several versions are refused where no version says which one is meant.
author: The gpufleet authors
attributes:
  check_mode:
    description: The same, since nothing is altered.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
options:
  version:
    description: Exact version of all four. Without it the installed one is kept, else the newest is installed.
    type: str
  upgrade:
    description: Whether an upgrade of what is installed is wanted.
    type: bool
    default: false
  downgrade_to:
    description: Version that the toolkit may go back to. Must be O(version), so that nobody goes back by mistake.
    type: str
  supported_os:
    description: Operating systems as C(<ID> <VERSION_ID>) of os-release, such as C(debian 12). Any other is refused.
      Empty means any.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Plan the toolkit's packages
  container_toolkit_plan:
    version: 1.17.8
"""

RETURN = r"""
apt:
  description: Arguments for C(apt_stack), without source and name.
  type: dict
  returned: success
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.apt_packages import ENVIRONMENT, PackageError, read_states
from ansible.module_utils.gpufleet.container_toolkit_error import ToolkitError
from ansible.module_utils.gpufleet.container_toolkit_packages import PACKAGES, apt_arguments
from ansible.module_utils.gpufleet.os_release import read_os_release, unsupported
from ansible.module_utils.gpufleet.planned_downgrade import goes_back


def plan(module):
    wanted = module.params
    going_back = goes_back(
        wanted,
        ToolkitError,
        "the toolkit",
        "packages.container_toolkit.version",
        "nvidia_container_toolkit_downgrade_to",
    )
    states = read_states(PACKAGES, lambda argv: module.run_command(list(argv), environ_update=ENVIRONMENT))
    installed = {name: state.version for name, state in states.items() if state.version}
    return {"changed": False, "apt": apt_arguments(wanted["version"], installed, wanted["upgrade"], going_back)}


def main():
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str"},
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
    except ToolkitError as error:
        module.fail_json(msg=str(error), next_step=error.next_step)
    except PackageError as error:
        module.fail_json(msg=str(error), next_step="look after the node's dpkg database (/var/lib/dpkg)")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
