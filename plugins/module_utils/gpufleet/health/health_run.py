# SPDX-License-Identifier: Apache-2.0
"""One health check of one node, from its inputs to the report; behind the Ansible module and the command alike."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ..profile_schema import did_you_mean, validate
from . import policy
from .capture import CaptureError, read_capture, write_capture
from .check import Check, Profile
from .comparison_facts import COMPARED, comparison
from .evaluation import choose, evaluate, probes_for
from .finding import Finding
from .node_evidence import NodeEvidence
from .probe import Probe, ProbeResult
from .registry import CHECKS, PROBES

BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Of a finding that is well nobody reads more; 511 nodes send forty of them each.
SHORT_CHARACTERS = 160


class InputError(ValueError):
    """Inputs that cannot be right. Nothing has run yet; `problems` holds all that is wrong, a sentence each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


class HealthInput(NamedTuple):
    """What is asked for.

    profile: what the node must be, as profile_schema describes it. names: ids or prefixes of
    checks, all for none. skip: reason by id or prefix, "@" and a pattern of components behind it where only these are
    meant. deadline_s: upper limit for the deadline of each probe. capture_to, replay_from: paths of a capture to write
    and to judge instead of the node. history: path of the node's earlier faults. read_only: write neither of the two.
    """

    profile: Profile
    names: tuple[str, ...] = ()
    skip: Mapping[str, str] = {}
    deadline_s: float | None = None
    capture_to: str | None = None
    replay_from: str | None = None
    history: str | None = None
    read_only: bool = False


def known_names(checks: Sequence[Check]) -> set[str]:
    """All that chooses a check: ids and their prefixes of whole words."""
    names: set[str] = set()
    for check in checks:
        words = check.id.split(".")
        names.update(".".join(words[: count + 1]) for count in range(len(words)))
    return names


def input_problems(asked: HealthInput, checks: Sequence[Check]) -> list[str]:
    """All that is wrong, the profile included."""
    known = known_names(checks)
    problems = [f"profile: {problem}" for problem in validate(asked.profile, known)]
    problems += [f"checks: {_unknown(name, known)}" for name in asked.names if name not in known]
    for name, reason in asked.skip.items():
        check = str(name).partition("@")[0]
        if check not in known:
            problems.append(f"skip: {_unknown(check, known)}")
        if not isinstance(reason, str) or not reason.strip():
            problems.append(f"skip: {name} needs a reason, which the report shows")
    if asked.deadline_s is not None and not asked.deadline_s > 0:
        problems.append(f"deadline: must be more than 0 seconds, found {asked.deadline_s:g}")
    if asked.replay_from is not None:
        for other in ("capture_to", "history"):
            if getattr(asked, other) is not None:
                problems.append(f"{other} makes no sense with replay_from: a capture is of another time")
    elif asked.capture_to is not None and os.path.lexists(asked.capture_to):
        problems.append(f"capture_to: {asked.capture_to} is there already; name another place")
    return problems


def _unknown(name: str, known: Collection[str]) -> str:
    hint = did_you_mean(name, sorted(known))
    return f"no check is named {name!r}" + f"; {hint}" * bool(hint)


def _skips_of(profile: Profile) -> dict[str, str]:
    skips = profile.get("skip_checks") or {}
    return {name: reason for name, reason in skips.items() if reason is not None}


