# SPDX-License-Identifier: Apache-2.0
"""One campaign at a time for each inventory: a file that names the run which holds it.

The lock of a run (run_lock.py) is held by ansible-playbook itself and lies with the reports. This one guards the state
of campaigns, wherever reports go. Its holder is known by process id and start time, since the tasks that take it run in
short-lived workers: a holder that is gone, killed or not, holds nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .run_lock import LockHeldError, LockOwner
from .screen_text import duration

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class CampaignHeldError(Exception):
    """Another run holds the campaigns of this inventory; the message says which, since when, and what to do."""


def process_mark(pid: int) -> str | None:
    """What tells a process from a later one of the same number: its start in clock ticks. None where it is gone."""
    try:
        # The name may hold blanks and brackets; the start is field 22, counted from behind it (proc(5)).
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    # A zombie has ended: its parent just has not looked yet.
    return None if fields[0] in ("Z", "X") else fields[19]


class CampaignLock:
    """The lock in `path`. `pid` is ansible-playbook's own process."""

    def __init__(self, path: Path, pid: int) -> None:
        self.path = path
        self._pid = pid

    def acquire(self, playbook: str, inventory: list[str]) -> None:
        """Take it, or keep it where it is ours already; raises CampaignHeldError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._guarded() as descriptor:
            held = self._read(descriptor)
            if held is not None and not self._is_mine(held) and self._is_alive(held):
                raise CampaignHeldError(self._message(held))
            now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            owner = asdict(LockOwner.this_process(playbook, now, inventory)) | {"pid": self._pid}
            mark = {"boot": _boot(), "process": process_mark(self._pid)}
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"owner": owner, **mark}).encode(), 0)
            os.fsync(descriptor)

    def check(self) -> None:
        """Raises CampaignHeldError unless the run that this process works for is alive and holds the lock.

        A worker outlives its ansible-playbook where that is killed, and must not act for a run that has ended.
        """
        if os.getppid() != self._pid:
            raise CampaignHeldError("the run that this task belongs to has ended; nothing more is done for it")
        with self._guarded() as descriptor:
            held = self._read(descriptor)
        if held is None or not self._is_mine(held):
            raise CampaignHeldError(
                f"another run took the campaign over (lock {self.path}); nothing more is done by this one"
            )

    def _is_mine(self, held: dict[str, Any]) -> bool:
        return (
            held["owner"].get("host") == socket.gethostname()
            and held["owner"].get("pid") == self._pid
            and held.get("process") == process_mark(self._pid)
        )

    def _is_alive(self, held: dict[str, Any]) -> bool:
        """Of a run on another machine nothing is known, so it counts as alive."""
        if held["owner"].get("host") != socket.gethostname():
            return True
        return held.get("boot") == _boot() and held.get("process") == process_mark(int(held["owner"].get("pid", 0)))

    def _message(self, held: dict[str, Any]) -> str:
        owner = LockOwner(**held["owner"])
        message = LockHeldError(self.path, owner).message()
        try:
            began = datetime.strptime(owner.started, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            message += f"\nIt has held the campaign for {duration((datetime.now(UTC) - began).total_seconds())}."
        except ValueError:
            pass
        if owner.host != socket.gethostname():
            message += f" Whether it still runs cannot be seen from here; if it is over, remove {self.path}."
        return message

    @contextmanager
    def _guarded(self) -> Iterator[int]:
        """The file, open and for us alone for a moment."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    @staticmethod
    def _read(descriptor: int) -> dict[str, Any] | None:
        """Who holds it; None for an empty file, or one that a power cut left without sense."""
        try:
            held = json.loads(os.pread(descriptor, 65536, 0))
            LockOwner(**held["owner"])
        except (ValueError, TypeError, KeyError):
            return None
        return dict(held)


def _boot() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()
