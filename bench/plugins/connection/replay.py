# SPDX-License-Identifier: Apache-2.0
"""Connection plugin that answers as one real node answered, so that a controller does its true work without nodes."""

from __future__ import annotations

DOCUMENTATION = """
name: replay
short_description: Answers from a recording of a real node
description:
  - Each host answers its calls in the order in which the recorded node did. A call for another module than the
    recorded one is an error, as the run then differs from the recorded one.
  - The recording is made by C(bench/record_ssh), see C(bench/host_tasks.py).
author: gpufleet
extends_documentation_fragment: [connection_pipelining]
options:
  recording:
    description: JSON file with the recorded calls, in order.
    type: path
    required: true
    env:
      - name: GPUFLEET_BENCH_RECORDING
  counters:
    description: Folder in which each host's number of calls is kept, since every task runs in a process of its own.
    type: path
    required: true
    env:
      - name: GPUFLEET_BENCH_COUNTERS
"""

import base64
import json
import re
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

MODULE_NAME = re.compile(rb"ansible_module='([^']+)'")

# The node's clock in an answer to time_sync's comparison (plugins/action/clock_step.py).
CLOCK = re.compile(rb"gpufleet-clock=(\d+\.\d+)")


def moved_on(answer: bytes, seconds: float) -> bytes:
    """An answer as the node would give it that many seconds later: its clock has gone on."""
    return CLOCK.sub(lambda found: b"gpufleet-clock=%.9f" % (float(found[1]) + seconds), answer)


@lru_cache(maxsize=1)
def recorded_calls(file: str) -> list[dict[str, Any]]:
    """The calls of the recorded node."""
    calls: list[dict[str, Any]] = json.loads(Path(file).read_text())
    return calls


class Connection(ConnectionBase):
    """One task's connection to a simulated host."""

    transport = "replay"
    has_pipelining = True

    def _connect(self) -> Connection:
        return self

    def _next_call(self, kind: str) -> dict[str, Any]:
        host = self._play_context.remote_addr
        counter = Path(self.get_option("counters")) / host
        number = int(counter.read_text()) if counter.exists() else 0
        counter.write_text(str(number + 1))
        calls = recorded_calls(self.get_option("recording"))
        if number >= len(calls):
            raise AnsibleConnectionFailure(f"{host} is asked more often than the recorded node ({len(calls)} calls)")
        call = calls[number]
        if call["kind"] != kind:
            raise AnsibleConnectionFailure(f"{host}, call {number}: {kind}, but the recorded node had {call['kind']}")
        return call

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        """The recorded answer to the next command."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        call = self._next_call("exec")
        found = MODULE_NAME.search(in_data or b"")
        module = found[1].decode() if found else ""
        if module != call["module"]:
            host = self._play_context.remote_addr
            raise AnsibleConnectionFailure(f"{host} runs '{module}' where the recorded node ran '{call['module']}'")
        stdout = moved_on(base64.b64decode(call["stdout"]), time.time() - call["at"])
        return call["rc"], stdout, base64.b64decode(call["stderr"])

    def put_file(self, in_path: str, out_path: str) -> None:
        """The recorded node took the file too."""
        super().put_file(in_path, out_path)
        self._next_call("transfer")

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """A recording has no file contents."""
        raise AnsibleConnectionFailure("a file is fetched, which the bench cannot simulate")

    def close(self) -> None:
        """Nothing is open."""
