# SPDX-License-Identifier: Apache-2.0
"""Stdout callback: a live status of a few lines on a terminal, one line per task elsewhere."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpufleet_progress
type: stdout
author: The gpufleet authors
short_description: Progress of a run over many nodes without scrolling pages
description:
  - On a terminal a few lines are redrawn in place, at most ten times a second. They show the play, its batch, the
    task with its role, how many nodes are done, running, failed and unreachable, the time, and, when few nodes are
    left, which ones everybody waits for.
  - Elsewhere (pipe, CI, C(TERM=dumb)) each task ends with one plain line with counts. A task that takes long tells
    every minute what it waits for.
  - Failures are lasting lines as they happen; of many in one task the first are shown singly, the others as one line
    when the task ends. C(debug) messages and diffs are shown when the task ends, equal ones once, with all nodes.
  - C(-v) adds a line for each task and for each result, as the default callback has it.
  - C(NO_COLOR) takes the colours away. Warnings of Ansible are written above the live lines.
  - The summary at the end is printed by the callback C(gpufleet_report); without it one line with totals is printed.
extends_documentation_fragment:
  - result_format_callback
options:
  live:
    description: Whether to redraw lines in place. C(auto) does so on a terminal.
    type: str
    choices: [auto, never]
    default: auto
    env:
      - name: GPUFLEET_LIVE
    ini:
      - section: callback_gpufleet_progress
        key: live
  failure_lines:
    description: How many failures of one task are shown singly as they happen.
    type: int
    default: 10
    env:
      - name: GPUFLEET_FAILURE_LINES
    ini:
      - section: callback_gpufleet_progress
        key: failure_lines
"""

import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ansible.module_utils

_OWN = str(Path(__file__).resolve().parents[1] / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)

from ansible import constants as C
from ansible import context
from ansible.module_utils.gpufleet_controller import failure_reason, run_scope
from ansible.module_utils.gpufleet_controller.live_area import LiveArea
from ansible.module_utils.gpufleet_controller.node_names import short_names
from ansible.module_utils.gpufleet_controller.run_ending import RunEnding
from ansible.module_utils.gpufleet_controller.run_progress import RunProgress, TaskProgress
from ansible.module_utils.gpufleet_controller.screen_text import clean_data, clean_text, cut, first_line
from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback import CallbackBase

# Seconds between two drawings: more often than ten times a second no eye sees.
_TICK_S = 0.1
# A task that takes longer than this says so where nothing is redrawn.
_STILL_AFTER_S = 60.0

_ASKING_ACTIONS = frozenset({"pause", "ansible.builtin.pause", "ansible.legacy.pause"})


class _TaskOutput:
    """What a task has to show when it ends: equal texts once, with all their nodes."""

    def __init__(self, progress: TaskProgress) -> None:
        self.progress = progress
        self.messages: dict[str, list[str]] = {}
        self.diffs: dict[str, list[str]] = {}
        self.more_failures: dict[tuple[str, str], list[str]] = {}
        self.failure_lines = 0


