# SPDX-License-Identifier: Apache-2.0
"""Starts a node's supervisor and sends it commands."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.node import NodeFiles
from lab.process import ProcessId
from lab.supervisor import ACPI_LIMIT_S

START_LIMIT_S = 60
# The longest command: the power button is ignored until its limit, then QEMU is started again.
COMMAND_LIMIT_S = ACPI_LIMIT_S + 120


def is_running(files: NodeFiles) -> bool:
    """Whether the node has a supervisor."""
    identity = ProcessId.load(files.supervisor_pid)
    return identity is not None and identity.alive()


def start_supervisor(files: NodeFiles) -> None:
    """Start the node's supervisor in the background. Raises LabError when it does not come up."""
    with files.supervisor_log.open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lab.supervisor", str(files.directory), str(files.sockets)],
            cwd=Path(__file__).resolve().parents[1],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if is_running(files) and files.control_socket.exists():
            # Not ours to wait for any more: it outlives this command.
            process.returncode = 0
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    process.poll()
    raise LabError(f"the supervisor of {files.name} did not start; see {files.supervisor_log}")


def ask(
    files: NodeFiles, command: str, arguments: Mapping[str, str] | None = None, limit_s: float = COMMAND_LIMIT_S
) -> dict[str, Any]:
    """Send one command and return the node's state. Raises LabError with the supervisor's message."""
    if not is_running(files):
        raise LabError(f"{files.name} is not running; start it with: make lab-up (python -m lab up)")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(limit_s)
        try:
            connection.connect(str(files.control_socket))
            connection.sendall(json.dumps({"command": command, **(arguments or {})}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
        except TimeoutError:
            raise LabError(
                f"the supervisor of {files.name} did not answer {command} in {limit_s:.0f} s; "
                f"see {files.supervisor_log}"
            ) from None
        except OSError as error:
            raise LabError(
                f"cannot reach the supervisor of {files.name}: {error}; see {files.supervisor_log}"
            ) from error
    if not line:
        raise LabError(f"the supervisor of {files.name} ended in the middle of {command}; see {files.supervisor_log}")
    reply = json.loads(line)
    if not reply["ok"]:
        raise LabError(reply["error"])
    state: dict[str, Any] = reply["state"]
    return state
