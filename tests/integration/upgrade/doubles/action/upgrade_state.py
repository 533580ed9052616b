# SPDX-License-Identifier: Apache-2.0
"""Double of library/upgrade_state.py: judges by the same code what the node's file says."""

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

sys.path.append(str(Path(__file__).resolve().parents[1]))
import ansible.module_utils
import node_double
from ansible.errors import AnsibleConnectionFailure

_OWN = str(Path(__file__).resolve().parents[5] / "plugins" / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)
from ansible.module_utils.gpufleet.upgrade_evidence import Wanted, judge


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        node = node_double.read(task_vars)
        if node["fault"] == "unreachable":
            raise AnsibleConnectionFailure("ssh: connect to host: Connection timed out")
        parts = {}
        for part, values in self._task.args["wanted"].items():
            wanted = Wanted(values["version"], values["source"])
            loaded = node["loaded"] if part == "driver" else None
            parts[part] = judge(part, wanted, node["installed"], loaded, node["requests"]).as_dict()
        right = all(found["right"] for found in parts.values())
        result = {"changed": False, "parts": parts, "right": right}
        if self._task.args.get("demanded") and not right:
            wrong = "; ".join(found["why"] for found in parts.values() if not found["right"])
            result.update(failed=True, msg=f"not what the profile wants: {wrong}", next_step="mend it, then run again")
        return result
