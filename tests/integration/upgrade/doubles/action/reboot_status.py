# SPDX-License-Identifier: Apache-2.0
"""Double of plugins/action/reboot_status.py."""

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

sys.path.append(str(Path(__file__).resolve().parents[1]))
import node_double


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        requests = node_double.read(task_vars)["requests"]
        return {"changed": False, "requests": requests, "pending": bool(requests) and self._task.args["allowed"]}
