# SPDX-License-Identifier: Apache-2.0
"""The live lines and what they say."""

import io
import os
import sys
import threading

import pyte
import pytest
from ansible.module_utils.gpufleet_controller.live_area import LiveArea
from ansible.module_utils.gpufleet_controller.run_progress import RunProgress
from ansible.module_utils.gpufleet_controller.run_scope import batch_sizes


class _Terminal(io.StringIO):
    """A terminal of 40 columns that can be looked at."""

    def __init__(self, rows: int = 10) -> None:
        super().__init__()
        self.screen = pyte.Screen(40, rows)
        self.stream = pyte.Stream(self.screen)

    def write(self, text: str) -> int:
        self.stream.feed(text.replace("\n", "\r\n"))
        return len(text)

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What is on the screen, without the empty lines below."""
        lines = [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines


@pytest.fixture
def terminal() -> _Terminal:
    return _Terminal()


@pytest.fixture
def area(terminal: _Terminal, monkeypatch: pytest.MonkeyPatch) -> LiveArea:
    area = LiveArea(terminal, threading.RLock())
    monkeypatch.setattr(area, "size", lambda: os.terminal_size((40, 10)))
    start = area.start

    def on_our_terminal() -> None:
        # only now: pytest puts its own streams in place between fixtures and test
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        start()

    monkeypatch.setattr(area, "start", on_our_terminal)
    return area


def test_text_goes_above_the_lines(terminal: _Terminal, area: LiveArea) -> None:
    area.start()
    area.draw(["one", "two"])
    print("a warning")
    assert terminal.lines() == ["a warning"]
    area.draw(["one", "three"])
    assert terminal.lines() == ["a warning", "one", "three"]
    print("another", file=sys.stderr)
    area.draw(["one"])
    assert terminal.lines() == ["a warning", "another", "one"]
    area.close()
    area.close()
    assert terminal.lines() == ["a warning", "another"]
    assert sys.stdout is terminal
    assert not terminal.screen.cursor.hidden


def test_lines_do_not_pile_up_at_the_bottom(terminal: _Terminal, area: LiveArea) -> None:
    area.start()
    for number in range(30):
        print(f"text {number}")
        area.draw([f"status {number}", "second"])
    assert terminal.lines()[-3:] == ["text 29", "status 29", "second"]
    assert sum("status" in line for line in terminal.lines()) == 1


def test_long_lines_are_cut_and_half_lines_are_left_alone(terminal: _Terminal, area: LiveArea) -> None:
    area.start()
    area.draw(["x" * 100])
    assert terminal.lines() == ["x" * 36 + "..."]
    sys.stdout.write("half a ")
    area.draw(["status"])
    sys.stdout.write("line\n")
    area.draw(["status"])
    assert terminal.lines() == ["half a line", "status"]


def test_more_lines_than_rows(terminal: _Terminal, area: LiveArea) -> None:
    area.start()
    area.draw([str(number) for number in range(50)])
    area.close()
    assert terminal.lines() == []


def test_unchanged_lines_are_not_drawn_again(area: LiveArea, monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[str] = []
    monkeypatch.setattr(area, "_put", puts.append)
    area.draw(["same"])
    area.draw(["same"])
    assert len(puts) == 1


@pytest.mark.parametrize(
    ("serial", "nodes", "sizes"),
    [([], 5, [5]), ([2], 5, [2, 2, 1]), ([1, "50%"], 10, [1, 5, 4]), (["100%"], 3, [3]), ([0], 4, [4]), ([3], 0, [])],
)
def test_batch_sizes(serial: list[object], nodes: int, sizes: list[int]) -> None:
    assert batch_sizes(serial, nodes) == sizes


def test_progress_lines() -> None:
    run = RunProgress(plays=9, check=True, began=0.0)
    run.start_play("Preflight", [], 1, next_batch=False)
    assert run.live_lines(1.0) == ["play 1 of 9: Preflight [check mode], 1 s"]
    run.start_play("Platform", batch_sizes([10], 511), 10, next_batch=False)
    run.start_play("Platform", batch_sizes([10], 511), 10, next_batch=True)
    assert run.play_line() == "play 2 of 9: Platform [check mode], batch 2 of 52, nodes 11-20 of 511"
    task = run.start_task("time_sync : Install chrony", 10.0)
    task.counts.update(ok=7, failed=1)
    run.failed.add("gpu-011")
    task.running.update({"gpu-012": 10.0, "gpu-013": 30.0})
    assert run.live_lines(44.0)[1:] == [
        "task 1 time_sync : Install chrony (34 s)",
        "nodes: 8 of 10 done, 2 running; in this run 1 failed, 0 unreachable",
        "waiting for gpu-012 (34 s), gpu-013 (14 s)",
    ]
    assert run.still_line(130.0) == "task 1 time_sync : Install chrony: 2 running after 2 min 00 s: gpu-[012-013]"
    task.ended = 44.0
    task.counts.update(changed=2)
    assert task.line(99.0) == "task 1 time_sync : Install chrony .. ok 7 changed 2 failed 1 (34 s)"
    task.running.update({f"gpu-{number}": 10.0 for number in range(100, 110)})
    assert run.waiting(44.0) == "", "of many nodes it does not help to name some"
