# SPDX-License-Identifier: Apache-2.0
"""What preflight found wrong, and the one message that lists all of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from .node_names import fold_names


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. The same finding on many hosts is listed once."""

    where: str  # variable, file or group
    found: str
    expected: str
    next_step: str


class Findings:
    """All findings of a run, each with the hosts that have it (none: it concerns the run as a whole)."""

    def __init__(self) -> None:
        self._hosts: dict[Finding, set[str]] = {}

    def add(self, finding: Finding, *hosts: str) -> None:
        self._hosts.setdefault(finding, set()).update(hosts)

    def extend(self, findings: Iterable[Finding], *hosts: str) -> None:
        for finding in findings:
            self.add(finding, *hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    def as_data(self) -> list[dict[str, object]]:
        """For the task's result: one dict for each finding, with its hosts folded into ranges."""
        return [{**vars(finding), "hosts": fold_names(hosts)} for finding, hosts in self._hosts.items()]

    def message(self) -> str:
        """The message a person reads: numbered, each with where, found, expected and next step."""
        count = len(self._hosts)
        lines = [f"Preflight found {count} problem{'s' * (count != 1)}. No node was touched."]
        for number, (finding, hosts) in enumerate(self._hosts.items(), 1):
            where = finding.where
            if hosts:
                counted = f" ({len(hosts)} hosts)" if len(hosts) > 1 else ""
                where += f" of {', '.join(fold_names(hosts))}{counted}"
            lines.append(f"\n{number:2}. {where}")
            for label, text in (
                ("found", finding.found),
                ("expected", finding.expected),
                ("next step", finding.next_step),
            ):
                lines.append(textwrap.indent(f"{label + ':':<11}{text}", "    "))
        return "\n".join(lines)
