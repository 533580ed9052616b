# SPDX-License-Identifier: Apache-2.0
"""From findings to one verdict and one action for the node."""

from __future__ import annotations

from collections.abc import Sequence

from .finding import Finding, hardest, worst

# The convention of monitoring plug-ins.
EXIT_CODES = {"ok": 0, "warn": 1, "fail": 2, "unknown": 3}


def verdict(findings: Sequence[Finding]) -> str:
    """ok, warn, unknown or fail: the worst status that was assessed; unknown where nothing was."""
    return worst([finding.status for finding in findings if finding.status != "skipped"])


def action(findings: Sequence[Finding]) -> str:
    """The hardest action that a finding asks for."""
    return hardest([finding.action for finding in findings if finding.status not in ("ok", "skipped")])
