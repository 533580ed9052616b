# SPDX-License-Identifier: Apache-2.0
"""Compare the nodes of a run with each other: what most have in common is what the others are measured by."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

NEXT_STEP = (
    "make these nodes like the others, or say in the profile what is right (docs/node-health.md, 'Compare the nodes')"
)
# Different values that a line names; a fleet where each node differs is told by their number.
MAX_VALUES = 4
MAX_VALUE_CHARACTERS = 80


def differences(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, list[dict[str, str]]]:
    """Notes for the summary, by the names of the nodes that differ.

    :arg nodes: for each node what its health check gives as ``comparison``: ``kind``, and ``values``, text by name.
        Nodes of one kind are compared. A node without a value is left out: that nobody could read it is a finding of
        the check that needs it.

    A value that more than half of the nodes have is right, and only nodes with another one get a note. Where no value
    has a majority, all nodes of the kind get one, since nobody knows which is right.
    """
    kinds: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for node, comparison in nodes.items():
        for name, value in comparison["values"].items():
            kinds[comparison["kind"]][name][node] = str(value)
    notes: dict[str, list[dict[str, str]]] = defaultdict(list)
    for values_by_name in kinds.values():
        for name, values in values_by_name.items():
            for node, reason in _reasons(name, values).items():
                notes[node].append({"reason": reason, "next_step": NEXT_STEP, "severity": "warn"})
    return dict(notes)


def _reasons(name: str, values: Mapping[str, str]) -> dict[str, str]:
    """What to say of the nodes that differ in one value."""
    ranking = Counter(values.values()).most_common()
    if len(ranking) < 2:
        return {}
    most, count = ranking[0]
    if count * 2 > len(values):
        common = f"{count} of {len(values)} nodes have {_short(most)}"
        return {
            node: f"differs from the other nodes: {name} is {_short(value)}; {common}"
            for node, value in values.items()
            if value != most
        }
    named = [f"{_short(value)} ({number})" for value, number in ranking[:MAX_VALUES]]
    if len(ranking) > MAX_VALUES:
        named.append(f"and {len(ranking) - MAX_VALUES} more")
    reason = f"the nodes differ, and no value has a majority: {name} is {', '.join(named)}"
    return dict.fromkeys(values, reason)


def _short(value: str) -> str:
    if len(value) <= MAX_VALUE_CHARACTERS:
        return value or "empty"
    return f"{value[: MAX_VALUE_CHARACTERS - 4]} ..."
