# SPDX-License-Identifier: Apache-2.0
"""A report for a person: the verdict, what is wrong and what to do, faults first; no line above 120 columns."""

from __future__ import annotations

import textwrap
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .finding import ACTIONS

COLUMNS = 120
# What one finding may take of the screen; --json has all of it.
MAX_LINES_OF_A_FIELD = 4
MAX_EVIDENCE_LINES = 3
# Faults and warnings beyond this are counted by check: a node with 300 of them has one cause, not 300.
MAX_ENTRIES = 40
# Of one node in the summary of a fleet.
MAX_GAPS_TOLD = 3

_MEANING = {
    "ok": "may train",
    "warn": "may train, but somebody must look",
    "fail": "must not train",
    "unknown": "not known to be healthy: must not train until somebody has looked",
}
_LABEL_COLUMNS = 15
_NOT_GIVEN = "see the expected value, and node-health explain {check}"


def clean(text: str) -> str:
    """Text of a node on one line, made harmless for a terminal: no control characters."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def columns(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
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
    lines += _entries("FAULTS", _hardest_first(by_status["fail"]))
    lines += _unknown_lines(by_status["unknown"])
    lines += _entries("WARNINGS", _hardest_first(by_status["warn"]))
    lines += _other_lines(others, show_all)
    lines += [cut(f"Note: {clean(note)}", COLUMNS) for note in report["notes"]]
    return lines


def _head(report: Mapping[str, Any], by_status: Mapping[str, Sequence[Any]]) -> list[str]:
    counts = [
        _count(len(by_status["fail"]), "fault"),
        _count(len(by_status["unknown"]), "finding without evidence", "findings without evidence"),
        _count(len(by_status["warn"]), "warning"),
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


def _count(number: int, one: str, many: str = "") -> str:
    if number == 0:
        return ""
    return f"{number} {one if number == 1 else many or one + 's'}"


def _hardest_first(findings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Findings that differ by their component only as one, the hardest action first."""
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for finding in findings:
        key = tuple(str(finding[name]) for name in ("check", "observed", "expected", "action", "advice", "reference"))
        same = merged.setdefault(key, {**finding, "components": []})
        same["components"].append(clean(finding["component"]))
    for finding in merged.values():
        finding["component"] = _together(finding["components"])
    return sorted(merged.values(), key=lambda finding: -ACTIONS.index(finding["action"]))


def _together(components: Sequence[str]) -> str:
    """Several components in few words: their PCI addresses only where there is one."""
    if len(components) == 1:
        return components[0]
    return ", ".join(component.partition(" (")[0] for component in components)


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
    lines += wrapped("do:", _do(finding))
    lines += _evidence_lines(finding["evidence"])
    if finding["reference"]:
        lines += wrapped("source:", finding["reference"], 1)
    return lines


def _do(finding: Mapping[str, Any]) -> str:
    advice = finding["advice"] or _NOT_GIVEN.format(check=finding["check"])
    action = finding["action"].replace("_", " ")
    return advice if action == "none" else f"[{action}] {advice}"


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


class _Gap:
    """One missing piece of evidence, and the checks that cannot be judged without it."""

    def __init__(self, finding: Mapping[str, Any]) -> None:
        self.observed = finding["observed"]
        self.advice = finding["advice"]
        self.checks: list[str] = []
        self.components: list[str] = []

    def add(self, finding: Mapping[str, Any]) -> None:
        for names, name in ((self.checks, finding["check"]), (self.components, finding["component"])):
            if name not in names:
                names.append(name)


def _gaps(findings: Iterable[Mapping[str, Any]]) -> list[_Gap]:
    """Findings without evidence by what is missing: a tool that does not answer is one trouble, not twenty."""
    gaps: dict[tuple[str, str], _Gap] = {}
    for finding in findings:
        key = (finding["observed"], finding["advice"])
        gaps.setdefault(key, _Gap(finding)).add(finding)
    return sorted(gaps.values(), key=lambda gap: -len(gap.checks))


