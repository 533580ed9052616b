# SPDX-License-Identifier: Apache-2.0
"""A healthy node as probe results, to be altered at one place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.gpufleet.health.check import Check
from ansible.module_utils.gpufleet.health.evaluation import evaluate
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.probe import Probe, ProbeResult

REPOSITORY = Path(__file__).resolve().parents[4]
FIXTURES = REPOSITORY / "tests" / "fixtures"
XE9680 = FIXTURES / "host" / "xe9680"
LAB_NODE = FIXTURES / "host" / "lab-node"


def done(probe: str, stdout: str) -> ProbeResult:
    """A probe that ended well as root."""
    return ProbeResult(probe, "done", 0, stdout, "", 1.0, 1000.0, True)


def xe9680() -> dict[str, ProbeResult]:
    """Probe results of the XE9680 of tests/fixtures/host and tests/fixtures/pci."""
    found = {path.stem: done(path.stem, path.read_text()) for path in XE9680.glob("*.txt")}
    lspci = (FIXTURES / "pci" / "xe9680-h100.lspci.txt").read_text()
    return {**found, "pci.lspci": done("pci.lspci", lspci)}


def lab_node() -> dict[str, ProbeResult]:
    """Probe results recorded on the lab node."""
    found = {path.stem: done(path.stem, path.read_text()) for path in LAB_NODE.glob("*.txt")}
    return {**found, "pci.lspci": done("pci.lspci", (FIXTURES / "pci" / "lab-node.lspci.txt").read_text())}


def profile(name: str = "xe9680-h100") -> dict[str, Any]:
    """A copy of a profile, to be altered."""
    return copy.deepcopy(yaml.safe_load((REPOSITORY / "profiles" / f"{name}.yml").read_text()))


def changed(results: dict[str, ProbeResult], probe: str, change: Callable[[str], str]) -> dict[str, ProbeResult]:
    """The results with one probe's output changed; the change must have changed something."""
    before = results[probe].stdout
    after = change(before)
    assert after != before, "nothing was changed"
    return {**results, probe: results[probe]._replace(stdout=after)}


def judge(
    checks: Iterable[Check], probes: Iterable[Probe], results: dict[str, ProbeResult], wanted: dict[str, Any]
) -> list[Finding]:
    """All findings, without required_checks (which turn what was skipped into unknown)."""
    return evaluate(tuple(checks), tuple(probes), results, {**wanted, "required_checks": []}, {})


def troubles(findings: Iterable[Finding]) -> list[tuple[str, str, str]]:
    """check, component and status of all that is neither ok nor skipped."""
    return [(one.check, one.component, one.status) for one in findings if one.status not in ("ok", "skipped")]
