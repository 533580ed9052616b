# SPDX-License-Identifier: Apache-2.0
"""How far a run is: what the screen shows of the play, batch and task in progress. No output here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .node_names import short_names
from .screen_text import duration

# With this few nodes left it helps to know which ones everybody is waiting for.
WAITING_SHOWN = 5
RESULTS = ("ok", "changed", "skipped", "ignored", "rescued", "failed", "unreachable")


@dataclass
class TaskProgress:
    """One task on the nodes of the batch. Times are seconds of a monotonic clock."""

    number: int
    label: str
    began: float
    counts: Counter[str] = field(default_factory=Counter)
    running: dict[str, float] = field(default_factory=dict)
    ended: float | None = None

    def line(self, now: float) -> str:
        """The line of a finished task: its counts, those that are not zero."""
        told = " ".join(f"{name} {self.counts[name]}" for name in RESULTS if self.counts[name])
        took = (self.ended if self.ended is not None else now) - self.began
        return f"task {self.number} {self.label} .. {told} ({duration(took)})"


@dataclass
class RunProgress:
    """The run as the screen shows it."""

    plays: int
    check: bool
    began: float
    play_number: int = 0
    play_name: str = ""
    batch_number: int = 0
    batch_sizes: Sequence[int] = ()
    batch_nodes: int = 0
    tasks: int = 0
    failed: set[str] = field(default_factory=set)
    unreachable: set[str] = field(default_factory=set)
    task: TaskProgress | None = None

    def start_play(self, name: str, batch_sizes: Sequence[int], batch_nodes: int, *, next_batch: bool) -> None:
        """A play, or the next batch of the same one."""
        if next_batch:
            self.batch_number += 1
        else:
            self.play_number += 1
            self.batch_number = 1
        self.play_name, self.batch_sizes, self.batch_nodes = name, batch_sizes, batch_nodes
        self.task = None

    def start_task(self, label: str, now: float) -> TaskProgress:
        """The next task; it becomes the one shown."""
        self.tasks += 1
        self.task = TaskProgress(self.tasks, label, now)
        return self.task

    def play_line(self) -> str:
        """Which play, which batch of it, on how many nodes."""
        check = " [check mode]" if self.check else ""
        text = f"play {self.play_number} of {self.plays}: {self.play_name}{check}"
        total = sum(self.batch_sizes)
        if len(self.batch_sizes) > 1:
            first = sum(self.batch_sizes[: self.batch_number - 1]) + 1
            last = sum(self.batch_sizes[: self.batch_number])
            text += f", batch {self.batch_number} of {len(self.batch_sizes)}, nodes {first}-{last} of {total}"
        elif total:
            text += f", {total} node" + ("" if total == 1 else "s")
        return text

    def live_lines(self, now: float) -> list[str]:
        """The lines that are redrawn in place."""
        lines = [f"{self.play_line()}, {duration(now - self.began)}"]
        task = self.task
        if task is None:
            return lines
        done = sum(task.counts.values())
        lines.append(f"task {task.number} {task.label} ({duration(now - task.began)})")
        lines.append(
            f"nodes: {done} of {self.batch_nodes} done, {len(task.running)} running; "
            f"in this run {len(self.failed)} failed, {len(self.unreachable)} unreachable"
        )
        waiting = self.waiting(now)
        if waiting:
            lines.append(waiting)
        return lines

    def waiting(self, now: float) -> str:
        """The nodes that still run the task, the slowest first; '' while they are many or not yet waited for."""
        task = self.task
        if task is None or not task.running or not task.counts or len(task.running) > WAITING_SHOWN:
            return ""
        slowest = sorted(task.running.items(), key=lambda item: item[1])
        return "waiting for " + ", ".join(f"{name} ({duration(now - since)})" for name, since in slowest)

    def still_line(self, now: float) -> str:
        """The sign of life of a long task where nothing is redrawn (a log)."""
        task = self.task
        if task is None:
            return ""
        took = duration(now - task.began)
        names = short_names(task.running, 60)
        return f"task {task.number} {task.label}: {len(task.running)} running after {took}: {names}"
