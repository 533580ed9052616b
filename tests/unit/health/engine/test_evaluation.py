# SPDX-License-Identifier: Apache-2.0
"""No evidence, no pass: what becomes of a check whose probe is missing, that is skipped, or that itself breaks."""

from collections.abc import Iterator
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health import policy
from ansible.module_utils.gpufleet.health.check import Check, Profile
from ansible.module_utils.gpufleet.health.evaluation import UnknownCheckError, choose, evaluate, matches, probes_for
from ansible.module_utils.gpufleet.health.fault_history import clear, climb, read_history, record, write_history
from ansible.module_utils.gpufleet.health.finding import Evidence, Finding
from ansible.module_utils.gpufleet.health.node_evidence import NodeEvidence
from ansible.module_utils.gpufleet.health.probe import NoEvidence, ParseError, Probe, ProbeResult


def number(result: ProbeResult) -> int:
    if not result.stdout.strip().isdigit():
        raise ParseError(f"no number: {result.stdout!r}")
    return int(result.stdout)


PROBES = (Probe("a.count", number, argv=("count-a",)), Probe("b.count", number, argv=("count-b",)))


def check_a(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Eight of A.

    Source: none.
    """
    found = evidence.facts("a.count")
    status = "ok" if found == profile["a"] else "fail"
    yield Finding("node", status, f"{found}", f"{profile['a']}", "none", evidence=(Evidence("a.count", "x" * 1000),))


def check_b(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Each of two, one by one."""
    for component in ("B 0", "B 1"):
        yield Finding(component, "fail", "broken", action="reboot", evidence=(Evidence("b.count"),))
    raise NoEvidence("b.count", "the rest is gone")


def check_silent(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Nothing."""
    return iter(())


def check_boasts(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Says ok and shows nothing."""
    yield Finding("node", "ok", "all is well")


def check_greedy(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Reads what it does not declare."""
    yield Finding("node", "ok", str(evidence.facts("b.count")), evidence=(Evidence("b.count"),))


CHECKS = (
    Check("a.number", check_a, ("a.count",)),
    Check("b.each", check_b, ("b.count",)),
    Check("c.silent", check_silent, ()),
    Check("c.boasts", check_boasts, ()),
    Check("c.greedy", check_greedy, ("a.count",)),
)


def result(probe: str, stdout: str = "8\n", outcome: str = "done", rc: int | None = 0) -> ProbeResult:
    return ProbeResult(probe, outcome, rc, stdout, "", 3.0, 0.0, True)


def judge(
    *names: str, skip: dict[str, str] | None = None, profile: dict[str, Any] | None = None, **results: ProbeResult
) -> list[Finding]:
    given = {entry.probe: entry for entry in (results.values() or [result("a.count"), result("b.count")])}
    return evaluate(choose(CHECKS, names), PROBES, given, {"a": 8, **(profile or {})}, skip or {})


def test_a_check_says_what_it_saw_in_short() -> None:
    (finding,) = judge("a.number")
    assert (finding.check, finding.status) == ("a.number", "ok") and len(finding.evidence[0].excerpt) == 400


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (result("a.count", outcome="timeout", rc=None), "no answer within 3 s"),
        (result("a.count", "GPU is lost\n", outcome="failed", rc=15), "exit status 15: GPU is lost"),
        (result("a.count", outcome="truncated"), "cut off"),
        (result("a.count", ""), "no number"),
        (result("b.count"), "is not in the capture"),
    ],
)
def test_without_an_answer_it_is_unknown_and_the_probe_is_named(given: ProbeResult, says: str) -> None:
    (finding,) = judge("a.number", it=given)
    assert finding.status == "unknown" and "a.count" in finding.observed and says in finding.observed
    assert finding.evidence == (Evidence("a.count"),)


def test_what_was_found_before_the_evidence_ended_stays() -> None:
    assert [(one.component, one.status) for one in judge("b")] == [
        ("B 0", "fail"),
        ("B 1", "fail"),
        ("node", "unknown"),
    ]


def test_a_check_that_is_silent_boasts_or_reads_in_secret_is_unknown() -> None:
    findings = judge("c")
    assert [finding.status for finding in findings] == ["unknown"] * 3
    assert "KeyError" in findings[2].observed


def test_skips_show_their_reason_and_a_required_check_may_not_be_skipped() -> None:
    (finding,) = judge("a.number", skip={"a": "no A here"})
    assert finding.status == "skipped" and "no A here" in finding.observed
    (finding,) = judge("a.number", skip={"a": "no A here"}, profile={"required_checks": ["a.number"]})
    assert finding.status == "unknown" and "required_checks" in finding.advice
    statuses = [one.status for one in judge("b", skip={"b.each@B 1": "known bad, ticket 7"})]
    assert statuses == ["fail", "skipped", "unknown"]


def test_names_choose_whole_words() -> None:
    assert matches("gpu.ecc", "gpu") and matches("gpu.ecc", "gpu.ecc") and not matches("gpus.x", "gpu")
    assert [check.id for check in choose(CHECKS, ["a"])] == ["a.number"] and len(choose(CHECKS, [])) == 5
    with pytest.raises(UnknownCheckError, match=r"no check is named 'gpu'; there are a\.number"):
        choose(CHECKS, ["gpu"])
    assert [probe.id for probe in probes_for(choose(CHECKS, ["b"]), PROBES)] == ["b.count"]


def test_verdict_and_action() -> None:
    def findings(*statuses: str) -> list[Finding]:
        return [Finding("node", status, "", action="reboot") for status in statuses]

    assert policy.verdict([]) == "unknown" and policy.action([]) == "none"
    assert policy.verdict(findings("skipped")) == "unknown", "nothing was assessed"
    assert policy.verdict(findings("ok", "skipped")) == "ok" and policy.action(findings("ok", "skipped")) == "none"
    assert policy.verdict(findings("ok", "warn", "unknown")) == "unknown"
    assert policy.verdict(findings("unknown", "fail", "ok")) == "fail" and policy.action(findings("warn")) == "reboot"


FAULT = Finding("GPU 3", "fail", "lost", action="reset_gpu", advice="Reset it.", check="gpu.lost")
DAY_S = 86400.0


def test_a_fault_that_comes_back_in_another_boot_climbs(tmp_path: Any) -> None:
    path = str(tmp_path / "deep/history.json")
    entries = record(read_history(path), [FAULT], "boot1", now=DAY_S)
    write_history(path, entries)
    entries = read_history(path)
    assert climb([FAULT], entries, "boot1", now=DAY_S) == [FAULT], "the same boot: the action may not have been done"
    (again,) = climb([FAULT], entries, "boot2", now=2 * DAY_S)
    assert again.action == "reboot" and "an earlier boot" in again.advice
    for boot in range(2, 9):
        entries = record(entries, [FAULT], f"boot{boot}", now=boot * DAY_S)
    (again,) = climb([FAULT], entries, "boot9", now=9 * DAY_S)
    assert again.action == "inspect", "never a replacement by counting"
    assert climb([FAULT], entries, "boot9", now=90 * DAY_S) == [FAULT]
    assert climb([FAULT], clear(entries, "GPU*"), "boot9", now=9 * DAY_S) == [FAULT]
    other = FAULT._replace(component="GPU 4")
    observe = FAULT._replace(status="warn", action="observe")
    assert climb([other, observe], entries, "boot9", now=9 * DAY_S) == [other, observe]


def test_the_history_stays_small_and_one_that_is_none_is_left_alone(tmp_path: Any) -> None:
    faults = [FAULT._replace(component=f"GPU {number}") for number in range(600)]
    assert len(record([], faults, "boot1", now=1.0)) == 500
    assert len(record(record([], [FAULT], "boot1", 1.0), [FAULT], "boot1", 2.0)) == 1
    from ansible.module_utils.gpufleet.health.fault_history import HistoryError

    path = tmp_path / "history.json"
    for text in ("", "[]", '{"format": 2, "entries": []}', '{"format": 1, "entries": [{}]}'):
        path.write_text(text)
        with pytest.raises(HistoryError, match="history.json"):
            read_history(str(path))