def run_health(
    asked: HealthInput, probes: Sequence[Probe] = PROBES, checks: Sequence[Check] = CHECKS
) -> dict[str, Any]:
    """Judge the node, or a capture of it.

    Returns the report, ready for JSON: verdict, action, findings (report_finding), probes (outcome, seconds and, where
    one is no `done`, what it said, by id), elapsed (seconds), checks (how many were judged, and of how many), profile
    (its description), node (name, None for a capture), when (seconds since the epoch), comparison
    (comparison_facts.comparison), notes (what went wrong beside the health of the node). Raises InputError.
    """
    began = time.monotonic()
    # The checks and the comparison of the fleet read the same facts.
    probes = [_parsed_once(probe) for probe in probes]
    problems = input_problems(asked, checks)
    if problems:
        raise InputError(problems)
    profile = asked.profile
    chosen = choose(checks, asked.names)
    named = [*asked.names, *profile.get("required_checks", ())]
    when: float | None = time.time()
    if asked.replay_from is None:
        from .probe_runner import run_probes  # a replay does without

        chosen = _without_heavy(chosen, probes, named)
        results = run_probes(_wanted(chosen, probes, asked), asked.deadline_s)
    else:
        try:
            when, results = read_capture(asked.replay_from)
        except CaptureError as error:
            raise InputError([f"replay_from: {error}"]) from error
        # A capture has a heavy probe's answer only where somebody asked for it.
        chosen = _without_heavy(chosen, [probe for probe in probes if probe.id not in results], named)
    findings = evaluate(chosen, probes, results, profile, {**_skips_of(profile), **asked.skip})
    notes = []
    if asked.history is not None:
        findings, note = _with_history(findings, asked.history, asked.read_only)
        notes += note
    if asked.capture_to is not None and not asked.read_only:
        try:
            write_capture(asked.capture_to, results, probes, time.time())
        except CaptureError as error:
            notes.append(f"no capture was written: {error}")
    return {
        "verdict": policy.verdict(findings),
        "action": policy.action(findings),
        "findings": [report_finding(finding) for finding in findings],
        "probes": {probe.id: _outcome(probe, results.get(probe.id)) for probe in _wanted(chosen, probes, asked)},
        "elapsed": round(time.monotonic() - began, 3),
        "checks": {"judged": len(chosen), "known": len(checks)},
        "profile": str(profile.get("description", "")),
        "node": os.uname().nodename if asked.replay_from is None else None,
        "when": when,
        "comparison": comparison(NodeEvidence(probes, results), profile),
        "notes": notes,
    }


def _wanted(chosen: Sequence[Check], probes: Sequence[Probe], asked: HealthInput) -> list[Probe]:
    """The probes of the checks, and those that nodes are compared by unless a few checks are all that is asked for."""
    needed = {probe.id for probe in probes_for(chosen, probes)}
    return [probe for probe in probes if probe.id in needed or (not asked.names and probe.id in COMPARED)]


def _parsed_once(probe: Probe) -> Probe:
    parsed: dict[ProbeResult, Any] = {}

    def parse(result: ProbeResult) -> Any:
        if result not in parsed:
            parsed[result] = probe.parse(result)
        return parsed[result]

    return probe._replace(parse=parse)


def _without_heavy(chosen: Sequence[Check], probes: Sequence[Probe], named: Collection[str]) -> list[Check]:
    """The checks without those that need a heavy probe, unless a check is named in full."""
    heavy = {probe.id for probe in probes if probe.heavy}
    return [check for check in chosen if check.id in named or heavy.isdisjoint(check.needs)]


def _with_history(findings: list[Finding], path: str, read_only: bool) -> tuple[list[Finding], list[str]]:
    """The findings with the actions that earlier faults make of them, and notes on what did not work."""
    from . import fault_history  # only where a history is kept

    try:
        with open(BOOT_ID, encoding="ascii") as file:
            boot_id = file.read().strip()
        entries = fault_history.read_history(path)
        now = time.time()
        climbed = fault_history.climb(findings, entries, boot_id, now)
        if not read_only:
            # the action that was first asked for, not what it has climbed to: the boots are counted anew each time
            fault_history.write_history(path, fault_history.record(entries, findings, boot_id, now))
    except (fault_history.HistoryError, OSError) as error:
        return findings, [f"earlier faults are not taken into account: {error}"]
    return climbed, []


def report_finding(finding: Finding) -> dict[str, Any]:
    """A finding for the report: short where all is well, with all that a person needs where it is not."""
    short = {"check": finding.check, "component": finding.component, "status": finding.status}
    if finding.status in ("ok", "skipped"):
        return {**short, "observed": finding.observed[:SHORT_CHARACTERS]}
    return {
        **short,
        "observed": finding.observed,
        "expected": finding.expected,
        "action": finding.action,
        "advice": finding.advice,
        "evidence": [item._asdict() for item in finding.evidence],
        "reference": finding.reference,
    }


def _outcome(probe: Probe, result: ProbeResult | None) -> dict[str, Any]:
    if result is None:
        return {"outcome": "missing", "seconds": 0.0, "says": "is not in the capture"}
    outcome: dict[str, Any] = {"outcome": result.outcome, "seconds": round(result.seconds, 3)}
    if result.outcome not in probe.parses:
        outcome["says"] = f"{probe.title} {result.says()}"
    return outcome
