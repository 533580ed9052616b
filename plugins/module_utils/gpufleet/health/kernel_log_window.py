# SPDX-License-Identifier: Apache-2.0
"""Both sources of the kernel log as one, for the running boot: no event twice, and how much of the boot they cover.

The journal loses records when other services' output rotates it, the kernel's ring buffer when it is full (bug 037).
So both are read; where neither reaches back to the boot, "nothing was found" is not shown, while what was found counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from .check import Profile
from .evaluation import unknown
from .finding import Evidence, Finding
from .kernel_log_normal_form import KernelLog, Message, parse_kernel_log
from .node_evidence import NodeEvidence
from .probe import NoEvidence, ParseError, Probe, ProbeResult

JOURNAL = "kernel.journal"
DMESG = "kernel.dmesg"
BOOT = "kernel.boot"
LOGS = (JOURNAL, DMESG)
NEEDS = (JOURNAL, DMESG, BOOT)

# By how much a time may lie before the boot and still be of it: the clock was set right after the boot; a local time is
# read as if it were UTC, from which no zone is further away than this.
_SLACK_S = {"epoch": 60.0, "local": 15 * 3600.0}
_FOREIGN_S = 300.0
_UTC = timezone.utc  # noqa: UP017 (datetime.UTC came with Python 3.11)


class Boot(NamedTuple):
    """boot_id: another one for each boot. uptime_s: seconds since it. began: seconds since the epoch, by the node."""

    boot_id: str
    uptime_s: float
    began: float


_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_UPTIME_FILE = "/proc/uptime"


def parse_boot(result: ProbeResult) -> Boot:
    """Boot id and uptime as read from /proc. Raises ParseError."""
    lines = dict(line.partition(":")[::2] for line in result.stdout.splitlines())
    boot_id, uptime = lines.get(_BOOT_ID_FILE, ""), lines.get(_UPTIME_FILE, "")
    if not re.fullmatch(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", boot_id):
        raise ParseError(f"no boot id in {_BOOT_ID_FILE}: {boot_id!r}")
    if not re.fullmatch(r"\d+\.\d+ \d+\.\d+", uptime) or not result.stdout.endswith("\n"):
        raise ParseError(f"no uptime in {_UPTIME_FILE}: {uptime!r}")
    uptime_s = float(uptime.split(" ")[0])
    return Boot(boot_id, uptime_s, result.when - uptime_s)


class Event(NamedTuple):
    """All records of one text in both sources. times: seconds since the boot, ascending, the first 64; () where none.

    last: the newest time, None where no record has one. occurrences: how many records. source: probe of the excerpt.
    """

    text: str
    occurrences: int
    times: tuple[float, ...]
    last: float | None
    priority: int | None
    source: str

    @property
    def first(self) -> float | None:
        return self.times[0] if self.times else None

    @property
    def excerpt(self) -> str:
        """The line as dmesg would print it."""
        return self.text if self.first is None else f"[{self.first:12.6f}] {self.text}"


class KernelEvidence:
    """What the checks of this area judge. Raises NoEvidence where neither source can be used."""

    def __init__(self, evidence: NodeEvidence) -> None:
        self.logs: dict[str, KernelLog] = {}
        self.missing: list[NoEvidence] = []
        self.boot: Boot | None = None
        self._root = {probe: evidence.raw(probe).root for probe in LOGS}
        try:
            self.boot = evidence.facts(BOOT)
        except NoEvidence as error:
            self.missing.append(error)
        for probe in LOGS:
            try:
                log: KernelLog = evidence.facts(probe)
                self._refuse_foreign(probe, log)
                self.logs[probe] = log
            except NoEvidence as error:
                self.missing.append(self._without_root(error))
        if not self.logs:
            both = [error for error in self.missing if error.probe in LOGS]
            raise NoEvidence(both[0].probe, f"{both[0].reason}; and probe {both[1].probe}: {both[1].reason}")

    def _without_root(self, error: NoEvidence) -> NoEvidence:
        if self._root[error.probe]:
            return error
        return NoEvidence(error.probe, f"{error.reason} (it ran without root, who alone may read the kernel log)")

    def _refuse_foreign(self, probe: str, log: KernelLog) -> None:
        if self.boot is None or log.clock != "boot" or log.last is None:
            return
        if log.last > self.boot.uptime_s + _FOREIGN_S:
            reason = f"its newest record is {log.last:.0f} s after a boot, but the node is up for"
            raise NoEvidence(probe, f"{reason} {self.boot.uptime_s:.0f} s: this is the log of another boot")

    @property
    def from_boot(self) -> bool:
        """Whether one of the sources reaches back to the kernel's first message."""
        return any(log.from_boot for log in self.logs.values())

    def messages(self, *kinds: str) -> list[Event]:
        """The events of these kinds (kernel_message_catalog.KINDS) in the running boot, the oldest first."""
        found = [self._events(probe, log.messages.get(kind, {})) for kind in kinds for probe, log in self.logs.items()]
        return self._merged(found)

    def error_like(self) -> list[Event]:
        """Messages with an alarming word or priority that no catalog knows, one of each normal form."""
        return self._merged([self._events(probe, log.error_like) for probe, log in self.logs.items()])

    def _events(self, probe: str, messages: Mapping[str, Message]) -> dict[str, Event]:
        events = {key: self._event(probe, message) for key, message in messages.items()}
        return {key: event for key, event in events.items() if event is not None}

    def _event(self, probe: str, message: Message) -> Event | None:
        """The message on the clock of the boot; None where all of it is older than the boot."""
        times, last, count = message.times, message.last, message.occurrences
        if message.clock in _SLACK_S and self.boot is not None and last is not None:
            last -= self.boot.began
            if last < -_SLACK_S[message.clock]:
                return None
            kept = tuple(time - self.boot.began for time in times if time >= self.boot.began - _SLACK_S[message.clock])
            times, count = kept, count - (len(times) - len(kept))
        return Event(message.text, count, tuple(sorted(times)), last, message.priority, probe)

    def _merged(self, found: Sequence[Mapping[str, Event]]) -> list[Event]:
        merged: dict[str, Event] = {}
        for events in found:
            for key, event in events.items():
                merged[key] = self._both(merged[key], event) if key in merged else event
        return sorted(merged.values(), key=lambda event: (event.first is None, event.first or 0.0))

    def _both(self, one: Event, other: Event) -> Event:
        """The same text in both sources: counted once, as far as the times show."""
        times = sorted({round(time, 3) for time in one.times + other.times})
        all_there = one.occurrences == len(one.times) and other.occurrences == len(other.times)
        count = len(times) if all_there and times and not self.from_boot else max(one.occurrences, other.occurrences)
        lasts = [last for last in (one.last, other.last) if last is not None]
        priorities = [priority for priority in (one.priority, other.priority) if priority is not None]
        longest = max(one.times, other.times, key=len) if self.from_boot else tuple(times)
        return one._replace(
            occurrences=count,
            times=longest,
            last=max(lasts, default=None),
            priority=min(priorities, default=None),
        )

    def recent(self, events: Iterable[Event], profile: Profile) -> list[Event]:
        """Those that are not older than limits.kernel_log.max_age_h; all where times or the boot are not known."""
        hours = limits(profile)["max_age_h"]
        if hours is None or self.boot is None:
            return list(events)
        oldest = self.boot.uptime_s - hours * 3600
        return [event for event in events if event.last is None or event.last >= oldest]

    def moment(self, time: float | None) -> str:
        """A time since the boot in words."""
        if time is None:
            return "at an unknown time"
        if self.boot is None:
            return f"{time:.0f} s after the boot"
        return f"{datetime.fromtimestamp(self.boot.began + time, _UTC):%Y-%m-%d %H:%M:%S} UTC"

    def often(self, events: Sequence[Event]) -> str:
        """How often and when, in words: "3 times, 2026-01-01 10:00:00 UTC to ..."."""
        count = sum(event.occurrences for event in events)
        firsts = [event.first for event in events if event.first is not None]
        lasts = [event.last for event in events if event.last is not None]
        if not firsts or not lasts:
            return "once" if count == 1 else f"{count} times"
        if count == 1:
            return f"once, {self.moment(min(firsts))}"
        return f"{count} times, {self.moment(min(firsts))} to {self.moment(max(lasts))}"

    def window(self) -> str:
        """What was read, in words: "since the boot at ... (1234 records in kernel.journal, ...)"."""
        sources = ", ".join(f"{log.records} records in {probe}" for probe, log in self.logs.items())
        began = f" at {self.moment(0.0)}" if self.boot is not None else ""
        return f"since the boot{began} ({sources})"

    def evidence(self) -> tuple[Evidence, ...]:
        """The first and last message of each source: what an `ok` stands on."""
        return tuple(Evidence(probe, f"{log.first_text} ... {log.last_text}") for probe, log in self.logs.items())

    def gaps(self, expected: str) -> list[Finding]:
        """`unknown` for each reason why "nothing was found" would not be shown."""
        found = [unknown("node", error, expected) for error in self.missing]
        for probe, log in self.logs.items():
            if log.cut:
                reason = f"the kernel log is not whole: {log.cut}; faults behind it are not seen"
                found.append(unknown("node", NoEvidence(probe, reason), expected))
        if not self.from_boot:
            found.append(self._incomplete(expected))
        return found

    def _incomplete(self, expected: str) -> Finding:
        oldest = "; ".join(f"{probe} from {self.moment(self._oldest(log))}" for probe, log in self.logs.items())
        return Finding(
            "node",
            "unknown",
            f"log window incomplete: {oldest}; nothing is known about the time between the boot and then",
            expected,
            advice="Give the journal more room (SystemMaxUse in journald.conf) or the kernel a larger buffer "
            "(log_buf_len=16M); if the node matters now, reboot it and look again.",
            evidence=self.evidence(),
            reference="bug 037 (NVIDIA/NVSentinel issues 1417 and 1532)",
        )

    def _oldest(self, log: KernelLog) -> float | None:
        if log.first is None or log.clock == "boot" or self.boot is None:
            return log.first
        return log.first - self.boot.began


