# SPDX-License-Identifier: Apache-2.0
"""Double of the tasks of a role of the stack: packages of one release, and a reboot where a driver is loaded."""

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

sys.path.append(str(Path(__file__).resolve().parents[1]))
import node_double


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        node, wanted = node_double.read(task_vars), self._task.args
        if node["fault"] == "role":
            return {"failed": True, "msg": f"dkms cannot build {wanted['package']}", "next_step": "see make.log"}
        version = f"{wanted['version']}-1"
        changed = node["installed"].get(wanted["package"]) != version and node["fault"] != "stuck"
        if changed and not wanted["upgrade"]:
            return {"failed": True, "msg": "another version is installed, and no upgrade is asked for"}
        if changed and not self._task.check_mode:
            node["installed"][wanted["package"]] = version
            node["upgrades"] += 1
            if node["fault"] == "vanishes":
                node["fault"] = "unreachable"
            if wanted["loads"]:
                node["requests"] = ["another driver is loaded than installed"]
            node_double.write(task_vars, node)
        return {"changed": changed}
