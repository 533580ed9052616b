# SPDX-License-Identifier: Apache-2.0
"""The lab's NTP server: its packets, and the real process on loopback."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.ntp_server import PACKET, answer, ntp_time, query, unix_time
from lab.ports import choose_port
from lab.process import ProcessId

REPOSITORY = Path(__file__).resolve().parents[3]


def request(version: int = 4, mode: int = 3, transmitted: int = 12345) -> bytes:
    return PACKET.pack(version << 3 | mode, 0, 6, 0, 0, 0, b"\0\0\0\0", 0, 0, 0, transmitted)


def test_known_timestamps() -> None:
    assert ntp_time(0) == 2_208_988_800 << 32
    assert unix_time(ntp_time(1_795_000_000.5)) == pytest.approx(1_795_000_000.5, abs=1e-6)
    # The counter begins again on 7 February 2036, 06:28:16 UTC.
    assert unix_time(ntp_time(2_085_978_496 + 10)) == pytest.approx(2_085_978_506, abs=1e-6)


@pytest.mark.parametrize("version", [3, 4])
def test_an_answer(version: int) -> None:
    reply = answer(request(version), received=1000.25, now=1000.5)
    assert reply is not None and len(reply) == 48
    first, stratum, poll, _, _, _, _, _, origin, received, transmitted = PACKET.unpack(reply)
    assert (first >> 6, (first >> 3) & 7, first & 7) == (0, version, 4), "no leap warning, same version, server mode"
    assert stratum == 1 and poll == 6
    assert origin == 12345, "the client's own timestamp comes back, else it drops the answer"
    assert (unix_time(received), unix_time(transmitted)) == (1000.25, 1000.5)


@pytest.mark.parametrize("packet", [b"", b"x" * 47, request(mode=4), request(version=2), request(mode=6)])
def test_anything_else_is_not_answered(packet: bytes) -> None:
    assert answer(packet, 0, 0) is None


def test_the_process_answers_and_ends(tmp_path: Path) -> None:
    import socket

    port = choose_port(tmp_path, (), socket.SOCK_DGRAM)
    pid_file = tmp_path / "pid"
    process = subprocess.Popen(
        [sys.executable, "-m", "lab.ntp_server", "--port", str(port), "--pid-file", str(pid_file)], cwd=REPOSITORY
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                ahead = query(port)
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert abs(ahead) < 0.5
        identity = ProcessId.load(pid_file)
        assert identity is not None and identity.pid == process.pid and identity.alive()
        assert identity.stop()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
