# SPDX-License-Identifier: Apache-2.0
"""What the driver itself asks for, and the InfoROM, where the GPU keeps its own records."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .check import Check, Profile
from .finding import Evidence, Finding
from .gpu_facts import Absent, Gpu, GpuReport, normalized_address
from .gpu_findings import judge_each, known, no_gpus, rows, skipped
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY

# The driver's words (nvmlDeviceGpuRecoveryAction_t; nvidia-smi prints them short): status, action, advice.
_RECOVERY = {
    "reset": ("fail", "reset_gpu", "drain the node and reset this GPU"),
    "gpu reset": ("fail", "reset_gpu", "drain the node and reset this GPU"),
    "reboot": ("fail", "reboot", "drain the node and reboot it"),
    "node reboot": ("fail", "reboot", "drain the node and reboot it"),
    "drain p2p": (
        "fail",
        "reset_gpu",
        "stop all work that uses peer-to-peer traffic (every multi-GPU job) on this node, then reset the GPU",
    ),
    "drain and reset": ("warn", "reset_gpu", "let the running job end, start no other, then reset this GPU"),
    "recover imex domain": ("fail", "restart_service", "restart the IMEX service of the whole NVLink domain"),
}


def check_recovery_action(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """The driver asks for no recovery ("GPU Recovery Action" of newer drivers): its own verdict about the GPU.

    Source: NVML API, nvmlDeviceGpuRecoveryAction_t; outputs of drivers 575 and 590.
    """

    def judge(gpu: Gpu) -> Iterator[Finding]:
        said = known(gpu, "recovery_action")
        if isinstance(said, Absent):
            yield skipped(gpu, f"GPU Recovery Action: {said.reason}")
        elif said != "None":
            status, action, advice = _RECOVERY.get(
                re.sub(r" required$", "", said.lower()),
                ("unknown", "none", "this answer is new: look it up in NVIDIA's notes of the driver before acting"),
            )
            yield Finding(
                gpu.component,
                status,
                f"the driver asks for: {said}",
                "None",
                action,
                advice,
                (rows(gpu, "recovery_action"),),
                "NVML API, nvmlDeviceGpuRecoveryAction_t",
            )

    yield from judge_each(evidence, profile, judge, lambda gpus: "the driver asks for no recovery", "recovery_action")


def check_reset_required(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """No GPU waits for a reset (rows of drivers 535 to 570; later ones answer by GPU Recovery Action).

    Source: nvidia-smi(1), GPU Reset Status; recordings gpu7-reset-required, gpu7-drain-and-reset.
    """

    def judge(gpu: Gpu) -> Iterator[Finding]:
        required, drain = known(gpu, "reset_required"), known(gpu, "drain_and_reset")
        if isinstance(required, Absent) and isinstance(drain, Absent):
            yield skipped(gpu, f"GPU Reset Status: {required.reason}")
        elif required == "Yes":
            advice = (
                "drain the node and reset this GPU (nvidia-smi -r with its number); with NVSwitches all GPUs are reset "
                "together (nvidia-smi -r)"
            )
            yield _reset(gpu, "fail", "a reset is required", advice)
        elif drain == "Yes":
            advice = "let the running job end, start no other, then reset this GPU"
            yield _reset(gpu, "warn", "the driver recommends to drain and reset it", advice)

    yield from judge_each(
        evidence, profile, judge, lambda gpus: "no reset required or recommended", "reset_required", "drain_and_reset"
    )


def _reset(gpu: Gpu, status: str, observed: str, advice: str) -> Finding:
    shown = (rows(gpu, "reset_required", "drain_and_reset"),)
    return Finding(gpu.component, status, observed, "No", "reset_gpu", advice, shown, "nvidia-smi(1), GPU Reset Status")


_CORRUPT = re.compile(r"inforom is corrupted(?: at gpu ([0-9A-Fa-f:.]+))?", re.IGNORECASE)


def check_inforom(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """The InfoROM of every GPU can be read: it holds the ECC counts of the GPU's life and its remapped rows.

    nvidia-smi prints its warning around the output and exits with 0.

    Source: Azure/azhpc-diagnostics, test/samples/nvidia-smi-inforom.out; DCGM_FR_CORRUPT_INFOROM.
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    report: GpuReport = evidence.facts(QUERY)
    notes = {}
    for note in report.notes:
        found = _CORRUPT.search(note)
        if found:
            notes[normalized_address(found.group(1) or "")] = note
    known_addresses = {gpu.address for gpu in report.gpus}
    for address, note in notes.items():
        if address not in known_addresses:
            yield _corrupt(f"GPU {address}" if address else "node", note)

    def judge(gpu: Gpu) -> Iterator[Finding]:
        image = known(gpu, "inforom.image")
        if gpu.address in notes:
            yield _corrupt(gpu.component, notes[gpu.address])
        elif isinstance(image, Absent) and isinstance(known(gpu, "ecc.current"), Absent):
            yield skipped(gpu, f"InfoROM image version is {image.reason}: this GPU has none")
        elif isinstance(image, Absent):
            yield Finding(
                gpu.component,
                "warn",
                f"the version of its InfoROM is {image.reason}",
                "a version",
                "reset_gpu",
                "drain the node, reset the GPU and check again; if the version stays away, the InfoROM is corrupt: "
                "have the GPU replaced",
                (rows(gpu, "inforom.image", "inforom.ecc"),),
                "recording gpu6-inforom-missing",
            )

    yield from judge_each(evidence, profile, judge, lambda gpus: "InfoROM readable", "inforom.image", "inforom.ecc")


def _corrupt(component: str, note: str) -> Finding:
    return Finding(
        component,
        "fail",
        note,
        "an InfoROM that can be read",
        "reset_gpu",
        "drain the node, reset the GPU and check again; if the warning stays, have the GPU replaced (its error records "
        "and remapped rows can no longer be trusted)",
        (Evidence(QUERY, note),),
        "Azure/azhpc-diagnostics, nvidia-smi-inforom.out",
    )


CHECKS: tuple[Check, ...] = (
    Check("gpu.recovery_action", check_recovery_action, needs=(QUERY,)),
    Check("gpu.reset_required", check_reset_required, needs=(QUERY,)),
    Check("gpu.inforom", check_inforom, needs=(QUERY,)),
)
