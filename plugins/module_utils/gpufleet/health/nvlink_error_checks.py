# SPDX-License-Identifier: Apache-2.0
"""The errors that NVLinks count."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .check import Check, Profile
from .evaluation import READ_ERROR_ADVICE
from .finding import Evidence, Finding
from .gpu_facts import Gpu
from .gpu_findings import no_gpus
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .nvlink_errors import ErrorsOfGpu, LinkCounter
from .nvlink_evidence import STATUS, fully_listed, gpu_nvlinks, lines_of, not_printed, numbers
from .nvlink_status import NvlinksOfGpu

ERRORS = "nvidia_smi.nvlink_errors"
# NVLink 5: the worst of its counters; DCGM fails a GPU for one (DCGM_FR_NVLINK_ERROR_CRITICAL).
_LINK_LOST = "Link recovery failed events"
# Counted on healthy links as well: codewords that FEC corrected, raw errors before correction, traffic, and the sum of
# two other counters.
_NO_ERRORS = re.compile(r"FEC Errors.*|Raw (?:Errors|BER).*|(?:Tx|Rx) (?:packets|bytes)|Total link recovery events")
# What "no error in any time" reads (DCGM, diagnostics: mantissa 15, exponent 255).
_LEAST_ERROR_RATE = "15e-255"


def check_errors(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """NVLinks count no errors. A single one is watched, a storm (limits.nvlink.max_errors_per_link) takes the GPU out.

    Counted since the driver was loaded. FEC corrections and raw errors of NVLink 5 rise on healthy links and are no
    errors; a link recovery that failed always is one.

    Source: DCGM health watches (any error warns, 100 CRC errors a second fail); Imbue, NvlinkHealthCheck (five).
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    seen = fully_listed(gpu_nvlinks(evidence, profile))
    reports: tuple[ErrorsOfGpu, ...] = evidence.facts(ERRORS)
    by_number = {report.number: report for report in reports}
    limit = (profile.get("limits") or {}).get("nvlink") or {}
    most = limit.get("max_errors_per_link")
    unsupported = _unsupported(reports)
    found = [finding for finding in not_printed(seen) if finding.status == "unknown"]
    judged = 0
    for one in seen:
        if one.gap or not one.links or not one.links.active:
            continue
        report = by_number.get(one.gpu.index)
        missing = _uncounted(one.links, report)
        if missing or report is None:
            found.append(_no_counters(one.gpu.component, missing))
            continue
        judged += 1
        finding = _judge(evidence, one.gpu, report, most, unsupported)
        if finding:
            found.append(finding)
    yield from found
    if not found and judged:
        links = sum(len(report.links) for report in reports)
        observed = f"{links} NVLinks of {judged} GPUs: no errors since the driver was loaded"
        yield Finding("node", "ok", observed, evidence=(Evidence(ERRORS),))
    elif not found:
        yield Finding("node", "skipped", "no active NVLink that could count errors", evidence=(Evidence(STATUS),))


def _uncounted(links: NvlinksOfGpu, report: ErrorsOfGpu | None) -> str:
    """What nvlink -e lacks of the links that nvlink -s calls active, in words; "" for nothing."""
    if report is None:
        return "nothing about this GPU is printed"
    if report.uuid and report.uuid != links.uuid:
        return f"this GPU is {report.uuid}, by nvlink -s it is {links.uuid}"
    lost = sorted(set(links.active) - {link.number for link in report.links})
    return f"no counters of link {numbers(lost)}, which is active" if lost else ""


def _no_counters(component: str, missing: str) -> Finding:
    observed = f"probe {ERRORS}: {missing}"
    evidence = (Evidence(ERRORS), Evidence(STATUS))
    return Finding(component, "unknown", observed, "counters of each link", "none", READ_ERROR_ADVICE, evidence)


def _unsupported(reports: Iterable[ErrorsOfGpu]) -> set[str]:
    """Counters that no link of the node has a value for: this driver and GPU do not count them."""
    values: dict[str, list[LinkCounter]] = {}
    for report in reports:
        for link in report.links:
            for counter in link.counters:
                values.setdefault(counter.name, []).append(counter)
    return {
        name
        for name, counters in values.items()
        if all(counter.value is None and not counter.is_rate for counter in counters)
    }


def _judge(
    evidence: NodeEvidence, gpu: Gpu, report: ErrorsOfGpu, most: int | None, unsupported: set[str]
) -> Finding | None:
    counted: dict[int, list[LinkCounter]] = {}
    unreadable = []
    for link in report.links:
        for counter in link.counters:
            if _NO_ERRORS.fullmatch(counter.name):
                continue
            if counter.value is None and not counter.is_rate:
                if counter.name not in unsupported or not counter.text.lower().startswith(("n/a", "not supported")):
                    unreadable.append(f"{counter.name} of link {link.number} is {counter.text!r}")
            elif counter.value or (counter.is_rate and counter.text.lower() != _LEAST_ERROR_RATE):
                counted.setdefault(link.number, []).append(counter)
    if not counted:
        return _no_counters(gpu.component, "; ".join(unreadable[:3])) if unreadable else None
    lost = [f"link {number}" for number, counters in counted.items() if any(c.name == _LINK_LOST for c in counters)]
    worst = max((counter.value or 0 for counters in counted.values() for counter in counters), default=0)
    failed = bool(lost) or (most is not None and worst > most)
    return Finding(
        gpu.component,
        "fail" if failed else "warn",
        _in_words(counted),
        "no errors" if most is None else f"no errors; above {most} of one kind on one link the GPU is at fault",
        "reset_gpu" if failed else "observe",
        "drain the node, reset the GPU and watch whether the counters rise again (nvidia-smi nvlink -e): then the GPU, "
        "its seat or the NVSwitch behind these links is to be inspected"
        if failed
        else "the node may train; look whether the counters rise (nvidia-smi nvlink -e), they count since the driver "
        "was loaded",
        (Evidence(ERRORS, lines_of(evidence, ERRORS, gpu.index, f"Link {min(counted)}:")),),
        "DCGM health watch of NVLink: replay, recovery and CRC errors",
    )


def _in_words(counted: dict[int, list[LinkCounter]]) -> str:
    parts = [
        f"link {number}: " + ", ".join(f"{counter.name} {counter.text}" for counter in counters)
        for number, counters in list(counted.items())[:2]
    ]
    more = len(counted) - len(parts)
    return "; ".join(parts) + (f"; and {more} more links" if more else "")


CHECKS: tuple[Check, ...] = (Check("nvlink.errors", check_errors, needs=(ERRORS, STATUS, QUERY)),)
