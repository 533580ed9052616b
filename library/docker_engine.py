#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the container engine runs with its daemon.json, and says so itself."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_engine
short_description: Let the container engine run with its configuration, and judge it by what it says itself
description:
  - Enables and starts the engine, and reloads or restarts it where what runs differs from C(/etc/docker/daemon.json),
    from the installed version, from the unit's proxy settings, or where the GPU driver was exchanged while it ran.
  - What SIGHUP brings into effect is reloaded. A restart is only for the rest, and only where live restore is on in the
    running engine, no container runs, or O(restart_allowed). Otherwise nothing happens and the result says what waits.
  - systemd reads its units anew where the engine's unit has changed, before anything is started.
  - An engine that does not come back is an error with the end of its journal. The daemon.json that it last ran with is
    put back, the failed one is kept as C(daemon.json.failed), and the engine is started with the old one.
  - In the end the engine is asked over its socket, and an answer other than expected is an error.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says what would be enabled, started, reloaded or restarted.
    support: full
  diff_mode:
    description: Shows state and reasons before and after.
    support: full
options:
  engine_package:
    description: Package whose version the running engine must have. Without it the version is not judged.
    type: str
  storage_driver:
    description: Storage driver that the engine must have.
    type: str
  data_root:
    description: Data root that the engine must have.
    type: path
  data_root_mount:
    description: Mount point that the data root has to lie on. The engine is not started while nothing is mounted there.
    type: path
  live_restore:
    description: Whether live restore must be on.
    type: bool
  cgroup_version:
    description: Version of the kernel's control groups that the engine must see.
    type: int
  runtime:
    description: Runtime that the engine must know.
    type: str
  default_runtime:
    description: Runtime that must be the default.
    type: str
  foreseen_settings:
    description: What C(daemon.json) will say once the tasks before have written it. Counts in check mode, where they
      have not, in place of the file.
    type: dict
  restart_allowed:
    description: Whether a restart may stop running containers.
    type: bool
    default: false
  timeout_s:
    description: Seconds that a start or restart may take, the stop of containers included.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Let the engine run as configured
  docker_engine:
    engine_package: docker-ce
    live_restore: true
    storage_driver: overlay2
"""

RETURN = r"""
actions:
  description: What was done, or would be, in words.
  type: list
  elements: str
  returned: success
pending:
  description: Reasons for a restart that was not allowed.
  type: list
  elements: str
  returned: success
engine:
  description: What the engine says of itself. Null in check mode where none runs.
  type: dict
  returned: success
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.docker_engine_control import EngineOnNode
from ansible.module_utils.gpufleet.docker_engine_verdict import Expected
from ansible.module_utils.gpufleet.docker_error import DockerError


def apply(module):
    wanted = module.params
    expected = {field: wanted[field] for field in Expected._fields if field != "version"}
    node = EngineOnNode(
        Expected(version=None, **expected),
        wanted["engine_package"],
        wanted["data_root_mount"],
        wanted["restart_allowed"],
        wanted["timeout_s"],
        module.check_mode,
        wanted["foreseen_settings"],
        lambda argv: module.run_command(list(argv), environ_update={"LC_ALL": "C"}),
    )
    before = node.describe()
    node.bring_about()
    after = node.describe()
    result = {
        "changed": bool(node.actions),
        "actions": node.actions,
        "pending": node.pending,
        "engine": node.info._asdict() if node.info else None,
        "diff": {"before": before, "after": after + "".join(f"{action}\n" for action in node.actions)},
        "gpufleet": {"facts": {"docker": node.facts()}},
    }
    if node.pending:
        result["gpufleet"]["attention"] = [
            {
                "reason": f"the container engine has to be restarted ({'; '.join(node.pending)}), which would stop "
                f"running containers: {node.running}",
                "next_step": "when they have ended run the playbook again, or let it stop them with -e "
                "'{\"docker_restart_allowed\": true}'",
                "severity": "warn",
            }
        ]
    return result


def main():
    module = AnsibleModule(
        argument_spec={
            "engine_package": {"type": "str"},
            "storage_driver": {"type": "str"},
            "data_root": {"type": "path"},
            "data_root_mount": {"type": "path"},
            "live_restore": {"type": "bool"},
            "cgroup_version": {"type": "int"},
            "runtime": {"type": "str"},
            "default_runtime": {"type": "str"},
            "foreseen_settings": {"type": "dict"},
            "restart_allowed": {"type": "bool", "default": False},
            "timeout_s": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    try:
        result = apply(module)
    except DockerError as error:
        module.fail_json(msg=str(error), next_step=error.next_step)
    except OSError as error:
        module.fail_json(msg=f"container engine: {error}", next_step="see whether that path can be used (df -h, mount)")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
