# SPDX-License-Identifier: Apache-2.0
"""Recordings of nvidia-smi by state, and checks run over what probes brought."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpufleet.health import (
    fabric_checks,
    fabric_manager,
    fabric_manager_checks,
    gpu_nic_pairing,
    gpu_topology,
    nvidia_smi_query,
    nvlink_checks,
    nvlink_error_checks,
    nvlink_errors,
    nvlink_status,
    pci_tree,
)
from ansible.module_utils.gpufleet.health.evaluation import evaluate
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.probe import ProbeResult

from tests import nvidia_smi_recordings

REPOSITORY = Path(__file__).resolve().parents[4]
FIXTURES = REPOSITORY / "tests" / "fixtures"
# parsed once for each text: most tests change another probe's output
READ_QUERY = functools.cache(nvidia_smi_query.parse_query_text)
PROBES = tuple(
    probe._replace(parse=lambda result: READ_QUERY(result.stdout)) if probe.id == "nvidia_smi.query" else probe
    for module in (
        nvlink_status,
        nvlink_errors,
        gpu_topology,
        fabric_manager,
        gpu_nic_pairing,
        nvidia_smi_query,
        pci_tree,
    )
    for probe in module.PROBES
)
CHECKS = (
    nvlink_checks.CHECKS
    + nvlink_error_checks.CHECKS
    + fabric_checks.CHECKS
    + fabric_manager_checks.CHECKS
    + gpu_nic_pairing.CHECKS
)
FOLDERS = {
    "q-x": "nvidia_smi.query",
    "nvlink-s": "nvidia_smi.nvlink_status",
    "nvlink-e": "nvidia_smi.nvlink_errors",
    "topo-m": "nvidia_smi.topology",
}

Results = dict[str, ProbeResult]
Judge = Callable[..., list[Finding]]


def done(probe: str, stdout: str, rc: int = 0, stderr: str = "") -> ProbeResult:
    return ProbeResult(probe, "done" if rc == 0 else "failed", rc, stdout, stderr, 0.1, 1_790_000_000.0, True)


@pytest.fixture(scope="session")
def recordings() -> Mapping[str, Results]:
    """Results by probe for each recorded state of nvidia-smi."""
    return {
        state: {FOLDERS[name]: done(FOLDERS[name], *told) for name, told in commands.items() if name in FOLDERS}
        for state, commands in nvidia_smi_recordings.recordings().items()
    }


@pytest.fixture
def profile() -> dict[str, Any]:
    """The profile of the XE9680 with H100, requiring no check: what is skipped stays skipped."""
    shipped: dict[str, Any] = yaml.safe_load((REPOSITORY / "profiles" / "xe9680-h100.yml").read_text())
    return {**copy.deepcopy(shipped), "required_checks": []}


@pytest.fixture
def judge(profile: dict[str, Any]) -> Judge:
    """The findings of some checks (ids) over the results of probes, by a profile or that of the XE9680."""

    def run(results: Results, *ids: str, by: Mapping[str, Any] | None = None) -> list[Finding]:
        chosen = [check for check in CHECKS if check.id in ids]
        assert len(chosen) == len(ids)
        return evaluate(chosen, PROBES, results, profile if by is None else by, {})

    return run


@pytest.fixture
def fixture_text() -> Callable[[str], str]:
    """The text of a file below tests/fixtures/nvlink."""
    return lambda name: (FIXTURES / "nvlink" / name).read_text()


@pytest.fixture
def results_of() -> Callable[..., Results]:
    """Results of probes that ended well, from their outputs by probe id."""
    return lambda outputs: {probe: done(probe, text) for probe, text in outputs.items()}


@pytest.fixture
def told() -> Callable[[Sequence[Finding]], dict[tuple[str, str], str]]:
    """Status by check and component of all findings that are not ok or skipped."""
    return lambda found: {
        (finding.check, finding.component): finding.status
        for finding in found
        if finding.status not in ("ok", "skipped")
    }
