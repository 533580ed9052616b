# SPDX-License-Identifier: Apache-2.0
"""The container engine: whether it answers, and whether it runs as the profile says (what the role docker sets)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .check import Check, Profile
from .counted_output import counted, parts_of
from .finding import Evidence, Finding
from .gpu_findings import no_gpus
from .node_evidence import NodeEvidence
from .probe import NoEvidence, ParseError, Probe, ProbeResult

ENGINE = "docker.engine"
# A hung engine accepts connections and never answers (moby/moby#26768).
DEADLINE_S = 20
# Only what is judged: the whole of it has proxies with passwords in it.
_FIELDS = {
    "version": "ServerVersion",
    "storage_driver": "Driver",
    "data_root": "DockerRootDir",
    "cgroup_version": "CgroupVersion",
    "cgroup_driver": "CgroupDriver",
    "live_restore": "LiveRestoreEnabled",
    "log_driver": "LoggingDriver",
    "runtimes": "Runtimes",
    "default_runtime": "DefaultRuntime",
}
_FORMAT = ",".join(f'"{name}":{{{{json .{field}}}}}' for name, field in _FIELDS.items())
# The engine does not tell the options of its log driver.
_SCRIPT = f"""
echo '== unit'
systemctl show docker.service --property LoadState,ActiveState,Result
echo '== info'
timeout {DEADLINE_S} docker info --format '{{{_FORMAT}}}' 2>&1
echo "exit status $?"
echo '== log options'
grep -ahsoE '"max-(size|file)"[[:space:]]*:[[:space:]]*"[^"]*"' /etc/docker/daemon.json
echo '== apparmor'
cat /sys/module/apparmor/parameters/enabled 2>/dev/null || echo none
PATH=$PATH:/sbin:/usr/sbin command -v apparmor_parser
"""
_EXIT = re.compile(r"exit status (\d+)")
TIMED_OUT = 124  # timeout(1)
_ROLE = "role docker"


class Engine(NamedTuple):
    """As `docker info` says it. cgroup_version: "1" or "2". cgroup_driver: systemd or cgroupfs.

    runtimes: names. log_options: of /etc/docker/daemon.json. confines: whether the kernel has AppArmor on. parser: path
    of the program that loads a container's profile, "" where it is missing.
    """

    version: str
    storage_driver: str
    data_root: str
    cgroup_version: str
    cgroup_driver: str
    live_restore: bool
    log_driver: str
    runtimes: frozenset[str]
    default_runtime: str
    log_options: Mapping[str, str]
    confines: bool
    parser: str


class NoEngine(NamedTuple):
    """It does not answer. said: why, in words. hung: whether it took the question and was silent."""

    said: str
    hung: bool


def said_and_status(lines: list[str], name: str) -> tuple[list[str], int]:
    """What a command of a script printed and its exit status, which the last line has. Raises ParseError."""
    status = _EXIT.fullmatch(lines[-1]) if lines else None
    if status is None:
        raise ParseError(f"no exit status under {name!r}")
    return lines[:-1], int(status[1])


def unit_of(lines: list[str]) -> str:
    """A unit's state as a person would say it: "active", "failed (exit-code)", "not-found". Raises ParseError."""
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    try:
        load, active, result = found["LoadState"], found["ActiveState"], found["Result"]
    except KeyError as error:
        raise ParseError(f"systemctl show printed no {error.args[0]}") from error
    if load != "loaded":
        return load
    return active if result == "success" else f"{active} ({result})"


