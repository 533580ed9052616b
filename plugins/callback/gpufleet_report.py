# SPDX-License-Identifier: Apache-2.0
"""Aggregate callback: the lock of a run, its summary on screen, report.json and attention.limit."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpufleet_report
type: aggregate
author: The gpufleet authors
short_description: Summary of a run, its machine-readable report, and one run at a time per inventory
description:
  - Prints a summary at the end of C(ansible-playbook). One line for each outcome, then every node that needs
    attention with the reason and the next step. Nodes with the same reason are one entry. Nodes that the plays are
    for (after C(--limit)) are never missing, whether or not they were reached.
  - Writes C(report.json) and C(attention.limit) into C(<directory>/<UTC time>-<playbook>/). The latter is for
    C(--limit @file) and is not written when no node needs attention. A report that cannot be written is a warning
    and changes neither the summary nor the exit code.
  - Prints and writes also when the run is ended by an error, Ctrl-C or SIGTERM; C(interrupted) is true then.
  - A run that is not C(--check) takes a lock per inventory before its first task. Where another run holds it, it
    says which and ends with exit code 75 (EX_TEMPFAIL) before it did anything on any node.
  - A task result may carry C(gpufleet.attention), a list of C(reason), C(next_step) and C(severity) (warn or fail),
    and C(gpufleet.facts), a dict. A failed result may carry C(next_step).
  - A task with C(gpufleet.on_controller) that acts for many nodes tells of each in C(gpufleet.nodes), a dict of such
    attention and facts by node.
  - C(gpufleet.facts.health) is the result of a health check. A node without one, though M(node_health) was meant to
    judge it, is C(unknown). Nodes are compared with each other by C(comparison) in it, and those that differ from the
    majority need attention; that does not change the exit code.
  - A failed task that carries C(gpufleet.attention) is told by these notes.
  - C(host_tasks) counts every task result of a node once, and each item of a loop instead of its task.
  - Outcomes are failed, timed_out, unreachable, not_run, attention, changed and ok. A rescued or ignored failure is
    no failure.
  - C(exit) in the report is the exit code of C(ansible-playbook) as it follows from the results, null for a run
    that was ended from outside.
requirements:
  - Enable it with C(callbacks_enabled = gpufleet_report) in C(ansible.cfg).
options:
  directory:
    description: Folder of the reports and of the locks. The default is C(reports) in the repository.
    type: path
    env:
      - name: GPUFLEET_REPORTS_DIR
    ini:
      - section: callback_gpufleet_report
        key: directory
"""

import atexit
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ansible.module_utils

_OWN = str(Path(__file__).resolve().parents[1] / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)

from ansible import constants as C
from ansible import context
from ansible.module_utils.gpufleet_controller import failure_reason, run_scope
from ansible.module_utils.gpufleet_controller.report_files import write_report
from ansible.module_utils.gpufleet_controller.run_ending import RunEnding
from ansible.module_utils.gpufleet_controller.run_lock import LockHeldError, LockOwner, RunLock, lock_path
from ansible.module_utils.gpufleet_controller.run_report import NodeRecord, PlayRecord, RunReport
from ansible.module_utils.gpufleet_controller.run_summary import summary_lines
from ansible.module_utils.gpufleet_controller.screen_text import clean_text
from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback import CallbackBase
from ansible.release import __version__ as ansible_version

# sysexits.h EX_TEMPFAIL: "try again later"; no exit code of ansible-playbook itself.
EXIT_LOCKED = 75

# A node that this task is meant for and that gives no verdict is unknown.
_HEALTH_CHECKS = frozenset({"node_health", "ansible.legacy.node_health"})
_ENDING_METAS = frozenset({"end_host", "end_batch", "end_play"})


@dataclass
class _SeenFailure:
    """A failure, the record that tells it, and whether it cost the run the node: a rescue may have caught it."""

    record: NodeRecord
    failure: failure_reason.Failure
    of_task: str
    final: bool


