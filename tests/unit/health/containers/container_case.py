# SPDX-License-Identifier: Apache-2.0
"""The healthy node with one thing changed, and what the checks of containers and DCGM say of it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

from ansible.module_utils.gpufleet.health.evaluation import evaluate
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.probe import ProbeResult
from ansible.module_utils.gpufleet.health.registry import CHECKS, PROBES

from tests.health_node import healthy_node, profile

NAMES = ("docker", "containers", "dcgm", "dcgm_exporter")
OURS = tuple(check for check in CHECKS if check.id.split(".")[0] in NAMES)
HEALTHY = healthy_node()
Change = Callable[[str], str]


def recounted(text: str) -> str:
    """The output with the number of lines that it has now."""
    kept = [line for line in text.splitlines() if not re.fullmatch(r"end of \d+ lines", line)]
    return "".join(f"{line}\n" for line in (*kept, f"end of {len(kept)} lines"))


def put(old: str, new: str) -> Change:
    """old in place of new, which must be there."""

    def change(text: str) -> str:
        assert old in text, old
        return text.replace(old, new)

    return change


def part(name: str, change: Change | str) -> Change:
    """One part of a script's output changed, or another in its place."""

    def changed(text: str) -> str:
        before, heading, rest = text.partition(f"== {name}\n")
        assert heading, name
        end = re.search(r"^(== |end of \d+ lines$)", rest, re.MULTILINE)
        assert end
        body = change if isinstance(change, str) else change(rest[: end.start()])
        return before + heading + body + rest[end.start() :]

    return changed


def both(*changes: Change) -> Change:
    """One change after the other."""

    def change(text: str) -> str:
        for one in changes:
            text = one(text)
        return text

    return change


def run(
    changes: dict[str, Change | ProbeResult], wanted: dict[str, Any] | None = None, checks: Sequence[str] = ()
) -> list[Finding]:
    """Findings with the output of some probes changed; a path of the profile sets a key."""
    results = dict(HEALTHY)
    for probe, change in changes.items():
        if isinstance(change, ProbeResult):
            results[probe] = change
            continue
        text = change(results[probe].stdout)
        assert text != results[probe].stdout, "nothing was changed"
        results[probe] = results[probe]._replace(stdout=recounted(text) if "\nend of " in text else text)
    data = copy.deepcopy(profile())
    for path, value in (wanted or {}).items():
        node = data
        *parents, last = path.split(".")
        for name in parents:
            node = node[name]
        assert last in node, path
        node[last] = value
    chosen = [check for check in OURS if not checks or check.id in checks]
    return evaluate(chosen, PROBES, results, {**data, "required_checks": []}, {})


def troubles(findings: Sequence[Finding]) -> list[tuple[str, str, str, str]]:
    """Check, component, status and action of what is not right."""
    return [
        (one.check, one.component, one.status, one.action) for one in findings if one.status not in ("ok", "skipped")
    ]


def statuses(findings: Sequence[Finding]) -> dict[str, set[str]]:
    """Statuses by check."""
    found: dict[str, set[str]] = {}
    for one in findings:
        found.setdefault(one.check, set()).add(one.status)
    return found
