# SPDX-License-Identifier: Apache-2.0
"""GPUs as containers see them: asked for by name only, since a container is started, or a job's container entered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .check import Check, Profile
from .counted_output import counted, parts_of
from .docker_engine import TIMED_OUT, not_judged, said_and_status
from .finding import Evidence, Finding
from .gpu_findings import value_of
from .node_evidence import NodeEvidence
from .nvidia_smi_list import parse_list
from .nvidia_smi_query import QUERY
from .probe import NoEvidence, ParseError, Probe, ProbeResult

START = "containers.gpu_start"
INSIDE = "containers.gpu_inside"
# Nothing is pulled. The toolkit brings nvidia-smi along, so that an image needs no more than a C library: the first
# choice are images of CUDA, then other ones for GPUs, then distributions. What a timeout leaves behind is removed.
_START_SCRIPT = """
echo '== image'
image=$(timeout 20 docker images --format '{{.Repository}}:{{.Tag}}' 2>/dev/null | grep -v '<none>' |
  awk '{ print (/cuda/ ? 1 : /nvidia|nvcr/ ? 2 : /ubuntu|debian|rocky/ ? 3 : 4), $0 }' | sort -s -n -k 1,1 |
  head -n 1 | cut -d ' ' -f 2)
echo "$image"
echo '== answer'
name=gpufleet-gpu-start-$$
if [ -n "$image" ]; then
  timeout 90 docker run --rm --pull never --name $name --network none --gpus all \
    --env NVIDIA_DRIVER_CAPABILITIES=utility --entrypoint nvidia-smi "$image" -L 2>&1
  status=$?
  timeout 20 docker rm --force $name >/dev/null 2>&1
else
  status=0
fi
echo "exit status $status"
"""
_GPU = (
    '{{if or (eq .HostConfig.Runtime "nvidia") .HostConfig.DeviceRequests .HostConfig.Devices}}{{.Id}} {{.Name}}{{end}}'
)
_INSIDE_SCRIPT = f"""
echo '== list'
ids=$(timeout 20 docker ps --quiet --no-trunc 2>&1)
status=$?
[ $status -eq 0 ] || echo "$ids"
echo "exit status $status"
[ $status -ne 0 ] || [ -z "$ids" ] || timeout 20 docker inspect --format '{_GPU}' $ids 2>/dev/null |
  while read -r id name; do
    [ -n "$id" ] || continue
    echo "== container $name"
    timeout 20 docker exec $id nvidia-smi -L </dev/null 2>&1
    echo "exit status $?"
  done
