# SPDX-License-Identifier: Apache-2.0
"""How full the node's own file systems are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from .check import Check, Profile
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .probe import ParseError, Probe, ProbeResult

USAGE = "file_systems.usage"

_HEADER = "1K-blocks Used Avail Use% Inodes IUsed IUse% Mounted on"
_COUNT = r"(-|\d+)"
_SHARE = r"(-|\d+%)"
_ROW = re.compile(rf"{_COUNT} +{_COUNT} +{_COUNT} +{_SHARE} +{_COUNT} +{_COUNT} +{_SHARE} (\S.*)$")
# They are full by design, or live in memory.
_LEFT_OUT = ("tmpfs", "devtmpfs", "squashfs", "overlay", "iso9660", "efivarfs")


class FileSystem(NamedTuple):
    """used_percent, inodes_used_percent: as df rounds them (up); None where it has no such number."""

    mountpoint: str
    used_percent: int | None
    inodes_used_percent: int | None
    line: str


def parse_usage(text: str) -> tuple[FileSystem, ...]:
    """From `df --local --total --output=size,used,avail,pcent,itotal,iused,ipcent,target`. Raises ParseError.

    The row of totals must be the sum of the others, so that a lost row is noticed.
    """
    lines = text.splitlines()
    if not lines or " ".join(lines[0].split()) != _HEADER:
        raise ParseError(f"expected the heading of df, got {lines[0] if lines else 'nothing'!r}")
    rows = []
    for line in lines[1:]:
        if not (found := _ROW.match(line.strip())):
            raise ParseError(f"no row of df: {line!r}")
        rows.append((found, line.strip()))
    if len(rows) < 2 or rows[-1][0][8] != "total":
        raise ParseError(f"df's row of totals is missing behind {lines[-1]!r}")
    total = rows.pop()[0]
    for column in (1, 2, 5, 6):
        counted = sum(int(found[column]) for found, __ in rows if found[column] != "-")
        if total[column] != "-" and counted != int(total[column]):
            raise ParseError(f"the rows of df add up to {counted}, its total is {total[column]}: {lines[-1]!r}")
    return tuple(FileSystem(found[8], _percent(found[4]), _percent(found[7]), line) for found, line in rows)


def _percent(text: str) -> int | None:
    return None if text == "-" else int(text.rstrip("%"))


def check_usage(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """No local file system is full, by bytes or by inodes.

    Source: limits.file_system_used_percent of the profile; imbue-ai/cluster-health, DiskSpaceHealthCheck
    """
    limit = profile["limits"]["file_system_used_percent"]
    found: tuple[FileSystem, ...] = evidence.facts(USAGE)
    full = 0
    for one in found:
        shares = {"space": one.used_percent, "inodes": one.inodes_used_percent}
        over = {what: share for what, share in shares.items() if share is not None and share >= limit}
        if over:
            full += 1
            yield Finding(
                f"file system {one.mountpoint}",
                "fail",
                ", ".join(f"{what} {share} % used" for what, share in over.items()),
                f"below {limit} %",
                "inspect",
                f"find what fills it (du -xh --max-depth=2 {one.mountpoint} | sort -h | tail) and remove that",
                (Evidence(USAGE, one.line),),
                "profile, limits.file_system_used_percent",
            )
    if not full:
        most = max(found, key=lambda one: one.used_percent or 0)
        text = f"{len(found)} file systems below {limit} %; {most.mountpoint} is the fullest with {most.used_percent} %"
        yield Finding("node", "ok", text, evidence=(Evidence(USAGE, most.line),))


def _parse(result: ProbeResult) -> tuple[FileSystem, ...]:
    return parse_usage(result.stdout)


PROBES = (
    Probe(
        USAGE,
        _parse,
        argv=(
            "df",
            "--local",
            "--total",
            "--output=size,used,avail,pcent,itotal,iused,ipcent,target",
            *(word for name in _LEFT_OUT for word in ("-x", name)),
        ),
        deadline_s=20,
    ),
)
CHECKS = (Check("file_systems", check_usage, (USAGE,)),)
