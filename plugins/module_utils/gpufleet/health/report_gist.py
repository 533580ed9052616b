# SPDX-License-Identifier: Apache-2.0
"""The gist of a report: what a person is told first, of one node in a line, of each node in the summary of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .finding import ACTIONS

# Of one node in the summary of a fleet.
MAX_GAPS_TOLD = 3
NOT_GIVEN = "see the expected value, and node-health explain {check}"


def clean(text: str) -> str:
    """Text of a node on one line, made harmless for a terminal: no control characters."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def gist(report: Mapping[str, Any]) -> str:
    """The report in one line: the verdict, and the worst finding."""
    for status in ("fail", "unknown", "warn"):
        findings = hardest_first(finding for finding in report["findings"] if finding["status"] == status)
        if findings:
            bad = sum(finding["status"] in ("fail", "unknown", "warn") for finding in report["findings"])
            more = bad - len(findings[0]["components"])
            tail = f" (and {more} more)" if more else ""
            return f"{report['verdict']}: {_reason(findings[0])}{tail}"
    well = sum(finding["status"] == "ok" for finding in report["findings"])
    if not well:
        skipped = counted(len(report["findings"]), "check") or "no check"
        return f"{report['verdict']}: nothing was judged ({skipped} skipped)"
    return f"{report['verdict']}: {counted(well, 'check')} ok"


def attention(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """The notes of a node for the summary of a run (docs/architecture.md): one for each fault, gap and warning.

    The first line of a reason carries the gist; nodes with the same line are shown together.
    """
    notes = []
    for status in ("fail", "unknown", "warn"):
        findings = [finding for finding in report["findings"] if finding["status"] == status]
        severity = "warn" if status == "warn" else "fail"
        if status == "unknown":
            notes += _notes_on_gaps(gaps_of(findings))
            continue
        for finding in hardest_first(findings):
            notes.append({"reason": _reason(finding), "next_step": clean(next_step(finding)), "severity": severity})
    return notes


def _notes_on_gaps(gaps: Sequence[Gap]) -> list[dict[str, str]]:
    """A note for each gap; one for all of a node that gives nearly no answers, lest it hides the other nodes."""
    if len(gaps) <= MAX_GAPS_TOLD:
        return [_note_on_gap(gap, f"unknown: {clean(gap.observed)}\naffects {affected(gap)}") for gap in gaps]
    checks = sorted({check for gap in gaps for check in gap.checks})
    said = f"unknown: {len(checks)} checks cannot be judged for {len(gaps)} reasons, the first: "
    return [_note_on_gap(gaps[0], f"{said}{clean(gaps[0].observed)}\naffects {', '.join(checks)}")]


def _note_on_gap(gap: Gap, reason: str) -> dict[str, str]:
    return {"reason": reason, "next_step": clean(gap.advice), "severity": "fail"}


def _reason(finding: Mapping[str, Any]) -> str:
    where = "" if finding["component"] == "node" else f" {finding['component']}"
    expected = f"; expected {clean(finding['expected'])}" if finding["expected"] else ""
    return f"{finding['check']}{where}: {clean(finding['observed'])}{expected}"


def counted(number: int, one: str, many: str = "") -> str:
    """How many of what: "" for none."""
    if number == 0:
        return ""
    return f"{number} {one if number == 1 else many or one + 's'}"


def hardest_first(findings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
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


def next_step(finding: Mapping[str, Any]) -> str:
    """What to do, with the action in front."""
    advice = finding["advice"] or NOT_GIVEN.format(check=finding["check"])
    action = finding["action"].replace("_", " ")
    return advice if action == "none" else f"[{action}] {advice}"


class Gap:
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


def gaps_of(findings: Iterable[Mapping[str, Any]]) -> list[Gap]:
    """Findings without evidence by what is missing: a tool that does not answer is one trouble, not twenty."""
    gaps: dict[tuple[str, str], Gap] = {}
    for finding in findings:
        key = (finding["observed"], finding["advice"])
        gaps.setdefault(key, Gap(finding)).add(finding)
    return sorted(gaps.values(), key=lambda gap: -len(gap.checks))


def affected(gap: Gap) -> str:
    """What cannot be judged for it: "2 checks: gpu.clocks, gpu.power"."""
    count = counted(len(gap.checks), "check")
    where = [clean(name) for name in gap.components if name != "node"]
    return f"{count}: {', '.join(gap.checks)}" + (f" ({', '.join(where)})" if where else "")
