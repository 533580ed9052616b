# SPDX-License-Identifier: Apache-2.0
"""What nvidia-smi -q and nvlink -s together say of the NVLinks of each GPU, and what is missing in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .check import Profile
from .evaluation import READ_ERROR_ADVICE
from .finding import Evidence, Finding
from .gpu_facts import Gpu, GpuReport
from .gpu_models import expected_of
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .nvlink_status import NvlinksOfGpu
from .probe import NoEvidence

STATUS = "nvidia_smi.nvlink_status"


class GpuNvlinks(NamedTuple):
    """One GPU of nvidia-smi -q and its part of nvlink -s. expected: active links; None where nobody knows.

    gap: what is missing in the output about it, "" for nothing.
    """

    gpu: Gpu
    links: NvlinksOfGpu | None
    expected: int | None
    gap: str


def gpu_nvlinks(evidence: NodeEvidence, profile: Profile) -> list[GpuNvlinks]:
    """All GPUs. Raises NoEvidence where nvlink -s says nothing of any GPU that should have links."""
    report: GpuReport = evidence.facts(QUERY)
    answers: tuple[NvlinksOfGpu, ...] = evidence.facts(STATUS)
    by_number = {answer.number: answer for answer in answers}
    if not report.gpus:
        raise NoEvidence(QUERY, "lists no GPU")
    for answer in answers:
        if answer.number >= len(report.gpus):
            raise NoEvidence(STATUS, f"lists GPU {answer.number}, nvidia-smi -q only {len(report.gpus)} GPUs")
        uuid = report.gpus[answer.number].uuid
        if isinstance(uuid, str) and uuid != answer.uuid:
            raise NoEvidence(STATUS, f"GPU {answer.number} is {answer.uuid}, by nvidia-smi -q it is {uuid}")
    printed = {link.number for answer in answers for link in answer.links}
    found = []
    for gpu in report.gpus:
        expected = expected_of(profile, gpu, "nvlink_links")
        whole = None if expected is None else int(expected)
        links = by_number.get(gpu.index)
        found.append(GpuNvlinks(gpu, links, whole, _gap(links, whole, printed)))
    if not answers and any(one.expected for one in found):
        raise NoEvidence(STATUS, "nvidia-smi nvlink -s printed nothing, as on a node whose GPUs have no NVLink")
    return found


def _gap(links: NvlinksOfGpu | None, expected: int | None, printed: set[int]) -> str:
    if links is None:
        return "nothing about this GPU is printed" if expected or printed else ""
    if links.answer != "links" or not links.links:
        return ""
    lost = sorted(printed - {link.number for link in links.links})
    return f"no line for link {numbers(lost)}, which other GPUs have" if lost else ""


def fully_listed(seen: Iterable[GpuNvlinks]) -> list[GpuNvlinks]:
    """The same, where fewer links listed than expected are a gap: their speed and errors cannot be told."""
    return [one._replace(gap=one.gap or _short_list(one)) for one in seen]


def _short_list(one: GpuNvlinks) -> str:
    if one.links is None or one.links.answer != "links" or len(one.links.links) >= (one.expected or 0):
        return ""
    return f"{len(one.links.links)} links are listed, {one.expected} expected"


def not_printed(seen: Iterable[GpuNvlinks]) -> Iterator[Finding]:
    for one in seen:
        if one.gap:
            yield Finding(
                one.gpu.component,
                "unknown",
                f"probe {STATUS}: {one.gap}",
                "" if one.expected is None else f"{one.expected} active links",
                advice=READ_ERROR_ADVICE,
                evidence=(Evidence(STATUS),),
            )
    if not any(one.gap or one.links for one in seen):
        names = ", ".join(sorted({str(one.gpu.name) for one in seen}))
        yield Finding("node", "skipped", f"no NVLink on {names}", evidence=(Evidence(STATUS),))
    elif not any(one.gap or one.expected is not None for one in seen):
        links = ", ".join(f"GPU {one.gpu.index}: {len(one.links.active)}" for one in seen if one.links)
        observed = f"neither the profile (limits.gpu.nvlink_links) nor the GPU model says how many; active are {links}"
        yield Finding("node", "skipped", observed, evidence=(Evidence(STATUS),))


def numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def lines_of(evidence: NodeEvidence, probe: str, gpu: int, *words: str) -> str:
    """The header of a GPU and the lines below it that have one of the words, as printed."""
    chosen, inside = [], False
    for line in evidence.raw(probe).stdout.splitlines():
        if line.startswith("GPU "):
            inside = line.startswith(f"GPU {gpu}:")
            chosen += [line] if inside else []
        elif inside and any(word in line.lower() or word in line for word in words):
            chosen.append(line.strip())
    return "\n".join(chosen)
