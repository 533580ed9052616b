# SPDX-License-Identifier: Apache-2.0
"""Whether each GPU has joined the NVLink fabric, and how healthy it finds it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from .check import Check, Profile
from .evaluation import unknown
from .finding import Evidence, Finding
from .gpu_facts import Absent, Gpu, GpuReport, Text
from .gpu_findings import described, no_gpus, together
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .probe import NoEvidence

# These have NVSwitches on their boards, but no fabric state: nvidia-smi answers N/A (recorded with A100, 525 to 555).
_WITHOUT_STATE = ("Volta", "Ampere")
# GPUs whose NVLink domain reaches over several nodes need a cluster to belong to (bug 025).
_MULTI_NODE = re.compile(r"\bGB\d00\b")
_NO_CLUSTER = "00000000-0000-0000-0000-000000000000"


def check_state(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Every GPU has joined the fabric: state Completed and status Success, both of them, GPU by GPU.

    Without it CUDA ends with error 802, or traffic falls back to PCIe without a word while all links look fine.

    Source: bug 025 (Azure/azhpc-images#506, Dstack-TEE/dstack#1167); aws/eks-node-monitoring-agent#141.
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    report = described(evidence)
    nvswitch = (profile.get("devices") or {}).get("nvswitch") or {}
    wanted = [gpu for gpu in report.gpus if nvswitch.get("count") and gpu.architecture not in _WITHOUT_STATE]
    joined, faults = [], []
    for gpu in report.gpus:
        state, status = gpu.fabric.state, gpu.fabric.status
        # beside a state that can be read, "Unknown Error" is not a failure to read, but what NVML has as the status
        is_error = isinstance(state, str) and isinstance(status, Absent) and status.kind == "error"
        gone = _gone(gpu, state) or (None if is_error or _is_none(state) else _gone(gpu, status))
        if gone:
            faults.append(gone)
        elif state == "Completed" and status == "Success":
            joined.append(gpu)
        elif not _is_none(state) or gpu in wanted:
            faults.append(_not_joined(gpu))
    outside = len(report.gpus) - len(joined) - len(faults)
    if joined and outside:
        left = [gpu for gpu in report.gpus if _is_none(gpu.fabric.state) and gpu not in wanted]
        faults += [_not_joined(gpu) for gpu in left]
    yield from together(faults, len(report.gpus))
    if not faults and joined:
        observed = f"{len(joined)} GPUs: fabric state Completed, status Success"
        yield Finding("node", "ok", observed, evidence=(Evidence(QUERY, _words(joined[0])),))
    elif not faults:
        yield _no_fabric(report)


def _is_none(value: Text) -> bool:
    """Whether the GPU has no such thing, or the driver no row for it."""
    return isinstance(value, Absent) and value.kind in ("not_applicable", "not_in_driver")


def _gone(gpu: Gpu, value: Text) -> Finding | None:
    """The finding for a row that should be readable and is not; None for any other."""
    if isinstance(value, Absent) and value.kind in ("missing", "error"):
        return unknown(gpu.component, NoEvidence(QUERY, f"fabric: {value.reason}"), "state Completed, status Success")
    return None


def _words(gpu: Gpu) -> str:
    return f"GPU {gpu.index}: fabric state {gpu.fabric.state}, status {gpu.fabric.status}"


def _no_fabric(report: GpuReport) -> Finding:
    names = ", ".join(sorted({str(gpu.name) for gpu in report.gpus}))
    observed = f"driver {report.driver_version} has no fabric state for {names}"
    return Finding("node", "skipped", observed, evidence=(Evidence(QUERY, _words(report.gpus[0])),))


def _not_joined(gpu: Gpu) -> Finding:
    state, status = gpu.fabric.state, gpu.fabric.status
    action, advice = (
        "reset_gpu",
        (
            "the fabric manager could not take this GPU in: look into /var/log/fabricmanager.log, drain the node, "
            "reset the GPU, and reboot if that does not help"
        ),
    )
    if state in ("Not Started", "Not Supported") or isinstance(state, Absent):
        action, advice = (
            "restart_service",
            (
                "nobody registers the GPUs: start nvidia-fabricmanager (fabric.manager says why it does not run); "
                "reboot if it runs and the state stays"
            ),
        )
    elif state == "In Progress":
        action, advice = "observe", "registration takes up to two minutes after a boot or reset: run the check again"
    elif status == "Insufficient Resources":
        action, advice = (
            "reboot",
            (
                "links or NVSwitches are missing that the fabric needs: see nvlink.links and nvlink.nvswitches, then "
                "reboot"
            ),
        )
    return Finding(
        gpu.component,
        "fail",
        f"fabric state {state}, status {status}",
        "state Completed, status Success",
        action,
        advice,
        (Evidence(QUERY, _words(gpu)),),
        "bug 025",
    )


class _Row(NamedTuple):
    """A row of the health block. good: its healthy values; bad: status and action by unhealthy value (lower case)."""

    fact: str
    label: str
    good: tuple[str, ...]
    bad: dict[str, tuple[str, str]]
    advice: str


_ROUTES = "the routes to other GPUs are broken: drain the node and reboot it; look for SXid lines in the kernel log"
_WAIT = "the fabric recovers by itself: run the check again in some minutes; jobs on this GPU have been hit"
_HEALTH = (
    _Row(
        "summary",
        "Summary",
        ("healthy",),
        {"unhealthy": ("fail", "reboot"), "limited capacity": ("warn", "observe")},
        "the rows below it say what is wrong; drain the node and reboot it",
    ),
    _Row(
        "bandwidth",
        "Bandwidth",
        ("full",),
        {"degraded": ("warn", "reset_gpu")},
        "links of this GPU are missing to the fabric (nvlink.links): drain the node and reset its GPUs",
    ),
    _Row("route_unhealthy", "Route Unhealthy", ("false",), {"true": ("fail", "reboot")}, _ROUTES),
    _Row(
        "route_recovery_in_progress",
        "Route Recovery in progress",
        ("false",),
        {"true": ("fail", "observe")},
        _WAIT,
    ),
    _Row("access_timeout_recovery", "Access Timeout Recovery", ("false",), {"true": ("fail", "observe")}, _WAIT),
    _Row(
        "incorrect_configuration",
        "Incorrect Configuration",
        ("none",),
        {},
        "the fabric was set up for other hardware: see nvlink.links, nvlink.nvswitches and the fabric manager's log",
    ),
)


def check_health(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """The fabric's health as each GPU sees it: bandwidth, routes, recoveries, configuration.

    Drivers up to 535 print no such rows, 550 only the bandwidth; on HGX boards some print N/A for all of them. A row
    that this branch prints and that is not there is unknown.

    Source: NVML, nvmlGpuFabricInfo_v3; DCGM fails a GPU for a route that is unhealthy or recovers.
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    report = described(evidence)
    found: list[Finding] = []
    judged: dict[str, int] = {}
    for row in _HEALTH:
        values = {gpu: getattr(gpu.fabric, row.fact) for gpu in report.gpus}
        # 555 prints N/A for healthy GPUs beside "Degraded": only beside a healthy value is N/A a gap
        any_good = any(isinstance(value, str) and value.lower() in row.good for value in values.values())
        for gpu, value in values.items():
            gone = _gone(gpu, value)
            if gone:
                found.append(gone._replace(observed=f"{gone.observed} ({row.label})", expected=row.good[0]))
            elif isinstance(value, str):
                judged[row.label] = judged.get(row.label, 0) + 1
                found += _unhealthy(gpu, row, value)
            elif any_good and not _is_none(gpu.fabric.state):
                reason = f"fabric: {row.label} is {value}, though other GPUs have a value"
                found.append(unknown(gpu.component, NoEvidence(QUERY, reason), row.good[0]))
    yield from together(found, len(report.gpus))
    if found:
        return
    if judged:
        rows = ", ".join(judged)
        observed = f"{max(judged.values())} GPUs find the fabric healthy (driver {report.driver_version}: {rows})"
        yield Finding("node", "ok", observed, evidence=(Evidence(QUERY, f"fabric health: {rows}"),))
    else:
        observed = f"driver {report.driver_version} says nothing of the fabric's health on these GPUs"
        yield Finding("node", "skipped", observed, evidence=(Evidence(QUERY),))


