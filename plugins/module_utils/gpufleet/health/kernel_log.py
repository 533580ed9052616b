# SPDX-License-Identifier: Apache-2.0
"""Kernel log text to records: every form in which dmesg, journalctl and log files print a record, mixed in any way.

Read per line: dmesg (plain, -T, -d, -e, -r, --decode, --time-format iso), /dev/kmsg, journalctl (short, short-iso,
short-precise, short-unix, short-monotonic, short-full) and what syslog daemons write to kern.log. The forms follow
dmesg.c of util-linux 2.36 to 2.40, logs-show.c of systemd 247 to 256 and Documentation/ABI/testing/dev-kmsg of Linux.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import NamedTuple

PRIORITIES = {"emerg": 0, "alert": 1, "crit": 2, "err": 3, "warn": 4, "notice": 5, "info": 6, "debug": 7}
ERROR_PRIORITY = PRIORITIES["err"]

# How a record tells its time: seconds since the boot, since the epoch, or a local time of day whose zone is not known
# (in seconds since the epoch as if it were UTC).
CLOCKS = ("boot", "epoch", "local")


class Record(NamedTuple):
    """One record. time: seconds by `clock`, None where the line carries none (clock is then "").

    priority: 0 (emerg) to 7 (debug), None where the form does not tell it. text: the message without its prefix,
    continuation lines joined by a blank. begins_boot: the kernel's first message, or journalctl's mark of another boot
    (with an empty text): all before it belongs to earlier boots.
    """

    time: float | None
    clock: str
    priority: int | None
    text: str
    begins_boot: bool = False


_FACILITY = r"(?:kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|res\d|local\d)"
_DECODED = re.compile(rf"{_FACILITY} *:(emerg|alert|crit|err|warn|notice|info|debug) *: ")
_RAW_PRIORITY = re.compile(r"<(\d{1,3})>")
_KMSG = re.compile(r"(\d{1,4}),(\d+),(\d+),[^;,]*(?:,[^;]*)?;(.*)")
# [    1.234567], and [    1.234567 <    0.000012>] of dmesg -d
_SECONDS = re.compile(r"\[ *(\d+(?:\.\d+)?)(?: *< *[\d.]+>)?\] ?(.*)")
_DELTA = re.compile(r"\[ *(?:<)? *\+?(\d+\.\d+)>?\] ?(.*)")
_CTIME = re.compile(r"\[((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \d{4})\] ?(.*)")
_RELATIVE = re.compile(r"\[([A-Z][a-z]{2} *\d{1,2} \d\d:\d\d)\] ?(.*)")
_ISO = re.compile(r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?\]? (.*)")
_FULL = re.compile(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? (\S+) (.*)")
_SYSLOG = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?:\.\d+)? (.*)")
_UNIX = re.compile(r"(\d{9,11}\.\d{3,6}) (.*)")
# "host kernel: text", "kernel: text"; a program writes "host name[pid]: text"
_TAG = re.compile(r"(?:[\w.-]+ )?([\w./@-]+)(?:\[\d+\])?: ?(.*)")
# Who wrote [T123] or [C5]: kernels built with CONFIG_PRINTK_CALLER
_CALLER = re.compile(r"\[ *[TC]\d+\] ?")
_MARK = re.compile(r"-- (?:(Reboot|Boot [0-9a-f]{32})|No entries|Logs begin at .*|Journal begins at .*)(?:, .*)? ?--$")
_FIRST_MESSAGE = re.compile(r"Linux version \d+\.\d+")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_UTC = timezone.utc  # noqa: UP017 (datetime.UTC came with Python 3.11)

# The driver breaks one sentence over several lines, each a record of its own in the journal (bug 033).
_SENTENCE_BEGINS = re.compile(r"NVRM: The NVIDIA GPU [0-9a-fA-F:.]+$")
_SENTENCE_GOES_ON = re.compile(r"(?:NVRM: *)?(\(PCI ID: .*|(?:installed in this system )?has *$|fallen off the bus.*)")
_LONGEST_SENTENCE = 4
# printk stamps a record before it is stored, so that two processors' records may be out of order by less than this.
CLOCK_DISORDER_S = 60.0


class _Reader:
    """Reads lines; remembers the time that deltas count from, and the times that it has converted."""

    def __init__(self, when: float) -> None:
        self._when = when
        self._last: tuple[float | None, str] = (None, "")
        self._converted: dict[str, float | None] = {}

    def follow(self, record: Record) -> None:
        """Deltas count from this record, which was read elsewhere."""
        self._last = (record.time, record.clock)

    def read(self, line: str) -> Record | None:
        """The record of a line; None for the line of another program in a mixed log file, and for headings."""
        priority = None
        decoded = _DECODED.match(line)
        if decoded:
            priority, line = PRIORITIES[decoded[1]], line[decoded.end() :]
        elif line.startswith("<") and (raw := _RAW_PRIORITY.match(line)):
            priority, line = int(raw[1]) & 7, line[raw.end() :]
        elif line.startswith("-- ") and (mark := _MARK.match(line)):
            return Record(None, "", None, "", begins_boot=True) if mark[1] else None
        time, clock, text = self._time(line)
        if clock == "kmsg":
            kmsg = _KMSG.match(line)
            assert kmsg is not None
            priority, time, clock, text = int(kmsg[1]) & 7, int(kmsg[3]) / 1e6, "boot", kmsg[4]
        self._last = (time, clock)
        if text.startswith("["):
            text = _CALLER.sub("", text, count=1)
        tagged = self._untag(text, from_kernel=priority is not None or clock in ("", "boot"))
        if tagged is None:
            return None
        text, inner = tagged
        if inner is not None:  # a log daemon's own time, and the kernel's behind it
            time, clock = inner, "boot"
        return Record(time, clock, priority, text, bool(_FIRST_MESSAGE.match(text)))

    def _time(self, line: str) -> tuple[float | None, str, str]:
        first = line[:1]
        if first == "[":
            if found := _SECONDS.match(line):
                return float(found[1]), "boot", found[2]
            if found := _CTIME.match(line):
                return self._convert(found[1], "%a %b %d %H:%M:%S %Y"), "local", found[2]
            if found := _DELTA.match(line):
                time, clock = self._last
                return (None, "", found[2]) if time is None else (time + float(found[1]), clock, found[2])
            if found := _RELATIVE.match(line):
                return self._without_year(f"{found[1]}:00"), "local", found[2]
        if first.isdigit():
            if _KMSG.match(line):
                return None, "kmsg", line
            if found := _UNIX.match(line):
                return float(found[1]), "epoch", found[2]
        if (first.isdigit() or first == "[") and (found := _ISO.match(line)):
            time = self._convert(found[1].replace(" ", "T"), "%Y-%m-%dT%H:%M:%S")
            if time is None:
                return None, "", line
            time += float(f"0.{found[2] or 0}")
            return (time, "local", found[4]) if not found[3] else (time - _offset(found[3]), "epoch", found[4])
        if first.isalpha():
            if found := _SYSLOG.match(line):
                return self._without_year(found[1]), "local", found[2]
            if found := _FULL.match(line):
                time = self._convert(found[1], "%Y-%m-%d %H:%M:%S")
                return time, "epoch" if found[2] in ("UTC", "GMT") else "local", found[3]
        return None, "", line

    def _untag(self, text: str, from_kernel: bool) -> tuple[str, float | None] | None:
        """The message without "host kernel: ", and the kernel's own time behind it; None for another program's."""
        if text.startswith("kernel: "):
            text = text[8:]
        elif " kernel: " in text[:100] and (found := re.match(r"\S+ kernel: ", text)):
            text = text[found.end() :]
        elif from_kernel:
            return text, None
        elif found := re.match(r"(?:[\w.-]+ )?(?=NVRM: |nvidia-|mlx5_core )", text):
            return text[found.end() :], None
        # What `dmesg --decode` and -T print has no tag; a log daemon always writes one.
        elif (found := _TAG.match(text)) and re.match(r"[\w.-]+ [\w./@-]+(?:\[\d+\])?: ", text):
            return None
        else:
            return text, None
        inner = _SECONDS.match(text) if text.startswith("[") else None
        return (inner[2], float(inner[1])) if inner else (text, None)

    def _convert(self, text: str, form: str) -> float | None:
        if text not in self._converted:
            try:
                self._converted[text] = datetime.strptime(text, form).replace(tzinfo=_UTC).timestamp()
            except ValueError:
                self._converted[text] = None
        return self._converted[text]

    def _without_year(self, text: str) -> float | None:
        """The latest such day that is not after the log was read (a day is left for time zones)."""
        if text not in self._converted:
            year = datetime.fromtimestamp(self._when, _UTC).year
            moments = []
            for candidate in (year + 1, year, year - 1):
                try:
                    month = _MONTHS.index(text[:3]) + 1
                    clock = datetime.strptime(f"{candidate} {text[3:].strip()}", "%Y %d %H:%M:%S")
                    moments.append(clock.replace(month=month, tzinfo=_UTC).timestamp())
                except ValueError:
                    continue
            self._converted[text] = next((moment for moment in moments if moment <= self._when + 86400), None)
        return self._converted[text]


def _offset(zone: str) -> float:
    if zone == "Z":
        return 0.0
    digits = zone[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if zone[0] == "-" else seconds


def is_late(record: Record) -> bool:
    """Whether a record may come later than its time says: the end of its sentence was waited for."""
    return record.text.startswith("NVRM: The NVIDIA GPU")


def read_records(text: str, when: float) -> Iterator[Record]:
    """The records in the order of the text, sentences that the driver breaks over several of them joined.

    when: seconds since the epoch at which the text was printed; decides the year of dates that have none.
    """
    sentence: list[Record] = []
    for record in _read_lines(text, when):
        if not sentence and not is_late(record):
            yield record
        elif not sentence:
            if _SENTENCE_BEGINS.match(record.text):
                sentence = [record]
            else:
                yield record
        elif (more := _SENTENCE_GOES_ON.match(record.text)) and len(sentence) < _LONGEST_SENTENCE:
            sentence.append(record._replace(text=more[1].strip()))
            if "fallen off the bus" in record.text:
                yield _joined(sentence)
                sentence = []
        elif _SENTENCE_BEGINS.match(record.text) or record.begins_boot or record.text.startswith("NVRM: "):
            yield from (_joined(sentence), record)
            sentence = []
        else:  # another CPU's record in between
            yield record
    if sentence:
        yield _joined(sentence)


def _joined(sentence: list[Record]) -> Record:
    return sentence[0]._replace(text=" ".join(record.text for record in sentence))


# The two forms that the probes ask for, read in one step: `dmesg --decode` and `journalctl -o short-monotonic`.
_USUAL = re.compile(
    rf"(?:{_FACILITY} *:(emerg|alert|crit|err|warn|notice|info|debug) *: )?\[ *(\d+\.\d+)\] (kernel: )?(.*)"
)


def read_usual(line: str) -> Record | None:
    """The record of a line in a form that the probes ask for; None for other forms and for continuation lines."""
    found = _USUAL.match(line)
    if not found:
        return None
    message = found[4]
    if message.startswith("[") or not (found[3] or " kernel: " not in message):
        return None
    priority = PRIORITIES[found[1]] if found[1] else None
    begins = message.startswith("Linux version ") and bool(_FIRST_MESSAGE.match(message))
    return Record(float(found[2]), "boot", priority, message, begins)


def _read_lines(text: str, when: float) -> Iterator[Record]:
    reader = _Reader(when)
    held: Record | None = None
    for line in text.split("\n"):
        if line[:1] in ("", " ", "\t"):
            if held is not None and line.strip() and not re.match(r" [A-Z_]+=", line):  # kmsg: SUBSYSTEM=pci
                more = re.sub(r"^NVRM: *", "", line.strip())
                held = held._replace(text=f"{held.text} {more}")
            continue
        if held is not None:
            yield held
        held = read_usual(line)
        if held is not None:
            reader.follow(held)
        else:
            held = reader.read(line)
    if held is not None:
        yield held