def _unknown_lines(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    if not findings:
        return []
    lines = ["", "NO EVIDENCE"]
    gaps = _gaps(findings)
    for gap in gaps[:MAX_ENTRIES]:
        lines += _wrapped("  ", clean(gap.observed), MAX_LINES_OF_A_FIELD)
        lines += wrapped("affects:", _affected(gap), 2)
        lines += wrapped("do:", gap.advice or _NOT_GIVEN.format(check=gap.checks[0]))
    if len(gaps) > MAX_ENTRIES:
        lines.append(f"  and {len(gaps) - MAX_ENTRIES} more: see --json")
    return lines


def _affected(gap: _Gap) -> str:
    count = _count(len(gap.checks), "check")
    where = [clean(name) for name in gap.components if name != "node"]
    return f"{count}: {', '.join(gap.checks)}" + (f" ({', '.join(where)})" if where else "")


def _other_lines(findings: Sequence[Mapping[str, Any]], show_all: bool) -> list[str]:
    well = [finding for finding in findings if finding["status"] == "ok"]
    skipped = [finding for finding in findings if finding["status"] == "skipped"]
    if not show_all:
        how = " (--all lists them)" if findings else ""
        return ["", f"{_count(len(well), 'check') or 'no check'} ok, {len(skipped)} skipped{how}"]
    lines = []
    for title, group in (("OK", well), ("SKIPPED", skipped)):
        if group:
            lines += ["", title]
        for finding in group:
            where = "" if finding["component"] == "node" else f" {finding['component']}:"
            lines.append(cut(f"  {finding['check']:<28}{where} {clean(finding['observed'])}", COLUMNS))
    return lines


def gist(report: Mapping[str, Any]) -> str:
    """The report in one line: the verdict, and the worst finding."""
    for status in ("fail", "unknown", "warn"):
        findings = _hardest_first(finding for finding in report["findings"] if finding["status"] == status)
        if findings:
            bad = sum(finding["status"] in ("fail", "unknown", "warn") for finding in report["findings"])
            more = bad - len(findings[0]["components"])
            tail = f" (and {more} more)" if more else ""
            return f"{report['verdict']}: {_reason(findings[0])}{tail}"
    well = sum(finding["status"] == "ok" for finding in report["findings"])
    if not well:
        skipped = _count(len(report["findings"]), "check") or "no check"
        return f"{report['verdict']}: nothing was judged ({skipped} skipped)"
    return f"{report['verdict']}: {_count(well, 'check')} ok"


def attention(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """The notes of a node for the summary of a run (docs/architecture.md): one for each fault, gap and warning.

    The first line of a reason carries the gist; nodes with the same line are shown together.
    """
    notes = []
    for status in ("fail", "unknown", "warn"):
        findings = [finding for finding in report["findings"] if finding["status"] == status]
        severity = "warn" if status == "warn" else "fail"
        if status == "unknown":
            notes += _notes_on_gaps(_gaps(findings))
            continue
        for finding in _hardest_first(findings):
            notes.append({"reason": _reason(finding), "next_step": clean(_do(finding)), "severity": severity})
    return notes


def _notes_on_gaps(gaps: Sequence[_Gap]) -> list[dict[str, str]]:
    """A note for each gap; one for all of a node that gives nearly no answers, lest it hides the other nodes."""
    if len(gaps) <= MAX_GAPS_TOLD:
        return [_note_on_gap(gap, f"unknown: {clean(gap.observed)}\naffects {_affected(gap)}") for gap in gaps]
    checks = sorted({check for gap in gaps for check in gap.checks})
    said = f"unknown: {len(checks)} checks cannot be judged for {len(gaps)} reasons, the first: "
    return [_note_on_gap(gaps[0], f"{said}{clean(gaps[0].observed)}\naffects {', '.join(checks)}")]


def _note_on_gap(gap: _Gap, reason: str) -> dict[str, str]:
    return {"reason": reason, "next_step": clean(gap.advice), "severity": "fail"}


def _reason(finding: Mapping[str, Any]) -> str:
    where = "" if finding["component"] == "node" else f" {finding['component']}"
    expected = f"; expected {clean(finding['expected'])}" if finding["expected"] else ""
    return f"{finding['check']}{where}: {clean(finding['observed'])}{expected}"
