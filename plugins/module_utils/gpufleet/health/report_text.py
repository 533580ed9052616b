# SPDX-License-Identifier: Apache-2.0
"""A report for a person: the verdict, what is wrong and what to do, faults first; no line above 120 columns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from .report_gist import NOT_GIVEN, affected, clean, counted, gaps_of, hardest_first, next_step

COLUMNS = 120
# What one finding may take of the screen; --json has all of it.
MAX_LINES_OF_A_FIELD = 4
MAX_EVIDENCE_LINES = 3
# Faults and warnings beyond this are counted by check: a node with 300 of them has one cause, not 300.
MAX_ENTRIES = 40

_MEANING = {
    "ok": "may train",
    "warn": "may train, but somebody must look",
    "fail": "must not train",
    "unknown": "not known to be healthy: must not train until somebody has looked",
}
_LABEL_COLUMNS = 15


def columns(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    import unicodedata  # few texts need it

    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide


def cut(text: str, width: int) -> str:
    """At most `width` columns; what is left out is in the middle, since both ends of a message tell."""
    if columns(text) <= width:
        return text
    head = (width - 5) * 2 // 3
    while columns(text[:head]) > (width - 5) * 2 // 3:
        head -= 1
    tail = width - 5 - columns(text[:head])
    while tail and columns(text[-tail:]) > width - 5 - columns(text[:head]):
        tail -= 1
    return f"{text[:head].rstrip()} ... {text[-tail:].lstrip() if tail else ''}".rstrip()


def wrapped(label: str, text: str, limit: int = MAX_LINES_OF_A_FIELD) -> list[str]:
    """A labelled text over at most `limit` lines."""
    return _wrapped(f"    {label:<{_LABEL_COLUMNS - 4}}", clean(text), limit)


def _wrapped(first: str, text: str, limit: int) -> list[str]:
    room = COLUMNS - len(first)
    import textwrap  # only faults need it

    lines = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    if len(lines) > limit:
        lines = [*lines[: limit - 1], " ".join(lines[limit - 1 :])]
    return [(first if number == 0 else " " * len(first)) + cut(line, room) for number, line in enumerate(lines)]


def report_lines(report: Mapping[str, Any], show_all: bool = False) -> list[str]:
    """The whole report. show_all: each finding that is ok or skipped as well, a line each."""
    by_status: dict[str, list[Mapping[str, Any]]] = {status: [] for status in ("fail", "unknown", "warn")}
    others: list[Mapping[str, Any]] = []
    for finding in report["findings"]:
        by_status.get(finding["status"], others).append(finding)
    lines = _head(report, by_status)
    lines += _entries("FAULTS", hardest_first(by_status["fail"]))
    lines += _unknown_lines(by_status["unknown"])
    lines += _entries("WARNINGS", hardest_first(by_status["warn"]))
    lines += _other_lines(others, show_all)
    lines += [cut(f"Note: {clean(note)}", COLUMNS) for note in report["notes"]]
    return lines


def _head(report: Mapping[str, Any], by_status: Mapping[str, Sequence[Any]]) -> list[str]:
    counts = [
        counted(len(by_status["fail"]), "fault"),
        counted(len(by_status["unknown"]), "finding without evidence", "findings without evidence"),
        counted(len(by_status["warn"]), "warning"),
    ]
    said = ", ".join(count for count in counts if count)
    verdict = report["verdict"]
    line = f"{verdict.upper()}: {_MEANING[verdict]}" + f" ({said})" * bool(said)
    if report["action"] != "none":
        line += f". Next: {report['action'].replace('_', ' ')}"
    return [cut(line, COLUMNS), cut(_about(report), COLUMNS)]


def _about(report: Mapping[str, Any]) -> str:
    node = report["node"]
    parts = [f"node {clean(node)}" if node else "a capture"]
    if report["when"]:
        parts.append(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report["when"])))
    checks = report["checks"]
    judged = f"{checks['judged']} checks"
    if checks["judged"] < checks["known"]:
        judged = f"only {checks['judged']} of {checks['known']} checks"
    parts += [judged, f"{report['elapsed']:.1f} s", f"profile: {clean(report['profile'])}"]
    return ", ".join(parts)


def _entries(title: str, findings: Sequence[Mapping[str, Any]]) -> list[str]:
    if not findings:
        return []
    lines = ["", title]
    for finding in findings[:MAX_ENTRIES]:
        lines += _entry(finding)
    rest: dict[str, int] = {}
    for finding in findings[MAX_ENTRIES:]:
        rest[finding["check"]] = rest.get(finding["check"], 0) + 1
    if rest:
        lines += wrapped("and more:", ", ".join(f"{check} {count}" for check, count in sorted(rest.items())))
    return lines


def _entry(finding: Mapping[str, Any]) -> list[str]:
    lines = [cut(f"  {finding['check']}  {finding['component']}", COLUMNS)]
    lines += wrapped("found:", finding["observed"])
    if finding["expected"]:
        lines += wrapped("expected:", finding["expected"])
    lines += wrapped("do:", next_step(finding))
    lines += _evidence_lines(finding["evidence"])
    if finding["reference"]:
        lines += wrapped("source:", finding["reference"], 1)
    return lines


def _evidence_lines(evidence: Sequence[Mapping[str, Any]]) -> list[str]:
    """The deciding lines; of several probes each gets its first one."""
    lines: list[str] = []
    for item in evidence[:MAX_EVIDENCE_LINES]:
        excerpt = [line.strip() for line in item["excerpt"].splitlines() if line.strip()]
        kept = excerpt[: max(1, MAX_EVIDENCE_LINES - len(evidence) + 1)]
        text = " | ".join(kept) + (f" | and {len(excerpt) - len(kept)} more lines" if len(excerpt) > len(kept) else "")
        said = f"{item['probe']}: {text}" if text else item["probe"]
        lines += wrapped("evidence:" if not lines else "", said, 2)
    return lines


def _unknown_lines(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    if not findings:
        return []
    lines = ["", "NO EVIDENCE"]
    gaps = gaps_of(findings)
    for gap in gaps[:MAX_ENTRIES]:
        lines += _wrapped("  ", clean(gap.observed), MAX_LINES_OF_A_FIELD)
        lines += wrapped("affects:", affected(gap), 2)
        lines += wrapped("do:", gap.advice or NOT_GIVEN.format(check=gap.checks[0]))
    if len(gaps) > MAX_ENTRIES:
        lines.append(f"  and {len(gaps) - MAX_ENTRIES} more: see --json")
    return lines


def _other_lines(findings: Sequence[Mapping[str, Any]], show_all: bool) -> list[str]:
    well = [finding for finding in findings if finding["status"] == "ok"]
    skipped = [finding for finding in findings if finding["status"] == "skipped"]
    if not show_all:
        how = " (--all lists them)" if findings else ""
        return ["", f"{counted(len(well), 'check') or 'no check'} ok, {len(skipped)} skipped{how}"]
    lines = []
    for title, group in (("OK", well), ("SKIPPED", skipped)):
        if group:
            lines += ["", title]
        for finding in group:
            where = "" if finding["component"] == "node" else f" {finding['component']}:"
            lines.append(cut(f"  {finding['check']:<28}{where} {clean(finding['observed'])}", COLUMNS))
    return lines
