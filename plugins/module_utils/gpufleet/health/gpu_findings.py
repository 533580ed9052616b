# SPDX-License-Identifier: Apache-2.0
"""What all checks of GPUs have in common: judge one after the other, and say of all together what all have alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .check import Profile
from .evaluation import READ_ERROR_ADVICE
from .finding import Evidence, Finding
from .gpu_facts import Absent, Gpu, GpuReport
from .node_evidence import NodeEvidence
from .nvidia_smi_fields import LABELS
from .nvidia_smi_query import QUERY
from .probe import NoEvidence

Judge = Callable[[Gpu], Iterable[Finding]]


def no_gpus(profile: Profile) -> Finding | None:
    """The `skipped` of a node whose profile has no GPUs (limits.gpu is null); None where something is to be judged."""
    if (profile.get("limits") or {}).get("gpu") is not None:
        return None
    return Finding("node", "skipped", "the profile says that the node has no GPUs (limits.gpu is null)")


def wanted(profile: Profile, key: str) -> Any:
    """platform.gpu.<key> of the profile; None where nothing is wanted."""
    return ((profile.get("platform") or {}).get("gpu") or {}).get(key)


def printed(gpu: Gpu, fact: str) -> Any:
    """A fact by its path, Absent included."""
    value: Any = gpu
    for name in fact.split("."):
        value = getattr(value, name)
    return value


def known(gpu: Gpu, fact: str) -> Any:
    """A fact by its path. Absent only where the GPU or its driver has no such thing; raises NoEvidence where the row
    is missing or unreadable, so that nothing passes for lack of it."""
    value = printed(gpu, fact)
    if isinstance(value, Absent) and value.kind in ("missing", "error"):
        raise NoEvidence(QUERY, f"{LABELS[fact]}: {value.reason}")
    return value


def value_of(gpu: Gpu, fact: str) -> Any:
    """A fact by its path, never Absent. Raises NoEvidence."""
    value = known(gpu, fact)
    if isinstance(value, Absent):
        raise NoEvidence(QUERY, f"{LABELS[fact]}: {value.reason}")
    return value


def rows(gpu: Gpu, *facts: str) -> Evidence:
    """The rows that decided, as nvidia-smi -q shows them."""
    lines = [f"{LABELS[fact]} : {printed(gpu, fact)}" for fact in facts]
    return Evidence(QUERY, f"GPU {gpu.address}\n" + "\n".join(lines))


def skipped(gpu: Gpu, reason: str) -> Finding:
    """This GPU gives nothing to judge."""
    return Finding(gpu.component, "skipped", reason)


def described(evidence: NodeEvidence) -> GpuReport:
    """The GPUs as `nvidia-smi -q` describes them. Raises NoEvidence, also where it describes none."""
    report: GpuReport = evidence.facts(QUERY)
    if not report.gpus:
        raise NoEvidence(QUERY, "nvidia-smi describes no GPU")
    return report


def judge_each(
    evidence: NodeEvidence, profile: Profile, judge: Judge, well: Callable[[Sequence[Gpu]], str], *shown: str
) -> Iterator[Finding]:
    """The findings of all GPUs, or one `ok` with the text of `well` about those that are well.

    judge: yields what is wrong with one GPU, and may raise NoEvidence. shown: facts that the `ok` shows as evidence.
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    report = described(evidence)
    found: list[Finding] = []
    good: list[Gpu] = []
    for gpu in report.gpus:
        mine = list(_judged(gpu, judge))
        found += mine
        if not mine:
            good.append(gpu)
    yield from together(found, len(report.gpus))
    if good and all(finding.status == "skipped" for finding in found):
        yield Finding("node", "ok", f"{count(good)}: {well(good)}", evidence=(rows(good[0], *shown),))


def _judged(gpu: Gpu, judge: Judge) -> Iterator[Finding]:
    try:
        yield from judge(gpu)
    except NoEvidence as error:
        yield Finding(gpu.component, "unknown", str(error), advice=READ_ERROR_ADVICE, evidence=(Evidence(error.probe),))


def count(gpus: Sequence[Gpu]) -> str:
    """How many, in words: "8 GPUs"."""
    return f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}"


def together(found: Sequence[Finding], gpus: int) -> list[Finding]:
    """What all GPUs have alike is said once, of the node: its cause lies there, and nobody reads eight equal lines."""
    alike: dict[Finding, list[Finding]] = {}
    for finding in found:
        alike.setdefault(_of_any_gpu(finding), []).append(finding)
    merged: list[Finding] = []
    for finding in found:
        group = alike[_of_any_gpu(finding)]
        if gpus < 2 or len(group) != gpus:
            merged.append(finding)
        elif finding is group[0]:
            said = f"all {gpus} GPUs: {finding.observed}"
            merged.append(_of_any_gpu(finding)._replace(component="node", observed=said, evidence=finding.evidence))
    return merged


def _of_any_gpu(finding: Finding) -> Finding:
    """Without what names one GPU. nvidia-smi without -i acts on all of them."""
    return finding._replace(component="", evidence=(), advice=re.sub(r" -i \d+", "", finding.advice))


def majority(values: Mapping[int, Any]) -> Any:
    """The value that more than half of the GPUs have (by index); None without one."""
    counted: dict[Any, int] = {}
    for value in values.values():
        counted[value] = counted.get(value, 0) + 1
    best = max(counted, key=lambda value: counted[value], default=None)
    return best if best is not None and 2 * counted[best] > len(values) else None
