# SPDX-License-Identifier: Apache-2.0
"""What chronyc says, as typed facts, and whether it proves that the clock follows its servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# chronyc(1), field by field; -N prints the names as they stand in the configuration.
TRACKING = ("chronyc", "-c", "-N", "tracking")
SOURCES = ("chronyc", "-c", "-N", "sources")


class ChronyParseError(ValueError):
    """chronyc printed something that is not its report; the message holds the line."""


class Tracking(NamedTuple):
    """Offset in seconds, positive = the clock is ahead of true time."""

    reference: str
    stratum: int
    offset_s: float
    leap: str

    @property
    def synchronised(self) -> bool:
        return self.leap != "Not synchronised" and 0 < self.stratum < 16


class Source(NamedTuple):
    """state: * selected, + combined, - not combined, ? unreachable, x false ticker, ~ too variable.

    reach is the register of the last eight polls; 0 = none of them was answered.
    """

    state: str
    name: str
    reach: int


def parse_tracking(text: str) -> Tracking:
    """`chronyc -c tracking`; raises ChronyParseError for anything else."""
    line = text.strip()
    fields = line.split(",")
    if len(fields) != 14:
        raise ChronyParseError(f"expected the 14 fields of chronyc -c tracking, got: {line!r}")
    try:
        return Tracking(reference=fields[1], stratum=int(fields[2]), offset_s=float(fields[4]), leap=fields[13])
    except ValueError as error:
        raise ChronyParseError(f"no number where chronyc -c tracking has one: {line!r}") from error


def parse_sources(text: str) -> list[Source]:
    """`chronyc -c sources`; raises ChronyParseError naming the first line that is none."""
    found = []
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) != 10:
            raise ChronyParseError(f"expected the 10 fields of chronyc -c sources, got: {line!r}")
        try:
            found.append(Source(state=fields[1], name=fields[2], reach=int(fields[5], 8)))
        except ValueError as error:
            raise ChronyParseError(f"no octal reach register in: {line!r}") from error
    return found


_STATE_WORDS = {
    "?": "answers, but chrony does not use it yet",
    "x": "answers, but its time contradicts the others (false ticker)",
    "~": "answers, but its time varies too much",
    "-": "answers, but chrony prefers others",
    "+": "answers",
    "*": "is followed",
}


def describe_servers(sources: Sequence[Source], servers: Sequence[str]) -> list[str]:
    """One line for each configured server: whether it answered and what chrony makes of it."""
    known = {source.name: source for source in sources}
    lines = []
    for server in servers:
        source = known.get(server)
        if source is None:
            lines.append(
                f"{server}: chronyd does not know it (its name does not resolve, or the configuration is not loaded)"
            )
        elif source.reach == 0:
            lines.append(f"{server}: did not answer")
        else:
            lines.append(f"{server}: {_STATE_WORDS.get(source.state, 'is in state ' + source.state)}")
    return lines


def tracking_fault(
    tracking: Tracking, sources: Sequence[Source], servers: Sequence[str], max_offset_s: float
) -> str | None:
    """Why this is no proof that the clock follows one of `servers` within max_offset_s seconds; None = proven."""
    if not tracking.synchronised:
        return "the clock is not synchronised"
    followed = [source.name for source in sources if source.state == "*"]
    if not followed:
        return "chrony has selected no server"
    if followed[0] not in servers:
        return f"the clock follows {followed[0]}, which is none of the configured servers"
    if abs(tracking.offset_s) > max_offset_s:
        return f"the clock is {tracking.offset_s:+.3f} s off its servers; the limit is {max_offset_s:g} s"
    return None
