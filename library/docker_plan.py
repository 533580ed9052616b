#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: which packages make up the container engine on this node, and what stands against changing them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_plan
short_description: Say which packages make up the container engine on this node
description:
  - Reads distribution, installed packages and the running engine, and returns arguments for C(apt_stack). It alters
    nothing.
  - The packages restart the engine when they are upgraded. So an upgrade that would stop running containers is refused
    here, before anything is fetched, unless O(restart_allowed).
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
    description: V(vendor) and V(mirror) are Docker's packages (docker-ce), V(distro) the distribution's (docker.io).
    type: str
    choices: [vendor, mirror, distro]
    required: true
  version:
    description: Exact version of the engine. Without it the installed one is kept, else the newest is installed.
    type: str
  upgrade:
    description: Whether an upgrade of what is installed is wanted.
    type: bool
    default: false
  downgrade_to:
    description: Version that the engine may go back to. Must be O(version), so that nobody goes back by mistake.
    type: str
  replace:
    description: Whether packages of the other source may be removed. Refused while a container runs.
    type: bool
    default: false
  restart_allowed:
    description: Whether containers may be stopped by an upgrade.
    type: bool
    default: false
  supported_os:
    description: Operating systems as C(<ID> <VERSION_ID>) of os-release, such as C(debian 12). Any other is refused.
      Empty means any.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Plan the engine's packages
  docker_plan:
    source: vendor
    version: 28.3.3
"""

RETURN = r"""
apt:
  description: Arguments for C(apt_stack), without source and name.
  type: dict
  returned: success
engine_package:
  description: Package that tells the engine's version.
  type: str
  returned: success
installed_version:
  description: Version of that package; null where it is not installed.
  type: str
  returned: success
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.apt_packages import ENVIRONMENT, PackageError, read_states
from ansible.module_utils.gpufleet.docker_api import SOCKET, Engine, NoAnswer, names
from ansible.module_utils.gpufleet.docker_error import DockerError
from ansible.module_utils.gpufleet.docker_packages import (
    KNOWN,
    apt_arguments,
    engine_packages,
    refuse_other_source,
    release_train,
)
from ansible.module_utils.gpufleet.docker_service import is_active
from ansible.module_utils.gpufleet.os_release import read_os_release, unsupported
from ansible.module_utils.gpufleet.package_version import upstream_version
from ansible.module_utils.gpufleet.planned_downgrade import goes_back

# Y where the kernel has AppArmor switched on; the file is missing where it has none.
APPARMOR = "/sys/module/apparmor/parameters/enabled"


def confines():
    """Whether the kernel confines programs by AppArmor."""
    try:
        return Path(APPARMOR).read_text().strip() == "Y"
    except OSError:
        return False


def running_containers():
    """The engine's /info and its running containers; (None, {}) where none runs. Raises DockerError for a hung one."""
    if not is_active():
        return None, {}
    engine = Engine(SOCKET)
    try:
        return engine.info(), engine.running()
    except NoAnswer as error:
        raise DockerError(
            f"the engine is to be changed, and it does not say which containers run: {error}. Nothing was changed",
            "see journalctl -u docker.service on the node; systemctl restart docker.service where it hangs",
        ) from error


def refuse_stop(wanted, installed, leaving):
    """Raise DockerError where the transaction would stop or lose containers that run."""
    target, told = wanted["version"], installed and upstream_version(installed)
    moves = (wanted["upgrade"] or wanted["downgrade_to"]) and told and target != told
    if not moves and not leaving:
        return
    info, running = running_containers()
    if not running:
        return
    if leaving:
        raise DockerError(
            f"packages of another source ({', '.join(leaving)}) are to be replaced, and containers run: "
            f"{names(running)}. Nothing was changed",
            "drain the node and stop its containers, then run again",
        )
    if wanted["restart_allowed"]:
        return
    if not info.live_restore:
        why = "live restore is off in the running engine"
    elif target is None or release_train(target) != release_train(told):
        # Docker's documentation, "Live restore during upgrades": patch releases only.
        why = (
            f"live restore does not reach from {told} to {target or 'whatever is newest'}, only between patch releases"
        )
    else:
        return
    raise DockerError(
        f"the change of the engine restarts it, {why}, and containers run: {names(running)}. Nothing was changed",
        "drain the node and stop its containers, or let the upgrade stop them with -e "
        "'{\"docker_restart_allowed\": true}'",
    )


def plan(module):
    wanted = module.params
    going_back = goes_back(wanted, DockerError, "the engine", "packages.docker.version", "docker_downgrade_to")
    states = read_states(KNOWN, lambda argv: module.run_command(list(argv), environ_update=ENVIRONMENT))
    installed = {name: state.version for name, state in states.items() if state.version}
    packages = engine_packages(wanted["source"], read_os_release())
    leaving = refuse_other_source(packages, wanted["source"], installed, wanted["replace"])
    told = installed.get(packages.engine)
    refuse_stop(wanted, told, leaving)
    return {
        "changed": False,
        "apt": apt_arguments(packages, wanted["version"], wanted["upgrade"], going_back, leaving, confines()),
        "engine_package": packages.engine,
        "installed_version": told,
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "choices": ["vendor", "mirror", "distro"], "required": True},
            "version": {"type": "str"},
            "upgrade": {"type": "bool", "default": False},
            "downgrade_to": {"type": "str"},
            "replace": {"type": "bool", "default": False},
            "restart_allowed": {"type": "bool", "default": False},
            "supported_os": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    refusal = unsupported(read_os_release(), module.params["supported_os"])
    if refusal:
        module.fail_json(msg=refusal, next_step="see docs/compatibility.md")
    try:
        result = plan(module)
    except DockerError as error:
        module.fail_json(msg=str(error), next_step=error.next_step)
    except PackageError as error:
        module.fail_json(msg=str(error), next_step="look after the node's dpkg database (/var/lib/dpkg)")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
