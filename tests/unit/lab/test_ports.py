# SPDX-License-Identifier: Apache-2.0
"""Ports: a used one is never chosen, and two labs begin their search apart."""

import socket
from pathlib import Path

import pytest

from lab import ports
from lab.errors import LabError


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_port_in_use_is_passed_over(kind: socket.SocketKind) -> None:
    lab = Path("/some/lab")
    first = ports.choose_port(lab, (), kind)
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind(("127.0.0.1", first))
        if kind == socket.SOCK_STREAM:
            other.listen()
        assert not ports.is_free(first, kind)
        assert ports.choose_port(lab, (), kind) != first


def test_a_port_that_the_lab_uses_itself_is_passed_over() -> None:
    lab = Path("/some/lab")
    first = ports.choose_port(lab, ())
    assert ports.choose_port(lab, {first}) != first


def test_after_goes_on_behind_a_port_that_was_taken() -> None:
    assert ports.choose_port(Path("/some/lab"), (), after=25000) > 25000
    assert ports.FIRST <= ports.choose_port(Path("/some/lab"), (), after=ports.LAST) <= ports.LAST


def test_two_labs_start_apart() -> None:
    assert ports.choose_port(Path("/clone/one/.lab"), ()) != ports.choose_port(Path("/clone/two/.lab"), ())


def test_no_free_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda *_: False)
    with pytest.raises(LabError, match="no free port between 20000 and 31999"):
        ports.choose_port(Path("/some/lab"), ())
