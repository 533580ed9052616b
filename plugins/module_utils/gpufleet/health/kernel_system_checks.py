# SPDX-License-Identifier: Apache-2.0
"""Checks of the kernel log for what is not a GPU's: memory, processors, processes, file systems, unknown messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .check import Check, Profile
from .finding import Evidence, Finding
from .kernel_log_window import NEEDS, Event, KernelEvidence, limits, without_known
from .node_evidence import NodeEvidence

_NAMES_SHOWN = 5
_EXCERPTS_SHOWN = 3


def proofs(events: Sequence[Event]) -> tuple[Evidence, ...]:
    """The first lines, as evidence."""
    return tuple(Evidence(event.source, event.excerpt) for event in events[:_EXCERPTS_SHOWN])


def concluded(kernel: KernelEvidence, findings: Iterable[Finding], nothing: str) -> Iterator[Finding]:
    """The findings, then `unknown` for each gap in the log; `ok` where there is neither. nothing: what an ok says."""
    found = False
    for finding in findings:
        found = True
        yield finding
    gaps = kernel.gaps(nothing)
    yield from gaps
    if not found and not gaps:
        yield Finding("node", "ok", f"{nothing}, {kernel.window()}", evidence=kernel.evidence())


def within(events: Sequence[Event], hours: float, size: Callable[[Event], int] = lambda event: 1) -> int:
    """The largest number of errors within so many hours. size: how many errors one record of an event stands for.

    Records without a time, and those of one text beyond the 64 whose times are kept, count as if they came at once.
    """
    timed = sorted((time, size(event)) for event in events for time in event.times)
    best = current = start = 0
    for time, errors in timed:
        current += errors
        while time - timed[start][0] > hours * 3600:
            current -= timed[start][1]
            start += 1
        best = max(best, current)
    return best + sum((event.occurrences - len(event.times)) * size(event) for event in events)


_EDAC_PLACE = re.compile(r"EDAC (MC\d+): \d+ [UC]E .*? on (\S+)")
_EDAC_COUNT = re.compile(r"EDAC \S+: (\d+) [UC]E")
_MCE_STATUS = re.compile(r"Bank \d+: ([0-9a-fA-F]{16})")
_EVENT_SEVERITY = re.compile(r"event severity: (\w+)")
# MCi_STATUS, bit 61: the error was not corrected (Intel SDM 3B, 16.3.2.2)
_UNCORRECTED = 1 << 61


def check_memory(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Memory and processor errors: what EDAC, the machine-check handler and the firmware (APEI) report.

    An uncorrected error means that data was lost or a process killed. Corrected ones are judged by their rate for each
    memory module (limits.kernel_log.corrected_memory_errors).

    Source: scitix/sichek event rules for memory; Linux, drivers/edac and arch/x86/kernel/cpu/mce.
    """
    kernel = KernelEvidence(evidence)
    yield from concluded(kernel, _memory(kernel, profile), "no uncorrected memory error, no rate of corrected ones")


def _by_place(events: Iterable[Event]) -> dict[str, list[Event]]:
    places: dict[str, list[Event]] = {}
    for event in events:
        found = _EDAC_PLACE.search(event.text)
        places.setdefault(f"memory module {found[2]} ({found[1]})" if found else "memory", []).append(event)
    return places


def _memory(kernel: KernelEvidence, profile: Profile) -> Iterator[Finding]:
    for place, events in _by_place(kernel.messages("edac_uncorrected")).items():
        yield Finding(
            place,
            "fail",
            f"uncorrected memory error, {kernel.often(events)}",
            "none",
            "replace",
            "Take the node out of service and replace the memory module named here; the BMC's log shows its slot.",
            proofs(events),
            "scitix/sichek event rules for memory",
        )
    rule = limits(profile)["corrected_memory_errors"]
    for place, events in _by_place(kernel.recent(kernel.messages("edac_corrected"), profile)).items():
        count = within(events, rule["within_h"], _errors_in)
        if count >= rule["count"]:
            yield Finding(
                place,
                "warn",
                f"{count} corrected memory errors within {rule['within_h']:g} h ({kernel.often(events)})",
                f"fewer than {rule['count']}",
                "inspect",
                "Plan to replace or reseat the memory module named here at the next maintenance.",
                proofs(events),
                "limits.kernel_log.corrected_memory_errors of the profile",
            )
    yield from _machine_checks(kernel, profile)


def _errors_in(event: Event) -> int:
    found = _EDAC_COUNT.search(event.text)
    return int(found[1]) if found else 1


