# SPDX-License-Identifier: Apache-2.0
"""The summary at the end of a run: a screen that a person can read at 511 nodes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from .failure_reason import grouping_key
from .node_names import short_names
from .run_report import COUNTERS, OUTCOMES, VERDICTS, NodeRecord, RunReport
from .screen_text import cut, duration

# Best first on screen: the eye ends at the bad ones, right above their reasons.
_ORDER = tuple(reversed(OUTCOMES))
_LABELS = {"not_run": "not run", "timed_out": "timed out"}
# As many groups as leave the whole summary readable on one screen; all of them are in report.json.
MAX_GROUPS = 10
MAX_CHANGED_TASKS = 8
# Lines of a node's reason that are shown; a controller's message (preflight) is shown in full.
MAX_REASON_LINES = 2


@dataclass(frozen=True)
class Line:
    """A line of the summary; ``tone`` (ok, changed, warn, error, '') picks the colour."""

    text: str
    tone: str = ""


@dataclass
class _Group:
    """Nodes with the same trouble."""

    kind: str
    reason: str
    next_step: str
    severity: str
    nodes: list[str] = field(default_factory=list)


def summary_lines(report: RunReport, width: int) -> list[Line]:
    """The summary, without the paths of the report's files."""
    lines = [Line(""), Line(_title(report))]
    if report.interrupted:
        lines.append(Line(f"  The run did not come to its end: {report.interrupted}", "error"))
    lines += _outcome_lines(report, width)
    lines += _health_lines(report, width)
    lines += _changed_lines(report, width)
    lines += _controller_lines(report.controller, width)
    lines += _attention_lines(report, width)
    return lines


def _title(report: RunReport) -> str:
    check = " (check mode: nothing was changed)" if report.check else ""
    count = f"{len(report.nodes)} node" + ("" if len(report.nodes) == 1 else "s")
    return f"Summary of {report.playbook}{check}: {count}, {duration(report.elapsed_s)}"


def _counts(records: list[NodeRecord]) -> str:
    total = {counter: sum(record.counts[counter] for record in records) for counter in COUNTERS}
    text = f"changed={total['changed']} failed={total['failed']} unreachable={total['unreachable']}"
    for rare in ("rescued", "ignored"):
        if total[rare]:
            text += f" {rare}={total[rare]}"
    return text


def _outcome_lines(report: RunReport, width: int) -> list[Line]:
    by_outcome: dict[str, list[str]] = defaultdict(list)
    for name, record in report.nodes.items():
        by_outcome[record.outcome].append(name)
    tones = {"ok": "ok", "changed": "changed", "attention": "warn"}
    lines = []
    for outcome in _ORDER:
        names = by_outcome.get(outcome)
        if not names:
            continue
        counts = _counts([report.nodes[name] for name in names])
        head = f"  {_LABELS.get(outcome, outcome):<12}{len(names):>5}  {counts}  "
        lines.append(Line(head + short_names(names, max(width - len(head), 30)), tones.get(outcome, "error")))
    # every run has this line, so that "changed=0" of a converged fleet can be looked for
    lines.append(Line(f"  {'all':<12}{len(report.nodes):>5}  {_counts(list(report.nodes.values()))}"))
    return lines


def _health_lines(report: RunReport, width: int) -> list[Line]:
    """The verdicts, where nodes were judged."""
    if not report.judged:
        return []
    tones = {"ok": "ok", "warn": "warn"}
    lines = [Line(""), Line("Health:")]
    for verdict in VERDICTS:
        names = [name for name, record in report.nodes.items() if record.verdict == verdict]
        if names:
            head = f"  {verdict:<12}{len(names):>5}  "
            lines.append(Line(head + short_names(names, max(width - len(head), 30)), tones.get(verdict, "error")))
    return lines


