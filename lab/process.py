# SPDX-License-Identifier: Apache-2.0
"""Background processes by identity: a pid alone may belong to somebody else after a while."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessId:
    """A pid and the time the process started (clock ticks since boot, /proc/<pid>/stat field 22)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The identity of a running process, None when there is none (a zombie counts as none)."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in ("Z", "X") else cls(pid, int(fields[19]))

    @classmethod
    def load(cls, path: Path) -> "ProcessId | None":
        """Read an identity from a pid file; None when absent or unreadable."""
        try:
            pid, started = path.read_text().split()
            return cls(int(pid), int(started))
        except (OSError, ValueError):
            return None

    def save(self, path: Path) -> None:
        """Write the pid file."""
        path.write_text(f"{self.pid} {self.started}\n")

    def alive(self) -> bool:
        """Whether exactly this process still runs."""
        return ProcessId.of(self.pid) == self

    def stop(self, term_limit_s: float = 10, kill_limit_s: float = 5) -> bool:
        """SIGTERM, then SIGKILL, each with its limit in seconds; False when it lives on."""
        for number, limit in ((signal.SIGTERM, term_limit_s), (signal.SIGKILL, kill_limit_s)):
            if not self.alive():
                return True
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return True
            deadline = time.monotonic() + limit
            while time.monotonic() < deadline and self.alive():
                time.sleep(0.05)
        return not self.alive()
