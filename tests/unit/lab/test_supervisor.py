# SPDX-License-Identifier: Apache-2.0
"""The faults of disks as the supervisor carries them out: with the power off, and as QMP commands with it on."""

import asyncio
import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.errors import LabError
from lab.node import NodeDefinition, NodeFiles
from lab.qmp import QmpConnection
from lab.supervisor import EARLY_BOOT_S, STARTS_AFTER_CRASHES, Supervisor, load_state


class FakeQmp(QmpConnection):
    """Notes what QEMU is told; a removed device is gone at once, one that is to be added may be refused."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.refuses: set[str] = set()
        self.busy = 0
        self.supervisor: Supervisor | None = None

    async def execute(self, command: str, arguments: Mapping[str, Any] | None = None, limit_s: float = 30) -> Any:
        given = dict(arguments or {})
        if f"{command} {given['id']}" in self.refuses:
            raise LabError(f"QEMU refused {command}")
        if command == "device_del" and self.busy:
            self.busy -= 1
            raise LabError("QEMU refused device_del: Hot-unplug failed: guest is busy (power indicator blinking)")
        self.said.append(" ".join([command, given["id"], given.get("bus", ""), given.get("serial", "")]).strip())
        if command == "device_del" and self.supervisor:
            self.supervisor._on_event("DEVICE_DELETED", {"device": given["id"]})


@pytest.fixture
def off(node: NodeDefinition, files: NodeFiles) -> Supervisor:
    """The supervisor of a node that is off: disks DATA0001 and DATA0002 in their bays, SPARE0001 in the drawer."""
    files.directory.mkdir(parents=True)
    node.save(files.definition)
    for disk in node.shape.disks:
        files.disk(disk.serial).write_bytes(b"data")
    return Supervisor(files)


@pytest.fixture
def on(off: Supervisor) -> tuple[Supervisor, FakeQmp]:
    """The same with the power on."""
    qmp = FakeQmp()
    off._qmp, qmp.supervisor, off.state.power = qmp, off, "on"
    return off, qmp


def fault(supervisor: Supervisor, kind: str, **arguments: str) -> dict[str, Any]:
    state: dict[str, Any] = asyncio.run(getattr(supervisor, f"command_{kind}")(**arguments))
    return state


def test_moves_with_the_power_off_are_written_down(off: Supervisor, files: NodeFiles) -> None:
    fault(off, "disk_swap", serials="DATA0001,DATA0002")
    fault(off, "disk_pull", serial="DATA0001")
    fault(off, "disk_insert", serial="SPARE0001")
    fault(off, "disk_serial", shows="SPARE0001=DATA0001")
    again = Supervisor(files)
    assert again.state.bays == ["DATA0002", "SPARE0001"]
    assert again.state.drawer == ["DATA0001"]
    assert again.state.shown_serials == {"SPARE0001": "DATA0001"}


def test_a_swap_with_the_power_on_pulls_both_before_it_inserts_one(on: tuple[Supervisor, FakeQmp]) -> None:
    supervisor, qmp = on
    state = fault(supervisor, "disk_swap", serials="DATA0001,DATA0002")
    assert qmp.said == [
        "device_del disk-DATA0001",
        "device_del disk-DATA0002",
        "device_add disk-DATA0001 bay1 DATA0001",
        "device_add disk-DATA0002 bay0 DATA0002",
    ]
    assert state["bays"] == ["DATA0002", "DATA0001"]


def test_a_swap_that_fails_half_way_leaves_the_truth_in_the_state(
    on: tuple[Supervisor, FakeQmp], files: NodeFiles
) -> None:
    supervisor, qmp = on
    qmp.refuses = {"device_add disk-DATA0002"}
    with pytest.raises(LabError, match="QEMU refused device_add"):
        fault(supervisor, "disk_swap", serials="DATA0001,DATA0002")
    state = load_state(files.state)
    assert state is not None and state.bays == ["", "DATA0001"]
    assert state.drawer == ["SPARE0001", "DATA0002"]


def test_a_guest_that_is_busy_with_the_bay_is_asked_again(
    on: tuple[Supervisor, FakeQmp], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.supervisor.BUSY_PAUSE_S", 0.01)
    supervisor, qmp = on
    qmp.busy = 2
    assert fault(supervisor, "disk_pull", serial="DATA0001")["bays"] == ["", "DATA0002"]
    assert qmp.said == ["device_del disk-DATA0001"] and qmp.busy == 0
    monkeypatch.setattr("lab.supervisor.UNPLUG_LIMIT_S", 0.1)
    qmp.busy = 1000
    with pytest.raises(LabError, match="did not let go of disk DATA0002"):
        fault(supervisor, "disk_pull", serial="DATA0002")


def test_another_serial_is_shown_after_pulling_and_putting_back(on: tuple[Supervisor, FakeQmp]) -> None:
    supervisor, qmp = on
    fault(supervisor, "disk_serial", shows="DATA0002=")
    fault(supervisor, "disk_serial", shows="SPARE0001=X")
    state = fault(supervisor, "disk_serial", shows="DATA0002=DATA0002")
    assert qmp.said == [
        "device_del disk-DATA0002",
        f"device_add disk-DATA0002 bay1 {20 * ' '}DATA0002",
        "device_del disk-DATA0002",
        "device_add disk-DATA0002 bay1 DATA0002",
    ]
    assert state["shown_serials"] == {"SPARE0001": "X"}, "one in the drawer shows it when it is put in"


def test_a_full_node_and_a_disk_that_is_in_stay_as_they_are(on: tuple[Supervisor, FakeQmp]) -> None:
    supervisor, qmp = on
    with pytest.raises(LabError, match=r"no bay is free for disk SPARE0001 \(DATA0001, DATA0002\)"):
        fault(supervisor, "disk_insert", serial="SPARE0001")
    fault(supervisor, "disk_insert", serial="DATA0001")
    assert qmp.said == []


def test_only_a_disk_in_the_drawer_is_made_blank_and_stays_the_same_file(off: Supervisor, files: NodeFiles) -> None:
    with pytest.raises(LabError, match="disk DATA0001 is in bay 1; pull it first"):
        fault(off, "disk_blank", serial="DATA0001")
    assert files.disk("DATA0001").read_bytes() == b"data"
    path = files.disk("SPARE0001")
    before = path.stat().st_ino
    fault(off, "disk_blank", serial="SPARE0001")
    assert path.stat().st_ino == before, "QEMU has the file open"
    assert (path.stat().st_size, path.stat().st_blocks) == (32 * 2**20, 0)


def test_a_state_file_is_plain_json(off: Supervisor, files: NodeFiles) -> None:
    fault(off, "disk_pull", serial="DATA0001")
    state = json.loads(Path(files.state).read_text())
    assert (state["bays"], state["drawer"]) == (["", "DATA0002"], ["SPARE0001", "DATA0001"])


def ends(supervisor: Supervisor, code: int, seconds_ago: float, shutdown_reason: str = "") -> list[str]:
    """QEMU ends so many seconds after its start; returns the reasons for which it is started again."""
    starts = []

    async def start(reason: str) -> None:
        starts.append(reason)

    async def ended() -> int:
        return code

    async def after_exit() -> None:
        await supervisor._after_exit(asyncio.create_task(ended()))

    supervisor._start = start  # type: ignore[method-assign]
    supervisor.files.qemu_log.write_text("Assertion failed\n")
    supervisor._shutdown_reason = shutdown_reason
    supervisor.state.power, supervisor.state.started_at = "on", time.time() - seconds_ago
    asyncio.run(after_exit())
    return starts


@pytest.mark.parametrize(
    ("code", "seconds_ago", "started_again"),
    [
        (-signal.SIGABRT, 5, True),
        (-signal.SIGSEGV, 17, True),
        (-signal.SIGSEGV, EARLY_BOOT_S + 60, False),  # disks may have been written: that is for a person to see
        (-signal.SIGKILL, 5, False),
        (1, 5, False),
    ],
)
def test_only_a_crash_of_qemu_in_the_early_boot_is_started_again(
    off: Supervisor, code: int, seconds_ago: float, started_again: bool
) -> None:
    expected = [f"started again, since QEMU had crashed (exit {code})"] if started_again else []
    assert ends(off, code, seconds_ago) == expected
    assert off.state.power == ("on" if started_again else "failed")


def test_qemu_that_crashes_again_and_again_is_given_up(off: Supervisor) -> None:
    for _number in range(STARTS_AFTER_CRASHES):
        assert ends(off, -signal.SIGABRT, 5)
    assert ends(off, -signal.SIGABRT, 5) == []
    assert off.state.power == "failed"


def test_a_boot_that_went_well_ends_the_count_of_crashes(off: Supervisor) -> None:
    for _number in range(STARTS_AFTER_CRASHES + 1):
        assert ends(off, -signal.SIGABRT, 5)
        assert ends(off, 0, 300, "guest-reset") == ["guest reset"]


LOST = b"[   29.2] rcu: rcu_preempt kthread timer wakeup didn't happen for 5229 jiffies!\n"
BOOT_BEFORE = b"[   31.0] old: " + LOST


def watches(supervisor: Supervisor, printed: bytes, monkeypatch: pytest.MonkeyPatch, seconds_ago: float = 5) -> bool:
    """Whether QEMU is ended for what the guest has printed in this boot."""
    killed = []

    async def kill() -> None:
        killed.append(True)

    monkeypatch.setattr("lab.supervisor.CONSOLE_PAUSE_S", 0.01)
    monkeypatch.setattr("lab.supervisor.EARLY_BOOT_S", 5.3)
    supervisor._kill_qemu = kill  # type: ignore[method-assign]
    supervisor.files.console.write_bytes(BOOT_BEFORE + printed)
    supervisor.state.started_at = time.time() - seconds_ago
    asyncio.run(supervisor._watch_boot(len(BOOT_BEFORE)))
    return bool(killed)


@pytest.mark.parametrize(
    ("printed", "seconds_ago", "ended"),
    [
        (b"Booting\n" + LOST, 5, True),
        (b"Booting\nlab-node-1 login: \n" + LOST, 5, False),  # somebody may be at work
        (b"Booting\n", 5, False),
        (b"Booting\n" + LOST, 60, False),
    ],
)
def test_a_boot_that_has_lost_a_timer_is_ended(
    off: Supervisor, monkeypatch: pytest.MonkeyPatch, printed: bytes, seconds_ago: float, ended: bool
) -> None:
    assert watches(off, printed, monkeypatch, seconds_ago) is ended
    expected = ["started again, since QEMU had lost a timer of the guest"] if ended else []
    assert ends(off, -signal.SIGKILL, 30) == expected


def test_boots_that_lose_timers_again_and_again_are_left_to_creep_on(
    off: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _number in range(STARTS_AFTER_CRASHES):
        assert watches(off, LOST, monkeypatch) and ends(off, -signal.SIGKILL, 30)
        off._lost_timer = False
    assert not watches(off, LOST, monkeypatch)
