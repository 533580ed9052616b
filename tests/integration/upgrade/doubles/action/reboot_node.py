# SPDX-License-Identifier: Apache-2.0
"""Double of plugins/action/reboot_node.py."""

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

sys.path.append(str(Path(__file__).resolve().parents[1]))
import node_double


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        node = node_double.read(task_vars)
        if self._task.check_mode:
            return {"changed": True}
        node["reboots"] += 1
        if node["fault"] == "lost":
            node_double.write(task_vars, node)
            return {"failed": True, "msg": "rebooted, but it did not come back", "next_step": "look at its console"}
        node["requests"] = []
        if "nvidia-open" in node["installed"]:
            node["loaded"] = node["installed"]["nvidia-open"].removesuffix("-1")
        node_double.write(task_vars, node)
        return {"changed": True, "rebooted": True}
