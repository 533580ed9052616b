# SPDX-License-Identifier: Apache-2.0
"""Which nodes a campaign upgrades, in which batches, and how a person reads that."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .node_names import short_names

# Roles that bring each part, in the order of playbooks/gpu_stack.yml: peer memory is built against driver and RDMA.
ROLES: dict[str, tuple[str, ...]] = {
    "rdma": ("rdma_stack", "nvidia_peermem"),
    "driver": ("nvidia_driver", "nvidia_peermem"),
    "docker": ("docker",),
    "toolkit": ("nvidia_container_toolkit",),
    "dcgm": ("dcgm",),
    "exporter": ("dcgm_exporter",),
}
_ORDER = (
    "rdma_stack",
    "nvidia_driver",
    "nvidia_peermem",
    "docker",
    "nvidia_container_toolkit",
    "dcgm",
    "dcgm_exporter",
)


class PlanError(Exception):
    """No plan can be made; next_step says what to do."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


def roles_of(parts: Iterable[str]) -> list[str]:
    """The roles of these parts, each once, in the order in which they depend on each other."""
    wanted = {role for part in parts for role in ROLES[part]}
    return [role for role in _ORDER if role in wanted]


@dataclass(frozen=True)
class Caps:
    """How many nodes may be out at the same time: of the fleet (canary, then batch), and of one group."""

    canary: int
    batch: int
    group: int


@dataclass
class Plan:
    """batches: names of nodes. versions: {node: {part: [what is there, what is wanted]}}, of the nodes in batches."""

    campaign: str
    parts: list[str]
    roles: list[str]
    batches: list[list[str]] = field(default_factory=list)
    versions: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    right: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    not_measured: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        """All nodes in the order of their batches."""
        return [node for batch in self.batches for node in batch]

    def as_dict(self) -> dict[str, Any]:
        """For the file and the task's result."""
        return {**asdict(self), "nodes": self.nodes, "sizes": [len(batch) for batch in self.batches]}


def groups_of_nodes(
    pattern: str, groups: Mapping[str, Sequence[str]], nodes: Iterable[str]
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """({node: its batch group}, {node: its groups} for nodes in none or several) by groups whose names match."""
    matching = [name for name in groups if fnmatch.fnmatchcase(name, pattern)]
    members = {name: frozenset(groups[name]) for name in matching}
    found, wrong = {}, {}
    for node in nodes:
        mine = [name for name in matching if node in members[name]]
        if len(mine) == 1:
            found[node] = mine[0]
        else:
            wrong[node] = mine
    return found, wrong


def make_batches(nodes: Sequence[str], groups: Mapping[str, str], caps: Caps) -> list[list[str]]:
    """Split nodes into batches, always in the same way.

    The first batch is the canary (none with 0). Each batch takes nodes in the order given, passing over those whose
    group already has `caps.group` nodes in it: these come in the next one. It opens no more groups than the two caps
    call for, so that with equal caps a batch is (a part of) one group, whatever the canary took of it.
    """
    waiting = list(nodes)
    groups_at_once = -(-caps.batch // caps.group)
    batches: list[list[str]] = []
    while waiting:
        size = caps.canary if caps.canary and not batches else caps.batch
        taken: list[str] = []
        of_group: Counter[str] = Counter()
        later = []
        for node in waiting:
            group = groups[node]
            may_open = group in of_group or len(of_group) < groups_at_once
            if len(taken) < size and may_open and of_group[group] < caps.group:
                taken.append(node)
                of_group[group] += 1
            else:
                later.append(node)
        batches.append(taken)
        waiting = later
    return batches


def in_order(nodes: Iterable[str], groups: Mapping[str, str], first: Iterable[str]) -> list[str]:
    """Nodes that an earlier run began come first: they are out of service. Then group by group, as in the inventory."""
    begun = frozenset(first)
    names = list(nodes)
    rank: dict[str, int] = {}
    for name in names:
        rank.setdefault(groups[name], len(rank))
    return sorted(names, key=lambda name: (name not in begun, rank[groups[name]]))


def plan_lines(plan: Plan, caps: Caps, provider: str) -> list[str]:
    """The plan as a person reads it."""
    name = f"Campaign {plan.campaign}" if plan.batches else "Nothing to do"
    lines = [f"{name}: {', '.join(plan.parts)}; drain: {provider}"]
    changes: dict[str, list[str]] = {}
    for node, parts in plan.versions.items():
        for part, (there, wanted) in parts.items():
            if there != wanted:
                changes.setdefault(f"{part} {there} -> {wanted}", []).append(node)
    for change, nodes in sorted(changes.items()):
        lines.append(f"  {change:<44} {len(nodes):>4}  {short_names(nodes, 50)}")
    for words, nodes in (
        ("right already, left out", plan.right),
        ("begun by an earlier run, come first", plan.begun),
        ("drained by somebody else, left alone", list(plan.left)),
        ("not measured, left out", plan.not_measured),
        ("kept by a campaign, but outside this run", plan.outside),
    ):
        if nodes:
            lines.append(f"  {words:<44} {len(nodes):>4}  {short_names(nodes, 50)}")
    if not plan.batches:
        return lines
    most = f"at most {caps.batch} nodes, at most {caps.group} of a group"
    lines.append(f"  {len(plan.batches)} batches: canary {caps.canary}, then {most}")
    for number, batch in enumerate(plan.batches, 1):
        kind = "canary" if number == 1 and caps.canary else f"batch {number}"
        of = ", ".join(f"{count} of {group}" for group, count in Counter(plan.groups[node] for node in batch).items())
        lines.append(f"  {kind:<10} {len(batch):>4}  {short_names(batch, 50):<50}  {of}")
    return lines
