# SPDX-License-Identifier: Apache-2.0
"""Checks of what the NVIDIA driver logged about GPUs: Xids, and GPUs that are lost without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .check import Check, Profile
from .finding import ACTIONS, STATUSES, Evidence, Finding
from .kernel_log_addresses import any_address
from .kernel_log_window import NEEDS, Event, KernelEvidence, limits
from .node_evidence import NodeEvidence

if TYPE_CHECKING:
    from .xid_faults import Fault
    from .xid_lines import Xid

OFF_THE_BUS = 79
# A GPU with more kinds of Xid than this shows the worst ones.
_FAULTS_SHOWN = 6
_SOURCE = "Xid catalog of this project (xid_catalog.py); healthchecks.md, section 2"


class _Gpu(NamedTuple):
    """What the log says of one GPU. address: "" where the lines name none that can be read."""

    address: str
    xids: list[tuple[Event, Xid]]

    @property
    def component(self) -> str:
        return f"GPU {self.address}" if self.address else "GPU with unreadable address"


def _by_gpu(kernel: KernelEvidence) -> list[_Gpu]:
    events = kernel.messages("xid")
    if not events:
        return []
    from .xid_lines import parse_xid  # only faults need it

    gpus: dict[str, _Gpu] = {}
    for event in events:
        xid = parse_xid(event.text)
        if xid.number != OFF_THE_BUS and "fallen off the bus" in xid.detail:
            # Whatever number was printed: a GPU of which the driver says this is lost.
            xid = xid._replace(number=OFF_THE_BUS)
        gpus.setdefault(xid.address, _Gpu(xid.address, [])).xids.append((event, xid))
    return [gpus[address] for address in sorted(gpus)]


def check_xid(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Xids: faults that the NVIDIA driver reports in the kernel log, one finding for each GPU.

    Each number is looked up in the catalog (`node-health explain xid 79`). What a line says itself stands above the
    number: the words of Xid 154 are the driver's own verdict, Fatal and Nonfatal decide for Xid 144 to 150, the
    registers for Xid 74, RST: Yes for memory errors. Xid 45 that follow another fault are counted as its consequence; a
    burst of them with hung tasks means that only a reboot helps. Xid 13 and 31 are the program's fault, unless several
    jobs fail on one unit of a GPU. Numbers that nobody has described ask for a person.

    Source: healthchecks.md, section 2; bugs 028 to 041.
    """
    kernel = KernelEvidence(evidence)
    found = False
    for gpu in _by_gpu(kernel):
        if faults := _faults(gpu, kernel, profile):
            found = True
            yield _finding(gpu, faults)
    gaps = kernel.gaps("no Xid")
    yield from gaps
    if not found and not gaps:
        past = sum(event.occurrences for event in kernel.messages("xid"))
        words = f"no Xid that still counts ({past} are too old, or the driver took them back)" if past else "no Xid"
        yield Finding("node", "ok", f"{words}, {kernel.window()}", evidence=kernel.evidence())


def _faults(gpu: _Gpu, kernel: KernelEvidence, profile: Profile) -> list[Fault]:
    from .xid_faults import judge_gpu, stopped_and_hung  # only faults need it

    faults = judge_gpu(gpu.xids, kernel, profile)
    if stuck := stopped_and_hung(gpu.xids, kernel.messages("hung_task"), limits(profile)["stopped_channels"]):
        faults = [stuck, *(fault for fault in faults if fault.number != stuck.number)]
    return [fault for fault in faults if fault.status != "ok"]


def _finding(gpu: _Gpu, faults: Sequence[Fault]) -> Finding:
    worst = sorted(faults, key=lambda fault: (STATUSES.index(fault.status), ACTIONS.index(fault.action)), reverse=True)
    words = [fault.words for fault in worst[:_FAULTS_SHOWN]]
    if len(worst) > _FAULTS_SHOWN:
        words.append(f"and {len(worst) - _FAULTS_SHOWN} more kinds of Xid")
    shown = [Evidence(event.source, event.excerpt) for fault in worst[:_FAULTS_SHOWN] for event in fault.events[:1]]
    return Finding(
        gpu.component,
        worst[0].status,
        "; ".join(words),
        "no Xid",
        max((fault.action for fault in worst), key=ACTIONS.index),
        worst[0].advice,
        tuple(shown),
        _SOURCE,
    )


def check_gpu_bus(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """GPUs that are lost although no Xid is printed: fallen off the bus, or not initialised by the driver.

    When the driver finds a GPU lost while it loads, it says so in a sentence without an Xid number, in newer branches
    over several lines. A GPU with an Xid 79 is reported by kernel.xid alone.

    Source: bug 033 (NVIDIA/NVSentinel issue 155, leptonai/gpud pull request 1209).
    """
    kernel = KernelEvidence(evidence)
    with_xid = {gpu.address for gpu in _by_gpu(kernel) if any(xid.number == OFF_THE_BUS for __, xid in gpu.xids)}
    found = False
    for finding in _lost(kernel, with_xid):
        found = True
        yield finding
    expected = "no GPU reported as lost"
    gaps = kernel.gaps(expected)
    yield from gaps
    if not found and not gaps:
        words = "no GPU reported as fallen off the bus or not initialised"
        yield Finding("node", "ok", f"{words}, {kernel.window()}", evidence=kernel.evidence())


def _lost(kernel: KernelEvidence, with_xid: set[str]) -> Iterator[Finding]:
    of_bus, of_init = kernel.messages("gpu_bus"), kernel.messages("gpu_init")
    if not (of_bus or of_init or with_xid):
        return
    from .xid_catalog import xid_entry  # only faults need them
    from .xid_lines import fallen_address

    reported: set[str] = set()
    events: dict[str, list[Event]] = {}
    for event in of_bus:
        events.setdefault(fallen_address(event.text) or any_address(event.text), []).append(event)
    for address in sorted(set(events) | with_xid):
        component = f"GPU {address}" if address else "GPU with unreadable address"
        if address in with_xid:
            yield Finding(component, "skipped", "reported by kernel.xid (Xid 79)")
            continue
        reported.add(address)
        entry = xid_entry(OFF_THE_BUS)
        words = f"fallen off the bus, said without an Xid, {kernel.often(events[address])}"
        yield _bus_finding(component, words, entry.action, entry.advice, events[address])
    failed: dict[str, list[Event]] = {}
    for event in of_init:
        failed.setdefault(any_address(event.text), []).append(event)
    for address, of_gpu in sorted(failed.items()):
        if address in reported or address in with_xid:
            continue
        component = f"GPU {address}" if address else "GPU with unreadable address"
        advice = "Reboot the node; if the driver still cannot initialise the GPU, switch the power off and on."
        words = f"the driver could not initialise the GPU, {kernel.often(of_gpu)}"
        yield _bus_finding(component, words, "reboot", advice, of_gpu)


def _bus_finding(component: str, words: str, action: str, advice: str, events: Sequence[Event]) -> Finding:
    shown = tuple(Evidence(event.source, event.excerpt) for event in events[:2])
    reference = "bug 033 (NVIDIA/NVSentinel issue 155)"
    return Finding(component, "fail", words, "a GPU that answers on PCIe", action, advice, shown, reference)


CHECKS = (
    Check("kernel.xid", check_xid, NEEDS),
    Check("kernel.gpu_bus", check_gpu_bus, NEEDS),
)
