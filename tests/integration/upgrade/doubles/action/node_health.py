# SPDX-License-Identifier: Apache-2.0
"""Double of library/node_health.py: healthy, unless the node's file says otherwise."""

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

sys.path.append(str(Path(__file__).resolve().parents[1]))
import node_double


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        sick = node_double.read(task_vars)["fault"] == "sick"
        verdict = "fail" if sick else "ok"
        told = {"facts": {"health": {"verdict": verdict, "action": "none", "findings": []}}}
        if sick:
            note = {"reason": "gpu.ecc GPU 3: 2 uncorrected errors", "next_step": "replace GPU 3", "severity": "fail"}
            told["attention"] = [note]
        return {"changed": False, "verdict": verdict, "gpufleet": told}
