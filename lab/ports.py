# SPDX-License-Identifier: Apache-2.0
"""Free ports on 127.0.0.1 for a lab's services."""

import socket
import zlib
from collections.abc import Collection
from pathlib import Path

from lab.errors import LabError

# Below the kernel's ephemeral range (32768-60999), so that no outgoing connection of
# another program can sit on a node's port while QEMU restarts.
FIRST, LAST = 20000, 31999


def is_free(port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> bool:
    """Whether 127.0.0.1:port can be bound now."""
    with socket.socket(socket.AF_INET, kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def choose_port(
    lab_directory: Path, taken: Collection[int], kind: socket.SocketKind = socket.SOCK_STREAM, after: int | None = None
) -> int:
    """The next free port; where the search begins depends on the lab, so that two labs start apart."""
    count = LAST - FIRST + 1
    start = after - FIRST + 1 if after else zlib.crc32(str(lab_directory).encode()) % count
    for step in range(count):
        port = FIRST + (start + step) % count
        if port not in taken and is_free(port, kind):
            return port
    raise LabError(f"no free port between {FIRST} and {LAST} on 127.0.0.1; stop what is using them")
