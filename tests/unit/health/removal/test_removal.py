# SPDX-License-Identifier: Apache-2.0
"""No evidence, no pass: whatever is taken away from a healthy node's answers, no check that needed it stays ok.

Each registered probe is emptied, cut, garbled, timed out, and answered by its tool's error or by another tool. Then no
check that needs it may be ok, checks that do not read it say the very same as before, none breaks, and a check that
became unknown names the probe.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health.evaluation import evaluate
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.probe import Probe, ProbeResult
from ansible.module_utils.gpufleet.health.registry import CHECKS, PROBES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.health_node import healthy_node, profile, result

PROFILE = profile()
# Other branches of the driver print other rows.
NODES = {version: healthy_node(version) for version in ("535.261.03", "550.163.01", "555.58.02")}
NODE = "550.163.01"
# A log is not a table: that a line of it is missing cannot be seen. That its end is missing can, by its size.
LOGS = {"kernel.journal", "kernel.dmesg", "fabric_manager.log"}
# Lines that a tool prints in some states only: that one is missing is no sign of anything.
ONLY_SOMETIMES = {"zfs.pool_status": re.compile(r" *scan: ")}  # a pool that was never scrubbed has none


@functools.lru_cache(maxsize=200)  # more would keep every garbled output of a run in memory
def parsed(probe: str, answer: ProbeResult) -> Any:
    return next(one.parse for one in PROBES if one.id == probe)(answer)


def cached(probe: Probe) -> Probe:
    """The probe with a parser that remembers: in a test all outputs but one are always the same."""
    return probe._replace(parse=lambda answer: parsed(probe.id, answer))


CACHED = tuple(cached(probe) for probe in PROBES)


def judged(results: Mapping[str, ProbeResult], checks: Iterable[Any] = CHECKS) -> dict[str, list[Finding]]:
    """Findings by check."""
    found: dict[str, list[Finding]] = {check.id: [] for check in checks}
    for finding in evaluate(tuple(checks), CACHED, results, PROFILE, {}):
        found[finding.check].append(finding)
    return found


@functools.cache
def before(node: str) -> dict[str, list[Finding]]:
    return judged(NODES[node])


def statuses(findings: Iterable[Finding]) -> set[str]:
    return {finding.status for finding in findings}


def said(findings: Iterable[Finding]) -> list[tuple[str, str, str]]:
    """What a check says, without the lines that it quotes."""
    return [(finding.component, finding.status, finding.observed) for finding in findings]


def after_removal(node: str, probe: str, answer: ProbeResult | None) -> dict[str, list[Finding]]:
    """Findings with another answer of one probe (None = none), after what must hold for every check."""
    results = dict(NODES[node])
    if answer is None:
        del results[probe]
    else:
        results[probe] = answer
    found = judged(results)
    for check in CHECKS:
        if probe not in check.reads:
            assert found[check.id] == before(node)[check.id], f"{check.id} does not read {probe}, yet it changed"
        for finding in found[check.id]:
            assert "fault of gpufleet" not in finding.advice + finding.observed, (check.id, finding)
            if finding.status == "unknown" and "unknown" not in statuses(before(node)[check.id]):
                named = finding.observed + " ".join(item.probe for item in finding.evidence)
                assert probe in named, f"{check.id} is unknown and does not name {probe}: {finding}"
    return found


def test_the_node_is_healthy_before() -> None:
    for node in NODES:
        assert set(NODES[node]) == {probe.id for probe in PROBES}, "give tests/health_node.py the new probe's output"
        for findings in before(node).values():
            assert statuses(findings) <= {"ok", "skipped"}, findings


def gone(answer: ProbeResult) -> dict[str, ProbeResult | None]:
    """All the ways in which a whole answer can be gone."""
    other = "total 0\ndrwxr-xr-x 2 root root 40 Sep 21 13:33 a\n-rw-r--r-- 1 root root 12 Sep 21 13:33 b\n"
    return {
        "not in the capture": None,
        "empty": answer._replace(stdout=""),
        "blank": answer._replace(stdout="\n \n"),
        "cut short, as its size tells": answer._replace(
            outcome="truncated", stdout=answer.stdout[: len(answer.stdout) // 2]
        ),
        "timed out": answer._replace(outcome="timeout", rc=None, stdout=""),
        "timed out with a part printed": answer._replace(outcome="timeout", rc=None, stdout=answer.stdout[:200]),
        "no such program": answer._replace(outcome="missing", rc=None, stdout="", why="it is not there"),
        "an error": answer._replace(outcome="failed", rc=1, stdout="", stderr="Segmentation fault\n"),
        "an error on standard output": answer._replace(outcome="failed", rc=255, stdout="Unknown Error\n"),
        "another tool's output": answer._replace(stdout=other),
        "a lost GPU's sentence": answer._replace(
            stdout="Unable to determine the device handle for GPU0000:9B:00.0: GPU is lost.  Reboot the system to"
            " recover this GPU\n"
        ),
        "noise": answer._replace(stdout="".join(chr(33 + (number * 7919) % 90) for number in range(3000))),
    }


@pytest.mark.parametrize("probe", [probe.id for probe in PROBES])
def test_a_whole_answer_is_gone(probe: str) -> None:
    answer = NODES[NODE][probe]
    for how, changed in gone(answer).items():
        found = after_removal(NODE, probe, changed)
        for check in CHECKS:
            if probe in check.needs and statuses(before(NODE)[check.id]) == {"ok"}:
                assert "ok" not in statuses(found[check.id]), f"{check.id} is ok although {probe} is {how}"


@pytest.mark.parametrize("probe", [probe.id for probe in PROBES])
def test_another_probes_answer(probe: str) -> None:
    for other in PROBES:
        answer = NODES[NODE][other.id]
        if other.id == probe or {other.id, probe} <= {"kernel.journal", "kernel.dmesg"}:
            continue
        found = after_removal(NODE, probe, result(probe, answer.stdout[:20000]))
        for check in CHECKS:
            if probe in check.needs and statuses(before(NODE)[check.id]) == {"ok"}:
                assert "ok" not in statuses(found[check.id]), f"{check.id} is ok although {probe} printed {other.id}'s"


def test_nothing_at_all_is_unknown() -> None:
    found = evaluate(CHECKS, PROBES, {}, PROFILE, {})
    assert {finding.status for finding in found} <= {"unknown", "skipped"}
    assert {finding.check for finding in found if finding.status == "unknown"} > {"gpu.ecc", "pcie.link", "kernel.xid"}


# -- single lines ---------------------------------------------------------------------------


def without_line(text: str, number: int) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(lines[:number] + lines[number + 1 :])


def with_line(text: str, number: int, change: Callable[[str], str]) -> str:
    lines = text.splitlines(keepends=True)
    lines[number] = change(lines[number])
    return "".join(lines)


# Other values that the tool could have printed there.
GARBLED: tuple[Callable[[str], str], ...] = (
    lambda line: re.sub(r"\d+(?=\D*$)", lambda match: str(int(match[0]) + 3), line),
    lambda line: re.sub(r"(?<=[ :>])0(?=[ <\n])", "7", line),
    lambda line: re.sub(
        r"Enabled|Disabled|Yes|No\b",
        lambda m: {"Enabled": "Disabled", "Disabled": "Enabled", "Yes": "No"}.get(m[0], "Yes"),
        line,
    ),
    lambda line: re.sub(r"(?<=[a-zA-Z])([+-])(?=\s)", lambda match: "-" if match[1] == "+" else "+", line),
    lambda line: re.sub(r"x16|x4|x2\b", "x1", line),
    lambda line: re.sub(r"32GT/s|16GT/s", "2.5GT/s", line),
    lambda line: re.sub(r"ONLINE|active|running|Completed|Success|identity", "FAULTED", line),
)


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, str, int]:
    """A node, a probe whose output is no log, and the number of a line of it."""
    node = draw(st.sampled_from(sorted(NODES)))
    probes = [probe.id for probe in PROBES if probe.id not in LOGS and NODES[node][probe.id].stdout]
    if node != NODE:
        probes = [probe for probe in probes if probe.startswith("nvidia_smi.")]
    probe = draw(st.sampled_from(probes))
    return node, probe, draw(st.integers(0, len(NODES[node][probe].stdout.splitlines()) - 1))


SETTINGS = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@settings(SETTINGS, max_examples=600)
@given(lines())
def test_a_line_with_a_value_that_a_check_reads_is_deleted(line: tuple[str, str, int]) -> None:
    node, probe, number = line
    answer = NODES[node][probe]
    deleted = after_removal(node, probe, answer._replace(stdout=without_line(answer.stdout, number)))
    readers = [check for check in CHECKS if probe in check.needs and "ok" in statuses(deleted[check.id])]
    if probe in ONLY_SOMETIMES and ONLY_SOMETIMES[probe].match(answer.stdout.splitlines()[number]):
        return
    for change in GARBLED if readers else ():
        garbled = with_line(answer.stdout, number, change)
        if garbled == answer.stdout:
            continue
        found = after_removal(node, probe, answer._replace(stdout=garbled))
        for check in readers:
            now = found[check.id]
            reads_it = said(now) != said(before(node)[check.id]) and "unknown" not in statuses(now)
            assert not reads_it, (
                f"{check.id} reads line {number} of {probe} ({answer.stdout.splitlines()[number]!r}) and is still ok "
                f"without it: {deleted[check.id]}"
            )


@settings(SETTINGS, max_examples=150)
@given(lines(), st.integers(0, 400))
def test_the_end_is_cut_and_nobody_noted_the_size(line: tuple[str, str, int], characters: int) -> None:
    """A capture made by hand has no meta.json: the cut must show in the text, or the check must not have needed it."""
    node, probe, number = line
    answer = NODES[node][probe]
    kept = "".join(answer.stdout.splitlines(keepends=True)[:number])
    after_removal(node, probe, answer._replace(stdout=kept + answer.stdout[len(kept) :][:characters]))


@settings(SETTINGS, max_examples=150)
@given(lines(), st.binary(min_size=1, max_size=40))
def test_a_line_is_overwritten_with_noise(line: tuple[str, str, int], noise: bytes) -> None:
    node, probe, number = line
    answer = NODES[node][probe]
    text = with_line(answer.stdout, number, lambda _line: noise.decode("utf-8", "replace") + "\n")
    after_removal(node, probe, answer._replace(stdout=text))
