# SPDX-License-Identifier: Apache-2.0
"""Bringing a lab up and down, as far as it goes without QEMU: ports taken meanwhile, messages, bad commands."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import host_tools, life_cycle
from lab.errors import LabError
from lab.lab_directory import LabDirectory, LabRecord
from lab.process import ProcessId
from lab.progress import Progress

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabDirectory]:
    """An empty lab directory."""
    made = LabDirectory(tmp_path / "lab")
    made.create()
    yield made
    shutil.rmtree(made.sockets, ignore_errors=True)


def run_lab(lab: LabDirectory, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lab", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=60,
        env={**os.environ, "GPUFLEET_LAB_DIR": str(lab.root)}, check=False,
    )  # fmt: skip


def test_a_port_taken_since_the_last_up_is_replaced_and_said(
    lab: LabDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        record = LabRecord(nodes={"lab-node-1": {"ssh_port": taken, "uuid": "", "boot_seconds": None}})
        life_cycle._assign_ports(lab, record, ["lab-node-1", "lab-node-2"])
    ports = {node["ssh_port"] for node in record.nodes.values()} | {record.ntp_port, record.peer_port}
    assert len(ports) == 4 and taken not in ports and 0 not in ports
    assert f"port {taken} of lab-node-1 is used by another program now" in capsys.readouterr().err


def test_the_console_tail_shows_text_only(lab: LabDirectory) -> None:
    files = lab.node("lab-node-1")
    files.directory.mkdir(parents=True)
    files.console.write_bytes(b"\x1b[0m\x1b[2J\x1b[01;01HBdsDxe: starting\r\n\r\n\x1b[0;1;31mKernel panic\x1b[0m\r\n")
    assert life_cycle.last_console_line(files) == "Kernel panic"
    assert life_cycle.console_tail(files).splitlines()[1:] == ["  BdsDxe: starting", "  Kernel panic"]


def test_missing_packages_are_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_tools, "SEARCH_PATH", "/nonexistent")
    with pytest.raises(LabError) as caught:
        host_tools.require_host_tools()
    assert "apt-get install" in str(caught.value) and "qemu-system-x86" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_program_that_is_looked_for_is_in_the_package_list() -> None:
    listed = (REPOSITORY / "lab" / "system_packages.txt").read_text().split()
    assert set(host_tools.PROGRAMS.values()) <= set(listed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ssh", "lab-node-1", "true"), "there is no node 'lab-node-1'; start the lab with: make lab-up"),
        (("fault", "lab-node-1", "power", "cut"), "there is no node 'lab-node-1'; the lab has none"),
        (("reset", "lab-node-9"), "there is no node 'lab-node-9'; the lab has none"),
        (("--inventory", "no-such-place", "up"), "there is no inventory"),
        (("up", "--nodes", "lab-node-9"), "lab-node-9 is not in the inventory's group gpu_nodes; it has lab-node-1"),
    ],
)
def test_a_wrong_command_names_the_cause(lab: LabDirectory, arguments: tuple[str, ...], message: str) -> None:
    done = run_lab(lab, *arguments)
    assert done.returncode == 1
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_fault_on_a_stopped_node_and_a_wrong_one(lab: LabDirectory) -> None:
    lab.ensure_key(lab.host_key("lab-node-1"), "x")
    lab.save(LabRecord(nodes={"lab-node-1": {"ssh_port": 1, "uuid": "", "boot_seconds": None}}))
    assert (
        "lab-node-1 is not running; start it with: make lab-up"
        in run_lab(lab, "fault", "lab-node-1", "power", "cut").stderr
    )
    assert "fault network takes cut, restore, not 'off'" in run_lab(lab, "fault", "lab-node-1", "network", "off").stderr
    status = run_lab(lab, "status")
    assert status.returncode == 0 and "lab-node-1: off (never started)" in status.stdout


def test_down_without_a_lab_is_no_error(tmp_path: Path) -> None:
    done = run_lab(LabDirectory(tmp_path / "none"), "down")
    assert done.returncode == 0 and "no lab in" in done.stderr


def test_a_pid_of_another_process_is_not_ours() -> None:
    ours = ProcessId.of(os.getpid())
    assert ours is not None and ours.alive()
    reused = ProcessId(ours.pid, ours.started + 1)
    assert not reused.alive()
    assert reused.stop(), "nothing to stop, and this test goes on running"


def test_progress_is_plain_lines_off_a_terminal(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as stream:
        progress = Progress(["a", "b"], stream)
        for text in ("starting", "starting", "ssh answers"):
            progress.show("a", text)
    lines = (tmp_path / "out").read_text().splitlines()
    assert [line.rpartition(" (")[0] for line in lines] == ["a: starting", "a: ssh answers"]
