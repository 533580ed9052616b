# SPDX-License-Identifier: Apache-2.0
"""DCGM: whether its host engine answers, watches what it should, and what its own health watches say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .check import Check, Profile
from .counted_output import counted, parts_of
from .docker_engine import TIMED_OUT, is_version, not_judged, said_and_status, unit_of
from .finding import Evidence, Finding
from .gpu_facts import normalized_address
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .probe import NoEvidence, ParseError, Probe, ProbeResult

ENGINE = "dcgm.host_engine"
HEALTH = "dcgm.health"
DEADLINE_S = 20
# A GPU that fails can hold up the host engine for good (NVIDIA/NVSentinel#1748, pull request 1574).
_ENGINE_SCRIPT = f"""
echo '== unit'
systemctl show nvidia-dcgm.service --property LoadState,ActiveState,Result
echo '== version'
timeout {DEADLINE_S} dcgmi -v 2>&1
echo "exit status $?"
echo '== gpus'
timeout {DEADLINE_S} dcgmi discovery -l 2>&1
echo "exit status $?"
"""
_HEALTH_SCRIPT = f"""
echo '== watches'
timeout {DEADLINE_S} dcgmi health -f -j 2>&1
echo "exit status $?"
echo '== health'
timeout {DEADLINE_S} dcgmi health -c -j 2>&1
echo "exit status $?"
"""
_VERSION = re.compile(r"^Version\s*:\s*(\d+(?:\.\d+)+)", re.MULTILINE)
_GPU = re.compile(r"\|\s*(\d+)\s*\|\s*Name:.*\n\|\s*\|\s*PCI Bus ID:\s*(\S+)")
# Names of the subsystems in the profile, as dcgmi prints them.
_WATCHES = {"pcie": "PCIe", "memory": "Memory", "inforom": "InfoROM", "thermal": "Thermal", "nvlink": "NVLINK"}
_STATUS = {"Healthy": "ok", "Warning": "warn", "Failure": "fail"}
# What a reset of the GPU does not cure.
_BY_HAND = ("Thermal", "Power", "InfoROM")
_ROLE = "role dcgm"


class HostEngine(NamedTuple):
    """client, engine: versions, both None where nothing answers. hung: whether a question had no answer in time.

    gpus: PCI address by DCGM's number. said: the unit's state, and why there is no answer.
    """

    client: str | None
    engine: str | None
    hung: bool
    gpus: Mapping[str, str]
    said: str


class Incident(NamedTuple):
    """entity: "GPU" or another of DCGM's groups. number: DCGM's. system: "Memory system". health: as printed."""

    entity: str
    number: str
    system: str
    health: str
    words: str


class Health(NamedTuple):
    """watches: subsystems that are on. overall, incidents: what they say, None where nothing is watched."""

    watches: frozenset[str]
    overall: str | None
    incidents: tuple[Incident, ...]


def parse_host_engine(result: ProbeResult) -> HostEngine:
    """Raises ParseError."""
    parts = parts_of(result, ("unit", "version", "gpus"))
    unit = unit_of(parts["unit"])
    said, status = said_and_status(parts["version"], "version")
    listed, listing = said_and_status(parts["gpus"], "gpus")
    ours, __, theirs = "\n".join(said).partition("Hostengine build info")
    client, engine = _VERSION.search(ours), _VERSION.search(theirs)
    if status == 127:  # bash(1): there is no such command
        return HostEngine(None, None, False, {}, "dcgmi is not installed")
    unit = f"nvidia-dcgm.service is {unit}"
    # Killed by timeout, dcgmi leaves nothing of what it had to say.
    if TIMED_OUT in (status, listing):
        return HostEngine(None, None, True, {}, f"{unit}: no answer within {DEADLINE_S} s")
    if listing or status:
        return HostEngine(None, None, False, {}, f"{unit}: {' '.join(listed or said)[-200:]}")
    if client is None or engine is None:
        raise ParseError(f"dcgmi -v printed {' '.join(said)[-200:]!r}")
    gpus = {}
    for number, bus in _GPU.findall("\n".join(listed)):
        address = normalized_address(bus)
        if address is None:
            raise ParseError(f"dcgmi discovery: no PCI address: {bus!r}")
        gpus[number] = address
    count = re.search(r"^(\d+) GPUs? found", "\n".join(listed), re.MULTILINE)
    if count is None or int(count[1]) != len(gpus):
        raise ParseError(f"dcgmi discovery lists {len(gpus)} GPUs and says {count[0] if count else 'no number'}")
    return HostEngine(client[1], engine[1], False, gpus, unit)


def document_of(lines: list[str]) -> dict[str, Any]:
    """The JSON that dcgmi prints, in some commands behind a line of text. Raises ParseError."""
    text = "\n".join(lines)
    try:
        found = json.loads(text[text.index("{") :])
    except ValueError as error:
        raise ParseError(f"dcgmi printed no JSON: {' '.join(lines)[-200:]!r}") from error
    assert isinstance(found, dict)
    return found


def parse_health(result: ProbeResult) -> Health:
    """Raises ParseError."""
    parts = parts_of(result, ("watches", "health"))
    said, status = said_and_status(parts["watches"], "watches")
    if status:
        raise ParseError(f"dcgmi health -f: {_why(said, status)}")
    watches = document_of(said).get("body", {})
    lost = [name for name in _WATCHES.values() if watches.get(name, {}).get("value") not in ("On", "Off")]
    if lost:
        raise ParseError(f"dcgmi health -f says nothing of {', '.join(lost)}")
    on = frozenset(key for key, name in _WATCHES.items() if watches[name]["value"] == "On")
    said, status = said_and_status(parts["health"], "health")
    if "Health watches not enabled" in " ".join(said):
        return Health(on, None, ())
    if status:
        raise ParseError(f"dcgmi health -c: {_why(said, status)}")
    try:
        body = dict(document_of(said)["body"])
        overall = str(body.pop("Overall Health")["value"])
        incidents = tuple(_incidents(body))
    except (KeyError, TypeError, AttributeError) as error:
        raise ParseError(f"dcgmi health -c: it has no {error}") from error
    odd = {overall, *(one.health for one in incidents)} - set(_STATUS)
    if odd:
        raise ParseError(f"dcgmi health -c: no state of health: {', '.join(sorted(odd))}")
    return Health(on, overall, incidents)


def _why(said: list[str], status: int) -> str:
    return f"no answer within {DEADLINE_S} s" if status == TIMED_OUT else " ".join(said)[-200:]


def _incidents(body: dict[str, Any]) -> Iterator[Incident]:
    for entity, group in body.items():
        for number, one in group["children"].items():
            for system, told in one["children"]["Errors"]["children"].items():
                words = " ".join(" ".join(told.get("overflow", [])).split())
                yield Incident(entity, number, system, str(told["value"]), words)


def check_host_engine(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """DCGM's host engine answers, is of the profiled version and of the client's, and has every GPU.

    A host engine that is silent usually waits for a GPU that fails. A client of another version ends with "API version
    mismatch"; before release 4 the packages, the numbers of tests and the JSON were others.

    Source: packages.dcgm of the profile; role dcgm; bug 090; NVIDIA/NVSentinel#1748
    """
    wanted = profile["packages"]["dcgm"]
    skipped = not_judged(profile, "dcgm")
    if skipped:
        yield skipped
        return
    found: HostEngine = evidence.facts(ENGINE)
    seen = (Evidence(ENGINE), Evidence(QUERY))
    if found.engine is None:
        advice = "look at nvidia-smi and the kernel log first, then at journalctl -u nvidia-dcgm"
        status = "fail" if found.hung else "warn"
        yield Finding("node", status, found.said, "it answers", "restart_service", advice, seen, _ROLE)
        return
    gpus = len(evidence.facts(QUERY).gpus)
    troubles = []
    if found.client != found.engine:
        observed = f"the host engine is {found.engine}, its client {found.client}"
        troubles.append((observed, "one version", "restart_service"))
    if int(found.engine.partition(".")[0]) < 4:
        troubles.append((f"version {found.engine}", "release 4 or later", "none"))
    elif not is_version(found.engine, wanted["version"]):
        troubles.append((f"version {found.engine}", f"version {wanted['version']}", "none"))
    if len(found.gpus) != gpus:
        troubles.append((f"it has {len(found.gpus)} GPUs", f"the {gpus} of nvidia-smi", "restart_service"))
    for observed, expected, action in troubles:
        yield Finding("node", "warn", observed, expected, action, "run the role dcgm on this node", seen, _ROLE)
    if not troubles:
        yield Finding("node", "ok", f"version {found.engine} answers and has {gpus} GPUs", evidence=seen)


def check_watches(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """The host engine watches the profiled subsystems: what it does not watch it never reports.

    A restart of the host engine forgets them.

    Source: packages.dcgm.watches of the profile; role dcgm
    """
    wanted = profile["packages"]["dcgm"]
    skipped = not_judged(profile, "dcgm")
    if skipped:
        yield skipped
        return
    found: Health = evidence.facts(HEALTH)
    seen = (Evidence(HEALTH),)
    here, there = ", ".join(sorted(found.watches)) or "nothing", ", ".join(sorted(wanted["watches"])) or "nothing"
    if here != there:
        advice = "run the role dcgm on this node"
        yield Finding(
            "node", "warn", f"it watches {here}", f"{there} (packages.dcgm.watches)", "none", advice, seen, _ROLE
        )
    else:
        yield Finding("node", "ok", f"it watches {here}", evidence=seen)


def check_health(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """What DCGM's health watches found, each incident with its GPU.

    Source: DCGM user guide, health and diagnostics (dcgmi health)
    """
    skipped = not_judged(profile, "dcgm")
    if not skipped and not profile["packages"]["dcgm"]["watches"]:
        skipped = Finding("node", "skipped", "the profile watches nothing (packages.dcgm.watches)")
    if skipped:
        yield skipped
        return
    found: Health = evidence.facts(HEALTH)
    if found.overall is None:
        raise NoEvidence(HEALTH, "the host engine watches nothing")
    where = components(evidence)
    worst = max([found.overall, *(one.health for one in found.incidents)], key=list(_STATUS).index)
    for one in found.incidents:
        by_hand = one.system.startswith(_BY_HAND)
        yield Finding(
            where.get(one.number, f"GPU {one.number} of DCGM") if one.entity == "GPU" else f"{one.entity} {one.number}",
            _STATUS[one.health] if one.health != "Healthy" else "warn",
            f"{one.system}: {one.words}"[:280],
            "no incident",
            "observe" if one.health != "Failure" else "inspect" if by_hand else "reset_gpu",
            "see what the checks gpu, nvlink and kernel say of it; dcgmi diag -r 3 on the drained node tells more",
            (Evidence(HEALTH, one.words),),
            "dcgmi health",
        )
    if worst == "Healthy":
        text = f"healthy, by the watches {', '.join(sorted(found.watches))}"
        yield Finding("node", "ok", text, evidence=(Evidence(HEALTH),))
    elif not found.incidents:
        text = f"overall health {found.overall}, without an incident that says why"
        yield Finding("node", _STATUS[worst], text, "Healthy", "observe", "dcgmi health -c", (Evidence(HEALTH),))


def components(evidence: NodeEvidence) -> dict[str, str]:
    """How findings name a GPU, by DCGM's number for it; nothing where DCGM or nvidia-smi does not tell."""
    try:
        gpus: Mapping[str, str] = evidence.facts(ENGINE).gpus
        names = {gpu.address: gpu.component for gpu in evidence.facts(QUERY).gpus}
    except NoEvidence:
        return {}
    return {number: names.get(address, f"GPU ({address})") for number, address in gpus.items()}


PROBES: tuple[Probe, ...] = (
    Probe(ENGINE, parse_host_engine, argv=counted(_ENGINE_SCRIPT), deadline_s=2 * DEADLINE_S + 10),
    Probe(HEALTH, parse_health, argv=counted(_HEALTH_SCRIPT), deadline_s=2 * DEADLINE_S + 10),
)
CHECKS: tuple[Check, ...] = (
    Check("dcgm.host_engine", check_host_engine, needs=(ENGINE, QUERY)),
    Check("dcgm.watches", check_watches, needs=(HEALTH,)),
    Check("dcgm.health", check_health, needs=(HEALTH,), also=(ENGINE, QUERY)),
)
