#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: one apt package at an exact version, held and verified, in one host-task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: held_package
short_description: Install an apt package at an exact version and hold it
description:
  - Installs the package if it is missing or has another version than O(version), puts it on hold so that no
    upgrade of the system moves it, and verifies the version that is installed afterwards.
  - Refreshes the package lists only where something has to be installed, so a converged node asks no mirror.
  - Repairs an interrupted dpkg before it gives up.
  - C(ansible.builtin.apt) would need three tasks for this, one of which refreshes the lists on every node in every
    run or installs nothing on a fresh image.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says what would be installed; the node needs no python3-apt for it.
    support: full
  diff_mode:
    description: Shows the version and the hold before and after.
    support: full
options:
  name:
    description: Name of the package.
    type: str
    required: true
  version:
    description: Exact version as apt spells it. Without it any installed version is kept, and the candidate of the
      package lists is installed where there is none.
    type: str
  hold:
    description: Whether the package is held at its version.
    type: bool
    default: true
  state:
    description: Whether the package is installed or removed.
    type: str
    choices: [present, absent]
    default: present
  supported_os:
    description: Operating systems as C(<ID> <VERSION_ID>) of os-release, such as C(debian 12). Any other is refused
      before anything is changed. Empty means any.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Install chrony
  held_package:
    name: chrony
    version: 4.3-2+deb12u1
"""

RETURN = r"""
installed:
  description: Whether the package is installed now. In check mode on a node that lacks it this is false.
  type: bool
  returned: success
version:
  description: The version that is installed now, or would be after a run without check mode.
  type: str
  returned: when the state is present
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.apt_packages import (
    ENVIRONMENT,
    PackageError,
    PackageState,
    ensure_absent,
    ensure_present,
    read_state,
)
from ansible.module_utils.gpufleet.os_release import read_os_release, unsupported


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "version": {"type": "str"},
            "hold": {"type": "bool", "default": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "supported_os": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    refusal = unsupported(read_os_release(), wanted["supported_os"])
    if refusal:
        module.fail_json(msg=refusal)

    def run(argv):
        return module.run_command(list(argv), environ_update=ENVIRONMENT)

    name = wanted["name"]
    before = read_state(name, run)
    try:
        if wanted["state"] == "present":
            after = ensure_present(name, wanted["version"], wanted["hold"], run, module.check_mode)
        else:
            ensure_absent(name, run, module.check_mode)
            after = PackageState(None, False)
    except PackageError as error:
        module.fail_json(msg=str(error))
    really = before if module.check_mode else after
    module.exit_json(
        changed=before != after,
        installed=really.version is not None,
        version=after.version,
        diff={"before": f"{name}: {before}\n", "after": f"{name}: {after}\n"},
    )


if __name__ == "__main__":
    main()
