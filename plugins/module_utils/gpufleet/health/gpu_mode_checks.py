# SPDX-License-Identifier: Apache-2.0
"""How the GPUs are set: persistence, compute mode, MIG, confidential computing."""

from __future__ import annotations

from collections.abc import Iterator

from .check import Check, Profile
from .finding import Finding
from .gpu_facts import Absent, Gpu
from .gpu_findings import judge_each, known, rows, skipped, value_of, wanted
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY


def _not_wanted(key: str) -> Finding:
    return Finding("node", "skipped", f"the profile does not say (platform.gpu.{key})")


def check_persistence(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Persistence mode is as the profile wants it.

    Without it the driver leaves with the last client: the next one waits for seconds, and the counts of errors since
    the load of the driver start again at 0.

    Source: NVIDIA driver persistence documentation; leptonai/gpud; recordings all-persistence-off.
    """
    mode = wanted(profile, "persistence")
    if mode is None:
        yield _not_wanted("persistence")
        return

    def judge(gpu: Gpu) -> Iterator[Finding]:
        found = value_of(gpu, "persistence")
        if found != mode.capitalize():
            cure = "start nvidia-persistenced (systemctl enable --now nvidia-persistenced)"
            yield Finding(
                gpu.component,
                "warn",
                f"persistence mode is {found.lower()}",
                f"{mode} (platform.gpu.persistence)",
                "restart_service",
                cure if mode == "enabled" else "stop nvidia-persistenced and run 'nvidia-smi -pm 0'",
                (rows(gpu, "persistence"),),
                "NVIDIA driver persistence documentation",
            )

    yield from judge_each(evidence, profile, judge, lambda gpus: f"persistence mode {mode}", "persistence")


def check_compute_mode(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """The compute mode is as the profile wants it: an exclusive one makes the second process of a job fail.

    Source: nvidia-smi(1), Compute Mode; recordings gpu0-compute-exclusive.
    """
    mode = wanted(profile, "compute_mode")
    if mode is None:
        yield _not_wanted("compute_mode")
        return

    def judge(gpu: Gpu) -> Iterator[Finding]:
        found = value_of(gpu, "compute_mode")
        if found != mode:
            yield Finding(
                gpu.component,
                "warn",
                f"compute mode is {found}",
                f"{mode} (platform.gpu.compute_mode)",
                "observe",
                f"run 'nvidia-smi -i {gpu.index} -c {mode.upper()}' and find out who changed it",
                (rows(gpu, "compute_mode"),),
                "nvidia-smi(1), Compute Mode",
            )

    yield from judge_each(evidence, profile, judge, lambda gpus: f"compute mode {mode}", "compute_mode")


def check_mig(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """MIG is as the profile wants it, now and after the next reset: an instance is a part of a GPU and has no NVLink.

    N/A is "not active", as on GPUs without MIG; MIG devices are no further GPUs.

    Source: NVIDIA MIG User Guide; bugs 009, 010; recordings gpu2-mig-pending.
    """
    mode = wanted(profile, "mig")
    if mode is None:
        yield _not_wanted("mig")
        return

    def judge(gpu: Gpu) -> Iterator[Finding]:
        current, pending = _mig(gpu, "mig_current"), _mig(gpu, "mig_pending")
        advice = f"drain the node, run 'nvidia-smi -i {gpu.index} -mig {int(mode == 'enabled')}', reset the GPU"
        expected = f"{mode} (platform.gpu.mig)"
        shown = (rows(gpu, "mig_current", "mig_pending"),)
        if current != mode:
            devices = f", {gpu.mig_devices} MIG devices" if gpu.mig_devices else ""
            text = f"MIG is {current}{devices}"
            yield Finding(gpu.component, "fail", text, expected, "reset_gpu", advice, shown, "bugs 009, 010")
        elif pending != mode:
            text = f"MIG is {current}, but will be {pending} after the next reset"
            advice = f"run 'nvidia-smi -i {gpu.index} -mig {int(mode == 'enabled')}' and find out who changed it"
            reference = "recording gpu2-mig-pending"
            yield Finding(gpu.component, "warn", text, expected, "observe", advice, shown, reference)

    yield from judge_each(
        evidence, profile, judge, lambda gpus: f"MIG {mode}, now and pending", "mig_current", "mig_pending"
    )


def _mig(gpu: Gpu, fact: str) -> str:
    value = known(gpu, fact)
    return "disabled" if isinstance(value, Absent) else str(value).lower()


def check_confidential_compute(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Confidential computing is as the profile wants it: with it on, traffic is encrypted and peer-to-peer is limited.

    It shows in the memory that is protected.

    Source: nvidia-smi(1), Conf Compute Protected Memory Usage; no public checker looks at it.
    """
    mode = wanted(profile, "confidential_compute")
    if mode is None:
        yield _not_wanted("confidential_compute")
        return

    def judge(gpu: Gpu) -> Iterator[Finding]:
        protected = known(gpu, "memory.protected_total")
        if isinstance(protected, Absent) and protected.kind == "not_in_driver":
            yield skipped(gpu, f"protected memory: {protected.reason}")
            return
        found = "disabled" if isinstance(protected, Absent) or protected == 0 else "enabled"
        if found != mode:
            yield Finding(
                gpu.component,
                "warn",
                f"confidential computing is {found} (protected memory: {protected}"
                + ("" if isinstance(protected, Absent) else " MiB")
                + ")",
                f"{mode} (platform.gpu.confidential_compute)",
                "reboot",
                "the mode is set by the GPU administration tools and takes a reset of the GPU and a reboot: drain the "
                "node, set it, reboot",
                (rows(gpu, "memory.protected_total"),),
                "nvidia-smi(1), Conf Compute Protected Memory Usage",
            )

    yield from judge_each(
        evidence, profile, judge, lambda gpus: f"confidential computing {mode}", "memory.protected_total"
    )


CHECKS: tuple[Check, ...] = (
    Check("gpu.persistence", check_persistence, needs=(QUERY,)),
    Check("gpu.compute_mode", check_compute_mode, needs=(QUERY,)),
    Check("gpu.mig", check_mig, needs=(QUERY,)),
    Check("gpu.confidential_compute", check_confidential_compute, needs=(QUERY,)),
)
