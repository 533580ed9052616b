# SPDX-License-Identifier: Apache-2.0
"""Action: decide, reboot, prove, as one task for each node.

Documented in library/reboot_node.py. One task, since a batch goes through its tasks in step: were the proof a task of
its own, a node that does not come back would stop the roll-out before its neighbours, which did, are looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.plugins.action import ActionBase

_OWN = str(Path(__file__).resolve().parents[1] / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)
from ansible.module_utils.gpufleet_controller.reboot_messages import reason_still_stands

# What an unanswered connection costs while the node boots.
CONNECT_TIMEOUT_S = 15


def refused(reasons: list[str], refusals: list[str], next_step: str) -> dict[str, Any]:
    """Result of a node that needs a reboot and does not get one now; no failure, but the operator must see it."""
    return {
        "changed": False,
        "rebooted": False,
        "reasons": reasons,
        "refusals": refusals,
        "msg": f"not rebooted: {'; '.join(refusals)}",
        "gpufleet": {
            "attention": [
                {
                    "reason": f"reboot needed ({'; '.join(reasons)}), but not done: {'; '.join(refusals)}",
                    "next_step": next_step,
                    "severity": "warn",
                }
            ]
        },
    }


class ActionModule(ActionBase):
    """The module in both phases, with ansible.builtin.reboot in between."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns a failure only where the node did not come back, or where the reboot did not serve its purpose."""
        self._supports_check_mode = True
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)

        decision = self._execute_module("reboot_node", {**arguments, "phase": "decide"}, task_vars=task_vars)
        if decision.get("failed") or "refusals" not in decision:
            result.update(decision)
            return result
        reasons = decision["reasons"]
        result.update(changed=False, rebooted=False, reasons=reasons, boot_id=decision["boot_id"])
        if not reasons:
            return result
        if self._connection.transport == "local":
            # The controller is the node itself: the reboot would take this run along.
            result.update(
                refused(
                    reasons,
                    ["this run reaches the node over a local connection"],
                    "reboot the node by hand, or run from another machine over ssh",
                )
            )
            return result
        if decision["refusals"]:
            result.update(
                refused(reasons, decision["refusals"], "run playbooks/reboot.yml again when this is no longer so")
            )
            return result
        if self._task.check_mode:
            result.update(changed=True, msg=f"would be rebooted for: {'; '.join(reasons)}")
            return result

        timeout_s = int(arguments.get("timeout_s", 1800))
        reboot = self._reboot(timeout_s, task_vars)
        if reboot.get("failed"):
            result.update(
                failed=True,
                changed=bool(reboot.get("rebooted")),
                rebooted=bool(reboot.get("rebooted")),
                msg=f"rebooted for: {'; '.join(reasons)}, but it did not come back within {timeout_s} s "
                f"({reboot.get('msg')}). The roll-out stops here."
                if reboot.get("rebooted")
                else f"could not be rebooted: {reboot.get('msg')}",
                next_step="look at its console (BMC); once it is back, run playbooks/reboot.yml again"
                if reboot.get("rebooted")
                else "look at the message, run playbooks/reboot.yml again",
            )
            return result

        # Folders that were made on the node before the boot may be gone.
        self._connection._shell.tmpdir = None
        proof = self._execute_module(
            "reboot_node", {**arguments, "phase": "prove", "boot_id": decision["boot_id"]}, task_vars=task_vars
        )
        result.update(proof, changed=True, elapsed_s=reboot.get("elapsed"))
        if proof.get("failed"):
            return result
        if proof["stuck"]:
            result.update(reason_still_stands(proof["stuck"]))
        return result

    def _reboot(self, timeout_s: int, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        task = self._task.copy()
        task.args = {
            "reboot_timeout": timeout_s,
            "connect_timeout": CONNECT_TIMEOUT_S,
            # The message goes through a shell on the node, so it is ours alone.
            "msg": "Reboot for gpufleet",
        }
        action = self._shared_loader_obj.action_loader.get(
            "ansible.builtin.reboot",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        outcome: dict[str, Any] = action.run(task_vars=task_vars)
        return outcome
