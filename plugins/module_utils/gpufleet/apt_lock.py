# SPDX-License-Identifier: Apache-2.0
"""Wait until no other apt or dpkg works, and say which process does where it does not end."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from .apt_stack_error import AptStackError

# apt-get(8) and dpkg(1); the first is held for a whole run of apt, unattended-upgrades too.
LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
POLL_S = 1.0
# struct flock of Linux on 64-bit machines: type, whence, start, length, pid
FLOCK = "hhqqi4x"


class Holder(NamedTuple):
    """A process that holds a lock; its command line is "" where it has ended meanwhile."""

    path: str
    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.command or 'a process'} (pid {self.pid}, {self.path})"


def command_line(pid: int, proc: str = "/proc") -> str:
    """Command line of a process, "" where it cannot be read."""
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            return file.read(400).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def holder(path: str) -> Holder | None:
    """Who holds the lock of a file (fcntl(2), F_GETLK), None where it is free or not there."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    try:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(handle)
    kind, _whence, _start, _length, pid = struct.unpack(FLOCK, answer)
    return None if kind == fcntl.F_UNLCK else Holder(path, pid, command_line(pid))


def wait_for_locks(deadline: float, timeout_s: float, paths: Sequence[str] = LOCKS) -> None:
    """Return once all locks are free; raises AptStackError at the deadline (time.monotonic())."""
    while True:
        found = next((one for one in map(holder, paths) if one), None)
        if found is None:
            return
        if time.monotonic() >= deadline:
            raise AptStackError(
                f"apt is in use: {found} still held its lock after {timeout_s:g} s. Nothing was changed",
                "wait for it to end and run again; if it hangs, see what it waits for before you end it",
            )
        time.sleep(POLL_S)