def _machine_checks(kernel: KernelEvidence, profile: Profile) -> Iterator[Finding]:
    fatal: list[Event] = []
    corrected: list[Event] = []
    for event in kernel.messages("mce"):
        status = _MCE_STATUS.search(event.text)
        is_fatal = "Exception" in event.text or bool(status and int(status[1], 16) & _UNCORRECTED)
        (fatal if is_fatal else corrected).append(event)
    for event in kernel.messages("firmware_error"):
        severity = _EVENT_SEVERITY.search(event.text)
        if severity and severity[1] != "info":
            (corrected if severity[1] == "corrected" else fatal).append(event)
    fatal += kernel.messages("memory_failure")
    if fatal:
        yield Finding(
            "node",
            "fail",
            f"uncorrected hardware error of processor or memory, {kernel.often(fatal)}",
            "none",
            "inspect",
            "Drain the node and read the BMC's event log: it names the memory module or processor to be replaced.",
            proofs(fatal),
            "Linux, arch/x86/kernel/cpu/mce and drivers/firmware/efi/cper.c",
        )
    corrected = kernel.recent(corrected, profile)
    if corrected:
        yield Finding(
            "node",
            "warn",
            f"corrected hardware error of processor or memory, {kernel.often(corrected)}",
            "none",
            "observe",
            "Read the BMC's event log for the part; go on, and replace it when these come at a rate.",
            proofs(corrected),
            "Linux, arch/x86/kernel/cpu/mce and drivers/firmware/efi/cper.c",
        )


_KILLED = re.compile(r"Kill(?:ed)? process \d+(?:, UID \d+,)? \(([^)]*)\)")
_CONSTRAINT = re.compile(r"constraint=(\w+)")
# Processes that the node needs; a kernel that kills one of these leaves a node that only looks healthy.
_SERVICES = re.compile(
    r"systemd|sshd|dbus|nv-fabricmanager|nvidia-persiste|nvsm|dcgm|nv-hostengine|slurmd|kubelet|containerd|dockerd|crio"
    r"|chronyd|node_exporter|zed$|mmfsd|lustre"
)


