# SPDX-License-Identifier: Apache-2.0
"""What happened to every node of one run: collected while it runs, judged at its end.

How it counts (report.json):

- ``ok, changed, failed, skipped, unreachable, rescued, ignored``: results of whole tasks, as in
  Ansible's recap (``ok`` includes changed and ignored ones).
- ``host_tasks``: the cost measure. Every result counts 1, skipped ones, ``set_fact``, ``debug``,
  ``group_by``, includes and argument validation too; of a loop each item counts 1 *instead of* its
  task (an empty loop counts 1).
- ``outcome``: the worst of what is known, see ``Outcome``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from .failure_reason import Failure
from .fleet_comparison import differences
from .screen_text import clean_data, clean_text

# From worst to best. A node that never got its turn is no success, so not_run comes before ok.
OUTCOMES = ("failed", "timed_out", "unreachable", "not_run", "attention", "changed", "ok")
NEEDS_ATTENTION = frozenset(OUTCOMES[:5])
# Of facts.health.verdict, from best to worst (finding.STATUSES).
VERDICTS = ("ok", "warn", "unknown", "fail")
COUNTERS = ("ok", "changed", "failed", "skipped", "unreachable", "rescued", "ignored")


@dataclass
class NodeRecord:
    """One node's part in the run."""

    counts: Counter[str] = field(default_factory=Counter)
    host_tasks_by_role: Counter[str] = field(default_factory=Counter)
    changed_tasks: list[dict[str, str]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    attention: list[dict[str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    not_run: str = ""  # why the node did not get to its end, where it did not

    @property
    def host_tasks(self) -> int:
        """Number of results, loop items included."""
        return sum(self.host_tasks_by_role.values())

    @property
    def outcome(self) -> str:
        """The worst of what is known of the node."""
        if self.failures:
            return self.failures[0].kind
        if self.not_run:
            return "not_run"
        if self.attention:
            return "attention"
        return "changed" if self.counts["changed"] else "ok"

    def needs(self) -> list[dict[str, str]]:
        """Everything that asks for a person: failures, a missed turn, notes of tasks.

        A failure that its task explains by notes (a health check with its findings) is told by these.
        """
        lines = []
        for failure in self.failures:
            if failure.explained:
                continue
            where = f"{failure.role} : {failure.task}" if failure.role else failure.task
            lines.append(
                {
                    "reason": f"{failure.reason} [{where}]",
                    "next_step": failure.next_step,
                    "severity": "fail",
                    "kind": failure.kind,
                }
            )
        if self.not_run and not self.failures:
            step = "mend what stopped the run, then run again with --limit @attention.limit"
            lines.append({"reason": self.not_run, "next_step": step, "severity": "fail", "kind": "not_run"})
        kinds = dict.fromkeys(("fail", "warn"), "attention")
        explained = [failure.kind for failure in self.failures if failure.explained]
        if explained:
            worst = max((note["severity"] for note in self.attention), key=("warn", "fail").index)
            kinds[worst] = explained[0]
        lines += [{**note, "kind": kinds[note["severity"]]} for note in self.attention]
        return lines

    @property
    def verdict(self) -> str | None:
        """The verdict of the health check, None where none was meant to run here."""
        health = self.facts.get("health")
        return health.get("verdict") if isinstance(health, Mapping) else None

    def to_dict(self) -> dict[str, Any]:
        """The node as report.json has it."""
        return {
            "outcome": self.outcome,
            **{counter: self.counts[counter] for counter in COUNTERS},
            "host_tasks": self.host_tasks,
            "host_tasks_by_role": dict(sorted(self.host_tasks_by_role.items())),
            "changed_tasks": self.changed_tasks,
            "attention": self.needs(),
            "failures": [asdict(failure) for failure in self.failures],
            "facts": self.facts,
        }


@dataclass
class PlayRecord:
    """One play: the nodes it is for, those whose batch began, and those whose batch came to its end."""

    name: str
    nodes: list[str]
    batches: int
    started: bool = False
    begun: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    batches_started: int = 0
    # nodes that a run_once task of this play stood for
    covered: set[str] = field(default_factory=set)


@dataclass
class RunReport:
    """The run, fed by the callback in the order of events."""

    playbook: str
    inventory: list[str]
    options: dict[str, Any]
    ansible_version: str
    check: bool
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    controller: NodeRecord = field(default_factory=NodeRecord)
    plays: list[PlayRecord] = field(default_factory=list)
    interrupted: str = ""  # what ended the run before its end, '' where nothing did
    exit: int | None = None
    elapsed_s: float = 0.0
    # nodes that a health check was meant to judge
    judged: set[str] = field(default_factory=set)
    _clock: float = field(default_factory=time.monotonic)
    _stopped: dict[str, str] = field(default_factory=dict)
    _items: Counter[tuple[str, str]] = field(default_factory=Counter)
    _item_changes: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def expect(self, names: Iterable[str]) -> None:
        """Name nodes that the run is for: they are in the report whatever happens."""
        for name in names:
            self.nodes.setdefault(name, NodeRecord())

    def add_item(self, node: str, task_id: str, *, changed_item: str | None) -> None:
        """Count one item of a loop; ``changed_item`` is its label where it changed something."""
        self._items[node, task_id] += 1
        if changed_item is not None:
            self._item_changes.setdefault((node, task_id), []).append(clean_text(changed_item))

    def add_result(
        self,
        record: NodeRecord,
        node: str,
        task_id: str,
        *,
        counters: Iterable[str],
        task: str,
        role: str,
        path: str,
    ) -> None:
        """Count the result of a whole task under the given counters; a changed one is listed."""
        counted = list(counters)
        record.counts.update(counted)
        # the task ends here, so a later run of it (another batch, a handler) starts from nothing
        record.host_tasks_by_role[role] += self._items.pop((node, task_id), 0) or 1
        items = self._item_changes.pop((node, task_id), None)
        if "changed" in counted:
            entry = {"task": task, "role": role, "path": path}
            record.changed_tasks += [{**entry, "item": item} for item in items] if items else [entry]

    def add_note(self, record: NodeRecord, told: Any) -> None:
        """Take the ``gpufleet`` key of a result: attention lines and facts. Malformed parts are named, not dropped.

        A task on the controller that acts for many nodes tells of each under ``nodes``: {name: attention and facts}.
        """
        if not isinstance(told, Mapping):
            return
        of_others = told.get("nodes")
        if told.get("on_controller") and isinstance(of_others, Mapping):
            for name, note in of_others.items():
                self.add_note(self.nodes.setdefault(clean_text(name), NodeRecord()), note)
        notes = told.get("attention") or []
        for note in notes if isinstance(notes, (list, tuple)) else [notes]:
            if isinstance(note, Mapping):
                line = {
                    "reason": clean_text(note.get("reason") or "no reason given").strip(),
                    "next_step": clean_text(note.get("next_step") or "see the task's documentation").strip(),
                    "severity": "fail" if note.get("severity") == "fail" else "warn",
                }
            else:
                line = {"reason": clean_text(note), "next_step": "see the task's documentation", "severity": "warn"}
            if line not in record.attention:
                record.attention.append(line)
        facts = told.get("facts")
        if isinstance(facts, Mapping):
            record.facts.update(clean_data(dict(facts)))

    def stop(self, names: Iterable[str], reason: str) -> None:
        """Nodes that were well but were taken out because of others."""
        for name in names:
            if name in self.nodes:
                self._stopped.setdefault(name, reason)

    def finish(self, *, interrupted: str = "", current_task: str = "") -> None:
        """Judge every node. With ``interrupted`` the run ended before its end."""
        self.interrupted = interrupted
        self.elapsed_s = round(time.monotonic() - self._clock, 3)
        for name, record in self.nodes.items():
            record.not_run = self._why_not_run(name, record, current_task)
            if name in self.judged and record.verdict not in VERDICTS:
                needs = record.needs()
                why = needs[0]["reason"] if needs else "the health check gave no answer"
                record.facts["health"] = {"verdict": "unknown", "why": why}
        compared = {
            name: record.facts["health"]["comparison"]
            for name, record in self.nodes.items()
            if record.verdict is not None and "comparison" in record.facts["health"]
        }
        for name, notes in differences(compared).items():
            self.nodes[name].attention += notes

    def _why_not_run(self, name: str, record: NodeRecord, current_task: str) -> str:
        if name in self._stopped:
            return self._stopped[name]
        for play in self.plays:
            if name not in play.nodes or name in play.done:
                continue
            if self.interrupted and name in play.begun:
                at = f" in '{current_task}'" if current_task else ""
                return f"the run was ended{at} before this node was done: {self.interrupted}"
            if self.interrupted and play.started:
                return f"the run was ended before this node's turn: {self.interrupted}"
            if self.interrupted:
                return f"the run was ended before play '{play.name}': {self.interrupted}"
            if play.started:
                return f"roll-out stopped before this node (play '{play.name}')"
            if record.host_tasks:
                return f"roll-out stopped; play '{play.name}' did not run on this node"
            return f"roll-out stopped before this node (play '{play.name}' did not start)"
        # A run_once task (preflight) stands for the nodes of its own play only: where --tags leaves nothing of the
        # other plays, nothing is known of the node.
        plays = [play for play in self.plays if name in play.nodes]
        if not record.host_tasks and not (plays and all(name in play.covered for play in plays)):
            return "no task ran on this node (check --tags, --start-at-task and the plays' hosts)"
        return ""

    def in_need(self) -> list[str]:
        """Nodes for --limit: everything that is not ok or changed, in the order of the inventory."""
        return [name for name, record in self.nodes.items() if record.outcome in NEEDS_ATTENTION]

    def to_dict(self) -> dict[str, Any]:
        """The whole report, ready for JSON."""
        outcomes = Counter(record.outcome for record in self.nodes.values())
        totals: dict[str, Any] = {"nodes": len(self.nodes), "outcomes": {name: outcomes[name] for name in OUTCOMES}}
        for counter in COUNTERS:
            totals[counter] = sum(record.counts[counter] for record in self.nodes.values())
        totals["host_tasks"] = sum(record.host_tasks for record in self.nodes.values())
        if self.judged:
            verdicts = Counter(record.verdict for record in self.nodes.values())
            totals["verdicts"] = {verdict: verdicts[verdict] for verdict in VERDICTS}
        return {
            "schema": 1,
            "playbook": self.playbook,
            "started": self.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "elapsed_s": self.elapsed_s,
            "check": self.check,
            "options": self.options,
            "ansible_version": self.ansible_version,
            "inventory": self.inventory,
            "interrupted": bool(self.interrupted),
            "interrupted_by": self.interrupted,
            "exit": self.exit,
            "totals": totals,
            "plays": [
                {
                    "name": play.name,
                    "nodes": len(play.nodes),
                    "batches": play.batches,
                    "batches_started": play.batches_started,
                }
                for play in self.plays
            ],
            "hosts": {name: record.to_dict() for name, record in self.nodes.items()},
            "controller": self.controller.to_dict() if self.controller.host_tasks else None,
        }
