# SPDX-License-Identifier: Apache-2.0
"""The lab's directory: two labs share nothing, one lab serves one command at a time."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.lab_directory import LabDirectory, LabRecord


@pytest.fixture
def labs(tmp_path: Path) -> Iterator[tuple[LabDirectory, LabDirectory]]:
    """Two labs with a node of the same name each."""
    pair = LabDirectory(tmp_path / "one"), LabDirectory(tmp_path / "two")
    for number, lab in enumerate(pair):
        lab.create()
        lab.ensure_key(lab.user_key, "test")
        lab.ensure_key(lab.host_key("lab-node-1"), "lab-node-1")
        lab.save(LabRecord(ntp_port=123 + number, nodes={"lab-node-1": {"ssh_port": 2200 + number}}))
    yield pair
    for lab in pair:
        shutil.rmtree(lab.sockets, ignore_errors=True)


def test_two_labs_share_nothing(labs: tuple[LabDirectory, LabDirectory]) -> None:
    one, two = labs
    assert one.sockets != two.sockets
    assert one.node("lab-node-1").control_socket != two.node("lab-node-1").control_socket
    assert one.control_paths != two.control_paths
    assert "Port 2200" in one.ssh_config.read_text() and "Port 2201" in two.ssh_config.read_text()
    assert one.known_hosts.read_text() != two.known_hosts.read_text()
    assert "ntp_port: 123" in one.variables.read_text() and "ntp_port: 124" in two.variables.read_text()


def test_host_keys_are_checked(labs: tuple[LabDirectory, LabDirectory]) -> None:
    text = labs[0].ssh_config.read_text()
    assert "StrictHostKeyChecking yes" in text
    assert labs[0].known_hosts.read_text().startswith("lab-node-1 ssh-ed25519 ")


def test_socket_paths_are_short_under_a_long_checkout(tmp_path: Path) -> None:
    files = LabDirectory(tmp_path / ("d" * 100) / ("e" * 100)).node("n" * 63)
    # sun_path: 108 bytes with the final zero
    assert len(str(files.control_socket)) < 107 and len(str(files.qmp_socket)) < 107


def test_a_socket_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    lab = LabDirectory(tmp_path / "lab")
    lab.sockets.mkdir()
    lab.sockets.chmod(0o777)  # anybody may have put something there
    try:
        with pytest.raises(LabError, match="is not ours alone"):
            lab.create()
    finally:
        lab.sockets.rmdir()


def test_a_socket_directory_that_ansible_made_becomes_ours_alone(tmp_path: Path) -> None:
    """ansible-playbook on a lab that is down makes the folder of its connections, and this one with it."""
    lab = LabDirectory(tmp_path / "lab")
    lab.control_paths.mkdir(mode=0o755, parents=True)
    lab.sockets.chmod(0o755)
    try:
        lab.create()
        assert lab.sockets.stat().st_mode & 0o777 == 0o700
    finally:
        lab.control_paths.rmdir()
        lab.sockets.rmdir()


def test_a_second_command_is_told_who_is_at_work(tmp_path: Path) -> None:
    import os

    lab = LabDirectory(tmp_path)
    with (
        lab.locked(),
        pytest.raises(LabError, match=f"pid {os.getpid()}.*GPUFLEET_LAB_DIR"),
        LabDirectory(tmp_path).locked(),
    ):
        pass
    with lab.locked():
        pass


def test_the_directory_follows_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_LAB_DIR", str(tmp_path / "mine"))
    assert LabDirectory().root == tmp_path / "mine"
    monkeypatch.delenv("GPUFLEET_LAB_DIR")
    assert LabDirectory().root.name == ".lab"