class CallbackModule(CallbackBase):
    """Feeds RunProgress with events and shows it."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "gpufleet_progress"

    def __init__(self) -> None:
        super().__init__()
        # Ansible forks while it holds this lock, so no fork can inherit it taken by the drawing thread.
        self._lock = self._display._lock
        self._run: RunProgress | None = None
        self._play: Any = None
        self._area: LiveArea | None = None
        self._paused = True
        self._outputs: dict[str, _TaskOutput] = {}
        self._item_failures: dict[tuple[str, str], str] = {}
        self._lockstep = True
        self._ending: RunEnding | None = None
        self._ticker_stop: threading.Event | None = None
        self._next_still = 0.0

    # -- the run ----------------------------------------------------------------------------

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Begin; the live lines appear with the first task."""
        self._close()
        plays = len(playbook.get_plays())
        self._run = RunProgress(plays, bool(context.CLIARGS.get("check")), time.monotonic())
        self._play = None
        self._outputs = {}
        if self._is_live():
            self._area = LiveArea(sys.stdout, self._lock)
            self._area.start()
        self._paused = True
        self._ending = RunEnding(lambda cause: self._finish())
        self._ticker_stop = threading.Event()
        threading.Thread(target=self._tick, args=(self._ticker_stop,), name="gpufleet_progress", daemon=True).start()

    def _is_live(self) -> bool:
        if self.get_option("live") == "never" or not sys.stdout.isatty():
            return False
        if os.environ.get("TERM", "dumb") == "dumb" or os.environ.get("CI"):
            return False
        # questions of --step and of the task debugger would be drawn over
        return not (context.CLIARGS.get("step") or C.config.get_config_value("ENABLE_TASK_DEBUGGER"))

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """A play or the next batch of it."""
        if self._run is None:
            return
        with self._lock:
            self._flush_tasks()
            next_batch = self._play is not None and self._play._uuid == play._uuid
            self._play = play
            total = len(run_scope.nodes_of_play(play))
            batch = run_scope.hosts_in_batch(play)
            self._lockstep = str(play.strategy).rsplit(".", 1)[-1] not in ("free", "host_pinned")
            sizes = run_scope.batch_sizes(play.serial, total)
            self._run.start_play(run_scope.play_name(play), sizes, len(batch), next_batch=next_batch)
            self._paused = str(play.strategy).rsplit(".", 1)[-1] == "debug"
            if self._area is None or self._display.verbosity:
                self._show(self._run.play_line())

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """The play is for nobody."""
        if self._area is None or self._display.verbosity:
            self._show("  no node is in this play")

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """max_fail_percentage stopped the play."""
        with self._lock:
            self._flush_tasks()
        self._show("too many nodes failed: the roll-out stops", C.COLOR_ERROR)

    def v2_playbook_on_vars_prompt(
        self,
        varname: str,
        private: bool = True,
        prompt: str | None = None,
        encrypt: str | None = None,
        confirm: bool = False,
        salt_size: int | None = None,
        salt: str | None = None,
        default: str | None = None,
        unsafe: bool | None = None,
    ) -> None:
        """Ansible is about to ask: nothing may be drawn until the play begins."""
        self._pause()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """A task begins; in lock-step the one before has ended."""
        if self._run is None:
            return
        with self._lock:
            if self._lockstep:
                self._flush_tasks()
            label = run_scope.task_name(task)
            role = run_scope.role_name(task)
            if role:
                label = f"{role} : {label}"
            if task._uuid not in self._outputs:
                self._outputs[task._uuid] = _TaskOutput(self._run.start_task(label, time.monotonic()))
            self._next_still = time.monotonic() + _STILL_AFTER_S
            if self._display.verbosity >= 2:
                self._print_task_path(task)
        if task.action in _ASKING_ACTIONS:
            self._pause()
        else:
            self._paused = str(self._play.strategy).rsplit(".", 1)[-1] == "debug"

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """A handler is a task like others."""
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """A node begins the task."""
        with self._lock:
            output = self._outputs.get(task._uuid)
            if output is not None:
                output.progress.running[host.name] = time.monotonic()

    # -- results ----------------------------------------------------------------------------

    def v2_runner_on_ok(self, result: Any) -> None:
        """A node has done the task."""
        changed = result.is_changed() and not isinstance(result.task, TaskInclude)
        self._done(result, "changed" if changed else "ok")
        if result.result.get("_ansible_verbose_always") and not result.task.loop:
            self._collect_message(result)
        elif self._display.verbosity:
            self._show_result(result, "changed" if changed else "ok", C.COLOR_CHANGED if changed else C.COLOR_OK)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """The condition was false on this node."""
        if result.task.action in C._ACTION_META:
            return
        self._done(result, "skipped")
        if self._display.verbosity:
            self._show_result(result, "skipping", C.COLOR_SKIP)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """The task failed on this node."""
        if ignore_errors:
            self._done(result, "ignored")
            if self._display.verbosity:
                self._show_result(result, "failed (ignored)", C.COLOR_WARN)
            return
        rescued = self._play is not None and result.host.name not in self._play._removed_hosts
        if rescued and isinstance(result.task, TaskInclude):
            # what the include names could not be loaded; Ansible has told "ok" before
            rescued = False
            output = self._outputs.get(result.task._uuid)
            if output is not None:
                output.progress.counts["ok"] -= 1
        self._done(result, "rescued" if rescued else "failed")
        if not rescued and self._run is not None:
            self._run.failed.add(result.host.name)
        kind = "timed_out" if "timedout" in result.result else "failed"
        word = "failed (a rescue takes over)" if rescued else kind.replace("_", " ")
        self._show_failure(result, kind, word)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """No connection to this node."""
        if result.task.ignore_unreachable:
            self._done(result, "ignored")
            return
        self._done(result, "unreachable")
        if self._run is not None:
            self._run.unreachable.add(result.host.name)
        self._show_failure(result, "unreachable", "unreachable")

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """One item of a loop."""
        self._tell_warnings(result)
        if result.result.get("_ansible_verbose_always"):
            self._collect_message(result)
        elif self._display.verbosity:
            changed = result.is_changed()
            self._show_result(result, "changed" if changed else "ok", C.COLOR_CHANGED if changed else C.COLOR_OK)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        """One item of a loop failed: its words are the reason of the task."""
        if "censored" not in result.result:
            label = clean_text(self._get_item_label(result.result))
            told = failure_reason.full_message(result.result)
            self._item_failures.setdefault((result.host.name, result.task._uuid), f"item {label}: {told}")
        self._tell_warnings(result)
        if self._display.verbosity:
            self._show_result(result, "failed", C.COLOR_ERROR)

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        """One item of a loop was skipped."""
        if self._display.verbosity > 1:
            self._show_result(result, "skipping", C.COLOR_SKIP)

    def v2_runner_retry(self, result: Any) -> None:
        """A task with 'until' tries again."""
        if self._display.verbosity:
            left = result.result.get("retries", 0) - result.result.get("attempts", 0)
            task = run_scope.task_name(result.task)
            self._show(f"  retrying: [{result.host.name}] {task} ({left} left)", C.COLOR_DEBUG)

    def v2_on_file_diff(self, result: Any) -> None:
        """Collect diffs; equal ones are shown once when the task ends."""
        # a loop's diffs come one by one with its items
        if result.task.loop and "results" in result.result:
            return
        diff = result.result.get("diff")
        if not diff or not result.result.get("changed"):
            return
        text = self._get_diff(_comparable(clean_data(diff)))
        output = self._outputs.get(result.task._uuid)
        if text.strip() and output is not None:
            with self._lock:
                output.diffs.setdefault(text.rstrip("\n"), []).append(result.host.name)

    def _done(self, result: Any, counter: str) -> None:
        self._tell_warnings(result)
        with self._lock:
            output = self._outputs.get(result.task._uuid)
            if output is None:
                return
            task = output.progress
            task.running.pop(result.host.name, None)
            task.counts[counter] += 1
            task.ended = time.monotonic()

    def _tell_warnings(self, result: Any) -> None:
        if "censored" in result.result:
            # Ansible hands warnings and the exception of a no_log result over with the secret in them
            for key in ("warnings", "deprecations", "exception"):
                result.result.pop(key, None)
            return
        self._handle_warnings(result.result)
        if self._display.verbosity:
            self._handle_exception(result.result)
        else:
            # the reason is shown in one line; the source context around it is for -v
            result.result.pop("exception", None)

    def _collect_message(self, result: Any) -> None:
        shown = dict(result.result)
        item = self._get_item_label(shown) if "ansible_loop_var" in shown else None
        self._clean_results(shown, result.task.action)
        text = shown["msg"] if isinstance(shown.get("msg"), str) else self._dump_results(shown)
        if item is not None:
            text = f"{text}  (item {item})"
        output = self._outputs.get(result.task._uuid)
        if output is not None:
            with self._lock:
                output.messages.setdefault(clean_text(text), []).append(result.host.name)

    def _show_result(self, result: Any, word: str, color: str) -> None:
        shown = dict(result.result)
        if result.task.loop and "results" in shown:
            del shown["results"]
        item = f" (item={clean_text(self._get_item_label(shown))})" if "ansible_loop_var" in shown else ""
        self._clean_results(shown, result.task.action)
        label = clean_text(self.host_label(result))
        # indented: molecule takes a line that begins with "changed" for one of the default callback
        self._show(f"  {word}: [{label}]{item} => {clean_text(self._dump_results(shown))}", color)

    def _show_failure(self, result: Any, kind: str, word: str) -> None:
        if self._display.verbosity:
            self._show_result(result, word, C.COLOR_ERROR)
            return
        task_id = result.task._uuid
        told = failure_reason.describe(
            result.result,
            kind=kind,
            task=run_scope.task_name(result.task),
            role=run_scope.role_name(result.task),
            path="",
            tasks_before=0,
            failed_item=self._item_failures.pop((result.host.name, task_id), None),
        )
        reason = first_line(told.reason)
        output = self._outputs.get(task_id)
        label = output.progress.label if output is not None else run_scope.task_name(result.task)
        if output is not None:
            output.failure_lines += 1
            if output.failure_lines > self.get_option("failure_lines"):
                key = (word, failure_reason.grouping_key(reason, result.host.name))
                output.more_failures.setdefault(key, []).append(result.host.name)
                return
        self._show(f"{word}: {clean_text(result.host.name)}: {cut(reason, 300)} [{label}]", C.COLOR_ERROR)

    # -- the end ----------------------------------------------------------------------------

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Take the live lines away; the summary follows from gpufleet_report."""
        if self._ending is not None:
            self._ending.disarm()
        self._finish()
        if "gpufleet_report" not in C.CALLBACKS_ENABLED:
            total = {what: sum(getattr(stats, what).values()) for what in ("ok", "changed", "failures", "dark")}
            self._show(
                f"  all: ok={total['ok']} changed={total['changed']} failed={total['failures']} "
                f"unreachable={total['dark']}"
            )

    def _finish(self) -> None:
        with self._lock:
            self._flush_tasks()
            self._close()

    def _close(self) -> None:
        if self._ticker_stop is not None:
            self._ticker_stop.set()
            self._ticker_stop = None
        if self._area is not None:
            self._area.close()
            self._area = None
        self._run = None

    # -- the screen -------------------------------------------------------------------------

    def _show(self, text: str, color: str | None = None) -> None:
        self._display.display(text, color=color)
        if self._area is None:
            # somebody may follow the log of a run that takes hours
            sys.stdout.flush()

    def _pause(self) -> None:
        with self._lock:
            self._paused = True
            if self._area is not None:
                self._area.wipe()

    def _flush_tasks(self) -> None:
        """Show what the tasks that have ended collected."""
        outputs, self._outputs = self._outputs, {}
        for output in outputs.values():
            task = output.progress
            if (self._area is None or self._display.verbosity) and task.counts:
                self._show(task.line(time.monotonic()))
            for (word, reason), nodes in output.more_failures.items():
                self._show(f"{word}: {short_names(nodes)}: {cut(reason, 300)} [{task.label}]", C.COLOR_ERROR)
            for text, nodes in output.messages.items():
                self._show_grouped(f"{short_names(nodes)}: ", text, C.COLOR_OK, task.label)
            for text, nodes in output.diffs.items():
                self._show(f"diff of {short_names(nodes)} [{task.label}]", C.COLOR_CHANGED)
                self._show(text)

    def _show_grouped(self, who: str, text: str, color: str, label: str) -> None:
        if "\n" not in text:
            self._show(f"{who}{text} [{label}]", color)
            return
        self._show(f"{who.rstrip()} [{label}]", color)
        self._show("\n".join(f"  {line}" for line in text.strip("\n").splitlines()), color)

    def _tick(self, stop: threading.Event) -> None:
        """Draw, in a thread of its own: a node that hangs sends no events."""
        while not stop.wait(_TICK_S if self._area is not None else 1.0):
            with self._lock:
                if stop.is_set() or self._run is None:
                    return
                now = time.monotonic()
                if self._area is not None:
                    if not self._paused:
                        self._area.draw(self._run.live_lines(now))
                elif self._run.task is not None and self._run.task.running and now >= self._next_still:
                    self._next_still = now + _STILL_AFTER_S
                    self._show(self._run.still_line(now))


def _comparable(diff: Any) -> Any:
    """Take Ansible's random temporary folders out of a diff's headers, else equal diffs of two nodes differ."""
    if isinstance(diff, list):
        return [_comparable(part) for part in diff]
    if not isinstance(diff, dict):
        return diff
    headers = ("before_header", "after_header")
    return {
        key: re.sub(r"\S*/ansible-local-[^/\s]+/tmp[^/\s]+(?:/(\S+))?", r"\1", value)
        if key in headers and isinstance(value, str)
        else value
        for key, value in diff.items()
    }