def without_known(events: Iterable[Event], profile: Profile) -> list[Event]:
    """Those that limits.kernel_log.known_messages does not know."""
    known = [re.compile(item["pattern"]) for item in limits(profile)["known_messages"]]
    return [event for event in events if not any(pattern.search(event.text) for pattern in known)]


def limits(profile: Profile) -> Mapping[str, Any]:
    """The section limits.kernel_log of the profile."""
    section: Mapping[str, Any] = profile["limits"]["kernel_log"]
    return section


PROBES = (
    # short-monotonic: the kernel's own times, which do not jump when the clock is set, and equal those of dmesg to the
    # microsecond. No host name: captures leave the site. JSON would tell priorities, for six times the size.
    Probe(
        JOURNAL,
        parse_kernel_log,
        argv=(
            "journalctl",
            "--dmesg",
            "--boot",
            "--output=short-monotonic",
            "--no-hostname",
            "--no-pager",
            "--quiet",
        ),
        deadline_s=30,
        parses=("done", "truncated", "timeout"),
        root=True,
        max_bytes=32 << 20,
    ),
    # --force-prefix: a message of several lines carries time and priority on each of them.
    Probe(
        DMESG,
        parse_kernel_log,
        argv=("dmesg", "--decode", "--force-prefix", "--nopager", "--color=never"),
        deadline_s=15,
        parses=("done", "truncated", "timeout"),
        root=True,
        max_bytes=32 << 20,
    ),
    Probe(BOOT, parse_boot, paths=(_BOOT_ID_FILE, _UPTIME_FILE), deadline_s=5),
)
