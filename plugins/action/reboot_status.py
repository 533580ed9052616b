# SPDX-License-Identifier: Apache-2.0
"""Action: read a node's requests for a reboot, and sort it into the group that the reboot stage works on.

Documented in library/reboot_status.py.
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

GROUP = "gpufleet_reboot_pending"
PLAYBOOK = "ansible-playbook playbooks/reboot.yml"


def attention(found: dict[str, Any], allowed: bool, include_os_requests: bool) -> list[dict[str, str]]:
    """What the summary says about a node's requests."""
    lines = []
    if not allowed:
        for request in found["requests"]:
            lines.append(
                {
                    "reason": f"reboot pending: {request['reason']} (asked for by {request['requested_by']})",
                    "next_step": f"allow it: {PLAYBOOK} -e '{{\"reboot_allowed\": true}}'",
                    "severity": "warn",
                }
            )
    if found["os_request"] and not (allowed and include_os_requests):
        allow = '-e \'{"reboot_allowed": true, "reboot_include_os_requests": true}\''
        lines.append(
            {
                "reason": f"reboot pending for the operating system: {found['os_request']}",
                "next_step": f"allow it: {PLAYBOOK} {allow}",
                "severity": "warn",
            }
        )
    for problem in found["problems"]:
        lines.append(
            {
                "reason": f"a request for a reboot cannot be trusted and was ignored: {problem}",
                "next_step": "remove it on the node, then run again the role that wrote it",
                "severity": "warn",
            }
        )
    return lines


class ActionModule(ActionBase):
    """Run the module once; add the host to GROUP where the reboot stage has something to do."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the module's result with what needs attention."""
        self._supports_check_mode = True
        result: dict[str, Any] = super().run(tmp, task_vars)
        _result, arguments = self.validate_argument_spec(
            {
                "allowed": {"type": "bool", "default": False},
                "include_os_requests": {"type": "bool", "default": False},
                "directory": {"type": "str"},
                "records": {"type": "str"},
                "os_request": {"type": "str"},
            }
        )
        result.update(self._execute_module(module_name="reboot_status", task_vars=task_vars))
        if result.get("failed") or "requests" not in result:
            return result
        allowed, include_os_requests = arguments["allowed"], arguments["include_os_requests"]
        lines = attention(result, allowed, include_os_requests)
        if lines:
            result["gpufleet"] = {"attention": lines}
        if result["stuck"]:
            result.update(reason_still_stands(result["stuck"]))
            return result
        wanted = bool(result["requests"]) or (include_os_requests and bool(result["os_request"]))
        result["pending"] = allowed and wanted
        if result["pending"]:
            self.add_group(GROUP, parent_group_names=["all"])
        return result
