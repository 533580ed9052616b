# SPDX-License-Identifier: Apache-2.0
"""What the SXids of one NVSwitch mean: from lines of the log to one finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .check import Profile
from .finding import ACTIONS, STATUSES, Evidence, Finding
from .kernel_log_window import Event, KernelEvidence, limits
from .sxid_catalog import LINK_BRING_UP, SxidEntry, entry_by_text, sxid_entry
from .xid_lines import Sxid

_NUMBERS_SHOWN = 6
_LINKS_SHOWN = 8

Lines = Sequence[tuple[Event, Sxid]]


class _Fault(NamedTuple):
    status: str
    action: str
    words: str
    advice: str
    event: Event


def judge_switch(address: str, lines: Lines, kernel: KernelEvidence, profile: Profile) -> Finding | None:
    """The finding of a switch, None where none of its SXids counts. address: "" where the lines name none."""
    faults = _faults(lines, kernel, profile)
    return _finding(address, faults) if faults else None


def _finding(address: str, faults: Sequence[_Fault]) -> Finding:
    worst = sorted(faults, key=lambda fault: (STATUSES.index(fault.status), ACTIONS.index(fault.action)), reverse=True)
    words = [fault.words for fault in worst[:_NUMBERS_SHOWN]]
    if len(worst) > _NUMBERS_SHOWN:
        words.append(f"and {len(worst) - _NUMBERS_SHOWN} more kinds of SXid")
    return Finding(
        f"NVSwitch {address}" if address else "NVSwitch with unreadable address",
        worst[0].status,
        "; ".join(words),
        "no SXid",
        max((fault.action for fault in worst), key=ACTIONS.index),
        worst[0].advice,
        tuple(Evidence(fault.event.source, fault.event.excerpt) for fault in worst[:_NUMBERS_SHOWN]),
        "SXid catalog of this project (sxid_catalog.py); healthchecks.md, section 2.2",
    )


def _faults(lines: Lines, kernel: KernelEvidence, profile: Profile) -> list[_Fault]:
    by_number: dict[int | None, list[tuple[Event, Sxid]]] = {}
    for event, sxid in lines:
        by_number.setdefault(sxid.number, []).append((event, sxid))
    faults = []
    for number, of_number in by_number.items():
        if number is None:
            faults.append(_cut(of_number, kernel))
            continue
        if number in LINK_BRING_UP:
            of_number = _after_bring_up(of_number, kernel, limits(profile)["start_up_s"])
        if not of_number:
            continue
        fault = _judge(number, of_number, kernel)
        if fault.status == "fail" or kernel.recent([event for event, __ in of_number], profile):
            faults.append(fault)
    return faults


def _cut(lines: Lines, kernel: KernelEvidence) -> _Fault:
    words = f"an SXid line that was cut off before its number, {kernel.often([event for event, __ in lines])}"
    return _Fault("warn", "observe", words, "A person must look: read the kernel log around this line.", lines[0][0])


def _after_bring_up(lines: Lines, kernel: KernelEvidence, start_up_s: float) -> list[tuple[Event, Sxid]]:
    """Without the lines that stand shortly after the boot or after the driver was loaded."""
    loads = [0.0, *(time for event in kernel.messages("driver_load") for time in event.times)]

    def is_late(event: Event) -> bool:
        times = [*event.times, event.last] if event.last is not None else list(event.times)
        return not times or not all(any(load <= time <= load + start_up_s for load in loads) for time in times)

    return [(event, sxid) for event, sxid in lines if sxid.fatal or is_late(event)]


def _judge(number: int, lines: Lines, kernel: KernelEvidence) -> _Fault:
    # Lines of registers and severity repeat an event; alone, since the log was cut, they stand for it.
    events = [line for line in lines if not line[1].is_detail] or list(lines)
    only_details = events[0][1].is_detail
    fatal = [line for line in events if line[1].fatal]
    deciding = fatal or events
    entry = sxid_entry(number) if only_details else entry_by_text(number, deciding[0][1].text)
    status, action = _severity(entry, deciding[0][1].fatal)
    own = sxid_entry(number)
    name = f"SXid {number}"
    if entry.number != number:
        name += f" (its text is that of SXid {entry.number} in this catalog, and the text counts)"
    if deciding[0][1].fatal is not None:
        name += " Fatal" if deciding[0][1].fatal else " Non-fatal"
    text = deciding[0][1].text.replace("(First)", "").strip()
    links = sorted({sxid.link for __, sxid in deciding if sxid.link is not None})
    words = f"{name}{f': {text}' if text and not only_details else ''} ({entry.meaning.rstrip('.')})"
    if links:
        shown = ", ".join(str(link) for link in links[:_LINKS_SHOWN])
        words += f", link {shown}{f' and {len(links) - _LINKS_SHOWN} more' if len(links) > _LINKS_SHOWN else ''}"
    words += f", {kernel.often([event for event, __ in deciding])}"
    if only_details:
        words += "; only its detail lines are left in the log"
    if own.kind == "unknown" and entry is own:
        words += "; no table has this number"
    advice = f"{entry.advice} If it comes back: {entry.if_it_returns[:1].lower()}{entry.if_it_returns[1:]}"
    if status == "fail" and entry.severity != "fail":
        advice = "Drain the node, then reset all GPUs and NVSwitches together, or reboot; the line says Fatal."
    return _Fault(status, action, words, advice, deciding[0][0])


def _severity(entry: SxidEntry, fatal: bool | None) -> tuple[str, str]:
    if fatal is None:
        return entry.severity, entry.action
    if not fatal:
        return "warn", "observe"
    return "fail", entry.action if entry.severity == "fail" else "reset_gpu"
