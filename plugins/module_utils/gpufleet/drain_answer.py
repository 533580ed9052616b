# SPDX-License-Identifier: Apache-2.0
"""What a command of the user's that drains or gives back nodes says about single nodes."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

# Words that begin a line about one node; all other lines are for people.
REFUSED, LEFT = "refused", "left"


class DrainAnswer(NamedTuple):
    """refused: nodes that could not be freed, with the reason. left: nodes that are somebody else's."""

    refused: dict[str, str]
    left: dict[str, str]


def parse_answer(text: str, nodes: Collection[str]) -> DrainAnswer:
    """`refused NODE WHY` and `left NODE WHY` in what the command printed; lines about other nodes say nothing."""
    answer = DrainAnswer({}, {})
    for line in text.splitlines():
        word, _blank, rest = line.strip().partition(" ")
        name, _blank, why = rest.strip().partition(" ")
        if name in nodes and word in (REFUSED, LEFT):
            getattr(answer, word)[name] = why.strip() or "the command gave no reason"
    return answer
