# SPDX-License-Identifier: Apache-2.0
"""Preflight knows the health checks: a profile that names one that does not exist is refused."""

from pathlib import Path

import pytest
from ansible.module_utils.gpufleet_controller.preflight_profiles import profile_findings

PROFILES = str(Path(__file__).resolve().parents[3] / "profiles")


@pytest.mark.parametrize("name", ["lab", "xe9680-h100"])
def test_shipped_profiles_name_checks_that_exist(name: str) -> None:
    assert profile_findings(PROFILES, name, [])[1] == []


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ({"required_checks": ["gpu.ec"]}, "required_checks[0]"),
        ({"skip_checks": {"gpu.ec@GPU 3 *": "ticket 4711"}}, "skip_checks.gpu.ec@GPU 3 *"),
    ],
)
def test_a_check_that_does_not_exist_is_refused(override: dict[str, object], key: str) -> None:
    (finding,) = profile_findings(PROFILES, "xe9680-h100", [("node_profile_overrides_host", override)])[1]
    assert finding.where == f"profile key {key}"
    assert "did you mean 'gpu.ecc'?" in finding.found
    assert "node_profile_overrides_host" in finding.next_step


def test_a_prefix_is_a_check_too() -> None:
    layers = [("node_profile_overrides_fleet", {"required_checks": ["gpu"], "skip_checks": {"zfs": "no pool here"}})]
    assert profile_findings(PROFILES, "xe9680-h100", layers)[1] == []
