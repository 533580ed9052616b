# SPDX-License-Identifier: Apache-2.0
"""What the controller must have. The one place that states the supported range of ansible-core and Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .preflight_findings import Finding

# (from, up to but not including). requirements/ pins the exact version that is tested.
ANSIBLE_CORE = ((2, 21), (2, 22))
PYTHON = (3, 12)  # what ansible-core 2.21 needs on a controller
LIBRARIES = {
    "netaddr": "compares addresses and networks",
    "jmespath": "community.general.json_query",
}
_SETUP = "run make setup, then: source .venv/bin/activate"


def controller_findings(
    core_version: str, python_version: Sequence[int], can_import: Callable[[str], bool]
) -> list[Finding]:
    """:arg can_import: tells whether a Python library can be imported."""
    findings = []
    low, high = (".".join(str(number) for number in bound) for bound in ANSIBLE_CORE)
    numbers = tuple(int(number) for number in re.findall(r"\d+", core_version)[:2])
    # A pre-release of the upper bound (2.22.0b1) has its numbers, so it is out too.
    if not ANSIBLE_CORE[0] <= numbers < ANSIBLE_CORE[1]:
        findings.append(Finding("ansible-core", core_version, f">={low},<{high}", _SETUP))
    if tuple(python_version[:2]) < PYTHON:
        found = ".".join(str(number) for number in python_version[:3])
        findings.append(Finding("Python of the controller", found, f"{PYTHON[0]}.{PYTHON[1]} or later", _SETUP))
    for library, purpose in LIBRARIES.items():
        if not can_import(library):
            findings.append(
                Finding(f"Python library {library} ({purpose})", "it cannot be imported", "it is installed", _SETUP)
            )
    return findings
