#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: which packages make up the NVIDIA driver on this node, and what stands against installing them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_driver_plan
short_description: Say which packages make up the NVIDIA driver on this node
description:
  - Reads distribution, installed kernels and installed packages of the node, and returns arguments for C(apt_stack) and
    names for the files of the role. It alters nothing.
  - Refuses beforehand what would come to light only after a reboot. With Secure Boot, modules that dkms builds do not
    load unless the key that signs them is enrolled, and enrolment needs somebody at the console.
author: The gpufleet authors
attributes:
  check_mode:
    description: The same, since nothing is altered.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
options:
  source:
    description: V(vendor) and V(mirror) are NVIDIA's packages, V(distro) the distribution's.
    type: str
    choices: [vendor, mirror, distro]
    required: true
  branch:
    description: First number of the driver's version, which names of packages carry. Not needed on Debian with
      O(source=distro).
    type: str
  version:
    description: Exact driver version. Without it the installed one is kept, else the newest of the branch is installed.
    type: str
  kernel_modules:
    description: Which of NVIDIA's two sets of kernel modules.
    type: str
    choices: [open, proprietary]
    default: open
  modules_from:
    description: V(dkms) builds them on the node, V(prebuilt) installs O(module_package) for each kernel.
    type: str
    choices: [dkms, prebuilt]
    required: true
  module_package:
    description: Name of the package with the modules of one kernel, with C({kernel}) in place of the release.
    type: str
  fabric_manager:
    description: Whether the node has NVSwitches and needs the fabric manager.
    type: bool
    default: false
  upgrade:
    description: Whether an upgrade of what is installed is wanted.
    type: bool
    default: false
  downgrade_to:
    description: Version that the driver may go back to. Must be O(version), so that nobody goes back by mistake.
    type: str
  supported_os:
    description: Operating systems as C(<ID> <VERSION_ID>) of os-release, such as C(debian 12). Any other is refused.
      Empty means any.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Plan the driver's packages
  nvidia_driver_plan:
    source: vendor
    branch: "580"
    version: 580.105.08
    modules_from: dkms
    fabric_manager: true
"""

RETURN = r"""
apt:
  description: Arguments for C(apt_stack), without source and name.
  type: dict
  returned: success
of_release:
  description: Packages that carry the driver's version and must be equal to the last digit.
  type: list
  elements: str
  returned: success
fabric_manager:
  description: Package of the fabric manager; null where none is wanted.
  type: str
  returned: success
module:
  description: Name of the module for options in C(/etc/modprobe.d).
  type: str
  returned: success
load_list:
  description: List of modules to load at each boot that the packages bring, GPU or not; null where they bring none.
  type: str
  returned: success
secure_boot:
  description: Whether Secure Boot is on; null where the node does not tell.
  type: bool
  returned: success
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.apt_packages import ENVIRONMENT, read_offers
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.kernel_modules import BOOT_ROOT, MODULES_ROOT, installed_kernels
from ansible.module_utils.gpufleet.nvidia_module_facts import (
    SECURE_BOOT_VARIABLE,
    SYS_MODULE,
    parse_sb_state,
    parse_secure_boot_variable,
    parse_test_key,
)
from ansible.module_utils.gpufleet.nvidia_packages import (
    OF_ONE_RELEASE,
    DriverPackagesError,
    Wish,
    apt_arguments,
    driver_packages,
    newest_common_release,
)
from ansible.module_utils.gpufleet.os_release import read_os_release, unsupported
from ansible.module_utils.gpufleet.planned_downgrade import goes_back

MOKUTIL_LIMIT_S = 30
# What dkms signs with: dkms' own key (Debian), and the one that Ubuntu's shim-signed makes.
SIGNING_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")
ENROL = (
    "enrol the key at the node's console (mokutil --import {key}, then confirm in the boot menu), or switch Secure "
    "Boot off in the BIOS, or take signed modules (packages.nvidia_driver.modules_from prebuilt)"
)


def installed_packages(module):
    """Name -> version of the installed packages that may belong to a driver."""
    form = "--showformat=${Package}|${db:Status-Abbrev}|${Version}\n"
    argv = ["dpkg-query", "--show", form, *OF_ONE_RELEASE]
    rc, out, err = module.run_command(argv, environ_update=ENVIRONMENT)
    # dpkg-query(1): 1 = a pattern fits nothing, which is an answer.
    if rc not in (0, 1):
        raise DriverPackagesError(
            f"dpkg-query cannot tell what is installed (exit status {rc}): {err.strip()}",
            "look after the node's dpkg database (/var/lib/dpkg), then run again",
        )
    rows = (line.split("|") for line in out.splitlines() if line.count("|") == 2)
    return {name: version for name, status, version in rows if status[1:2] == "i"}


