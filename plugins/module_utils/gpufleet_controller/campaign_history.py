# SPDX-License-Identifier: Apache-2.0
"""What the journal says: which campaign is unfinished, which nodes campaigns still keep out of service, how a batch
went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import campaign_journal as steps
from .campaign_journal import Record

# Beginning of the reason that a drained node carries in Slurm.
MARK = "gpufleet:"


@dataclass(frozen=True)
class Kept:
    """A node that a campaign took out of service and, by the journal, has not given back."""

    campaign: str
    provider: str


@dataclass
class History:
    """The journal folded up. known: ids of all campaigns. kept: nodes by their name in the inventory."""

    known: list[str] = field(default_factory=list)
    unfinished: str = ""
    target: dict[str, list[str]] = field(default_factory=dict)
    started: str = ""
    kept: dict[str, Kept] = field(default_factory=dict)

    def marks(self) -> list[str]:
        """Reasons by which our drains are known."""
        return [MARK + campaign for campaign in self.known]


def fold(records: Iterable[Record]) -> History:
    """What is known after all these records."""
    history = History()
    for record in records:
        step, campaign, nodes = record["step"], record["campaign"], record.get("nodes", [])
        if step == steps.CAMPAIGN_STARTED:
            history.known.append(campaign)
            history.unfinished, history.started = campaign, record.get("when", "")
            history.target = dict(record.get("after", {}).get("versions", {}))
        elif step in (steps.CAMPAIGN_COMPLETED, steps.CAMPAIGN_SUPERSEDED):
            history.unfinished, history.target, history.started = "", {}, ""
        elif step == steps.DRAINING:
            history.kept.update({node: Kept(campaign, record.get("provider", "none")) for node in nodes})
        elif step == steps.DRAINED:
            _drop(history.kept, record.get("left", {}))
        elif step == steps.RELEASED:
            # somebody else's by now: never given back by us
            _drop(history.kept, [*nodes, *record.get("left", {})])
        elif step == steps.PLANNED:
            # found to be in service or somebody else's, whatever the journal said before
            _drop(history.kept, record.get("let_go", []))
    return history


def _drop(kept: dict[str, Kept], nodes: Iterable[str]) -> None:
    for node in nodes:
        kept.pop(node, None)


@dataclass(frozen=True)
class BatchOutcome:
    """How a batch of one run went. failed: everything that is neither back in service nor somebody else's."""

    number: int
    nodes: list[str]
    left: Mapping[str, str]
    refused: Mapping[str, str]
    back: list[str]
    reasons: Mapping[str, str]

    @property
    def failed(self) -> list[str]:
        """Nodes that cost the campaign something, in the order of the batch."""
        return [node for node in self.nodes if node not in self.left and node not in self.back]


def batch_outcomes(records: Sequence[Record], run: str) -> list[BatchOutcome]:
    """All batches that a run began, in order. What a batch did not get to write down did not happen."""
    batches: dict[int, dict[str, Any]] = {}
    for record in records:
        number = record.get("batch")
        if record.get("run") != run or number is None:
            continue
        batch = batches.setdefault(number, {"nodes": [], "left": {}, "refused": {}, "back": [], "reasons": {}})
        step = record["step"]
        if step == steps.BATCH_STARTED:
            batch["nodes"] = record["nodes"]
        elif step == steps.DRAINED:
            batch["left"] = record.get("left", {})
            batch["refused"] = record.get("refused", {})
        elif step == steps.JUDGED:
            batch["reasons"] = record.get("failed", {})
        elif step == steps.RELEASED:
            batch["back"] = record["nodes"]
            batch["left"] = {**batch["left"], **record.get("left", {})}
    return [BatchOutcome(number, **batches[number]) for number in sorted(batches)]
