# SPDX-License-Identifier: Apache-2.0
"""Whether the driver answers, and whether all GPUs are there and answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .check import Check, Profile
from .evaluation import READ_ERROR_ADVICE
from .finding import Evidence, Finding
from .gpu_facts import Absent, Gpu, GpuReport, Unreadable
from .gpu_findings import count, no_gpus, together
from .node_evidence import NodeEvidence
from .nvidia_driver_version import DRIVER_VERSION
from .nvidia_smi_failures import HandleFailure, failure_of, handle_failures
from .nvidia_smi_fields import LABELS
from .nvidia_smi_list import LIST, GpuList
from .nvidia_smi_query import QUERY
from .pci_tree import LSPCI, PciDevice, devices_of_class
from .probe import NoEvidence

_FALLEN = (
    "the GPU no longer answers on the bus (look for Xid 79 in the kernel log): drain the node and reboot it; if it "
    "happens again, power-cycle the node, then have the GPU reseated"
)


def check_driver(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """nvidia-smi answers, and the library it uses fits the kernel module that is loaded.

    Each way in which it does not answer has another cure: library missing, module not loaded, versions that differ
    after an upgrade, a GPU that went away, no rights. They are told apart by the words, since the exit status is not
    unique.

    Source: recordings of nvidia-smi 525 to 555; bugs 004 (skypilot-org/skypilot#411) and 015.
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    result = evidence.raw(QUERY)
    failure = failure_of(result.stdout + "\n" + result.stderr) if "<nvidia_smi_log" not in result.stdout else None
    if failure is not None:
        status = "" if result.rc is None else f" (exit status {result.rc})"
        yield Finding(
            "node",
            failure.status,
            f"nvidia-smi says{status}: {failure.text}",
            "nvidia-smi describes the GPUs",
            failure.action,
            failure.advice,
            (Evidence(QUERY, failure.text),),
            failure.reference,
        )
        return
    report: GpuReport = evidence.facts(QUERY)
    if isinstance(report.driver_version, Absent):
        raise NoEvidence(QUERY, f"Driver Version: {report.driver_version}")
    try:
        module = evidence.facts(DRIVER_VERSION).version
    except NoEvidence:
        module = None
    shown = (Evidence(QUERY, f"Driver Version : {report.driver_version}"),)
    if module is not None and module != report.driver_version:
        yield Finding(
            "node",
            "fail",
            f"the loaded kernel module is {module}, nvidia-smi reports {report.driver_version}",
            "one version",
            "reboot",
            "the driver was upgraded while its old kernel module stayed loaded: drain the node and reboot it",
            (*shown, Evidence(DRIVER_VERSION, module)),
            "bug 098",
        )
        return
    says = f"driver {report.driver_version}"
    if module is not None:
        says += ", kernel module of the same version"
    yield Finding("node", "ok", says, evidence=shown)


def check_lost(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Every GPU answers, and every row about it can be read, also where no Xid was ever logged.

    A GPU that fell off the bus still has a handle and a row in every list; only its values read "GPU is lost". One
    that cannot be opened at all ends `nvidia-smi -q` before anything about the other GPUs: these are then unknown.

    Source: recordings of nvidia-smi; bugs 001, 006, 007 (NVIDIA/dcgm-exporter#319); leptonai/gpud#1209.
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    result = evidence.raw(QUERY)
    listed = _listed(evidence)
    closed = {one.component: one for one in (listed.failures if listed else ())}
    closed.update({one.component: one for one in handle_failures(result.stdout + "\n" + result.stderr)})
    for one in closed.values():
        yield _cannot_be_opened(one)
    try:
        report: GpuReport = evidence.facts(QUERY)
    except NoEvidence as error:
        if not closed:
            raise
        yield from _survivors(error, listed)
        return
    everywhere = _everywhere(report.gpus)
    found = [finding for gpu in report.gpus for finding in _unreadable(gpu, everywhere)]
    yield from together(found, len(report.gpus))
    if not found and not closed:
        if not report.gpus:
            raise NoEvidence(QUERY, "nvidia-smi describes no GPU")
        rows = ", ".join(f"{gpu.index} ({gpu.address})" for gpu in report.gpus)
        yield Finding(
            "node", "ok", f"{count(report.gpus)} answer, every row is readable", evidence=(Evidence(QUERY, rows),)
        )


def _listed(evidence: NodeEvidence) -> GpuList | None:
    try:
        listed: GpuList = evidence.facts(LIST)
    except NoEvidence:
        return None
    return listed


def _cannot_be_opened(one: HandleFailure) -> Finding:
    reset = "requires reset" in one.reason.lower()
    return Finding(
        one.component,
        "fail",
        f"the driver cannot open it: {one.reason}",
        "a GPU that answers",
        "reset_gpu" if reset else "reboot",
        "drain the node and reset the GPU (nvidia-smi -r with its number)" if reset else _FALLEN,
        (Evidence(QUERY, f"Unable to determine the device handle: {one.reason}"),),
        "bug 006; recordings gpu3-lost-handle, gpu3-unknown-handle",
    )


def _survivors(error: NoEvidence, listed: GpuList | None) -> Iterator[Finding]:
    for gpu in listed.gpus if listed else ():
        yield Finding(
            f"GPU {gpu.number}",
            "unknown",
            f"nvidia-smi -L lists it, but nvidia-smi -q stopped before it said anything about it (probe {error.probe})",
            "its state",
            advice="nothing can be said of this GPU until the one that cannot be opened is gone: reboot the node, "
            "then run the check again",
            evidence=(Evidence(LIST, f"GPU {gpu.number}: {gpu.name} (UUID: {gpu.uuid})"),),
        )


def _everywhere(gpus: Sequence[Gpu]) -> frozenset[Unreadable]:
    """Rows that no GPU of several has readable, in the same words: then it is the driver, not a GPU."""
    if len(gpus) < 2:
        return frozenset()
    same = frozenset.intersection(*(frozenset(gpu.unreadable) for gpu in gpus))
    return frozenset(row for row in same if not row.row.startswith(_FABRIC))


def _unreadable(gpu: Gpu, everywhere: frozenset[Unreadable]) -> Iterator[Finding]:
    rows = [row for row in gpu.unreadable if row not in everywhere and not row.row.startswith(_FABRIC)]
    lost = [row for row in gpu.unreadable if "gpu is lost" in row.text.lower()]
    if lost:
        yield _about_rows(gpu, "fail", lost, "reboot", _FALLEN)
    elif any("requires reset" in row.text.lower() for row in rows):
        advice = "drain the node and reset the GPU (nvidia-smi -r with its number); reboot where that fails"
        yield _about_rows(gpu, "fail", rows, "reset_gpu", advice)
    elif rows and all(row.row in _ONE_SAMPLE for row in rows):
        advice = "a reading of power or temperature failed once, which healthy GPUs do: run the check again in a minute"
        yield _about_rows(gpu, "warn", rows, "observe", advice)
    elif any(_is_answer_of_the_driver(row) for row in rows):
        advice = (
            "the driver cannot read this GPU: save the kernel log (Xid lines), drain the node and reset the GPU; "
            "reboot where that fails"
        )
        yield _about_rows(gpu, "fail", rows, "reboot", advice)
    elif rows:
        yield _about_rows(gpu, "unknown", rows, "none", READ_ERROR_ADVICE)
    elif any(row in everywhere for row in gpu.unreadable):
        advice = (
            "the driver cannot read this row on any GPU, so it is not a broken GPU: compare with the notes of this "
            "driver version, and upgrade it when there is a chance"
        )
        yield _about_rows(gpu, "warn", [row for row in gpu.unreadable if row in everywhere], "observe", advice)


# "Unknown Error" is a status there that a GPU can have (nvmlGpuFabricInfo_t); the fabric checks judge it.
_FABRIC = "Fabric > "
# A power reading that fails once is no dead GPU: the next sample had it again (bug 002, Azure/azhpc-diagnostics#77).
_ONE_SAMPLE = frozenset({LABELS["power.draw"], "gpu power readings > instantaneous power draw"})


def _is_answer_of_the_driver(row: Unreadable) -> bool:
    """Whether the driver itself says that it could not read the row; else the row holds something unheard of."""
    return row.text.strip("[]").lower() in ("unknown error", "err!", "insufficient permissions", "timeout")


def _about_rows(gpu: Gpu, status: str, rows: Sequence[Unreadable], action: str, advice: str) -> Finding:
    texts = sorted({row.text for row in rows})
    what = f"{rows[0].row}" if len(rows) == 1 else f"{len(rows)} rows, the first {rows[0].row}"
    return Finding(
        gpu.component,
        status,
        f"cannot be read: {what} ({'; '.join(texts[:3])})",
        "every row readable",
        action,
        advice,
        (Evidence(QUERY, f"GPU {gpu.address}\n" + "\n".join(f"{row.row} : {row.text}" for row in rows)),),
        "bugs 001, 002, 007; recordings gpu2-unknown-fields, gpu0-lost-midquery",
    )


def check_count(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """As many GPUs as the profile says, by nvidia-smi and by PCI, and the same ones.

    A GPU that the driver dropped is still on PCI; one that lost its link is there as "(rev ff)" or not at all.

    Source: oracle-quickstart/oci-hpc, role healthchecks (both counts); leptonai/gpud#591.
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    kind: Any = (profile.get("devices") or {}).get("gpu")
    if not kind:
        yield Finding("node", "skipped", "the profile has no kind of device named gpu (devices.gpu)")
        return
    expected = int(kind["count"])
    by_pci: list[PciDevice] | None = None
    try:
        by_pci = devices_of_class(evidence.facts(LSPCI), kind)
    except NoEvidence as error:
        yield _no_count(error)
    report: GpuReport | None = None
    listed = _listed(evidence)
    try:
        report = evidence.facts(QUERY)
    except NoEvidence as error:
        yield _no_count(error)  # the list gives a number, but not which GPUs they are
    for device in by_pci or ():
        if device.silence:
            yield _silent(device, report)
    answering = len(report.gpus) if report else len(listed.gpus) if listed else None
    counts = _counts(expected, answering, by_pci, report)
    yield from (finding for finding in counts if finding.status != "ok" or report is not None)


def _no_count(error: NoEvidence) -> Finding:
    return Finding("node", "unknown", str(error), advice=READ_ERROR_ADVICE, evidence=(Evidence(error.probe),))


def _silent(device: PciDevice, report: GpuReport | None) -> Finding:
    names = {gpu.address: gpu.component for gpu in (report.gpus if report else ())}
    return Finding(
        names.get(device.address, f"GPU {device.address}"),
        "fail",
        f"does not answer on PCIe ({device.silence})",
        "a function that answers",
        "power_cycle",
        "the link of this GPU is gone: drain the node and power-cycle it (a warm reboot rarely brings it back); if it "
        "happens again, have the GPU reseated",
        (Evidence(LSPCI, device.heading),),
        "bug 070; oracle-quickstart/oci-hpc, role healthchecks",
    )


def _counts(
    expected: int, answering: int | None, by_pci: list[PciDevice] | None, report: GpuReport | None
) -> Iterator[Finding]:
    on_bus = None if by_pci is None else {device.address for device in by_pci}
    known = {gpu.address for gpu in report.gpus} if report else None
    hidden = sorted(on_bus - known) if on_bus is not None and known is not None else []
    unmatched = sorted(known - on_bus) if on_bus is not None and known is not None else []
    right = {n for n in (answering, None if on_bus is None else len(on_bus)) if n is not None} <= {expected}
    said = [
        text
        for text in (
            "" if answering is None else f"{answering} answer to nvidia-smi",
            "" if on_bus is None else f"{len(on_bus)} are on PCI",
            f"unknown to nvidia-smi: {', '.join(hidden)}" if hidden else "",
            f"not on PCI as devices.gpu describes it: {', '.join(unmatched)}" if unmatched else "",
        )
        if text
    ]
    evidence: tuple[Evidence, ...] = ()
    if answering is not None:
        evidence += (Evidence(QUERY, f"Attached GPUs : {answering}"),)
    if by_pci is not None:
        evidence += (Evidence(LSPCI, "\n".join(device.heading for device in by_pci)),)
    if right and not hidden and not unmatched:
        if known is not None and on_bus is not None:
            yield Finding("node", "ok", f"{expected} GPUs: {', '.join(said)}", evidence=evidence)
        return
    if unmatched:
        action = "inspect"
        advice = (
            "GPUs of another model than the profile names are in this node (gpu.sku says which): compare the serial "
            "numbers with the delivery, or correct devices.gpu.match"
        )
    elif on_bus is not None and len(on_bus) >= expected:
        action = "reboot"
        advice = (
            "the GPUs are on the bus but the driver does not drive all of them: save the kernel log (NVRM lines), "
            "drain the node, reboot it"
        )
    else:
        action = "power_cycle"
        advice = (
            "GPUs are missing from the bus: drain the node, power-cycle it, and compare the iDRAC's inventory; if "
            "they stay away, have the missing ones reseated"
        )
    yield Finding(
        "node",
        "fail",
        ", ".join(said),
        f"{expected} GPUs (devices.gpu.count), the same ones by both",
        action,
        advice,
        evidence,
        "oracle-quickstart/oci-hpc, role healthchecks",
    )


CHECKS: tuple[Check, ...] = (
    Check("gpu.driver", check_driver, needs=(QUERY,), also=(DRIVER_VERSION,)),
    Check("gpu.count", check_count, needs=(QUERY, LSPCI), also=(LIST,)),
    Check("gpu.lost", check_lost, needs=(QUERY,), also=(LIST,)),
)