def check_oom(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Processes that the kernel killed for lack of memory: the job's memory, not the hardware.

    A kill of a service (sshd, fabric manager, container runtime) is named, since the node may only look healthy then.

    Source: leptonai/gpud memory matchers; imbue.md (host memory exhausted by a job takes its node down).
    """
    kernel = KernelEvidence(evidence)
    yield from concluded(kernel, _out_of_memory(kernel, profile), "no process was killed for lack of memory")


def _out_of_memory(kernel: KernelEvidence, profile: Profile) -> Iterator[Finding]:
    kills = kernel.recent(kernel.messages("oom_kill"), profile)
    others = kernel.recent(kernel.messages("oom_constraint", "oom_invoked"), profile)
    if not kills and not others:
        return
    names = list(dict.fromkeys(name[1] for event in kills if (name := _KILLED.search(event.text))))
    services = [name for name in names if _SERVICES.search(name)]
    shown = ", ".join(names[:_NAMES_SHOWN]) + (
        f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    )
    observed = f"out of memory, {kernel.often(kills or others)}; killed: {shown or 'not in the log'}"
    limited = [found[1] for event in others if (found := _CONSTRAINT.search(event.text))]
    if limited and all(constraint == "CONSTRAINT_MEMCG" for constraint in limited):
        observed += "; at the limit of a container or job, not of the node"
    advice = "Look at the memory that the job asks for; the hardware is not at fault."
    if services:
        advice = (
            f"Restart {', '.join(services[:_NAMES_SHOWN])}, which the kernel killed, then look at the job's memory."
        )
    yield Finding(
        "node",
        "warn",
        observed,
        "no process killed for lack of memory",
        "restart_service" if services else "observe",
        advice,
        proofs(kills or others),
        "leptonai/gpud, memory matchers",
    )


def check_hung_tasks(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Processors and tasks that stand still: hung tasks, soft and hard lockups, RCU stalls.

    Once may be a slow server or a moment of load; several times (limits.kernel_log.standstills), or a hard lockup, mean
    that the kernel is stuck.

    Source: leptonai/gpud, cpu matchers; Linux, kernel/hung_task.c and kernel/watchdog.c.
    """
    kernel = KernelEvidence(evidence)
    yield from concluded(kernel, _standstills(kernel, profile), "no hung task, lockup or stall")


def _standstills(kernel: KernelEvidence, profile: Profile) -> Iterator[Finding]:
    rule = limits(profile)["standstills"]
    for what, kinds in (
        ("hung task", ("hung_task",)),
        ("processor lockup or stall", ("soft_lockup", "hard_lockup", "rcu_stall")),
    ):
        events = kernel.messages(*kinds)
        count = _apart(events, rule)
        is_stuck = count >= rule["count"] or any("hard LOCKUP" in event.text for event in events)
        if not is_stuck:
            events = kernel.recent(events, profile)
        if not events:
            continue
        yield Finding(
            "node",
            "fail" if is_stuck else "warn",
            f"{what}, {kernel.often(events)}",
            "none",
            "reboot" if is_stuck else "observe",
            "Drain and reboot the node; keep the call traces of its kernel log for the case."
            if is_stuck
            else "Look at what the task waits for (file server, disk, GPU driver); reboot if it comes again.",
            proofs(events),
            "leptonai/gpud, cpu matchers; limits.kernel_log.standstills of the profile",
        )


def _apart(events: Sequence[Event], rule: Mapping[str, Any]) -> int:
    """How many standstills: messages close in time are one. Messages without times are one each."""
    count = sum(event.occurrences for event in events if not event.times)
    begin: float | None = None
    for time in sorted({time for event in events for time in (*event.times, *([event.last] if event.last else []))}):
        if begin is None or time - begin > rule["apart_s"]:
            count += 1
            begin = time
    return count


def check_oops(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Faults of the kernel itself (oops, BUG, panic): after one, nothing that the node says can be relied on.

    Source: leptonai/gpud pstore test data; Linux, kernel/panic.c.
    """
    kernel = KernelEvidence(evidence)
    found = []
    if events := kernel.messages("oops"):
        words = f"the kernel ran into a fault of its own, {kernel.often(events)}: {events[0].text[:160]}"
        advice = "Drain and reboot the node; keep its kernel log, and note driver and kernel versions for the case."
        found.append(Finding("node", "fail", words, "none", "reboot", advice, proofs(events), "Linux, kernel/panic.c"))
    yield from concluded(kernel, found, "no oops, BUG or panic")


_CRASHED = re.compile(r"^(?:traps: )?(\S+?)\[\d+\].* in (\S+?)\[")


def check_application_crashes(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Programs that crashed with a segmentation fault: the job's fault first, but a person should know.

    Source: leptonai/gpud, nccl matchers.
    """
    kernel = KernelEvidence(evidence)
    found = []
    if events := kernel.recent(kernel.messages("segfault"), profile):
        places = [f"{name[1]} in {name[2]}" for event in events if (name := _CRASHED.search(event.text))]
        shown = ", ".join(list(dict.fromkeys(places))[:_NAMES_SHOWN])
        words = f"programs crashed, {kernel.often(events)}{f': {shown}' if shown else ''}"
        advice = "Tell the owner of the job; suspect the node only where different jobs crash here and nowhere else."
        found.append(
            Finding("node", "warn", words, "none", "observe", advice, proofs(events), "leptonai/gpud, nccl matchers")
        )
    yield from concluded(kernel, found, "no program crashed")


def check_system_limits(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Limits of the operating system that were reached: open files, processes, tables of the network.

    Source: leptonai/gpud, os matchers.
    """
    kernel = KernelEvidence(evidence)
    found = []
    if events := kernel.recent(kernel.messages("system_limit"), profile):
        words = f"a limit of the operating system was reached, {kernel.often(events)}: {events[0].text[:160]}"
        advice = "Raise the limit that the message names (sysctl or cgroup), or find what uses it up."
        found.append(
            Finding("node", "warn", words, "none", "observe", advice, proofs(events), "leptonai/gpud, os matchers")
        )
    yield from concluded(kernel, found, "no limit of the operating system was reached")


def check_unknown_messages(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Messages that look like errors (by word or priority) and are in no catalog: a person should look once.

    Forms that healthy nodes print are left out, as are those of the profile (limits.kernel_log.known_messages). The
    reference fleet compared every line with everything ever seen, since hosts came up worse after a reboot than before.

    Source: imbue.md (DmesgHealthCheck); imbue-ai/cluster-health, health_checks/dmesg_whitelist.py.
    """
    kernel = KernelEvidence(evidence)
    nothing = "no error-like message that is in no catalog"
    yield from concluded(kernel, _unknown_messages(kernel, profile), nothing)


def _unknown_messages(kernel: KernelEvidence, profile: Profile) -> Iterator[Finding]:
    events = without_known(kernel.recent(kernel.error_like(), profile), profile)
    if not events:
        return
    # The most severe first, then the rarest: what is printed all the time is noise more often.
    events.sort(key=lambda event: (event.priority is None, event.priority or 0, event.occurrences))
    shown = events[: limits(profile)["max_unknown_messages_shown"]]
    lines = "; ".join(f"{event.occurrences}x {event.text[:160]}" for event in shown)
    more = len(events) - len(shown)
    yield Finding(
        "node",
        "warn",
        f"{len(events)} kind{'' if len(events) == 1 else 's'} of message that look like errors: {lines}"
        + (f"; and {more} more kinds" if more else ""),
        "none beside known ones",
        "observe",
        "Read them; what is harmless here goes into limits.kernel_log.known_messages of the profile, with the reason.",
        tuple(Evidence(event.source, event.excerpt) for event in shown),
        "imbue.md, DmesgHealthCheck",
    )


CHECKS = (
    Check("kernel.memory", check_memory, NEEDS),
    Check("kernel.oom", check_oom, NEEDS),
    Check("kernel.hung_tasks", check_hung_tasks, NEEDS),
    Check("kernel.oops", check_oops, NEEDS),
    Check("kernel.application_crashes", check_application_crashes, NEEDS),
    Check("kernel.system_limits", check_system_limits, NEEDS),
    Check("kernel.unknown_messages", check_unknown_messages, NEEDS),
)