def _changed_lines(report: RunReport, width: int) -> list[Line]:
    """Which tasks changed something, on which nodes: the first question after a run that should change nothing."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for name, record in report.nodes.items():
        for entry in record.changed_tasks:
            label = f"{entry['role']} : {entry['task']}" if entry["role"] else entry["task"]
            if name not in nodes[label]:
                nodes[label].append(name)
    if not nodes:
        return []
    lines = [Line(""), Line("Would change:" if report.check else "Changed:")]
    for label, names in list(nodes.items())[:MAX_CHANGED_TASKS]:
        who = "all nodes" if len(names) == len(report.nodes) > 1 else short_names(names, 40)
        lines.append(Line(cut(f"  {label}: {who}", width), "changed"))
    if len(nodes) > MAX_CHANGED_TASKS:
        lines.append(Line(f"  and {len(nodes) - MAX_CHANGED_TASKS} more tasks: see changed_tasks in report.json"))
    return lines


def _controller_lines(controller: NodeRecord, width: int) -> list[Line]:
    """Tasks on this machine (preflight): failures are shown in full, they are about the whole run."""
    lines = []
    if controller.counts["changed"] or controller.failures:
        lines.append(Line(f"  {'this machine':<12}{'':>5}  {_counts([controller])}"))
    for failure in controller.failures:
        where = f"{failure.role} : {failure.task}" if failure.role else failure.task
        lines += [Line(""), Line(f"Failed on this machine, in '{where}':", "error")]
        lines += [Line(f"  {text}".rstrip(), "error") for text in failure.message.splitlines() or [failure.reason]]
        if not failure.next_step.startswith("mend the cause (the whole"):
            lines.append(Line(f"  next: {failure.next_step}"))
    for note in controller.attention:
        lines += [Line(f"  this machine: {cut(note['reason'], width)}", "warn"), Line(f"    next: {note['next_step']}")]
    return lines


def _groups(report: RunReport) -> list[_Group]:
    """Nodes with the same kind, reason and next step together; worst kind first, then the larger group."""
    groups: dict[tuple[str, str, str], _Group] = {}
    for name, record in report.nodes.items():
        for need in record.needs():
            reason, step = need["reason"], need["next_step"]
            key = (need["kind"], grouping_key(reason, name), grouping_key(step, name))
            group = groups.setdefault(key, _Group(need["kind"], reason, step, need["severity"]))
            if group.nodes and name not in group.nodes:
                group.reason, group.next_step = key[1], key[2]
            if name not in group.nodes:
                group.nodes.append(name)
    return sorted(
        groups.values(),
        key=lambda group: (OUTCOMES.index(group.kind), group.severity != "fail", -len(group.nodes), group.nodes[0]),
    )


def _attention_lines(report: RunReport, width: int) -> list[Line]:
    groups = _groups(report)
    if not groups:
        return []
    in_need = len(report.in_need())
    lines = [Line(""), Line(f"Needs attention: {in_need} node" + ("" if in_need == 1 else "s"))]
    for group in groups[:MAX_GROUPS]:
        tone = "warn" if group.severity == "warn" else "error"
        count = "" if len(group.nodes) == 1 else f" ({len(group.nodes)} nodes)"
        names = short_names(group.nodes, max(width - 30, 40))
        if "nodes)" in names:
            count = ""
        lines.append(Line(f"  {_LABELS.get(group.kind, group.kind)}: {names}{count}", tone))
        reason = group.reason.splitlines() or [""]
        lines.append(Line(f"    reason: {cut(reason[0], max(width * 2, 160))}"))
        lines += [Line(f"            {cut(more, width)}") for more in reason[1:MAX_REASON_LINES]]
        lines.append(Line(f"    next:   {group.next_step}"))
    hidden = groups[MAX_GROUPS:]
    if hidden:
        others = short_names({name for group in hidden for name in group.nodes}, max(width - 40, 40))
        lines.append(Line(f"  and {len(hidden)} more reasons on {others}: see report.json"))
    return lines
