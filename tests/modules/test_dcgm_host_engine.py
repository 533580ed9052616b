# SPDX-License-Identifier: Apache-2.0
"""dcgm_host_engine: what it asks, when it restarts, and how each way of failing is told apart."""

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.listening_port import Listener

from tests.modules.conftest import Commands, RunModule, load_module

ARGV = "/usr/bin/nv-hostengine -n --service-account nvidia-dcgm -b 127.0.0.1 -p 5555"
SYSTEMS = ("PCIe", "NVLINK", "Memory", "InfoROM", "Thermal", "Power")
WANTED = {"watches": ["pcie", "memory"], "watches_unit": "gpufleet-dcgm-watches.service", "timeout_s": 0}
LOOPBACK = "0: 0100007F:15B3 00000000:0000 0A 0:0 0:0 0 0 0 4711 1\n"


def versions(local: str, running: "str | None") -> str:
    return f"\nLocal build info:\nVersion : {local}\n" + (
        f"\nHostengine build info:\nVersion : {running}\n" if running else ""
    )


def table(*on: str) -> str:
    rows = "".join(f"| {name:<18} | {'On' if name in on else 'Off':<54} |\n" for name in SYSTEMS)
    return f"Health monitor systems report\n{rows}"


class Node:
    """A node with two GPUs whose host engine is well until a test says otherwise."""

    def __init__(self, tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commands, self.monkeypatch = commands, monkeypatch
        self.module: Any = load_module("dcgm_host_engine")
        (tmp_path / "proc" / "net").mkdir(parents=True)
        (tmp_path / "proc" / "77").mkdir()
        self.proc = tmp_path / "proc"
        self.runs("/usr/bin/python3 " + ARGV)
        self.listens(LOOPBACK)
        self.set(
            PROC=str(self.proc),
            PAUSE_S=0,
            gpus_on_bus=lambda: ["0000:19:00.0", "0000:3b:00.0"],
            gpus_of_driver=lambda: 2,
            find_listeners=lambda _port: [],
        )

    def set(self, **values: Any) -> None:
        for name, value in values.items():
            self.monkeypatch.setattr(self.module, name, value)

    def runs(self, line: str) -> None:
        (self.proc / "77" / "cmdline").write_bytes(line.replace(" ", "\0").encode() + b"\0")

    def listens(self, row: str) -> None:
        (self.proc / "net" / "tcp").write_text(f"header\n{row}")

    def well(self) -> None:
        """The answers of a good host engine, behind those that a test has given."""
        self.commands.answer("dcgmi -v", versions("4.5.3", "4.5.3"))
        self.commands.answer("dcgmi discovery -l", "2 GPUs found.\n")
        self.commands.answer("dcgmi health --fetch", table("PCIe", "Memory"))
        self.unit()

    def unit(self) -> None:
        argv = f"{{ path=/usr/bin/nv-hostengine ; argv[]={ARGV} ; ignore_errors=no ; pid=77 }}"
        self.commands.answer("systemctl show --property=ExecStart *", argv)
        self.commands.answer("systemctl show --property=MainPID *", "77\n")
        self.commands.answer("systemctl show --property=ActiveState *", "active\n")
        self.commands.answer("systemctl show --property=Job *", "\n")
        self.commands.answer("systemctl show --property=Result *", "success\n")
        self.commands.answer("systemctl restart *")

    def restarts(self) -> list[str]:
        return [line for line in self.commands.calls("systemctl") if " restart " in line]


@pytest.fixture
def node(tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, commands, monkeypatch)


@pytest.mark.parametrize("check", [False, True])
def test_a_good_host_engine_is_left_alone(node: Node, run_module: RunModule, check: bool) -> None:
    node.well()
    result = run_module(node.module, check=check, **WANTED)
    assert not result.get("failed"), result
    assert (result["changed"], result["restarted"], result["gpus"], result["running"]) == (False, None, 2, "4.5.3")
    assert node.restarts() == [] and "fault" not in result and "gpufleet" not in result


def test_a_node_without_a_gpu_is_not_asked(node: Node, run_module: RunModule) -> None:
    node.set(gpus_on_bus=lambda: [])
    result = run_module(node.module, **WANTED)
    assert (result["changed"], result["gpus"]) == (False, None) and node.commands.calls("dcgmi") == []


@pytest.mark.parametrize("check", [False, True])
def test_bug_090_another_version_than_the_installed_one_is_restarted(
    node: Node, run_module: RunModule, check: bool
) -> None:
    node.commands.answer("dcgmi -v", versions("4.5.3", "4.4.2"))
    node.well()
    result = run_module(node.module, check=check, **WANTED)
    assert result["changed"] and "version 4.4.2 runs, 4.5.3 is installed" in result["restarted"], result
    assert node.restarts() == ([] if check else ["systemctl restart nvidia-dcgm.service"])


def test_another_command_line_than_the_units_is_restarted(node: Node, run_module: RunModule) -> None:
    node.well()
    node.runs("/usr/bin/nv-hostengine -n --service-account nvidia-dcgm")
    result = run_module(node.module, **WANTED)
    # the double does not take up the new line, so the restart is seen to be of no use
    assert result["failed"] and "was restarted since it runs as" in result["msg"], result
    assert node.restarts() == ["systemctl restart nvidia-dcgm.service"]


def test_one_that_was_started_before_the_driver_is_restarted(node: Node, run_module: RunModule) -> None:
    node.commands.answer("dcgmi discovery -l", "0 GPUs found.\n")
    node.well()
    result = run_module(node.module, **WANTED)
    assert "it sees no GPU, the driver has 2" in result["restarted"] and result["gpus"] == 2, result


def test_without_the_drivers_gpus_no_restart_helps(node: Node, run_module: RunModule) -> None:
    """As after an upgrade of the driver, until the reboot."""
    node.set(gpus_of_driver=lambda: 0)
    node.commands.answer("dcgmi discovery -l", "0 GPUs found.\n")
    node.well()
    result = run_module(node.module, **WANTED)
    assert node.restarts() == [] and not result.get("failed")
    (line,) = result["gpufleet"]["attention"]
    assert "DCGM sees 0 GPUs, the PCI bus has 2" in line["reason"] and "reboot" in line["next_step"]


@pytest.mark.parametrize("check", [False, True])
def test_lost_watches_are_set_again_by_their_unit(node: Node, run_module: RunModule, check: bool) -> None:
    node.commands.answer("dcgmi health --fetch", table())
    node.well()
    result = run_module(node.module, check=check, **WANTED)
    assert result["changed"] and result["diff"][0]["before"] == "PCIe is not watched\nMemory is not watched\n", result
    assert node.restarts() == ([] if check else ["systemctl restart gpufleet-dcgm-watches.service"])


def test_watches_that_are_just_being_set_are_waited_for(node: Node, run_module: RunModule) -> None:
    """After a start of the host engine; else each run that starts it would report a second change."""
    node.commands.answer("systemctl show --property=ActiveState *", "activating\n")
    node.commands.answer("systemctl show --property=Job *", "4711\n")
    node.well()
    result = run_module(node.module, **{**WANTED, "timeout_s": 60})
    assert not result.get("failed") and not result["changed"], result
    assert len([line for line in node.commands.calls("systemctl") if "watches" in line]) == 5


def test_watches_that_do_not_take_are_an_error(node: Node, run_module: RunModule) -> None:
    node.commands.answer("dcgmi health --fetch", table("PCIe", "NVLINK"))
    node.well()
    node.commands.table = [entry for entry in node.commands.table if entry["out"] != table("PCIe", "Memory")]
    node.commands.answer("dcgmi health --fetch", table("PCIe", "NVLINK"))
    result = run_module(node.module, **WANTED)
    assert result["failed"] and "Memory is not watched, NVLINK is watched" in result["msg"], result


@pytest.mark.parametrize(
    ("listeners", "said"),
    [
        ([Listener(77, "nv-hostengine", 0)], "hangs: nv-hostengine (pid 77) listens on port 5555 and did not answer"),
        ([], "does not run: nothing listens on port 5555"),
    ],
)
def test_a_host_engine_that_hangs_and_one_that_does_not_run_are_told_apart(
    node: Node, run_module: RunModule, listeners: list[Listener], said: str
) -> None:
    node.set(find_listeners=lambda _port: listeners)
    node.commands.answer("dcgmi -v", versions("4.5.3", None), rc=1)
    node.unit()
    result = run_module(node.module, **WANTED)
    assert result["failed"] and said in result["msg"] and "journalctl -u nvidia-dcgm" in result["next_step"], result
    assert node.restarts() == [], "a host engine that hangs is not shot: a job's statistics may be in it"
    checked = run_module(node.module, check=True, **WANTED)
    assert not checked.get("failed") and said[:20] in checked["fault"]


def test_a_query_that_never_ends_is_cut_off(
    node: Node, run_module: RunModule, commands: Commands, tmp_path: Path
) -> None:
    node.set(QUERY_LIMIT_S=0.5)
    node.unit()
    program = commands.folder / "dcgmi"
    program.write_text(f"#!/bin/sh\n[ $1 = -v ] && exec cat {tmp_path}/versions\nexec sleep 600\n")
    program.chmod(0o755)
    (tmp_path / "versions").write_text(versions("4.5.3", "4.5.3"))
    result = run_module(node.module, **WANTED)
    assert result["failed"] and "hangs: dcgmi discovery -l had no answer within 0.5 s" in result["msg"], result


def test_an_address_that_others_reach_is_an_error(node: Node, run_module: RunModule) -> None:
    node.well()
    node.listens(LOOPBACK.replace("0100007F", "00000000"))
    result = run_module(node.module, **WANTED)
    assert result["failed"] and "more than the loopback address" in result["msg"]
    assert "--bind-interface" in result["next_step"]


def test_what_is_no_dcgmi_is_an_error(node: Node, run_module: RunModule) -> None:
    node.commands.answer("dcgmi -v", err="error while loading shared libraries: libdcgm.so.4", rc=127)
    result = run_module(node.module, **WANTED)
    assert result["failed"] and "libdcgm.so.4" in result["msg"] and result["next_step"]


def test_a_package_that_brought_no_dcgmi_is_named(
    node: Node, run_module: RunModule, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As -core does from 4.7.0 on without what it depends on."""
    monkeypatch.setenv("PATH", str(commands.folder))
    result = run_module(node.module, **WANTED)
    assert result["failed"] and "dcgmi -v cannot be run" in result["msg"] and "4.7" in result["next_step"]
