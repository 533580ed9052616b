# SPDX-License-Identifier: Apache-2.0
"""The running containers: whether they keep their GPUs, and have the rights that they need."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .check import Check, Profile
from .counted_output import counted, parts_of
from .docker_engine import ENGINE, engine_of, not_judged, said_and_status
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .probe import ParseError, Probe, ProbeResult

CONTAINERS = "docker.containers"
# No environment but this one variable: the others are passwords.
_FORMAT = (
    '{"name":{{json .Name}},"image":{{json .Config.Image}},"runtime":{{json .HostConfig.Runtime}},'
    '"privileged":{{json .HostConfig.Privileged}},"cap_add":{{json .HostConfig.CapAdd}},'
    '"devices":{{json .HostConfig.Devices}},"requests":{{json .HostConfig.DeviceRequests}}}'
)
_SCRIPT = f"""
echo '== list'
ids=$(timeout 20 docker ps --quiet --no-trunc 2>&1)
status=$?
echo "$ids"
echo "exit status $status"
echo '== containers'
[ $status -ne 0 ] || [ -z "$ids" ] || timeout 20 docker inspect --format '{_FORMAT}' $ids 2>/dev/null
echo '== nodes'
for node in /dev/nvidia*; do
  [ -c "$node" ] || continue
  number=$((0x$(stat -c %t "$node"))):$((0x$(stat -c %T "$node")))
  if [ -e "/dev/char/$number" ]; then echo "$node linked"; else echo "$node without"; fi
done
"""
_MONITORING = re.compile(r"(?:^|[/-])dcgm(?:-exporter)?(?:$|[:@])")
_PROFILING = re.compile(r"nsight|nsys|(?:^|[/-])ncu(?:$|[:@-])")
_ADMIN = {"SYS_ADMIN", "CAP_SYS_ADMIN", "ALL"}


class Container(NamedTuple):
    """by_hook: it gets GPUs by the toolkit's hook, about which systemd is not told. admin: has CAP_SYS_ADMIN."""

    name: str
    image: str
    by_hook: bool
    admin: bool


class Containers(NamedTuple):
    """running: by name. nodes: the GPUs' device nodes, and whether /dev/char has a link to each."""

    running: tuple[Container, ...]
    nodes: Mapping[str, bool]


def parse_containers(result: ProbeResult) -> Containers:
    """Raises ParseError."""
    parts = parts_of(result, ("list", "containers", "nodes"))
    said, status = said_and_status(parts["list"], "list")
    if status:
        words = "gave no answer within 20 s" if status == 124 else " ".join(said)[-200:]
        raise ParseError(f"docker ps: {words}")
    running = tuple(sorted(_container(line) for line in parts["containers"]))
    # One that ended in between is no longer there to be told about.
    if len(running) > len([line for line in said if line]) or (any(said) and not running):
        raise ParseError(f"docker ps lists {len(said)} containers, docker inspect tells about {len(running)}")
    nodes = {}
    for line in parts["nodes"]:
        node, __, state = line.partition(" ")
        if state not in ("linked", "without"):
            raise ParseError(f"expected a device node and whether it is linked, got {line[:100]!r}")
        nodes[node] = state == "linked"
    return Containers(running, nodes)


def _container(line: str) -> Container:
    try:
        told: dict[str, Any] = json.loads(line)
        requests = told["requests"] or []
        nvidia = any(one["Driver"] in ("", "nvidia") for one in requests) or told["runtime"] == "nvidia"
        # What is named to the engine itself (--device, CDI) stands in the unit that systemd reloads.
        named = any(one["PathOnHost"].startswith("/dev/nvidia") for one in told["devices"] or [])
        admin = bool(told["privileged"]) or not _ADMIN.isdisjoint(told["cap_add"] or [])
        by_hook = nvidia and not named and not told["privileged"]
        return Container(told["name"].lstrip("/"), told["image"], by_hook, admin)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ParseError(f"docker inspect printed {line[:100]!r}") from error


