# SPDX-License-Identifier: Apache-2.0
"""Preflight's view of the controller, and the message that lists all findings."""

import pytest
from ansible.module_utils.gpufleet_controller.preflight_controller import LIBRARIES, controller_findings
from ansible.module_utils.gpufleet_controller.preflight_findings import Finding, Findings


@pytest.mark.parametrize("version", ["2.21.0", "2.21.5", "2.21.99.post0"])
def test_supported_core_passes(version: str) -> None:
    assert controller_findings(version, (3, 12, 0), lambda library: True) == []


@pytest.mark.parametrize("version", ["2.20.10", "2.22.0", "2.22.0b1", "2.22.0.dev0", "2.3.21", "3.21.0"])
def test_other_core_is_refused(version: str) -> None:
    (finding,) = controller_findings(version, (3, 13, 0), lambda library: True)
    assert (finding.where, finding.found, finding.expected) == ("ansible-core", version, ">=2.21,<2.22")
    assert "make setup" in finding.next_step


def test_old_python_and_missing_libraries_are_refused() -> None:
    findings = controller_findings("2.21.5", (3, 11, 9), lambda library: False)
    assert [finding.found for finding in findings] == ["3.11.9"] + ["it cannot be imported"] * len(LIBRARIES)


def test_message_lists_each_problem_once_with_all_its_hosts() -> None:
    findings = Findings()
    same = Finding("node_profile", "it is not set", "a name", "set it")
    for number in (1, 2, 3, 7):
        findings.add(same, f"gpu-{number:03}")
    findings.add(Finding("ansible-core", "2.20.1", ">=2.21,<2.22", "run make setup"))
    assert len(findings) == 2
    assert findings.message() == (
        "Preflight found 2 problems. No node was touched.\n"
        "\n"
        " 1. node_profile of gpu-[001-003,007] (4 hosts)\n"
        "    found:     it is not set\n"
        "    expected:  a name\n"
        "    next step: set it\n"
        "\n"
        " 2. ansible-core\n"
        "    found:     2.20.1\n"
        "    expected:  >=2.21,<2.22\n"
        "    next step: run make setup"
    )
    assert findings.as_data()[0]["hosts"] == ["gpu-[001-003,007]"]