def read_secure_boot():
    """Whether Secure Boot is on, by the firmware's variable, else by mokutil; None where neither tells."""
    try:
        with open(SECURE_BOOT_VARIABLE, "rb") as file:
            return parse_secure_boot_variable(file.read())
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(SECURE_BOOT_VARIABLE)):
            result = run_bounded(["mokutil", "--sb-state"], MOKUTIL_LIMIT_S)
            return parse_sb_state(f"{result.stdout}\n{result.stderr}") if result.outcome == "done" else None
        return False  # firmware with UEFI variables that has no Secure Boot
    except OSError:
        return None


def refuse_unenrolled_key():
    """Raise where Secure Boot is on and the key that dkms would sign with is not known to be trusted."""
    key = next((path for path in SIGNING_KEYS if os.path.exists(path)), None)
    if key is None:
        raise DriverPackagesError(
            f"Secure Boot is on and there is no key that dkms could sign with ({', '.join(SIGNING_KEYS)}): the modules "
            "that it builds would be rejected. Nothing was changed",
            "install dkms and mokutil, make the key (dkms generate_mok; on Ubuntu update-secureboot-policy --new-key), "
            "then " + ENROL.format(key=SIGNING_KEYS[0]),
        )
    result = run_bounded(["mokutil", "--test-key", key], MOKUTIL_LIMIT_S)
    trusted = parse_test_key(f"{result.stdout}\n{result.stderr}")
    if trusted:
        return
    what = "is not enrolled" if trusted is False else f"may not be enrolled (mokutil: {result.said()})"
    raise DriverPackagesError(
        f"Secure Boot is on and the key that dkms signs with, {key}, {what}: the modules would be rejected. Nothing "
        "was changed",
        ("install package mokutil, then run again; " if result.outcome == "missing" else "") + ENROL.format(key=key),
    )


def plan(module):
    wanted = module.params
    going_back = goes_back(
        wanted, DriverPackagesError, "the driver", "packages.nvidia_driver.version", "nvidia_driver_downgrade_to"
    )
    kernels = installed_kernels(MODULES_ROOT, BOOT_ROOT)
    if not kernels and wanted["modules_from"] == "prebuilt":
        raise DriverPackagesError(
            f"no installed kernel was found: expected a folder below {MODULES_ROOT} and {BOOT_ROOT}/vmlinuz-<the same "
            f"name>. The running kernel is {os.uname().release}",
            f"look at both folders; is {BOOT_ROOT} mounted, is this a container?",
        )
    wish = Wish(*(wanted[field] for field in Wish._fields))
    packages = driver_packages(read_os_release().get("ID", "unknown"), wish, kernels)
    secure_boot = read_secure_boot()
    if secure_boot and wish.modules_from == "dkms" and not os.path.isdir(SYS_MODULE):
        refuse_unenrolled_key()
    installed = installed_packages(module)
    offered = None
    # A vendor's repository may not be among the node's sources yet; there the branch is pinned.
    if wish.source == "distro" and not wish.version and (wanted["upgrade"] or packages.of_release[0] not in installed):
        together = [*packages.of_release, *(name for name in packages.beside if name.endswith(tuple(kernels)))]
        offers = read_offers(together, lambda argv: module.run_command(list(argv), environ_update=ENVIRONMENT))
        offered = newest_common_release({name: offer.versions for name, offer in offers.items()})
    return {
        "changed": False,
        "apt": apt_arguments(packages, wish, installed, wanted["upgrade"], going_back, offered),
        "of_release": list(packages.of_release),
        "fabric_manager": packages.fabric_manager,
        "module": packages.module,
        "load_list": packages.load_list,
        "secure_boot": secure_boot,
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "choices": ["vendor", "mirror", "distro"], "required": True},
            "branch": {"type": "str"},
            "version": {"type": "str"},
            "kernel_modules": {"type": "str", "choices": ["open", "proprietary"], "default": "open"},
            "modules_from": {"type": "str", "choices": ["dkms", "prebuilt"], "required": True},
            "module_package": {"type": "str"},
            "fabric_manager": {"type": "bool", "default": False},
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
    except DriverPackagesError as error:
        module.fail_json(msg=str(error), next_step=error.next_step)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