def parse_engine(result: ProbeResult) -> Engine | NoEngine:
    """Raises ParseError."""
    parts = parts_of(result, ("unit", "info", "log options", "apparmor"))
    unit = unit_of(parts["unit"])
    said, status = said_and_status(parts["info"], "info")
    if status:
        words = f"gave no answer within {DEADLINE_S} s" if status == TIMED_OUT else " ".join(said)[-200:]
        return NoEngine(f"docker.service is {unit}: {words}", status == TIMED_OUT)
    options = {}
    for line in parts["log options"]:
        found = re.fullmatch(r'"(max-size|max-file)"\s*:\s*"([^"]*)"', line)
        if found is None:
            raise ParseError(f"no option of the log driver: {line[:100]!r}")
        options[found[1]] = found[2]
    state, *parser = parts["apparmor"] or ["nothing"]
    if state not in ("Y", "N", "none"):
        raise ParseError(f"no state of AppArmor: {state[:100]!r}")
    try:
        # warnings of the client stand in front
        answer: dict[str, Any] = json.loads(said[-1])
        runtimes = frozenset(answer.pop("runtimes"))
        engine = Engine(**answer, runtimes=runtimes, log_options=options, confines=state == "Y", parser="".join(parser))
    except (IndexError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ParseError(f"docker info printed {' '.join(said)[:100]!r}") from error
    if not engine.version:
        raise ParseError("docker info printed no version of the server")
    return engine


def engine_of(evidence: NodeEvidence) -> Engine:
    """The engine, for checks that need one that answers. Raises NoEvidence."""
    engine = evidence.facts(ENGINE)
    if isinstance(engine, NoEngine):
        raise NoEvidence(ENGINE, engine.said)
    assert isinstance(engine, Engine)
    return engine


def not_judged(profile: Profile, key: str, of_gpus: bool = True) -> Finding | None:
    """The `skipped` of what packages.<key> does not manage, or that (of_gpus) is about GPUs where there are none."""
    if not profile["packages"][key]["manage"]:
        return Finding("node", "skipped", f"it is somebody else's or not there (packages.{key}.manage is false)")
    return no_gpus(profile) if of_gpus else None


def is_version(running: str, wanted: str | None) -> bool:
    """Whether a version is the profiled one: a distribution adds its own behind it (20.10.24+dfsg1)."""
    return wanted is None or re.match(rf"{re.escape(wanted)}(?:$|[-+~])", running) is not None


def check_engine(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """The engine answers, and its version, storage, runtime, control groups and log limits are the profiled ones.

    A hung engine holds every job that starts. Without live-restore a restart of it ends all jobs; without log limits
    one talkative job fills the disk. Where AppArmor is on and its parser missing, no container starts.

    Source: packages.docker and platform.docker of the profile; role docker; bugs 106, 108
    """
    skipped = not_judged(profile, "docker", of_gpus=False)
    if skipped:
        yield skipped
        return
    engine: Engine | NoEngine = evidence.facts(ENGINE)
    seen = (Evidence(ENGINE),)
    if isinstance(engine, NoEngine):
        advice = "look at its log on the node: journalctl -u docker"
        yield Finding("node", "fail", engine.said, "it answers", "restart_service", advice, seen, _ROLE)
        return
    if engine.confines and not engine.parser:
        observed = "AppArmor is on, and apparmor_parser is missing: no container starts"
        advice = "run the role docker on this node, or install package apparmor"
        yield Finding("node", "fail", observed, "it is there", "none", advice, seen, _ROLE)
        return
    troubles = list(_differences(engine, profile))
    for observed, expected in troubles:
        advice = "run the role docker on this node; it says where a restart is needed"
        yield Finding("node", "warn", observed, expected, "none", advice, seen, _ROLE)
    if not troubles:
        restore = "on" if engine.live_restore else "off"
        text = (
            f"version {engine.version}, {engine.storage_driver} at {engine.data_root}, live-restore {restore},"
            f" cgroup version {engine.cgroup_version} ({engine.cgroup_driver})"
        )
        yield Finding("node", "ok", text, evidence=seen)


def _differences(engine: Engine, profile: Profile) -> Iterator[tuple[str, str]]:
    """Observed and expected."""
    wanted = profile["platform"]["docker"]
    version = profile["packages"]["docker"]["version"]
    if not is_version(engine.version, version):
        yield f"version {engine.version}", f"version {version}"
    for key, what in (
        ("storage_driver", "storage driver"),
        ("data_root", "data root"),
        ("live_restore", "live-restore"),
        ("cgroup_version", "cgroup version"),
        ("default_runtime", "default runtime"),
    ):
        value, found = wanted[key], getattr(engine, key)
        if value is not None and str(found) != str(value):
            words = {"True": "on", "False": "off"}
            yield f"{what} {words.get(str(found), found)}", f"{words.get(str(value), value)} (platform.docker.{key})"
    limits = {"max-size": wanted["log_max_size"], "max-file": str(wanted["log_max_files"])}
    if engine.log_driver != "json-file":
        yield f"log driver {engine.log_driver}", "json-file, which has the profiled limits"
    elif engine.log_options != limits:
        found = ", ".join(f"{name} {value}" for name, value in sorted(engine.log_options.items())) or "no limit"
        yield f"log files of containers: {found}", ", ".join(f"{name} {value}" for name, value in limits.items())


PROBES: tuple[Probe, ...] = (Probe(ENGINE, parse_engine, argv=counted(_SCRIPT), deadline_s=DEADLINE_S + 10),)
CHECKS: tuple[Check, ...] = (Check("docker.engine", check_engine, needs=(ENGINE,)),)