def check_gpu_kept(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Nothing stands ready to take the GPUs from running containers.

    Where systemd keeps the control groups, each `systemctl daemon-reload` (any package with a unit makes one) takes
    away the devices that have no link in /dev/char. In the container nvidia-smi then says "Failed to initialize NVML:
    Unknown Error", and outside all is well.

    Source: NVIDIA/nvidia-docker#1730, NVIDIA/nvidia-container-toolkit#48; bug 109
    """
    skipped = not_judged(profile, "container_toolkit") or not_judged(profile, "docker")
    if skipped:
        yield skipped
        return
    driver = engine_of(evidence).cgroup_driver
    found: Containers = evidence.facts(CONTAINERS)
    seen = (Evidence(CONTAINERS), Evidence(ENGINE))
    if driver != "systemd":
        yield Finding(
            "node", "ok", f"systemd does not keep the containers' devices (cgroup driver {driver})", evidence=seen
        )
        return
    if not found.nodes:
        yield Finding("node", "skipped", "there is no device node of a GPU (/dev/nvidia*)", evidence=seen)
        return
    loose = sorted(node for node, linked in found.nodes.items() if not linked)
    names = [one.name for one in found.running if one.by_hook]
    if loose:
        whom = f"the containers {', '.join(names)}" if names else "containers"
        yield Finding(
            "node",
            "warn",
            f"the next systemctl daemon-reload takes the GPUs from {whom}: no link in /dev/char to {', '.join(loose)}",
            "a link to each device node",
            "none",
            "run the role nvidia_container_toolkit, or nvidia-ctk system create-dev-char-symlinks --create-all",
            seen,
            "NVIDIA/nvidia-docker#1730",
        )
    else:
        text = f"/dev/char has a link to each of {len(found.nodes)} device nodes"
        yield Finding("node", "ok", text, evidence=seen)


def check_rights(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Containers that watch or profile GPUs have CAP_SYS_ADMIN where the GPUs' counters ask for it.

    Without it DCGM leaves the profiling metrics out and profilers end with ERR_NVGPUCTRPERM. DCGM needs it for
    profiling metrics alone; a profiler where the driver does not open the counters to all users.

    Source: NVIDIA/dcgm-exporter, README; NVIDIA development tools, ERR_NVGPUCTRPERM
    """
    packages = profile["packages"]
    skipped = not_judged(profile, "docker", of_gpus=False)
    if skipped:
        yield skipped
        return
    found: Containers = evidence.facts(CONTAINERS)
    seen = (Evidence(CONTAINERS),)
    needing = []
    if packages["dcgm_exporter"]["profiling_metrics"]:
        needing.append(_MONITORING)
    if not packages["nvidia_driver"]["profiling_for_all_users"]:
        needing.append(_PROFILING)
    concerned = [one for one in found.running if any(pattern.search(one.image) for pattern in needing)]
    for one in concerned:
        if not one.admin:
            advice = "start it with --cap-add SYS_ADMIN"
            observed = f"{one.image} runs without CAP_SYS_ADMIN"
            expected = "the right to read the GPUs' performance counters"
            yield Finding(f"container {one.name}", "warn", observed, expected, "none", advice, seen)
    if all(one.admin for one in concerned):
        text = f"{len(found.running)} containers run, of which {len(concerned)} need CAP_SYS_ADMIN and have it"
        yield Finding("node", "ok", text, evidence=seen)


PROBES: tuple[Probe, ...] = (Probe(CONTAINERS, parse_containers, argv=counted(_SCRIPT), deadline_s=50),)
CHECKS: tuple[Check, ...] = (
    Check("containers.gpu_kept", check_gpu_kept, needs=(CONTAINERS, ENGINE)),
    Check("containers.rights", check_rights, needs=(CONTAINERS,)),
)
