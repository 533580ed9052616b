# SPDX-License-Identifier: Apache-2.0
"""Which GPUs they are, and the versions of what runs on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .check import Check, Profile
from .finding import Evidence, Finding
from .gpu_facts import Absent, Gpu, GpuReport
from .gpu_findings import count, described, judge_each, known, majority, no_gpus, rows, together, value_of
from .gpu_models import expected_of
from .node_evidence import NodeEvidence
from .nvidia_smi_fields import LABELS
from .nvidia_smi_query import QUERY
from .probe import NoEvidence

# An A100 has 40536 MiB by driver 460 and 40960 by 510, of which 605 are reserved: earlier ones leave that part out.
_RESERVED_COUNTED_SINCE = 510


def check_sku(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Every GPU is the model that the profile names, of the full memory size, and equal to the others.

    Source: recordings gpu6-wrong-sku, gpu6-less-memory; memory sizes: health/gpu_models.py.
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    report: GpuReport = evidence.facts(QUERY)
    usual = majority({gpu.index: gpu.name for gpu in report.gpus if isinstance(gpu.name, str)})
    usual_memory = majority({gpu.index: gpu.memory.total for gpu in report.gpus if isinstance(gpu.memory.total, int)})
    rules = ((profile.get("devices") or {}).get("gpu") or {}).get("match") or []
    devices = sorted({str(rule["device"]) for rule in rules if rule.get("device")})

    def judge(gpu: Gpu) -> Iterator[Finding]:
        name, device, memory = value_of(gpu, "name"), value_of(gpu, "device_id"), value_of(gpu, "memory.total")
        whole = expected_of(profile, gpu, "memory_mib") if report.driver_branch >= _RESERVED_COUNTED_SINCE else None
        full = usual_memory if whole is None else int(whole)
        advice = (
            "another board than the node was bought with: compare its serial number with the delivery, have the "
            "vendor replace it"
        )
        if devices and device not in devices:
            text = f"{name}, PCI device 10de:{device}"
            expected = f"PCI device 10de:{' or 10de:'.join(devices)} (devices.gpu.match)"
            yield _other(gpu, text, expected, advice, "device_id")
        elif usual is not None and name != usual:
            yield _other(gpu, str(name), f"{usual}, as the other GPUs", advice, "name")
        elif full is not None and memory != full:
            advice = (
                "a part of its memory is gone or belongs to something else (MIG, confidential computing): drain "
                "the node, reset the GPU; if the size stays, have it inspected"
            )
            yield _other(
                gpu,
                f"{memory} MiB of memory",
                f"{full} MiB ({'as the other GPUs' if whole is None else 'limits.gpu.memory_mib'})",
                advice,
                "memory.total",
            )

    yield from judge_each(
        evidence,
        profile,
        judge,
        lambda gpus: f"{gpus[0].name}, {gpus[0].memory.total} MiB",
        "name",
        "device_id",
        "memory.total",
    )


def _other(gpu: Gpu, observed: str, expected: str, advice: str, fact: str) -> Finding:
    reference = "recordings gpu6-wrong-sku, gpu6-less-memory"
    return Finding(
        gpu.component, "fail", observed, expected, "inspect", advice, (rows(gpu, fact, "serial"),), reference
    )


# Versions that must be equal on all GPUs of a node, and the component of the firmware manifest that names them.
_VERSIONS = (("vbios", "gpu_vbios"), ("inforom.image", "gpu_inforom"), ("inforom.ecc", ""), ("gsp_firmware", ""))


def check_versions(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """VBIOS, InfoROM and GSP firmware are equal on all GPUs and as the profile says; so are driver and CUDA.

    The GSP firmware comes with the driver: another version is left over from before an upgrade. N/A says that the GPU
    runs without it.

    Source: imbue-ai/cluster-health (histogram of versions); bug 015 (spelling of driver 610).
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    report = described(evidence)
    for name, text in (("driver", report.driver_version), ("CUDA", report.cuda_version)):
        if isinstance(text, Absent):
            raise NoEvidence(QUERY, f"{name} version: {text}")
    found = list(_driver(report, profile))
    for fact, component in _VERSIONS:
        found += _differing(
            report, fact, ((profile.get("firmware") or {}).get(component) or {}).get("version"), component
        )
    found += _gsp(report)
    found = together(found, len(report.gpus))
    yield from found
    if not found:
        gpu = report.gpus[0]
        yield Finding(
            "node",
            "ok",
            f"{count(report.gpus)}: driver {report.driver_version}, CUDA {report.cuda_version}, VBIOS {gpu.vbios}, "
            f"InfoROM {gpu.inforom.image}, GSP {gpu.gsp_firmware} on all",
            evidence=(rows(gpu, *(fact for fact, _component in _VERSIONS)),),
        )


