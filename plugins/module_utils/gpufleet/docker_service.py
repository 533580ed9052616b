# SPDX-License-Identifier: Apache-2.0
"""docker.service as systemd sees it, and what systemctl and the journal do with it."""

from __future__ import annotations

import time
from typing import NamedTuple

from .bounded_command import CommandResult, run_bounded

UNIT = "docker.service"
# What is enabled with the engine, where the packages bring it.
UNITS = ("containerd.service", "docker.socket", "docker.service")
COMMAND_LIMIT_S = 60
JOURNAL_LINES = 20
_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "InvocationID",
    "MainPID",
    "NeedDaemonReload",
    "ExecMainStartTimestampMonotonic",
)


class Service(NamedTuple):
    """installed: systemd has the unit. started_at: seconds since the epoch, by today's clock."""

    installed: bool
    active: bool
    failed: bool
    invocation: str
    pid: int
    needs_daemon_reload: bool
    started_at: float


def systemctl(*words: str, limit_s: float = COMMAND_LIMIT_S) -> CommandResult:
    """systemctl with an end."""
    return run_bounded(["systemctl", *words], limit_s)


def read_service() -> Service:
    """State of docker.service."""
    shown = systemctl("show", UNIT, f"--property={','.join(_PROPERTIES)}").stdout
    found = dict(line.partition("=")[::2] for line in shown.splitlines() if "=" in line)
    since_boot_s = int(found.get("ExecMainStartTimestampMonotonic") or 0) / 1e6
    return Service(
        # "masked" is installed as well; it is unmasked.
        installed=found.get("LoadState", "not-found") not in ("not-found", ""),
        # A unit that reloads is active (systemd.unit(5)).
        active=found.get("ActiveState") in ("active", "reloading"),
        failed=found.get("ActiveState") == "failed",
        invocation=found.get("InvocationID", ""),
        pid=int(found.get("MainPID") or 0),
        needs_daemon_reload=found.get("NeedDaemonReload") == "yes",
        started_at=time.time() - (time.monotonic() - since_boot_s),
    )


def is_active() -> bool:
    """Whether the engine runs. To ask its socket instead would start it (docker.socket)."""
    return systemctl("is-active", UNIT).rc == 0


def not_enabled() -> list[str]:
    """Those of UNITS that systemd has and that are not enabled, or masked."""
    found = []
    for unit in UNITS:
        said = systemctl("is-enabled", unit)
        if said.stdout.strip() in ("disabled", "masked", "masked-runtime", "enabled-runtime"):
            found.append(unit)
    return found


def reason_of(log: str, otherwise: str) -> str:
    """Why the engine ended: what it said last before systemd saw it exit; else the first line of `otherwise`."""
    lines = log.splitlines()
    ends = [number for number, line in enumerate(lines) if f"{UNIT}: Main process exited" in line and number > 0]
    return (lines[ends[-1] - 1] if ends else otherwise.strip().split("\n")[0]).strip().rstrip(".")


def journal(since: float = 0) -> str:
    """The last lines that the engine has left in the journal since a time (seconds since the epoch), for a message."""
    words = ["--unit", UNIT, "--since", f"@{int(since)}", "--lines", str(JOURNAL_LINES)]
    return run_bounded(["journalctl", *words, "--no-pager", "--output", "cat"], COMMAND_LIMIT_S).said()
