# SPDX-License-Identifier: Apache-2.0
"""Action: compare the node's clock with the controller's in one round trip; the module steps it when it is off.

Documented in library/clock_step.py.
"""

from __future__ import annotations

import re
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import ansible.module_utils
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

_OWN = str(Path(__file__).resolve().parents[1] / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)
from ansible.module_utils.gpufleet.os_release import parse_os_release, unsupported

# A controller that believes to live before this code was written would set a whole fleet wrong.
WRITTEN = datetime(2026, 11, 1, tzinfo=UTC)

# Comparisons while the answer is not certain. The first may include the set-up of the connection.
ATTEMPTS = 4

COMPARE = "date +gpufleet-clock=%s.%N; cat /etc/os-release 2>/dev/null || cat /usr/lib/os-release"


class Comparison(NamedTuple):
    """Seconds that the node is ahead of the controller, and by how much that may be wrong."""

    offset_s: float
    uncertainty_s: float

    def certainly_off(self, limit_s: float) -> bool:
        """Even the value nearest to zero that the round trip allows is beyond the limit."""
        return abs(self.offset_s) - self.uncertainty_s > limit_s

    def certainly_right(self, limit_s: float) -> bool:
        """Even the value farthest from zero is within the limit."""
        return abs(self.offset_s) + self.uncertainty_s <= limit_s


def compare(sent: float, node: float, received: float) -> Comparison:
    """The node read its clock at some moment between `sent` and `received` (seconds, controller's clock)."""
    return Comparison(offset_s=node - (sent + received) / 2, uncertainty_s=(received - sent) / 2)


def parse_answer(text: str) -> tuple[float, str]:
    """Seconds since the epoch and the os-release text from what COMPARE printed; raises ValueError."""
    match = re.search(r"gpufleet-clock=(\d+\.\d+)", text)
    if match is None:
        raise ValueError(f"expected gpufleet-clock=<seconds>, got: {text.strip()[-200:]!r}")
    return float(match.group(1)), text[match.end() :]


def controller_is_unsynchronised() -> bool:
    """True where timedatectl says so; without timedatectl nothing is known and nothing is claimed."""
    try:
        shown = subprocess.run(
            ["timedatectl", "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return shown.returncode == 0 and shown.stdout.strip() == "no"


class ActionModule(ActionBase):
    """Compare, step through the module when off, compare again."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the module's result; raises AnsibleActionFail with a message that says what to do."""
        self._supports_check_mode = True
        result: dict[str, Any] = super().run(tmp, task_vars)
        _result, arguments = self.validate_argument_spec(
            {
                "max_offset_s": {"type": "float", "required": True},
                "supported_os": {"type": "list", "elements": "str", "default": []},
            }
        )
        limit = arguments["max_offset_s"]
        now = datetime.now(UTC)
        if now < WRITTEN:
            raise AnsibleActionFail(
                f"the controller's own clock says {now:%Y-%m-%d}, which is before this code was written "
                f"({WRITTEN:%Y-%m-%d}). Nothing was changed. Set the controller's clock, then run again."
            )
        found = self._compare(limit, arguments["supported_os"])
        result.update(changed=False, offset_s=round(found.offset_s, 3), uncertainty_s=round(found.uncertainty_s, 3))
        if not found.certainly_off(limit):
            return result

        if controller_is_unsynchronised():
            result["warnings"] = [
                "the controller's own clock is not synchronised (timedatectl), and nodes are set to it; chrony will "
                "correct what it is wrong by"
            ]
        result.update(
            self._execute_module(
                module_name="clock_step",
                module_args={"max_offset_s": limit, "correction_s": -found.offset_s},
                task_vars=task_vars,
            )
        )
        if result.get("failed") or self._task.check_mode:
            return result
        again = self._compare(limit, [])
        if again.certainly_off(limit):
            result.update(
                failed=True,
                msg=f"the clock was stepped by {-found.offset_s:+.1f} s, and now is {again.offset_s:+.1f} s off from "
                f"the controller's again; the limit is {limit:g} s. Something else sets it: look for another time "
                "service, or at the hypervisor's time synchronisation.",
            )
        elif result.get("hardware_clock") != "written":
            result["gpufleet"] = {
                "attention": [
                    {
                        "reason": f"hardware clock could not be written ({result.get('hardware_clock')}); "
                        "the next boot starts with a wrong clock",
                        "next_step": "look at the hardware clock (BMC log, CMOS battery)",
                        "severity": "warn",
                    }
                ]
            }
        return result

    def _compare(self, limit: float, supported_os: list[str]) -> Comparison:
        best = None
        for _attempt in range(ATTEMPTS):
            sent = time.time()
            answer = self._low_level_execute_command(COMPARE)
            received = time.time()
            try:
                node, os_release = parse_answer(answer["stdout"])
            except ValueError as error:
                raise AnsibleActionFail(
                    f"the node's clock could not be read with date: {error} {answer.get('stderr', '').strip()}"
                ) from error
            refusal = unsupported(parse_os_release(os_release), supported_os)
            if refusal:
                raise AnsibleActionFail(refusal)
            found = compare(sent, node, received)
            if best is None or found.uncertainty_s < best.uncertainty_s:
                best = found
            if best.certainly_off(limit) or best.certainly_right(limit):
                break
        assert best is not None
        return best
