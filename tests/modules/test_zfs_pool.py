# SPDX-License-Identifier: Apache-2.0
"""zfs_pool: what main() does with a plan. The node's state is given; the commands it starts answer from a list."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.bounded_command import CommandResult
from ansible.module_utils.gpufleet.zfs_pool_record import PoolMemory

from tests.modules.conftest import RunModule, load_module
from tests.unit.storage.conftest import (
    DATA_DISKS,
    empty_node,
    make_disk,
    member_path,
    node_with_pool,
    status,
    with_partition,
)

ARGUMENTS = {
    "name": "data",
    "layout": "raidz1",
    "pci_match": [{"vendor": "1b36", "device": "0010"}],
    "disks": {"by_id": [], "serial": [], "model": []},
    "count": 5,
    "properties": {"autotrim": "on"},
    "file_system": {"compression": "lz4", "recordsize": "1M"},
    "datasets": {"docker": {"mountpoint": "/var/lib/docker", "properties": {"quota": "512M"}}},
    "arc_max_gib": 0.25,
}
PULLED = {3: f"{member_path(3)}  REMOVED  0 0 0"}


class Node:
    """The module with states in place of a node; a state is given until a step has been done, then the next one."""

    def __init__(self, folder: Path, run_module: RunModule) -> None:
        self.module = load_module("zfs_pool")
        self.module.PoolMemory = lambda pool: PoolMemory(pool, str(folder))
        self.module.read_state = self._read_state
        self.module.run_bounded = self._run
        self.module.time = self
        self.folder, self.run_module = folder, run_module
        self.states: list[Any] = []
        self.commands: list[str] = []
        self.answer = CommandResult("done", 0, "", "")
        self.slept = 0.0

    def _read_state(self, wanted: Any, memory: PoolMemory, run: Any) -> Any:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return state._replace(intent=memory.read_intent())

    def _run(self, argv: Sequence[str], limit_s: float) -> CommandResult:
        self.commands.append(" ".join(argv))
        return self.answer

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def run(self, *states: Any, check: bool = False, **changes: Any) -> dict[str, Any]:
        self.states = list(states)
        return self.run_module(self.module, check=check, **{**ARGUMENTS, **changes})


@pytest.fixture
def node(tmp_path: Path, run_module: RunModule) -> Node:
    return Node(tmp_path, run_module)


def files(node: Node) -> list[str]:
    return sorted(path.name for path in node.folder.iterdir())


def test_check_mode_says_what_a_run_does_and_does_nothing(node):
    checked = node.run(empty_node(), check=True)
    assert checked["changed"] and checked["pool"] is None and node.commands == [] and files(node) == []
    done = node.run(empty_node(), node_with_pool())
    assert done["steps"] == checked["steps"] and done["diff"] == checked["diff"]
    assert [command.split()[1] for command in node.commands] == ["create", "create"]
    assert done["pool"]["guid"] and len(done["pool"]["members"]) == 5
    assert done["diff"]["before"].startswith("no pool data\n")


def test_a_converged_node_is_left_alone_and_remembered(node):
    result = node.run(node_with_pool()._replace(record=None))
    assert not result["changed"] and result["gpufleet"] == {"attention": []} and node.commands == []
    members = json.loads((node.folder / "data.json").read_text())["members"]
    assert [(member["serial"], member["place"]) for member in members][2] == ("DATA0003", "slot 3")
    assert result["arc_limits"] == {"minimum": 32 * 2**20, "maximum": 256 * 2**20}


def test_disks_are_noted_before_the_first_byte_and_forgotten_after_the_last(node):
    noted = []

    def run(argv, limit_s):
        noted.append(files(node))
        return CommandResult("done", 0, "", "")

    node.module.run_bounded = run
    node.run(empty_node(), node_with_pool(record=None))
    assert noted[0] == ["data.intent.json"] and files(node) == ["data.json"]


def test_a_step_that_fails_says_which_and_leaves_the_note(node):
    node.answer = CommandResult("done", 1, "", "cannot create 'data': I/O error")
    result = node.run(empty_node())
    assert result["failed"] and result["msg"].startswith("could not create pool data: raidz1 over 5 disks")
    assert "I/O error" in result["msg"] and files(node) == ["data.intent.json"] and len(node.commands) == 1


def test_a_run_that_brought_nothing_about_is_no_success(node):
    result = node.run(empty_node())
    assert result["failed"] and "this is still to be done: create pool data" in result["msg"]


def test_a_refusal_touches_nothing_and_says_what_to_do(node):
    result = node.run(empty_node(disks=DATA_DISKS[:4]))
    assert (
        result["failed"]
        and "4 disks fit the rules" in result["msg"]
        and "look for the missing disk" in result["next_step"]
    )
    assert node.commands == [] and files(node) == []


def test_a_pulled_disk_needs_attention_and_is_no_failure(node):
    disks = [with_partition(disk)._replace(uses=("x",)) for disk in DATA_DISKS if disk.slot != "3"]
    result = node.run(node_with_pool(status(PULLED, "DEGRADED"), disks))
    assert not result["changed"] and not result.get("failed")
    (note,) = result["gpufleet"]["attention"]
    assert "disk DATA0003 (last seen in slot 3)" in note["reason"]


def resilvering(text: str, row: str) -> Any:
    disks = [with_partition(disk)._replace(uses=("x",)) for disk in (*DATA_DISKS[:2], *DATA_DISKS[3:], make_disk(6))]
    return node_with_pool(status({3: row}, extra=f"  scan: {text}\n"), disks)


RUNNING = (
    "resilver in progress since Sun Nov 29 21:00:00 2026\n\t1 scanned at 1/s, 1 issued at 1/s, 9 total\n"
    "\t1 resilvered, 43.00% done, 01:00:00 to go"
)
REPLACING = f"replacing-2  ONLINE  0 0 0\n  {member_path(3)}  REMOVED  0 0 0\n  {member_path(6)}  ONLINE  0 0 0"
ENDED = "resilvered 1G in 00:10:00 with 0 errors on Sun Nov 29 22:00:00 2026"


def test_a_replacement_is_followed_to_its_end(node):
    under_way, over = resilvering(RUNNING, REPLACING), resilvering(ENDED, f"{member_path(6)}  ONLINE  0 0 0")
    replace = [{"old": "DATA0003", "new": "DATA0006"}]
    result = node.run(under_way, under_way, under_way, over, replace=replace)
    assert node.slept == 15 and result["pool"]["scan"].startswith("resilvered") and not result["gpufleet"]["attention"]


def test_the_time_to_follow_has_an_end(node):
    under_way = resilvering(RUNNING, REPLACING)
    result = node.run(under_way, replace=[{"old": "DATA0003", "new": "DATA0006"}], resilver_timeout_s=12)
    assert node.slept == 12
    (note,) = result["gpufleet"]["attention"]
    assert "is being resilvered: resilver in progress" in note["reason"] and "43.00% done" in note["reason"]


def test_a_damaged_record_is_explained(node):
    (node.folder / "data.intent.json").write_text("{")
    result = node.run(empty_node())
    assert result["failed"] and "data.intent.json is not understood" in result["msg"]


def test_without_zfs_only_check_mode_goes_on(node):
    result = node.run(empty_node(loaded=False))
    assert result["failed"] and "ZFS is not installed" in result["msg"] and node.commands == []
    assert node.run(empty_node(loaded=False), check=True)["changed"]


def test_another_operating_system_is_refused(node):
    assert "supported are: plan9 4" in node.run(empty_node(), supported_os=["plan9 4"])["msg"]