def _unhealthy(gpu: Gpu, row: _Row, value: str) -> list[Finding]:
    word = value.lower()
    if word in row.good:
        return []
    # any text in the last row names a configuration that is wrong; elsewhere an unknown word is a garbled one
    status, action = row.bad.get(word, ("unknown", "none") if row.bad else ("fail", "inspect"))
    observed = f"fabric: {row.label} is {value}"
    if status == "unknown":
        return [unknown(gpu.component, NoEvidence(QUERY, f"{observed}, which no driver known prints"), row.good[0])]
    return [
        Finding(
            gpu.component,
            status,
            observed,
            f"{row.label}: {row.good[0].capitalize()}",
            action,
            row.advice,
            (Evidence(QUERY, f"GPU {gpu.index}: {row.label} {value}"),),
            "NVML, nvmlGpuFabricInfo_v3 healthMask",
        )
    ]


def check_clique(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """All GPUs of a node are in the same NVLink clique and cluster: others cannot reach each other over NVLink.

    Source: bug 025; NVML, nvmlGpuFabricInfo cliqueId and clusterUuid (zero on a board that is a fabric of its own).
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    report = described(evidence)
    found: list[Finding] = []
    places: dict[tuple[str, str], list[Gpu]] = {}
    for gpu in report.gpus:
        values = (gpu.fabric.clique_id, gpu.fabric.cluster_uuid)
        gone = _gone(gpu, values[0]) or _gone(gpu, values[1])
        if gone:
            found.append(gone._replace(expected="the clique of the other GPUs"))
        elif isinstance(values[0], str) and isinstance(values[1], str):
            places.setdefault((values[0], values[1]), []).append(gpu)
        elif not _is_none(gpu.fabric.state) and any(isinstance(other.fabric.clique_id, str) for other in report.gpus):
            reason = f"fabric: clique {values[0]}, cluster {values[1]}, though other GPUs have both"
            found.append(unknown(gpu.component, NoEvidence(QUERY, reason)))
    most = max(places, key=lambda place: len(places[place]), default=None)
    for place, gpus in places.items():
        for gpu in gpus:
            if place != most:
                found.append(_other_clique(gpu, place, most))
            elif place[1] == _NO_CLUSTER and _MULTI_NODE.search(str(gpu.name)):
                found.append(_other_clique(gpu, place, None))
    yield from together(found, len(report.gpus))
    if found:
        return
    if most is None:
        observed = f"driver {report.driver_version} names no clique for these GPUs"
        yield Finding("node", "skipped", observed, evidence=(Evidence(QUERY),))
    else:
        observed = f"{len(places[most])} GPUs in clique {most[0]} of cluster {most[1]}"
        yield Finding("node", "ok", observed, evidence=(Evidence(QUERY, observed),))


def _other_clique(gpu: Gpu, place: tuple[str, str], most: tuple[str, str] | None) -> Finding:
    return Finding(
        gpu.component,
        "fail",
        f"clique {place[0]} of cluster {place[1]}",
        "a cluster (this GPU's NVLink reaches over several nodes)"
        if most is None
        else f"clique {most[0]} of {most[1]}",
        "reboot",
        "the fabric was partitioned, or this GPU was registered by another fabric manager: restart the fabric manager "
        "after resetting all GPUs, or reboot the node; on multi-node NVLink look at IMEX and the partition",
        (Evidence(QUERY, f"GPU {gpu.index}: CliqueId {place[0]}, ClusterUUID {place[1]}"),),
        "bug 025",
    )


CHECKS: tuple[Check, ...] = (
    Check("fabric.state", check_state, needs=(QUERY,)),
    Check("fabric.health", check_health, needs=(QUERY,)),
    Check("fabric.clique", check_clique, needs=(QUERY,)),
)
