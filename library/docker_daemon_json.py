#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: keys of the container engine's daemon.json, merged with what is there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_daemon_json
short_description: Set keys of the container engine's daemon.json and keep all others
description:
  - Merges O(settings) into the file. Objects such as C(log-opts) and C(runtimes) are merged too; what only the file has
    is kept. A file that already says it all is left as it is, with its layout.
  - A file that is no valid JSON, no object, or has a key twice is refused with line and column, and not overwritten.
  - A key that the engine's unit or one of its drop-ins has as a flag is refused with the place of the flag, since the
    engine would not start any more.
  - Another storage driver or data root is refused where the engine has containers, images or volumes, unless
    O(storage_left_behind) names what is left.
  - Before the file is put in place the installed engine validates it, with the flags of its unit, where it can
    (C(dockerd --validate), from release 23 on).
  - The engine is neither reloaded nor restarted. The module C(docker_engine) sees what is pending.
author: The gpufleet authors
attributes:
  check_mode:
    description: The same, and the file is not written.
    support: full
  diff_mode:
    description: Shows the file before and after.
    support: full
options:
  settings:
    description: Keys of the file with their values.
    type: dict
    required: true
  path:
    description: The file.
    type: path
    default: /etc/docker/daemon.json
  storage_left_behind:
    description: Storage that may be left, as C(<driver> <data root>), such as C(overlay2 /var/lib/docker).
    type: str
  data_root_mount:
    description: Mount point that the data root has to lie on. Nothing is done while nothing is mounted there.
    type: path
"""

EXAMPLES = r"""
- name: Limit logs and let containers go on while the engine restarts
  docker_daemon_json:
    settings:
      live-restore: true
      log-driver: json-file
      log-opts: {max-size: 100m, max-file: "5"}
"""

RETURN = r"""
changed_keys:
  description: Top-level keys that were altered, or would be.
  type: list
  elements: str
  returned: success
backup_file:
  description: Copy of the file before, beside it; null where there was none, or nothing changed.
  type: str
  returned: success
settings:
  description: All that the file says now, or would say.
  type: dict
  returned: success
validated:
  description: Whether the installed engine has validated the file; false where it cannot or is not installed.
  type: bool
  returned: success
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.docker_api import SOCKET, Engine, NoAnswer, names
from ansible.module_utils.gpufleet.docker_daemon_file import DaemonFile
from ansible.module_utils.gpufleet.docker_daemon_json import DEFAULTS, merge
from ansible.module_utils.gpufleet.docker_engine_start import note_start
from ansible.module_utils.gpufleet.docker_error import DockerError
from ansible.module_utils.gpufleet.docker_service import is_active, read_service
from ansible.module_utils.gpufleet.docker_storage import of_engine, of_folder, refuse_loss

ROOT = ""


def refuse_storage_and_swarm(module, there, settings):
    """Raise DockerError where the engine's storage, or its swarm, stands against the settings."""
    driver, data_root = settings.get("storage-driver"), settings.get("data-root")
    running, info = "", None
    if is_active():
        engine = Engine(ROOT + SOCKET)
        try:
            info = engine.info()
            now, running = of_engine(info, engine.volumes()), names(engine.running())
        except NoAnswer as error:
            raise DockerError(
                f"the engine runs and does not say what it has: {error}. Nothing was changed",
                "see journalctl -u docker.service on the node; systemctl restart docker.service where it hangs",
            ) from error
    else:
        now = of_folder(there.get("data-root") or there.get("graph") or DEFAULTS["data-root"], ROOT)
    refuse_loss(now, driver, data_root, module.params["storage_left_behind"], running)
    if info is not None and info.swarm and settings.get("live-restore"):
        raise DockerError(
            "the engine is part of a swarm, which excludes live-restore. Nothing was changed",
            "let the node leave the swarm (docker swarm leave), or set platform.docker.live_restore to false",
        )


def apply(module):
    wanted = module.params
    mount = wanted["data_root_mount"]
    if mount and not os.path.ismount(ROOT + mount) and not module.check_mode:
        raise DockerError(
            f"nothing is mounted at {mount}, where the engine's data root has to lie: it would fill the root disk. "
            "Nothing was changed",
            "bring the pool back first (playbooks/storage.yml), or correct platform.docker.data_root",
        )
    file = DaemonFile(wanted["path"], ROOT)
    merged = merge(file.settings, wanted["settings"], file.path)
    file.refuse_clashes(merged)
    refuse_storage_and_swarm(module, file.settings, wanted["settings"])
    changed = merged != file.settings
    result = {
        "changed": changed,
        "changed_keys": [],
        "backup_file": None,
        "validated": False,
        "settings": merged,
    }
    if not changed:
        return result
    result["changed_keys"] = sorted(key for key in merged if merged[key] != file.settings.get(key))
    result["validated"] = file.validate(merged)
    result["diff"] = file.diff(merged)
    if not module.check_mode:
        note_start(file, read_service(), ROOT)
        if file.content is not None:
            result["backup_file"] = module.backup_local(ROOT + file.path)
        file.write(merged)
    return result


def main():
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict", "required": True},
            "path": {"type": "path", "default": "/etc/docker/daemon.json"},
            "storage_left_behind": {"type": "str"},
            "data_root_mount": {"type": "path"},
        },
        supports_check_mode=True,
    )
    try:
        result = apply(module)
    except DockerError as error:
        module.fail_json(msg=str(error), next_step=error.next_step)
    except OSError as error:
        module.fail_json(msg=f"daemon.json: {error}", next_step="see whether that path can be used (df -h, mount)")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
