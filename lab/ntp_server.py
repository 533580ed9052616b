# SPDX-License-Identifier: Apache-2.0
"""The lab's NTP server: answers with this machine's clock, so that nodes can set theirs without a network."""

import argparse
import os
import signal
import socket
import struct
import time
from pathlib import Path

from lab.process import ProcessId

# RFC 5905, figure 8: LI/VN/mode, stratum, poll, precision, root delay, root dispersion, reference id, 4 timestamps.
PACKET = struct.Struct("!BBbb II4s QQQQ")
NTP_EPOCH_OFFSET_S = 2_208_988_800  # seconds from 1900 to 1970
MODE_CLIENT, MODE_SERVER = 3, 4


def ntp_time(unix_seconds: float) -> int:
    """64-bit NTP timestamp (32.32 fixed point since 1900, modulo an era) of a Unix time."""
    return int((unix_seconds + NTP_EPOCH_OFFSET_S) * 2**32) & (2**64 - 1)


def unix_time(timestamp: int) -> float:
    """Unix time of an NTP timestamp of the present era (until 2036) or the next."""
    seconds = timestamp / 2**32
    return seconds - NTP_EPOCH_OFFSET_S + (2**32 if seconds < NTP_EPOCH_OFFSET_S else 0)


def answer(request: bytes, received: float, now: float) -> bytes | None:
    """The reply to a client's packet, None to anything that is not a version 3 or 4 client request."""
    if len(request) < PACKET.size:
        return None
    first, _, poll, *_, transmitted = PACKET.unpack(request[: PACKET.size])
    version, mode = (first >> 3) & 7, first & 7
    if mode != MODE_CLIENT or version not in (3, 4):
        return None
    return PACKET.pack(
        version << 3 | MODE_SERVER, 1, poll, -20, 0, 1, b"LAB\0",
        ntp_time(received), transmitted, ntp_time(received), ntp_time(now),
    )  # fmt: skip


def serve(port: int) -> None:
    """Answer on 127.0.0.1:port until killed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", port))
        while True:
            request, client = server.recvfrom(512)
            reply = answer(request, time.time(), time.time())
            if reply:
                server.sendto(reply, client)


def query(port: int, limit_s: float = 2) -> float:
    """Seconds that 127.0.0.1:port is ahead of this process's clock. Raises OSError when nothing answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(limit_s)
        client.connect(("127.0.0.1", port))
        sent = time.time()
        client.send(PACKET.pack(4 << 3 | MODE_CLIENT, 0, 4, 0, 0, 0, b"\0\0\0\0", 0, 0, 0, ntp_time(sent)))
        reply = PACKET.unpack(client.recv(512)[: PACKET.size])
        back = time.time()
    received, transmitted = unix_time(reply[9]), unix_time(reply[10])
    return ((received - sent) + (transmitted - back)) / 2


def main() -> None:
    """`python -m lab.ntp_server --port N --pid-file FILE`, started by `lab up`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid-file", type=Path, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    identity = ProcessId.of(os.getpid())
    if identity is None:
        raise SystemExit("cannot read /proc")
    identity.save(options.pid_file)
    serve(options.port)


if __name__ == "__main__":
    main()
