# SPDX-License-Identifier: Apache-2.0
"""What Slurm says of nodes, and which of them may be drained or given back.

A node belongs to whoever gave the reason of its drain. Ours are known by reasons that begin with one of our marks; all
else that keeps a node from jobs (DRAIN, DOWN, FAIL) is somebody else's and is never touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

# scontrol(1), "show node": characters that stand behind a base state (not responding, powered down, ...).
_SUFFIXES = "*~#!%$@^-+"
# Base states and flags under which a node takes no jobs although nobody drained it.
_OUT_OF_SERVICE = frozenset({"DOWN", "ERROR", "FAIL", "FAILING", "FUTURE", "UNKNOWN"})
_POWERED_OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})
# Base states and flags under which something of a job is on the node.
_BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
_NOT_RESPONDING = "NOT_RESPONDING"


class SlurmAnswerError(ValueError):
    """scontrol printed what cannot be understood; the message shows it."""


class SlurmNode(NamedTuple):
    """One node as Slurm sees it. states: base state and flags. reason without its author; empty where there is none.
    reason_by: who gave the reason and when (root@2026-11-30T19:45:00), empty where Slurm does not say.
    """

    name: str
    states: tuple[str, ...]
    reason: str
    reason_by: str

    @property
    def drained(self) -> bool:
        """Takes no new jobs because somebody said so; jobs may still run."""
        return "DRAIN" in self.states

    @property
    def busy(self) -> bool:
        """Something of a job is on it."""
        return not _BUSY.isdisjoint(self.states)

    @property
    def in_service(self) -> bool:
        """Takes jobs, or would if it had room."""
        return not self.drained and _OUT_OF_SERVICE.isdisjoint(self.states) and _NOT_RESPONDING not in self.states

    def owner(self, marks: Iterable[str]) -> str:
        """`ours`, `other` (somebody else keeps it from jobs) or `free`."""
        out = not _OUT_OF_SERVICE.isdisjoint(self.states) or not _POWERED_OFF.isdisjoint(self.states)
        if self.drained and is_marked(self.reason, marks):
            return "ours"
        return "other" if self.drained or out else "free"

    def as_dict(self, marks: Iterable[str]) -> dict[str, object]:
        """For a module's result."""
        return {
            "states": list(self.states),
            "reason": self.reason,
            "reason_by": self.reason_by,
            "owner": self.owner(marks),
            "busy": self.busy,
            "in_service": self.in_service,
        }


def is_marked(reason: str, marks: Iterable[str]) -> bool:
    """The reason is a mark, or begins with one: Slurm appends " : Not responding" and the like to a reason."""
    return any(reason == mark or re.match(re.escape(mark) + r"[\s:]", reason) for mark in marks)


def parse_nodes(text: str) -> dict[str, SlurmNode]:
    """The nodes in what `scontrol --oneliner show node` printed.

    Raises:
        SlurmAnswerError: a line that names a node, but no state.
    """
    nodes = {}
    for line in text.splitlines():
        name = re.match(r"NodeName=(\S+)", line)
        if name is None:
            continue
        state = re.search(r"\sState=(\S+)", line)
        if state is None:
            raise SlurmAnswerError(f"scontrol says nothing of the state of {name[1]}: {line[:300]}")
        # The last field of old releases, one of the last of new ones; whoever gave it may have written anything in it.
        reason = re.search(r"\sReason=(.*?)(?: \[([^\[\]\s]+@[0-9T:-]+)\])?(?=\s+[A-Z][A-Za-z]+=|\s*$)", line)
        nodes[name[1]] = SlurmNode(
            name[1], _states(state[1]), reason[1].strip() if reason else "", (reason[2] or "") if reason else ""
        )
    return nodes


def _states(text: str) -> tuple[str, ...]:
    """IDLE*+DRAIN becomes (IDLE, NOT_RESPONDING, DRAIN), which is how newer releases write it."""
    base, *flags = text.split("+")
    found = [base.rstrip(_SUFFIXES)]
    if "*" in base and _NOT_RESPONDING not in flags:
        found.append(_NOT_RESPONDING)
    # sinfo's short forms, which some releases print in place of base state and flag
    if found[0] in ("DRAINED", "DRAINING"):
        found[0:1] = ["IDLE" if found[0] == "DRAINED" else "MIXED", "DRAIN"]
    return (*found, *(flag.rstrip(_SUFFIXES) for flag in flags))


def parse_jobs(text: str) -> list[tuple[str, str, str]]:
    """Jobs as (id, user, nodes) in what squeue printed with the format %A|%u|%N."""
    rows = (line.strip().split("|") for line in text.splitlines())
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]


def to_drain(nodes: Mapping[str, SlurmNode], wanted: Sequence[str], marks: Sequence[str]) -> list[str]:
    """Those of the wanted nodes that nobody keeps from jobs yet."""
    return [name for name in wanted if name in nodes and nodes[name].owner(marks) == "free"]


def to_resume(nodes: Mapping[str, SlurmNode], wanted: Sequence[str], marks: Sequence[str]) -> list[str]:
    """Those of the wanted nodes that we drained, and nobody has taken over since."""
    return [name for name in wanted if name in nodes and nodes[name].owner(marks) == "ours"]
