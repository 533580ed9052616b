# SPDX-License-Identifier: Apache-2.0
"""A small node of its own: two probes and a few checks, so that a run is judged without the real ones."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpufleet.health.capture import write_capture
from ansible.module_utils.gpufleet.health.check import Check
from ansible.module_utils.gpufleet.health.finding import Evidence, Finding
from ansible.module_utils.gpufleet.health.node_evidence import NodeEvidence
from ansible.module_utils.gpufleet.health.probe import ParseError, Probe, ProbeResult

REPOSITORY = Path(__file__).resolve().parents[4]
WHEN = 1_796_000_000.0


def parse_fans(result: ProbeResult) -> dict[str, int]:
    """Lines such as "FAN1 4200"."""
    fans = {}
    for line in result.stdout.splitlines():
        name, _blank, speed = line.partition(" ")
        if not speed.isdigit():
            raise ParseError(f"no fan and speed: {line!r}")
        fans[name] = int(speed)
    if not fans:
        raise ParseError("no fan is listed")
    return fans


def fan_speed(evidence: NodeEvidence, profile: Mapping[str, Any]) -> Iterable[Finding]:
    """Fans turn.

    Source: made up.
    """
    slow = {name: speed for name, speed in evidence.facts("fans").items() if speed < 1000}
    for name, speed in slow.items():
        yield Finding(
            f"fan {name}",
            "fail",
            f"{speed} rpm",
            "at least 1000 rpm",
            "reseat",
            "pull the fan and push it in again",
            (Evidence("fans", f"{name} {speed}"),),
            "made up",
        )
    if not slow:
        yield Finding("node", "ok", "all fans turn", evidence=(Evidence("fans"),))


def fan_count(evidence: NodeEvidence, profile: Mapping[str, Any]) -> Iterable[Finding]:
    """All fans are there."""
    count = len(evidence.facts("fans"))
    status = "ok" if count == 3 else "warn"
    yield Finding("node", status, f"{count} fans", "3 fans", "observe", "count them", (Evidence("fans"),))


def door(evidence: NodeEvidence, profile: Mapping[str, Any]) -> Iterable[Finding]:
    """The door is closed."""
    yield Finding("node", "skipped", "nobody says whether it should be")


PROBES = (Probe("fans", parse_fans, argv=("cat", "/nonexistent/fans")), Probe("door", parse_fans, paths=("/dev/null",)))
CHECKS = (
    Check("fan.speed", fan_speed, ("fans",)),
    Check("fan.count", fan_count, ("fans",)),
    Check("door", door, ("door",)),
)


@pytest.fixture
def capture(tmp_path: Path) -> Any:
    """capture("FAN1 4200\\n...") -> path of a capture in which the fans say this; None leaves the probe out."""

    def make(fans: str | None, outcome: str = "done", name: str = "capture") -> str:
        results = {} if fans is None else {"fans": ProbeResult("fans", outcome, 0, fans, "", 0.1, WHEN, True)}
        path = str(tmp_path / name)
        write_capture(path, results, PROBES, WHEN)
        return path

    return make


HEALTHY = "FAN1 4200\nFAN2 4200\nFAN3 4200\n"
SICK = "FAN1 4200\nFAN2 40\nFAN3 40\n"


def profile(**more: Any) -> dict[str, Any]:
    """A valid profile with sections of one's own; it names no check, since those of a test are not the real ones."""
    shipped = yaml.safe_load((REPOSITORY / "profiles" / "lab.yml").read_text())
    return {**shipped, "required_checks": [], "skip_checks": {}, **more}


@pytest.fixture
def profile_file(tmp_path: Path) -> Any:
    """profile_file(key=value) -> path of that profile as JSON."""

    def make(**more: Any) -> str:
        path = tmp_path / "profile.json"
        path.write_text(json.dumps(profile(**more)))
        return str(path)

    return make
