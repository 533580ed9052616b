# SPDX-License-Identifier: Apache-2.0
"""What the Xids of one GPU amount to: causes before consequences, and what a line says before what its number means."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .check import Profile
from .finding import STATUSES
from .kernel_log_window import Event, KernelEvidence, limits
from .xid_catalog import XIDS, XidEntry, xid_entry
from .xid_lines import (
    RECOVERY_ACTIONS,
    Xid,
    cause_of,
    demands_reset,
    link_error,
    link_registers,
    recovery_action,
    stuck_function,
    unit_of,
)

STOPPED_CHANNELS = 45
RECOVERY_ACTION_CHANGED = 154
LINK_ERRORS = range(144, 151)
# Faults of a program, unless they keep to one unit of the GPU.
BY_UNIT = (13, 31)
_SPARE_ROWS_USED_UP = re.compile(r"[Aa]ll reserved rows for bank are remapped")
_NAMES_SHOWN = 6

Lines = Sequence[tuple[Event, Xid]]


class Fault(NamedTuple):
    """One cause. number: the Xid, None for a line cut before it. status: ok where it is no fault. words: what is seen.

    events: the lines that decided. The other fields are those of a Finding.
    """

    number: int | None
    status: str
    action: str
    words: str
    advice: str
    events: tuple[Event, ...]


def judge_gpu(lines: Lines, kernel: KernelEvidence, profile: Profile) -> list[Fault]:
    """The faults of one GPU: one for each Xid number, Xid 45 as the consequence of others where it is."""
    by_number: dict[int | None, list[tuple[Event, Xid]]] = {}
    for event, xid in lines:
        number = 74 if link_registers(xid) is not None else xid.number
        by_number.setdefault(number, []).append((event, xid))
    stopped = by_number.pop(STOPPED_CHANNELS, [])
    faults = []
    for number, of_number in by_number.items():
        fault = _judge(number, of_number, kernel, profile)
        if fault.status == "warn" and not kernel.recent([event for event, __ in of_number], profile):
            fault = fault._replace(status="ok")
        faults.append(fault)
    return _with_consequences(faults, stopped, kernel, profile)


def _judge(number: int | None, lines: Lines, kernel: KernelEvidence, profile: Profile) -> Fault:
    events = tuple(event for event, __ in lines)
    if number is None:
        words = f"an Xid line that was cut off before its number, {kernel.often(events)}"
        advice = "A person must look: read the kernel log around this line."
        return Fault(None, "warn", "observe", words, advice, events)
    if number in BY_UNIT:
        return _by_unit(number, lines, kernel, limits(profile)["repeated_fault"])
    if number in LINK_ERRORS:
        return _link_errors(number, lines, kernel)
    special = _SPECIAL.get(number, _plain)
    return special(xid_entry(number), lines, kernel)


def _fault(entry: XidEntry, events: Iterable[Event], words: str, status: str = "", action: str = "") -> Fault:
    advice = f"{entry.advice} If it comes back: {entry.if_it_returns[:1].lower()}{entry.if_it_returns[1:]}"
    return Fault(entry.number, status or entry.severity, action or entry.action, words, advice, tuple(events))


def _name(entry: XidEntry) -> str:
    return f"Xid {entry.number} ({entry.meaning.rstrip('.')})"


def _plain(entry: XidEntry, lines: Lines, kernel: KernelEvidence) -> Fault:
    events = [event for event, __ in lines]
    return _fault(entry, events, f"{_name(entry)}{_instances(lines)}, {kernel.often(events)}")


def _instances(lines: Lines) -> str:
    """The MIG instances that are named."""
    names = sorted({xid.instance for __, xid in lines if xid.instance})
    return f" in MIG instance {', '.join(names[:_NAMES_SHOWN])}" if names else ""


def _memory_error(entry: XidEntry, lines: Lines, kernel: KernelEvidence) -> Fault:
    """Xid 94 and 95: the line itself says whether a reset is required."""
    fault = _plain(entry, lines, kernel)
    if not any(demands_reset(xid) for __, xid in lines):
        return fault
    return fault._replace(
        status="fail", action="reset_gpu", words=f"{fault.words}; the driver demands a reset (RST: Yes)"
    )


def _remap_failure(entry: XidEntry, lines: Lines, kernel: KernelEvidence) -> Fault:
    """Xid 64: a bank whose spare rows are used up cannot be mended by a reset."""
    fault = _plain(entry, lines, kernel)
    if not any(_SPARE_ROWS_USED_UP.search(xid.detail) for __, xid in lines):
        return fault
    advice = "Take the node out of service and have the GPU replaced; check gpu.row_remap shows the same after a reset."
    return fault._replace(action="replace", words=f"{fault.words}; a bank has no spare row left", advice=advice)


def _silent_processor(entry: XidEntry, lines: Lines, kernel: KernelEvidence) -> Fault:
    """Xid 119: the calls that were not answered. The tables behind the line are detail."""
    fault = _plain(entry, lines, kernel)
    functions = list(dict.fromkeys(function for __, xid in lines if (function := stuck_function(xid))))
    if not functions:
        return fault
    return fault._replace(words=f"{fault.words}; unanswered: {', '.join(functions[:_NAMES_SHOWN])}")


def _nvlink_registers(entry: XidEntry, lines: Lines, kernel: KernelEvidence) -> Fault:
    """Xid 74: what the registers say. The link is down until a reset, unless they show nothing but notices."""
    fault = _plain(entry, lines, kernel)
    read = [registers for __, xid in lines if (registers := link_registers(xid)) is not None]
    if not read:
        return fault
    links = sorted({registers.link for registers in read})
    kinds = {kind for registers in read for kind, __ in registers.meanings}
    meanings = list(dict.fromkeys(words for registers in read for __, words in registers.meanings))
    words = f"{fault.words}; link {', '.join(str(link) for link in links[:_NAMES_SHOWN])}"
    words += f": {'; '.join(meanings[:_NAMES_SHOWN])}" if meanings else ": no register is set"
    if kinds and kinds <= {"ignored", "secondary", "threshold"}:
        return fault._replace(status="warn", action="observe", words=words)
    return fault._replace(words=words)


def _recovery(entry: XidEntry, lines: Lines, kernel: KernelEvidence) -> Fault:
    """Xid 154: the newest verdict of the driver counts; a line that cannot be read is shown as it is."""
    read = [(event, words) for event, xid in lines if (words := recovery_action(xid)) is not None]
    unread = [event for event, xid in lines if recovery_action(xid) is None]
    fault = _demand(entry, read, kernel) if read else None
    if not unread:
        assert fault is not None
        return fault
    text = f"Xid 154 in a form that cannot be read, {kernel.often(unread)}: {unread[0].text}"
    if fault is None or fault.status == "ok":
        return _fault(entry, unread, text, "warn", "observe")
    return fault._replace(words=f"{fault.words}; {text}")


def _demand(entry: XidEntry, read: Sequence[tuple[Event, str]], kernel: KernelEvidence) -> Fault:
    newest = max((event.last for event, __ in read if event.last is not None), default=None)
    event, words = [line for line in read if line[0].last == newest][-1]
    if words == "None":
        return _fault(entry, [event], "the driver demands nothing any more (Xid 154: None)", "ok", "none")
    action = RECOVERY_ACTIONS.get(words)
    demand = f"the driver demands: {words} (Xid 154), {kernel.often([event])}"
    if action is None:
        return _fault(entry, [event], f"{demand}; these words are not known here", "warn", "observe")
    first = "Stop peer-to-peer traffic and drain the node" if words.startswith("Drain") else "Drain the node"
    then = {"reset_gpu": "reset the GPU", "reboot": "reboot the node", "restart_service": "restart the IMEX service"}
    fault = _fault(entry, [event], demand, "fail", action)
    return fault._replace(advice=f"{first} and {then[action]}. {entry.if_it_returns}")


_SPECIAL: Mapping[int, Callable[[XidEntry, Lines, KernelEvidence], Fault]] = {
    64: _remap_failure,
    74: _nvlink_registers,
    94: _memory_error,
    95: _memory_error,
    119: _silent_processor,
    RECOVERY_ACTION_CHANGED: _recovery,
}


def _link_errors(number: int, lines: Lines, kernel: KernelEvidence) -> Fault:
    """Xid 144 to 150: the word Fatal or Nonfatal decides, unit and link are named."""
    entry = xid_entry(number)
    events = [event for event, __ in lines]
    read = [(event, error) for event, xid in lines if (error := link_error(xid)) is not None]
    if not read:
        words = f"{_name(entry)}, {kernel.often(events)}; the line has no word Fatal or Nonfatal"
        return _fault(entry, events, words)
    fatal = [(event, error) for event, error in read if error.fatal]
    places = [
        f"{error.unit}{'' if error.link is None or error.link < 0 else f' link {error.link}'}"
        for __, error in fatal or read
    ]
    shown = list(dict.fromkeys(places))
    where = ", ".join(shown[:_NAMES_SHOWN]) + (
        f" and {len(shown) - _NAMES_SHOWN} more" if len(shown) > _NAMES_SHOWN else ""
    )
    often = kernel.often([event for event, __ in fatal or read])
    words = f"Xid {number} {'Fatal' if fatal else 'Nonfatal'} NVLink error in {where}, {often}"
    deciding = [event for event, __ in fatal or read]
    if fatal:
        advice = f"Drain the node and reset the GPU. {entry.if_it_returns}"
        return _fault(entry, deciding, words, "fail", "reset_gpu")._replace(advice=advice)
    return _fault(entry, deciding, words, "warn", "observe")


def _by_unit(number: int, lines: Lines, kernel: KernelEvidence, rule: Mapping[str, Any]) -> Fault:
    """Xid 13 and 31: the program's fault; the hardware's where several jobs failed on one unit and on few others."""
    entry = xid_entry(number)
    plain = _plain(entry, lines, kernel)
    units = _units_by_job(lines, rule)
    jobs_on: dict[str, int] = {}
    for of_job in units:
        if len(of_job) <= rule["max_units_per_job"]:
            for unit in of_job:
                jobs_on[unit] = jobs_on.get(unit, 0) + 1
    unit, jobs = max(jobs_on.items(), key=lambda item: item[1], default=("", 0))
    if jobs < rule["jobs"]:
        return plain
    words = f"{plain.words}; {jobs} jobs within {rule['within_h']:g} h failed on {unit} and hardly elsewhere"
    advice = (
        "Suspect the hardware: take the node out at the end of the job and run the GPU's diagnosis (dcgmi diag -r 3)."
    )
    return plain._replace(status="warn", action="inspect", words=words, advice=advice)


def _units_by_job(lines: Lines, rule: Mapping[str, Any]) -> list[set[str]]:
    """The units that failed, job by job: faults close in time belong to one; without times, those of one process."""
    timed = [(time, unit, xid.pid) for event, xid in lines if (unit := _whole_unit(xid)) for time in event.times]
    jobs: list[tuple[set[str], set[str]]] = []  # units, processes
    if timed:
        timed.sort()
        oldest, previous = timed[-1][0] - rule["within_h"] * 3600, None
        for time, unit, pid in timed:
            if time < oldest:
                continue
            if previous is None or time - previous > rule["job_gap_s"]:
                jobs.append((set(), set()))
            jobs[-1][0].add(unit)
            jobs[-1][1].update([pid] if pid else [])
            previous = time
    else:
        by_process: dict[str, set[str]] = {}
        for __, xid in lines:
            if xid.pid and (unit := _whole_unit(xid)):
                by_process.setdefault(xid.pid, set()).add(unit)
        jobs = [(units, {pid}) for pid, units in by_process.items()]
    return [units for units, __ in _of_different_processes(jobs)]


def _of_different_processes(jobs: Sequence[tuple[set[str], set[str]]]) -> list[tuple[set[str], set[str]]]:
    """One job for each process: a process that fails again after a while is still the same program."""
    kept: list[tuple[set[str], set[str]]] = []
    for units, processes in jobs:
        same = next((job for job in kept if processes and job[1] & processes), None)
        if same is None:
            kept.append((set(units), set(processes)))
        else:
            same[0].update(units)
            same[1].update(processes)
    return kept


def _whole_unit(xid: Xid) -> str:
    """The unit without the last part: both processors (SM) of a cluster (TPC) share what breaks."""
    return unit_of(xid).partition(", SM")[0]


def _with_consequences(faults: list[Fault], stopped: Lines, kernel: KernelEvidence, profile: Profile) -> list[Fault]:
    """Xid 45 joined to the fault that they follow; on their own only where nothing is known to precede them."""
    if not stopped:
        return faults
    by_cause: dict[int | None, list[Event]] = {}
    for event, xid in stopped:
        by_cause.setdefault(cause_of(xid), []).append(event)
    for cause, events in sorted(by_cause.items(), key=lambda item: item[0] or 0):
        count = sum(event.occurrences for event in events)
        channels = f"{count} channel{'' if count == 1 else 's'} stopped as a consequence (Xid 45)"
        position = _cause(faults, cause, events, limits(profile)["repeated_fault"]["job_gap_s"])
        if position is not None:
            faults[position] = faults[position]._replace(words=f"{faults[position].words}; {channels}")
            continue
        entry = xid_entry(STOPPED_CHANNELS if cause is None else cause)
        if cause is None:
            fault = _fault(entry, events, f"{_name(entry)}, {kernel.often(events)}, without another Xid before it")
        else:
            words = f"{channels} of Xid {cause}, which the log does not hold, {kernel.often(events)}"
            # What a line would have said about its severity is lost with it; a demand to reset is kept as advice.
            action = "reset_gpu" if cause in LINK_ERRORS or entry.severity == "fail" else entry.action
            fault = _fault(entry, events, words, "warn", action)
        if fault.status == "warn" and not kernel.recent(events, profile):
            fault = fault._replace(status="ok")
        faults.append(fault)
    return faults


def _cause(faults: Sequence[Fault], cause: int | None, events: Sequence[Event], gap_s: float) -> int | None:
    """Index of the fault that these Xid 45 follow: the named one, else the worst that came shortly before."""
    if cause is not None:
        return next((index for index, fault in enumerate(faults) if fault.number == cause), None)
    first = min((event.first for event in events if event.first is not None), default=None)
    candidates = [
        index
        for index, fault in enumerate(faults)
        if fault.number in XIDS and fault.number != RECOVERY_ACTION_CHANGED and _came_before(fault, first, gap_s)
    ]
    return max(candidates, key=lambda index: STATUSES.index(faults[index].status), default=None)


def _came_before(fault: Fault, first: float | None, gap_s: float) -> bool:
    times = [time for event in fault.events for time in event.times]
    return first is None or not times or any(first - gap_s <= time <= first + 1.0 for time in times)


def stopped_and_hung(lines: Lines, hung: Sequence[Event], rule: Mapping[str, Any]) -> Fault | None:
    """The fault of a burst of Xid 45 that is followed by hung tasks; None where there is no such pair (bug 032)."""
    stopped = [event for event, xid in lines if xid.number == STOPPED_CHANNELS]
    count = sum(event.occurrences for event in stopped)
    if count < rule["count"]:
        return None
    firsts = [event.first for event in stopped if event.first is not None]
    lasts = [event.last for event in stopped if event.last is not None]
    for event in hung:
        near = not firsts or not event.times
        near = near or any(firsts[0] <= time <= max(lasts) + rule["hung_task_within_s"] for time in event.times)
        if near:
            words = f"{count} channels stopped (Xid 45), and then a task hung: the driver is stuck"
            advice = "Drain and reboot the node; nvidia-smi may hang, so do not wait for it."
            return Fault(STOPPED_CHANNELS, "fail", "reboot", words, advice, (stopped[0], event))
    return None