class CallbackModule(CallbackBase):
    """Collects results while the run goes on; judges, prints and writes at its end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpufleet_report"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._report: RunReport | None = None
        self._lock: RunLock | None = None
        self._ending: RunEnding | None = None
        self._playbook: Any = None
        self._play: Any = None
        self._play_record: PlayRecord | None = None
        self._batch: list[str] = []
        self._play_records: dict[str, PlayRecord] = {}
        self._removed: set[str] = set()
        self._current_task: Any = None
        self._ends_on_purpose = False
        self._broken_by_limit = False
        self._item_failures: dict[tuple[str, str], str] = {}
        # by the name that Ansible counts them under: the controller goes by several
        self._seen_failures: dict[str, list[_SeenFailure]] = {}

    # -- the run ----------------------------------------------------------------------------

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Take the lock and name the nodes the run is for."""
        args = context.CLIARGS
        self._playbook = playbook
        self._report = RunReport(
            playbook=os.path.basename(playbook._file_name),
            inventory=[str(source) for source in args.get("inventory") or ()],
            options={
                "check": bool(args.get("check")),
                "diff": bool(args.get("diff")),
                "limit": args.get("subset"),
                "tags": list(args.get("tags") or ()),
                "skip_tags": list(args.get("skip_tags") or ()),
                "start_at_task": args.get("start_at_task"),
                "forks": args.get("forks"),
            },
            ansible_version=ansible_version,
            check=bool(args.get("check")),
        )
        self._play = self._play_record = self._current_task = None
        self._play_records, self._seen_failures, self._item_failures, self._batch = {}, {}, {}, []
        self._ends_on_purpose = self._broken_by_limit = False
        if not self._report.check and self._lock is None:
            self._take_lock(self._report)
        self._ending = RunEnding(self._end_early)

    def _take_lock(self, report: RunReport) -> None:
        lock = RunLock(lock_path(self._directory(), report.inventory))
        owner = LockOwner.this_process(report.playbook, f"{report.started:%Y-%m-%dT%H:%M:%SZ}", report.inventory)
        try:
            lock.acquire(owner)
        except LockHeldError as error:
            self._report = None
            self._display.display(clean_text(error.message()), color=C.COLOR_ERROR, stderr=True)
            # Ansible turns an Exception of a callback into a warning; SystemExit passes and ends the run.
            raise SystemExit(EXIT_LOCKED) from None
        except OSError as error:
            self._display.warning(
                f"No run lock ({error.strerror}: {lock.path}): a second run on this inventory at the same time will "
                "not be noticed. Next step: make the folder writable or set GPUFLEET_REPORTS_DIR."
            )
            return
        self._lock = lock
        atexit.register(lock.release)

    def _directory(self) -> Path:
        chosen = self.get_option("directory")
        return Path(chosen) if chosen else Path(__file__).resolve().parents[2] / "reports"

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """A play, or its next batch, begins; what was before it came to its end."""
        if self._report is None:
            return
        self._end_batch()
        self._play = play
        record = self._play_records.get(play._uuid)
        if record is None:
            nodes = run_scope.nodes_of_play(play)
            batches = len(run_scope.batch_sizes(play.serial, len(nodes)))
            record = PlayRecord(run_scope.play_name(play), nodes, batches, started=True)
            self._play_records[play._uuid] = record
            self._report.plays.append(record)
            self._report.expect(nodes)
        record.batches_started += 1
        self._play_record = record
        self._batch = run_scope.nodes_of_batch(play)
        record.begun.update(self._batch)
        # hosts that failed before are marked again by Ansible itself when the play starts
        self._removed = set()
        self._current_task = None
        self._ends_on_purpose = False

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """The play is for no node: nothing to wait for."""
        if self._play_record is not None:
            self._play_record.batches_started = 0

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """Sent when max_fail_percentage stops the play; Ansible then exits with 2 whatever else happened."""
        self._broken_by_limit = True

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """A task begins: first see which nodes the one before has cost."""
        self._look_for_stopped()
        self._current_task = task
        self._ends_on_purpose = task._get_meta() in _ENDING_METAS if task.action in C._ACTION_META else False
        if self._report is not None and task.action in _HEALTH_CHECKS:
            self._report.judged.update(self._batch)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """A handler is a task like others."""
        self.v2_playbook_on_task_start(task, False)

    def _look_for_stopped(self) -> None:
        """Find nodes that Ansible has taken out of the play although they did not fail themselves.

        any_errors_fatal, run_once and max_fail_percentage do that without an event. The end_host,
        end_batch and end_play metas look the same but are the author's wish.
        """
        if self._report is None or self._play is None:
            return
        removed = set(self._play._removed_hosts)
        new, self._removed = removed - self._removed, removed
        for name in new:
            record = self._report.nodes.get(name)
            if record is None:
                continue
            seen = [failure for failure in self._seen_failures.get(name, []) if failure.record is record]
            if any(failure.final for failure in seen):
                continue
            if seen and self._current_task is not None and seen[-1].of_task == self._current_task._uuid:
                # a failed include is reported before Ansible takes the host out
                seen[-1].final = True
            elif not self._ends_on_purpose and not record.counts["unreachable"]:
                self._report.stop([name], self._why_stopped())

    def _why_stopped(self) -> str:
        if self._current_task is None:
            return "roll-out stopped, because other nodes failed"
        task = run_scope.task_name(self._current_task)
        if self._current_task.run_once:
            return f"the run was stopped by '{task}', which stands for all nodes"
        return f"roll-out stopped after '{task}', because other nodes failed"

    def _end_batch(self) -> None:
        self._look_for_stopped()
        if self._play_record is not None:
            self._play_record.done.update(self._batch)
        self._batch = []

    # -- results ----------------------------------------------------------------------------

    def v2_runner_on_ok(self, result: Any) -> None:
        """The task succeeded."""
        self._add(result, ["ok", "changed"] if result.is_changed() else ["ok"])

    def v2_runner_on_skipped(self, result: Any) -> None:
        """The task's condition was false."""
        if result.task.action in C._ACTION_META:
            # Ansible neither starts a worker for a meta nor counts it
            return
        self._add(result, ["skipped"])

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """The task failed; whether a rescue catches that is seen from the hosts Ansible removed."""
        if ignore_errors:
            self._add(result, ["ok", "changed", "ignored"] if result.is_changed() else ["ok", "ignored"])
            return
        rescued = result.host.name not in getattr(self._play, "_removed_hosts", [])
        if rescued and isinstance(result.task, TaskInclude):
            # What the include names could not be loaded: Ansible has already told that the task itself
            # went well, and takes the host out after this event.
            rescued = False
            record = self._record(result) if self._report is not None else None
            if record is not None:
                record.counts["ok"] -= 1
        else:
            record = self._add(result, [])
        if record is None:
            return
        record.counts["rescued" if rescued else "failed"] += 1
        kind = "timed_out" if "timedout" in result.result else "failed"
        self._add_failure(result, kind, record, final=not rescued)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """No connection to the node."""
        if result.task.ignore_unreachable:
            self._add(result, ["ok", "ignored"])
            return
        record = self._add(result, ["unreachable"])
        if record is not None:
            self._add_failure(result, "unreachable", record, final=True)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """One item of a loop."""
        self._add_item(result)

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        """One item of a loop."""
        self._add_item(result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        """One item of a loop; the first one that failed gives the reason of the task."""
        self._add_item(result)
        if "censored" not in result.result:
            label = clean_text(self._get_item_label(result.result))
            told = failure_reason.full_message(result.result)
            self._item_failures.setdefault((result.host.name, result.task._uuid), f"item {label}: {told}")

    def _add_item(self, result: Any) -> None:
        if self._report is None:
            return
        label = None
        if result.is_changed():
            hidden = "censored" in result.result
            label = "hidden by no_log" if hidden else clean_text(self._get_item_label(result.result))
        self._report.add_item(result.host.name, result.task._uuid, changed_item=label)
        record = self._record(result)
        self._report.add_note(record, result.result.get("gpufleet"))

    def _record(self, result: Any) -> NodeRecord:
        """The record that a result belongs to.

        The implicit localhost (not in the inventory) is this machine, not a node. So is a task that says by
        ``gpufleet: {on_controller: true}`` that it worked here for all nodes: under --limit it is some node's
        by name only.
        """
        assert self._report is not None
        host = result.host
        told = result.result.get("gpufleet")
        if not host.implicit and not (isinstance(told, Mapping) and told.get("on_controller")):
            return self._report.nodes.setdefault(host.name, NodeRecord())
        return self._report.controller

    def _add(self, result: Any, counters: list[str]) -> NodeRecord | None:
        if self._report is None:
            return None
        task = result.task
        record = self._record(result)
        self._report.add_result(
            record,
            result.host.name,
            task._uuid,
            counters=counters,
            task=run_scope.task_name(task),
            role=run_scope.role_name(task),
            path=_short_path(task.get_path()),
        )
        self._report.add_note(record, result.result.get("gpufleet"))
        if counters and task.run_once and self._play_record is not None:
            self._play_record.covered.update(self._batch)
        return record

    def _add_failure(self, result: Any, kind: str, record: NodeRecord, *, final: bool) -> None:
        failure = failure_reason.describe(
            result.result,
            kind=kind,
            task=run_scope.task_name(result.task),
            role=run_scope.role_name(result.task),
            path=_short_path(result.task.get_path()),
            tasks_before=record.host_tasks - 1,
            failed_item=self._item_failures.pop((result.host.name, result.task._uuid), None),
        )
        record.failures.append(failure)
        self._seen_failures.setdefault(result.host.name, []).append(
            _SeenFailure(record, failure, result.task._uuid, final)
        )

    # -- the end ----------------------------------------------------------------------------

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The regular end, also when every host of a batch failed or is unreachable."""
        if self._report is None:
            return
        if self._ending is not None:
            self._ending.disarm()
        self._end_batch()
        self._drop_rescued(stats.failures)
        self._add_unstarted_plays()
        self._report.exit = self._exit_code(stats)
        self._report.finish()
        self._publish()

    def _end_early(self, cause: str) -> None:
        """The run is ended by an error, Ctrl-C or a signal: tell what is known."""
        if self._report is None:
            return
        self._look_for_stopped()
        self._drop_rescued(None)
        self._add_unstarted_plays()
        task = run_scope.task_name(self._current_task) if self._current_task is not None else ""
        self._report.finish(interrupted=cause, current_task=task)
        self._publish()

    def _drop_rescued(self, failed: dict[str, int] | None) -> None:
        """Keep only the failures that no rescue caught.

        At the regular end Ansible's own count of failures decides (``failed``); before it, only what
        was seen of removed hosts is known.
        """
        assert self._report is not None
        kept: set[int] = set()
        for name, seen in self._seen_failures.items():
            final = [one for one in seen if one.final]
            unreachable = any(one.failure.kind == "unreachable" for one in seen)
            if failed is not None and not failed.get(name) and not unreachable:
                final = []
            elif failed is not None and failed.get(name) and not final:
                final = seen[-1:]
            kept.update(id(one.failure) for one in final)
        for record in (*self._report.nodes.values(), self._report.controller):
            recorded = len(record.failures)
            record.failures = [failure for failure in record.failures if id(failure) in kept]
            record.counts["failed"] = sum(failure.kind != "unreachable" for failure in record.failures)
            if len(record.failures) < recorded:
                record.counts["rescued"] = recorded - len(record.failures)

    def _add_unstarted_plays(self) -> None:
        assert self._report is not None
        for play in self._playbook.get_plays():
            if play._uuid in self._play_records:
                continue
            try:
                nodes = run_scope.nodes_of_unstarted_play(play)
            except Exception as error:  # a pattern that Ansible refuses: the run says so itself
                self._display.vv(f"gpufleet_report: nodes of play '{play.name}' not known: {error}")
                continue
            if nodes:
                self._report.plays.append(PlayRecord(run_scope.play_name(play), nodes, 0))
                self._report.expect(nodes)

    def _exit_code(self, stats: Any) -> int:
        """What ansible-playbook is about to exit with (TaskQueueManager and PlaybookExecutor of core 2.21)."""
        if self._broken_by_limit:
            return 2
        if any(stats.dark.values()):
            return 4
        return 2 if any(stats.failures.values()) else 0

    def _publish(self) -> None:
        """Write first, then print: a terminal that is gone must not cost the report."""
        assert self._report is not None
        report = self._report
        self._report = None
        in_need = report.in_need()
        folder: Path | None = None
        problem = ""
        try:
            folder = write_report(self._directory(), report.started, report.playbook, report.to_dict(), in_need)
        except OSError as error:
            problem = (
                f"The report could not be written to {self._directory()} ({error.strerror or error}); the summary on "
                "screen is all there is of this run. Next step: make room or make the folder writable, or set "
                "GPUFLEET_REPORTS_DIR."
            )
        tones = {"ok": C.COLOR_OK, "changed": C.COLOR_CHANGED, "warn": C.COLOR_WARN, "error": C.COLOR_ERROR}
        for line in summary_lines(report, width=_width()):
            self._display.display(line.text, color=tones.get(line.tone))
        self._display.display("")
        if folder is None:
            self._display.warning(problem)
        else:
            self._display.display(f"Report: {_short_path(str(folder / 'report.json'))}")
            if in_need:
                limit = _short_path(str(folder / "attention.limit"))
                self._display.display(f"Run again on these nodes only: --limit @{limit}")
        sys.stdout.flush()


def _width() -> int:
    """Columns of the screen; 120 where there is none, so that a log of CI stays readable."""
    return shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 120


def _short_path(path: str | None) -> str:
    """The path as seen from the current folder, where it lies under it."""
    text = clean_text(path or "")
    here = os.getcwd() + os.sep
    return text.removeprefix(here)
