# SPDX-License-Identifier: Apache-2.0
"""One run at a time per inventory: a kernel lock on a small file that also says who holds it.

The lock is an flock, so the kernel drops it when the process ends, however it ends; a file that
is left behind locks nothing. Forked workers get a copy of the descriptor, which would keep the
lock alive after a kill -9 of the run, so they close theirs right after the fork; programs that are
started (ssh, its ControlPersist master) never see it, since Python opens files close-on-exec.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class LockOwner:
    """Who holds the lock, for the message to the one who must wait."""

    user: str
    host: str
    pid: int
    playbook: str
    started: str
    inventory: str

    @classmethod
    def this_process(cls, playbook: str, started: str, inventory: Sequence[str]) -> LockOwner:
        """Describe the running process; ``started`` is UTC in ISO 8601."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a uid without a passwd entry, as in containers
            user = f"uid {os.getuid()}"
        return cls(user, socket.gethostname(), os.getpid(), playbook, started, ", ".join(inventory))


class LockHeldError(Exception):
    """Another run holds the lock. ``owner`` is None where the file could not be read."""

    def __init__(self, path: Path, owner: LockOwner | None) -> None:
        super().__init__(f"{path} is held by another run")
        self.path = path
        self.owner = owner

    def message(self) -> str:
        """Say who holds it, since when, and what to do."""
        if self.owner is None:
            who = f"Another run on this inventory is under way (it has not said yet which; lock file {self.path})."
            what = "Next step: wait until it has ended, then start again."
        else:
            own = self.owner
            who = (
                f"Another run on this inventory is under way: {own.playbook}, started {own.started} "
                f"by {own.user} on {own.host}, pid {own.pid} (inventory: {own.inventory})."
            )
            what = (
                f"Next step: wait until it has ended, or, when it should not run, end it with 'kill {own.pid}' "
                f"on {own.host}; then start again. A run with --check needs no lock."
            )
        return f"{who}\nNothing was done on any node.\n{what}"


class RunLock:
    """The lock of one inventory. Keep the object for as long as the lock is to be held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._fork_hook = False

    def acquire(self, owner: LockOwner) -> None:
        """Take the lock or raise LockHeldError; OSError where the file cannot be opened or locked."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
        except PermissionError:
            # The file of a colleague: it cannot say our name, but it locks as well.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LockHeldError(self.path, read_owner(self.path)) from None
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        if not self._fork_hook:
            os.register_at_fork(after_in_child=self._close_in_child)
            self._fork_hook = True
        # A full disk must not take the lock away: it locks without its text, too.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(owner)).encode(), 0)

    def release(self) -> None:
        """Give the lock back; the file stays (removing it would let two runs lock two files)."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def _close_in_child(self) -> None:
        """Close the inherited copy; this does not unlock, since the parent's descriptor stays open."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


def read_owner(path: Path, patience_s: float = 0.5) -> LockOwner | None:
    """Read who holds the lock; None where nothing readable appears within ``patience_s`` seconds.

    The holder writes its name just after it got the lock, so an empty file is read again.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return LockOwner(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.05)


def lock_path(directory: Path, inventory: Sequence[str]) -> Path:
    """Return the lock file for these inventory sources (paths, or host lists with commas), in any order.

    Two labs or two molecule scenarios have different sources and so do not wait for each other.
    """
    sources = sorted(source if "," in source else os.path.realpath(source) for source in inventory)
    digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(sources[0]).name if sources else "none").strip("-")[:32] or "inventory"
    return directory / ".locks" / f"{name}-{digest}.lock"
