# SPDX-License-Identifier: Apache-2.0
"""Which process listens on a TCP port, from /proc: no tool needed, none to parse."""

from __future__ import annotations

import os
from typing import NamedTuple

# net/tcp_states.h
TCP_LISTEN = "0A"


class Listener(NamedTuple):
    """A process, or where the kernel does not show it (in a container root may not look at others) its user only."""

    pid: int | None
    command: str
    uid: int

    def __str__(self) -> str:
        if self.pid is None:
            return f"a process of user id {self.uid} that cannot be seen from here"
        return f"{self.command} (pid {self.pid})"


def listening_sockets(table: str, port: int) -> dict[str, int]:
    """Inode and user id of the sockets that listen on `port`, from the text of /proc/net/tcp or tcp6."""
    found = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != TCP_LISTEN:
            continue
        if int(fields[1].rpartition(":")[2], 16) == port:
            found[fields[9]] = int(fields[7])
    return found


def find_listeners(port: int, proc: str = "/proc") -> list[Listener]:
    """The processes that listen on a TCP port of this machine, IPv4 and IPv6; empty where it is free."""
    sockets: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        try:
            with open(os.path.join(proc, "net", table), encoding="ascii") as file:
                sockets.update(listening_sockets(file.read(), port))
        except OSError:
            continue
    if not sockets:
        return []
    found = []
    unseen = dict(sockets)
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        for inode in _held_sockets(os.path.join(proc, entry, "fd")) & set(sockets):
            unseen.pop(inode, None)
            listener = Listener(int(entry), _command(os.path.join(proc, entry, "comm")), sockets[inode])
            if listener not in found:
                found.append(listener)
    return found + [Listener(None, "", uid) for uid in sorted(set(unseen.values()))]


def _held_sockets(folder: str) -> set[str]:
    """Inodes of the sockets among the open files in a process's fd folder."""
    inodes = set()
    try:
        handles = os.listdir(folder)
    except OSError:
        return inodes
    for handle in handles:
        try:
            link = os.readlink(os.path.join(folder, handle))
        except OSError:
            continue
        if link.startswith("socket:["):
            inodes.add(link[len("socket:[") : -1])
    return inodes


def _command(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "a process that has just ended"