def _driver(report: GpuReport, profile: Profile) -> Iterator[Finding]:
    expected = ((profile.get("packages") or {}).get("nvidia_driver") or {}).get("version")
    if expected is not None and report.driver_version != expected:
        yield Finding(
            "node",
            "warn",
            f"driver {report.driver_version}",
            f"{expected} (packages.nvidia_driver.version)",
            "reboot",
            "install the driver of the profile on the drained node and reboot it",
            (Evidence(QUERY, f"Driver Version : {report.driver_version}"),),
            "imbue-ai/cluster-health",
        )


def _differing(report: GpuReport, fact: str, wanted: Any, component: str) -> Iterator[Finding]:
    label = LABELS[fact].replace(" > ", " ")
    values: dict[int, str] = {}
    for gpu in report.gpus:
        try:
            value = known(gpu, fact)
            if not isinstance(value, Absent) or not fact.startswith("inforom."):  # gpu.inforom says that it is gone
                values[gpu.index] = str(value)
        except NoEvidence as error:
            yield Finding(gpu.component, "unknown", str(error), evidence=(Evidence(QUERY),), advice=_READ)
    usual = majority(values)
    advice = (
        "flash this GPU with the version of the others on the drained node (playbook firmware); where they have "
        "no majority, choose one and write it into the profile"
    )
    expected = f"{wanted} (firmware.{component})" if wanted is not None else f"{usual}, as the other GPUs"
    if wanted is None and usual is None and values:
        text = "; ".join(f"GPU {index}: {value}" for index, value in values.items())
        shown = (rows(report.gpus[0], fact),)
        yield Finding("node", "warn", f"{label} differ: {text}", "one version", "observe", advice, shown, _SAME)
        return
    odd = [
        gpu for gpu in report.gpus if gpu.index in values and values[gpu.index] != (usual if wanted is None else wanted)
    ]
    if wanted is not None and len(odd) == len(report.gpus) and len(set(values.values())) == 1 and len(odd) > 1:
        text = f"all {len(odd)} GPUs: {label} {values[odd[0].index]}"
        advice = (
            "flash the GPUs with the profile's version on the drained node (playbook firmware), or correct the "
            "profile where this version is the right one"
        )
        yield Finding("node", "warn", text, expected, "observe", advice, (rows(odd[0], fact),), _SAME)
        return
    for gpu in odd:
        text = f"{label} {values[gpu.index]}"
        yield Finding(gpu.component, "warn", text, expected, "observe", advice, (rows(gpu, fact),), _SAME)


_SAME = "imbue-ai/cluster-health, histogram of versions"
_READ = "run 'nvidia-smi -q -x' by hand on the node and look at this row"


def _gsp(report: GpuReport) -> Iterator[Finding]:
    for gpu in report.gpus:
        version = gpu.gsp_firmware
        if isinstance(version, str) and version != report.driver_version:
            yield Finding(
                gpu.component,
                "warn",
                f"GSP firmware {version} under driver {report.driver_version}",
                "the driver's own version",
                "reboot",
                "firmware of another driver version is loaded: drain the node and reboot it; if it stays, look for "
                "old files in /lib/firmware/nvidia",
                (rows(gpu, "gsp_firmware"),),
                "NVIDIA driver README, GSP firmware",
            )


CHECKS: tuple[Check, ...] = (
    Check("gpu.sku", check_sku, needs=(QUERY,)),
    Check("gpu.versions", check_versions, needs=(QUERY,)),
)
