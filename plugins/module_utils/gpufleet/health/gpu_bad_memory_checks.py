# SPDX-License-Identifier: Apache-2.0
"""Memory that was taken out of use: rows replaced by spare ones, retired pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .check import Check, Profile
from .finding import Finding
from .gpu_facts import Absent, Gpu
from .gpu_findings import judge_each, known, rows, skipped, value_of
from .gpu_models import expected_of, model_of
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY


def check_row_remap(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """No replacement of memory rows is pending, none has failed, and spare rows are left in every bank.

    A pending one is carried out by a reset; a failed one ends the GPU. The histogram of banks tells before that
    which GPU will fail. N/A is no "0 failures": with MIG the driver hides it, otherwise it is odd on Ampere and later.

    Source: NVIDIA GPU Memory Error Management (512 rows in all, 8 per bank); bug 017 (leptonai/gpud#128).
    """

    def judge(gpu: Gpu) -> Iterator[Finding]:
        failure = known(gpu, "row_remap.failure")
        if isinstance(failure, Absent):
            yield from _without_remap(gpu, failure)
            return
        pending, rows_lost = value_of(gpu, "row_remap.pending"), value_of(gpu, "row_remap.uncorrectable")
        value_of(gpu, "row_remap.correctable")
        most = expected_of(profile, gpu, "uncorrectable_remapped_rows")
        if failure == "Yes":
            what = "a row could not be replaced: its bank has no spare row left"
            advice = "drain the node and have the GPU replaced (NVIDIA's condition for a return)"
            shown = ("row_remap.failure", "row_remap.uncorrectable", "row_remap.banks_none", "serial")
            yield _remap(gpu, "fail", what, "replace", advice, *shown)
        elif most is not None and rows_lost >= most:
            what = f"{rows_lost} rows replaced for uncorrectable errors, limit {most:.0f}"
            advice = "drain the node and have the GPU replaced: no spare rows are left"
            yield _remap(gpu, "fail", what, "replace", advice, "row_remap.uncorrectable", "serial")
        if pending == "Yes":
            what = "the replacement of a row is pending"
            advice = "drain the node and reset the GPU, which carries it out; no reason to replace the GPU"
            yield _remap(gpu, "fail", what, "reset_gpu", advice, "row_remap.pending", "row_remap.uncorrectable")
        if failure == "No":
            yield from _spare_rows(gpu)

    yield from judge_each(
        evidence,
        profile,
        judge,
        _replaced,
        "row_remap.correctable",
        "row_remap.uncorrectable",
        "row_remap.pending",
        "row_remap.failure",
    )


def _replaced(gpus: Sequence[Gpu]) -> str:
    total = {kind: sum(value_of(gpu, f"row_remap.{kind}") for gpu in gpus) for kind in ("correctable", "uncorrectable")}
    return (
        f"no row remap pending or failed, {total['uncorrectable']} rows replaced for uncorrectable and "
        f"{total['correctable']} for correctable errors, spare rows in every bank"
    )


def _remap(gpu: Gpu, status: str, observed: str, action: str, advice: str, *shown: str) -> Finding:
    reference = "NVIDIA GPU Memory Error Management; recordings gpu3-remap-*"
    return Finding(gpu.component, status, observed, "", action, advice, (rows(gpu, *shown),), reference)


def _without_remap(gpu: Gpu, failure: Absent) -> Iterator[Finding]:
    model = model_of(gpu)
    if known(gpu, "mig_current") == "Enabled":
        yield skipped(gpu, "MIG is on: the driver does not show remapped rows then")
    elif failure.kind == "not_in_driver":
        yield skipped(gpu, failure.reason)
    elif model is not None and model.row_remap:
        advice = f"an {model.name} replaces rows, so a healthy one shows numbers: look at the kernel log, reset the GPU"
        yield _remap(gpu, "warn", f"Remapped Rows is {failure.reason}", "observe", advice, "row_remap.failure")
    else:
        yield skipped(gpu, f"Remapped Rows is {failure.reason}: this GPU does not replace rows")


def _spare_rows(gpu: Gpu) -> Iterator[Finding]:
    banks = {name: known(gpu, f"row_remap.banks_{name}") for name in ("max", "high", "partial", "low", "none")}
    if all(isinstance(number, Absent) for number in banks.values()):
        return  # drivers before 525 and GPUs without the histogram
    none, low = value_of(gpu, "row_remap.banks_none"), value_of(gpu, "row_remap.banks_low")
    if none or low:
        what = f"{none} banks have no spare row left and {low} have few"
        advice = (
            "the next error in such a bank ends the GPU: have a replacement ready, and swap it at the next maintenance"
        )
        yield _remap(
            gpu, "warn", what, "observe", advice, *(f"row_remap.banks_{name}" for name in ("max", "low", "none"))
        )


def check_retired_pages(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """GPUs before Ampere: no page waits to be taken out of use, and the table of retired pages has room.

    Source: Azure/azurehpc-health-checks, azure_gpu_pageretirement; NVIDIA Dynamic Page Retirement (64 places).
    """

    def judge(gpu: Gpu) -> Iterator[Finding]:
        pending = known(gpu, "retired_pages.pending")
        single, double = known(gpu, "retired_pages.single_bit"), known(gpu, "retired_pages.double_bit")
        if isinstance(single, Absent) and isinstance(double, Absent) and isinstance(pending, Absent):
            yield skipped(gpu, f"Retired Pages is {single.reason}: this GPU has none")
            return
        pages = _pages(gpu)
        most = expected_of(profile, gpu, "retired_pages")
        reference = "Azure/azurehpc-health-checks, azure_gpu_pageretirement"
        if most is not None and pages >= most:
            yield Finding(
                gpu.component,
                "fail",
                f"{pages} pages are retired",
                f"fewer than {most:.0f} (limits.gpu.retired_pages)",
                "replace",
                "the table is full, the next bad page stays in use: drain the node and have the GPU replaced",
                (rows(gpu, *facts),),
                reference,
            )
        elif value_of(gpu, "retired_pages.pending") == "Yes":
            yield Finding(
                gpu.component,
                "fail",
                f"a page waits to be retired ({pages} are)",
                "none",
                "reset_gpu",
                "drain the node and reset the GPU, which takes the page out of use",
                (rows(gpu, *facts),),
                reference,
            )

    def well(gpus: Sequence[Gpu]) -> str:
        return f"no page pending, at most {max(_pages(gpu) for gpu in gpus)} retired"

    facts = ("retired_pages.single_bit", "retired_pages.double_bit", "retired_pages.pending")
    yield from judge_each(evidence, profile, judge, well, *facts)


def _pages(gpu: Gpu) -> int:
    return int(value_of(gpu, "retired_pages.single_bit") + value_of(gpu, "retired_pages.double_bit"))


CHECKS: tuple[Check, ...] = (
    Check("gpu.row_remap", check_row_remap, needs=(QUERY,)),
    Check("gpu.retired_pages", check_retired_pages, needs=(QUERY,)),
)