"""
_LOST = "Failed to initialize NVML: Unknown Error"
_NO_PROGRAM = "executable file not found"


class Started(NamedTuple):
    """image: "" where the node has none. gpus: UUIDs of those that are seen inside. fault: why it did not start."""

    image: str
    gpus: frozenset[str]
    fault: str


def parse_start(result: ProbeResult) -> Started:
    """Raises ParseError."""
    parts = parts_of(result, ("image", "answer"))
    image = " ".join(parts["image"]).strip()
    said, status = said_and_status(parts["answer"], "answer")
    if status or not image:
        words = "it did not end within 90 s" if status == TIMED_OUT else " ".join(said)[-200:]
        return Started(image, frozenset(), words)
    return Started(image, _uuids(result, said), "")


def _uuids(result: ProbeResult, said: list[str]) -> frozenset[str]:
    """UUIDs in the output of nvidia-smi -L. Raises ParseError."""
    return frozenset(gpu.uuid for gpu in parse_list(result._replace(stdout="\n".join(said))).gpus)


def parse_inside(result: ProbeResult) -> Mapping[str, tuple[str, str]]:
    """State and words by container: "sees" its GPUs, "lost" them, "silent" (no nvidia-smi in it), or "failed".

    Raises ParseError.
    """
    parts = parts_of(result, ("list",))
    said, status = said_and_status(parts.pop("list"), "list")
    if status:
        raise ParseError(f"docker ps: {' '.join(said)[-200:] or 'no answer within 20 s'}")
    found = {}
    for heading, lines in parts.items():
        said, status = said_and_status(lines, heading)
        words = " ".join(said)[-200:] or "no answer within 20 s"
        if not status:
            state, words = "sees", f"{len(_uuids(result, said))} GPUs"
        else:
            state = "lost" if _LOST in words else "silent" if _NO_PROGRAM in words else "failed"
        found[heading.replace(" /", " ")] = (state, words)
    return found


def check_gpu_start(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """A container with all GPUs really starts, from an image that is on the node, and sees every GPU.

    Nothing is pulled; runs only where it is asked for by name.

    Source: NVIDIA Container Toolkit, running a sample workload
    """
    skipped = not_judged(profile, "container_toolkit") or not_judged(profile, "docker")
    if skipped:
        yield skipped
        return
    started: Started = evidence.facts(START)
    outside = {value_of(gpu, "uuid") for gpu in evidence.facts(QUERY).gpus}
    seen = (Evidence(START, started.fault), Evidence(QUERY))
    if not started.image:
        raise NoEvidence(START, "no image is on the node, and none is pulled: docker pull one, such as ubuntu:24.04")
    where = f"a container of {started.image}"
    if started.fault:
        advice = "see check containers.gpu_runtime, and journalctl -u docker"
        yield Finding("node", "fail", f"{where} did not start: {started.fault}", "it starts", "none", advice, seen)
    elif started.gpus != outside:
        lost = sorted(outside - started.gpus)
        observed = f"{where} sees {len(started.gpus)} GPUs of {len(outside)}; missing: {', '.join(lost) or 'none'}"
        advice = "run the role nvidia_container_toolkit: the specification of the devices is old"
        yield Finding("node", "fail", observed, "those that nvidia-smi lists on the node", "none", advice, seen)
    else:
        yield Finding("node", "ok", f"{where} sees all {len(outside)} GPUs", evidence=seen)


def check_gpu_inside(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """No running container has lost its GPUs: nvidia-smi is asked in each that has any.

    The words "Unknown Error" tell of a daemon-reload, not of a broken GPU. Runs only where it is asked for by name.

    Source: NVIDIA/nvidia-docker#1730; bug 109
    """
    skipped = not_judged(profile, "container_toolkit") or not_judged(profile, "docker")
    if skipped:
        yield skipped
        return
    found: Mapping[str, tuple[str, str]] = evidence.facts(INSIDE)
    seen = (Evidence(INSIDE),)
    for name, (state, words) in found.items():
        if state == "lost":
            advice = "start the container anew; check containers.gpu_kept says how to keep it from happening again"
            observed = f"its GPUs were taken away while it ran: {words}"
            yield Finding(name, "fail", observed, "it sees its GPUs", "none", advice, seen, "NVIDIA/nvidia-docker#1730")
        elif state == "failed":
            yield Finding(
                name, "unknown", f"probe {INSIDE}: nvidia-smi in it: {words}", "it sees its GPUs", evidence=seen
            )
        elif state == "silent":
            yield Finding(name, "skipped", "it has no nvidia-smi", evidence=seen)
    sees = [f"{name} {words}" for name, (state, words) in found.items() if state == "sees"]
    if not found:
        yield Finding("node", "skipped", "no container with GPUs runs", evidence=seen)
    elif sees and len(sees) == len([state for state, __ in found.values() if state != "silent"]):
        yield Finding("node", "ok", "; ".join(sees), evidence=seen)


PROBES: tuple[Probe, ...] = (
    Probe(START, parse_start, argv=counted(_START_SCRIPT), deadline_s=150, heavy=True),
    Probe(INSIDE, parse_inside, argv=counted(_INSIDE_SCRIPT), deadline_s=200, heavy=True),
)
CHECKS: tuple[Check, ...] = (
    Check("containers.gpu_start", check_gpu_start, needs=(START, QUERY)),
    Check("containers.gpu_inside", check_gpu_inside, needs=(INSIDE,)),
)
