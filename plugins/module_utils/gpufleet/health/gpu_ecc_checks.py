# SPDX-License-Identifier: Apache-2.0
"""ECC: the mode, and errors of the GPUs' memories."""

from __future__ import annotations

from collections.abc import Iterator

from .check import Check, Profile
from .finding import Finding
from .gpu_facts import Absent, Gpu
from .gpu_findings import judge_each, known, printed, rows, skipped, value_of, wanted
from .gpu_models import expected_of
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .probe import NoEvidence

_ERRORS = "NVIDIA GPU Memory Error Management; healthchecks research 1.1"


def check_ecc_mode(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """ECC is as the profile wants it, now and after the next reset: without it nothing tells of wrong results.

    Source: imbue-ai/cluster-health (both modes); recordings gpu0-ecc-*.
    """
    mode = wanted(profile, "ecc")
    if mode is None:
        yield Finding("node", "skipped", "the profile does not say (platform.gpu.ecc)")
        return
    expected = mode.capitalize()

    def judge(gpu: Gpu) -> Iterator[Finding]:
        current, pending = known(gpu, "ecc.current"), known(gpu, "ecc.pending")
        if isinstance(current, Absent):
            yield skipped(gpu, f"ECC mode is {current.reason}: this GPU has none")
        elif current != expected:
            later = "it is pending, a reset applies it" if pending == expected else "and none is pending"
            switch = "" if pending == expected else f"run 'nvidia-smi -i {gpu.index} -e {int(mode == 'enabled')}', "
            yield Finding(
                gpu.component,
                "fail",
                f"ECC is {current.lower()} ({later})",
                f"ECC {mode} (platform.gpu.ecc)",
                "reset_gpu",
                f"drain the node, {switch}reset the GPU and check again",
                (rows(gpu, "ecc.current", "ecc.pending"),),
                "recordings gpu0-ecc-disabled, gpu0-ecc-pending-on",
            )
        elif pending != expected:
            yield Finding(
                gpu.component,
                "warn",
                f"ECC is {current.lower()}, but will be {str(pending).lower()} after the next reset",
                f"ECC {mode} (platform.gpu.ecc)",
                "observe",
                f"run 'nvidia-smi -i {gpu.index} -e {int(mode == 'enabled')}' and find out who changed it",
                (rows(gpu, "ecc.current", "ecc.pending"),),
                "recording gpu0-ecc-pending-off",
            )

    yield from judge_each(
        evidence, profile, judge, lambda gpus: f"ECC {mode}, now and pending", "ecc.current", "ecc.pending"
    )


def _uncorrectable(gpu: Gpu, scope: str) -> dict[str, int] | Absent:
    """Uncorrectable errors by kind; Absent where the driver says that it counts none. Raises NoEvidence.

    GPUs before Ampere count by single and double bit; up to driver 525 (and early 535) SRAM has one row, then two.
    """
    path = f"ecc.{scope}."
    if not _is_not_printed(gpu, path + "double_bit"):
        return _counts(gpu, {"double-bit": path + "double_bit"})
    facts = {"DRAM": path + "dram_uncorrectable"}
    if not _is_not_printed(gpu, path + "sram_uncorrectable"):
        facts["SRAM"] = path + "sram_uncorrectable"
    else:
        facts["SRAM parity"] = path + "sram_uncorrectable_parity"
        facts["SRAM SEC-DED"] = path + "sram_uncorrectable_secded"
    return _counts(gpu, facts)


def _is_not_printed(gpu: Gpu, fact: str) -> bool:
    value = printed(gpu, fact)
    return isinstance(value, Absent) and value.kind in ("not_in_driver", "missing")


def _counts(gpu: Gpu, facts: dict[str, str]) -> dict[str, int] | Absent:
    counts = {}
    nothing = None
    for kind, fact in facts.items():
        value = known(gpu, fact)
        if not isinstance(value, Absent):
            counts[kind] = value
        elif value.kind == "not_in_driver":
            value_of(gpu, fact)  # the rows go together: where one is printed all are
        else:
            nothing = value
    return nothing if nothing is not None else counts


def check_ecc(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """No uncorrectable memory error since the driver was loaded, and none of the signs that a GPU is at its end.

    Uncorrectable errors since the load ruin results: the GPU is reset. Old ones (aggregate) are history. The
    threshold flag for SRAM and unrepairable memory are NVIDIA's own conditions for replacement. Corrected errors do
    no harm; very many foretell others.

    Source: NVIDIA GPU Memory Error Management; Xid 48 workflow (threshold flag); limits: health/gpu_models.py.
    """

    def judge(gpu: Gpu) -> Iterator[Finding]:
        volatile, aggregate = _uncorrectable(gpu, "volatile"), _uncorrectable(gpu, "aggregate")
        if isinstance(volatile, Absent) or isinstance(aggregate, Absent):
            yield from _not_counted(gpu)
            return
        yield from _end_of_life(gpu)
        if sum(volatile.values()):
            yield _errors_since_load(gpu, volatile)
        elif sum(aggregate.values()):
            yield Finding(
                gpu.component,
                "warn",
                f"{_said(aggregate)} uncorrectable errors in its life, none since the driver was loaded",
                "",
                "observe",
                "history: no reason to drain; keep it in mind when the GPU shows new errors",
                (rows(gpu, *_rows_of(gpu, "aggregate")),),
                _ERRORS,
            )
        yield from _too_many_corrected(gpu, profile)

    yield from judge_each(
        evidence,
        profile,
        judge,
        lambda gpus: "0 uncorrectable errors since the driver was loaded, 0 in their life",
        "ecc.volatile.dram_uncorrectable",
        "ecc.aggregate.dram_uncorrectable",
    )


def _rows_of(gpu: Gpu, scope: str) -> list[str]:
    kinds = ("dram_uncorrectable", "sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded")
    facts = [f"ecc.{scope}.{kind}" for kind in (*kinds, "double_bit")]
    return [fact for fact in facts if not _is_not_printed(gpu, fact)]


def _said(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in counts.items() if number)


def _not_counted(gpu: Gpu) -> Iterator[Finding]:
    mode = known(gpu, "ecc.current")
    if isinstance(mode, Absent):
        yield skipped(gpu, f"ECC mode is {mode.reason}: this GPU has none")
    elif known(gpu, "mig_current") == "Enabled":
        yield skipped(gpu, "MIG is on: this driver counts errors for each instance only")
    elif mode == "Disabled":
        raise NoEvidence(QUERY, "ECC is disabled, so errors are not counted")
    else:
        raise NoEvidence(QUERY, "ECC is enabled, but the counts of errors are N/A")


def _errors_since_load(gpu: Gpu, counts: dict[str, int]) -> Finding:
    pending = printed(gpu, "row_remap.pending") == "Yes"
    at_its_end = "Yes" in (gpu.ecc.sram_threshold_exceeded, gpu.ecc.unrepairable_memory)
    return Finding(
        gpu.component,
        "fail",
        f"{_said(counts)} uncorrectable errors since the driver was loaded",
        "none",
        "reset_gpu",
        "drain the node and reset the GPU"
        + (": the reset also puts spare rows in place (row remap pending)" if pending else "")
        + ", then run dcgmi diag -r 3"
        + ("" if at_its_end else "; no reason to replace it by itself"),
        (rows(gpu, *_rows_of(gpu, "volatile")),),
        _ERRORS,
    )


def _end_of_life(gpu: Gpu) -> Iterator[Finding]:
    ends = {
        "ecc.sram_threshold_exceeded": ("the threshold of uncorrectable SRAM errors is exceeded", "replace"),
        "ecc.unrepairable_memory": ("it has memory that cannot be repaired", "replace"),
        "ecc.channel_repair_pending": ("a repair of a memory channel is pending", "reset_gpu"),
        "ecc.tpc_repair_pending": ("a repair of a TPC is pending", "reset_gpu"),
    }
    advices = {
        "replace": "drain the node, run the field diagnostic where the vendor asks for it, and have the GPU replaced: "
        "this is NVIDIA's own condition for a return",
        "reset_gpu": "drain the node and reset the GPU, which carries the repair out",
    }
    for fact, (what, action) in ends.items():
        if known(gpu, fact) == "Yes":
            sources = [f"ecc.sram_{place}" for place in ("l2", "sm", "microcontroller", "pcie", "other")]
            more = sources if fact == "ecc.sram_threshold_exceeded" else []
            yield Finding(
                gpu.component,
                "fail",
                what,
                "No",
                action,
                advices[action],
                (rows(gpu, fact, *more, "serial"),),
                "NVIDIA Xid catalog, workflow of Xid 48; recording gpu2-sram-threshold-exceeded",
            )


def _too_many_corrected(gpu: Gpu, profile: Profile) -> Iterator[Finding]:
    for kind in ("sram", "dram"):
        fact, key = f"ecc.volatile.{kind}_correctable", f"correctable_{kind}_errors"
        most = expected_of(profile, gpu, key)
        if not _is_not_printed(gpu, "ecc.volatile.single_bit"):
            fact = "ecc.volatile.single_bit"
        corrected = value_of(gpu, fact)
        if most is not None and corrected > most:
            yield Finding(
                gpu.component,
                "warn",
                f"{corrected} corrected {kind.upper()} errors since the driver was loaded",
                f"at most {most:.0f} (limits.gpu.{key})",
                "observe",
                "results are right, but uncorrectable errors may follow: drain and reset the GPU at the next chance "
                "and watch how fast the count grows",
                (rows(gpu, fact),),
                _ERRORS,
            )


CHECKS: tuple[Check, ...] = (
    Check("gpu.ecc_mode", check_ecc_mode, needs=(QUERY,)),
    Check("gpu.ecc", check_ecc, needs=(QUERY,)),
)
