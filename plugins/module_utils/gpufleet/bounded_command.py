# SPDX-License-Identifier: Apache-2.0
"""Run a command on the node that must not hold up the caller, however it hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

# The end of what a command printed, for a message: a guard that prints a log must not fill the report.
MESSAGE_CHARACTERS = 2000


class CommandResult(NamedTuple):
    """`outcome` is done (exit status in rc), missing (no such program) or timeout (rc is None in both)."""

    outcome: str
    rc: int | None
    stdout: str
    stderr: str

    def said(self) -> str:
        """What the command printed, for a message: standard error first, since that is where the reason stands."""
        text = "\n".join(part for part in (self.stderr.strip(), self.stdout.strip()) if part)
        return text[-MESSAGE_CHARACTERS:] or "no output"


def run_bounded(
    argv: Sequence[str], timeout_s: float, environment: Mapping[str, str] = MappingProxyType({})
) -> CommandResult:
    """Run argv with the C locale and the variables of `environment`, and give up after timeout_s seconds.

    A process in uninterruptible sleep (an ioctl of a dead GPU) survives SIGKILL, so it is left behind after one more
    second instead of being waited for. Raises ValueError for an empty argv.
    """
    if not argv:
        raise ValueError("empty command")
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **environment, "LC_ALL": "C", "LANGUAGE": "C"},
        )
    except OSError as error:
        return CommandResult("missing", None, "", str(error))
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()
        return CommandResult("timeout", None, "", f"no answer within {timeout_s:g} s")
    return CommandResult(
        "done", process.returncode, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace")
    )
