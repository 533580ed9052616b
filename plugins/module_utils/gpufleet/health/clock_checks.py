# SPDX-License-Identifier: Apache-2.0
"""Whether the clock follows a time server, and how far it is off (what the role time_sync sets)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..chrony import (
    SOURCES,
    TRACKING,
    ChronyParseError,
    Source,
    Tracking,
    describe_servers,
    parse_sources,
    parse_tracking,
)
from .check import Check, Profile
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .probe import NoEvidence, ParseError, Probe, ProbeResult

TRACKING_PROBE = "clock.tracking"
SOURCES_PROBE = "clock.sources"

# chronyc's client.c: what it says where chronyd does not run
_NO_DAEMON = "Cannot talk to daemon"
_REFERENCE = "profile, platform.clock"


class ClockState(NamedTuple):
    """tracking: None where chronyd does not run. said: chronyc's line."""

    tracking: Tracking | None
    said: str


def check_skew(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """The clock is right to within platform.clock.max_tracking_offset_s; beyond max_offset_s a node must not train.

    A wrong clock breaks TLS and signed package lists, and puts log lines of a fault in the wrong order. The offset is
    chrony's own estimate, so it counts only while a server is followed.

    Source: platform.clock of the profile; role time_sync
    """
    limits = profile["platform"]["clock"]
    state: ClockState = evidence.facts(TRACKING_PROBE)
    followed = _followed(evidence.facts(SOURCES_PROBE))
    excerpt = (Evidence(TRACKING_PROBE, state.said),)
    if state.tracking is None or not state.tracking.synchronised or followed is None:
        silent = SOURCES_PROBE if state.tracking is not None and state.tracking.synchronised else TRACKING_PROBE
        raise NoEvidence(silent, "no server is followed, so nobody knows how far the clock is off")
    offset = state.tracking.offset_s
    expected = f"within {limits['max_tracking_offset_s']:g} s of {followed.name}"
    observed = f"{offset:+.6f} s off {followed.name} (stratum {state.tracking.stratum})"
    if abs(offset) <= limits["max_tracking_offset_s"]:
        yield Finding("node", "ok", observed, expected, evidence=excerpt, reference=_REFERENCE)
        return
    far = abs(offset) > limits["max_offset_s"]
    yield Finding(
        "node",
        "fail" if far else "warn",
        observed,
        f"within {limits['max_offset_s']:g} s" if far else expected,
        "restart_service" if far else "observe",
        "run playbooks/platform.yml --tags time_sync on this node while no job runs: it sets the clock in one step"
        if far
        else "chrony corrects this slowly by itself: look again in an hour (chronyc tracking)",
        excerpt,
        _REFERENCE,
    )


def check_source(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """chronyd runs and follows one of the profile's time servers, and all of these answer.

    Source: platform.clock.servers of the profile; role time_sync
    """
    servers: Sequence[str] = [server["address"] for server in profile["platform"]["clock"]["servers"]]
    state: ClockState = evidence.facts(TRACKING_PROBE)
    sources: list[Source] = evidence.facts(SOURCES_PROBE)
    described = "; ".join(describe_servers(sources, servers)) if servers else ""
    seen = (Evidence(TRACKING_PROBE, state.said), Evidence(SOURCES_PROBE, described))
    followed = _followed(sources)
    expected = f"one of {', '.join(servers)} is followed" if servers else "a time server is followed"
    if state.tracking is None:
        advice = "start it (systemctl status chrony chronyd says why it ended)"
        yield Finding("node", "warn", "chronyd does not run", expected, "restart_service", advice, seen, _REFERENCE)
    elif not state.tracking.synchronised or followed is None:
        observed = f"no time server is followed{f': {described}' if described else ''}"
        advice = "check that the node reaches its NTP servers over UDP (chronyc sources on the node)"
        yield Finding("node", "warn", observed, expected, "observe", advice, seen, _REFERENCE)
    elif servers and followed.name not in servers:
        observed = f"{followed.name} is followed, which the profile does not name: {described}"
        advice = "run the role time_sync on this node, or correct platform.clock.servers"
        yield Finding("node", "warn", observed, expected, "observe", advice, seen, _REFERENCE)
    elif silent := [name for name in servers if _reach(sources, name) == 0]:
        observed = f"{followed.name} is followed, but these give no answer: {', '.join(silent)}"
        advice = "check these servers, or the way to them: with one server left nobody notices when it is wrong"
        yield Finding("node", "warn", observed, "all servers answer", "observe", advice, seen, _REFERENCE)
    else:
        yield Finding("node", "ok", f"{followed.name} is followed", expected, evidence=seen, reference=_REFERENCE)


def _followed(sources: Iterable[Source]) -> Source | None:
    return next((source for source in sources if source.state == "*" and source.reach), None)


def _reach(sources: Iterable[Source], name: str) -> int:
    return next((source.reach for source in sources if source.name == name), 0)


def _parse_tracking(result: ProbeResult) -> ClockState:
    if result.outcome == "failed":
        _no_daemon(result)
        return ClockState(None, _NO_DAEMON)
    try:
        return ClockState(parse_tracking(result.stdout), result.stdout.strip())
    except ChronyParseError as error:
        raise ParseError(str(error)) from error


def _parse_sources(result: ProbeResult) -> list[Source]:
    if result.outcome == "failed":
        _no_daemon(result)
        return []
    try:
        return parse_sources(result.stdout)
    except ChronyParseError as error:
        raise ParseError(str(error)) from error


def _no_daemon(result: ProbeResult) -> None:
    """Raises ParseError where chronyc failed for another reason than that chronyd does not run."""
    if _NO_DAEMON not in result.stdout + result.stderr:
        raise ParseError(f"chronyc {result.says()}")


PROBES = (
    # chronyc gives up by itself after about 5 s without chronyd
    Probe(TRACKING_PROBE, _parse_tracking, argv=TRACKING, deadline_s=15, parses=("done", "failed")),
    Probe(SOURCES_PROBE, _parse_sources, argv=SOURCES, deadline_s=15, parses=("done", "failed")),
)
CHECKS = (
    Check("clock.skew", check_skew, (TRACKING_PROBE, SOURCES_PROBE)),
    Check("clock.source", check_source, (TRACKING_PROBE, SOURCES_PROBE)),
)
