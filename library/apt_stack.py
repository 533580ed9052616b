#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: packages that belong together, from one pinned source, at exact versions, held."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_stack
short_description: Install packages that belong together from one pinned source, at exact versions, and hold them
description:
  - Writes the source, its key, pins and a blacklist for unattended-upgrades, installs the packages, verifies their
    versions and holds them, companions included.
  - Plans before it acts. Source, key and pins are first tried in a folder of their own, the whole transaction is
    simulated with them, and what is not allowed is refused while nothing on the node has been altered.
  - Never brings another kernel. A transaction that installs, upgrades or removes a kernel package is refused, and the
    installed kernels are compared before and after.
  - On a converged node it reads files and asks dpkg once; no mirror is asked, unless O(upgrade) is set for a package
    without a version.
  - Where an interrupted run left packages half configured, dpkg is told to finish first.
author: The gpufleet authors
attributes:
  check_mode:
    description: The plan is the real one, made with package lists in a temporary folder. Nothing else is written.
    support: full
  diff_mode:
    description: Shows files, packages, versions and holds before and after.
    support: full
options:
  name:
    description:
      - Name of the stack, part of the names of the files that the module owns below C(/etc/apt) -
        C(sources.list.d/gpufleet-<name>.sources), C(keyrings/gpufleet-<name>.asc) (or C(.gpg), for a key that is not
        armoured), C(preferences.d/gpufleet-<name>) and C(apt.conf.d/52gpufleet-<name>). One that nothing calls for is
        removed.
    type: str
    required: true
  repository:
    description:
      - The apt repository of the stack. Null means the node's own sources.
      - The same repository in another source file would stop apt from reading any source, since it names another key.
        Such a line or stanza is removed with a warning. One that says more than that, or spells the address with
        another scheme, is refused.
    type: dict
    suboptions:
      uri:
        description: Address, C(https://), C(http://) or C(file:/).
        type: str
        required: true
      suites:
        description: Suites; one that ends in C(/) is the path of a flat repository.
        type: list
        elements: str
        required: true
      components:
        description: Components; empty for a flat repository.
        type: list
        elements: str
        default: []
      key_url:
        description: Address of the OpenPGP key that signs the repository, C(https://), C(http://) or C(file:/). It is
          fetched where the key is not on the node yet.
        type: str
        required: true
      key_sha256:
        description: SHA-256 of the file behind O(repository.key_url). Without it TLS alone vouches for the key, so the
          address must begin with C(https://).
        type: str
  packages:
    description: Packages that are installed in one transaction, and held.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the package.
        type: str
        required: true
      version:
        description: Exact version as apt spells it. It is pinned.
        type: str
      upstream:
        description: Version without epoch and revision, such as C(580.105.08). Any installed revision of it is kept,
          else the newest that is offered is installed. It is pinned.
        type: str
  first:
    description: Packages that are installed in a transaction of their own before O(packages), such as one that
      carries pins. They are held too.
    type: list
    elements: str
    default: []
  headers:
    description: Whether to install the headers of every installed kernel (C(linux-headers-<release>)) before
      O(packages), for modules that dkms builds. A kernel whose headers are not offered is an error.
    type: bool
    default: false
  keep_out:
    description: Names or patterns of packages that apt must not install from anywhere (pinned to -1), such as
      those of another repository that conflict.
    type: list
    elements: str
    default: []
  pins:
    description: Further pins, in the order given.
    type: list
    elements: dict
    default: []
    suboptions:
      packages:
        description: Names or patterns of packages, as in apt_preferences(5).
        type: list
        elements: str
        required: true
      version:
        description: Version or pattern that the pin is for. Either this or O(pins[].origin).
        type: str
      origin:
        description: Host name of the source that the pin is for; empty for C(file:/).
        type: str
      priority:
        description: Priority. 1000 keeps a version from being replaced by a newer one, above that apt goes back to it.
        type: int
        default: 1000
  never_upgraded:
    description:
      - Python regular expressions that unattended-upgrades compares with the beginning of package names
        (C(Unattended-Upgrade::Package-Blacklist)).
      - Installed packages that one of them matches are held too. The hold of a driver alone does not keep its
        libraries.
    type: list
    elements: str
    default: []
  may_remove:
    description: Names or patterns of packages that the transaction may remove. Any other removal is refused.
    type: list
    elements: str
    default: []
  downgrade:
    description: Names or patterns of packages that may go back to an older version. Any other downgrade is refused.
    type: list
    elements: str
    default: []
  upgrade:
    description:
      - Whether packages of the stack that are installed may change to a newer version. Their holds are lifted for the
        transaction and set again. Without it, another version than the wanted one is an error that names both.
      - A package without a version is brought to the candidate, for which the lists are read anew in every run.
    type: bool
    default: false
  lock_timeout_s:
    description: Seconds to wait for another apt or dpkg. Past that the error names the process.
    type: int
    default: 300
  supported_os:
    description: Operating systems as C(<ID> <VERSION_ID>) of os-release, such as C(debian 12). Any other is refused
      before anything is changed. Empty means any.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Install the driver from the vendor's repository
  apt_stack:
    name: nvidia-driver
    repository:
      uri: https://mirror.example.com/cuda/debian12/x86_64/
      suites: [/]
      key_url: https://mirror.example.com/cuda/debian12/x86_64/8793F200.pub
      key_sha256: "{{ key_sha256 }}"
    first: [nvidia-driver-pinning-580.105.08]
    headers: true
    packages:
      - {name: nvidia-open, upstream: 580.105.08}
      - {name: nvidia-fabricmanager, upstream: 580.105.08}
    never_upgraded: ["nvidia-", "libnvidia-"]

- name: Go back to the version before, by name
  apt_stack:
    name: rdma
    packages: [{name: rdma-core, version: 44.0-2}]
    downgrade: [rdma-core, "ibverbs-*", "libib*", librdmacm1]
"""

RETURN = r"""
installed:
  description: Version of each package of O(packages), O(first) and the headers that is installed now, or would be after
    a run without check mode. Null where check mode cannot know it.
  type: dict
  returned: success
before:
  description: Version of each of them before the run; null where it was not installed.
  type: dict
  returned: success
kernels_before:
  description: Releases of the installed kernels before the run.
  type: list
  elements: str
  returned: success
kernels_after:
  description: Releases of the installed kernels after the run. Always the same, else the module fails.
  type: list
  elements: str
  returned: success
removed:
  description: Packages that the transaction removed, or would remove.
  type: list
  elements: str
  returned: success
plan:
  description: What is done, a line for each file, package and hold; in check mode what would be done.
  type: list
  elements: str
  returned: success
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

from ansible.module_utils.basic import AnsibleModule

ARGUMENTS = {
    "name": {"type": "str", "required": True},
    "repository": {
        "type": "dict",
        "options": {
            "uri": {"type": "str", "required": True},
            "suites": {"type": "list", "elements": "str", "required": True},
            "components": {"type": "list", "elements": "str", "default": []},
            "key_url": {"type": "str", "required": True, "no_log": False},
            "key_sha256": {"type": "str", "no_log": False},
        },
    },
    "packages": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "version": {"type": "str"},
            "upstream": {"type": "str"},
        },
        "mutually_exclusive": [("version", "upstream")],
    },
    "first": {"type": "list", "elements": "str", "default": []},
    "headers": {"type": "bool", "default": False},
    "keep_out": {"type": "list", "elements": "str", "default": []},
    "pins": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "packages": {"type": "list", "elements": "str", "required": True},
            "version": {"type": "str"},
            "origin": {"type": "str"},
            "priority": {"type": "int", "default": 1000},
        },
        "mutually_exclusive": [("version", "origin")],
        "required_one_of": [("version", "origin")],
    },
    "never_upgraded": {"type": "list", "elements": "str", "default": []},
    "may_remove": {"type": "list", "elements": "str", "default": []},
    "downgrade": {"type": "list", "elements": "str", "default": []},
    "upgrade": {"type": "bool", "default": False},
    "lock_timeout_s": {"type": "int", "default": 300},
    "supported_os": {"type": "list", "elements": "str", "default": []},
}


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.fail_json(msg="apt_stack acts from its next commit on", next_step="wait for that commit")


if __name__ == "__main__":
    main()
