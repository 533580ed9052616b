# SPDX-License-Identifier: Apache-2.0
"""A kernel log as facts: each distinct form judged once, repeats counted, and how far back the log reaches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .kernel_log import CLOCK_DISORDER_S, ERROR_PRIORITY, Record, is_late, read_records
from .kernel_log_ordinary import without_ordinary
from .kernel_message_catalog import ERROR_LIKE, ORDINARY, is_harmless, kind_of
from .probe import ParseError, ProbeResult

# What differs between two messages of one form, within a word: PCI addresses, numbers, hexadecimal words with a digit.
_VARIABLE = re.compile(
    r"(?:[0-9a-fA-F]{4,8}:)?\b[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\b|0x[0-9a-fA-F]+"
    r"|\b[0-9a-fA-F]*\d[0-9a-fA-F]*\b|\d+"
)
# Words whose form is remembered, to save their search; addresses hardly come back.
_WORDS_KEPT = 20_000
# A message of the same text is kept once; so many of its times.
_TIMES_KEPT = 64
_LONGEST_TEXT = 600
# The kernel's clock starts at 0 with its first message; whatever begins later lacks the beginning.
_BEGINNING_S = 1.0
# A time that is lower than that of the record before belongs to a later boot if that boot was this young. Otherwise
# the log was put together by hand, and nothing in it is dropped.
_YOUNG_BOOT_S = 600.0


class Message(NamedTuple):
    """All records with one text. occurrences: how many; times: when, the first 64; last: the newest time.

    clock: boot, epoch, local (kernel_log.CLOCKS), or "" where no line carries a time (times is then empty).
    priority: the most severe one (0 = emerg), None where the form tells none.
    """

    text: str
    occurrences: int
    times: tuple[float, ...]
    last: float | None
    clock: str
    priority: int | None


class KernelLog(NamedTuple):
    """What one source tells of the running boot (as far as the text itself shows where that begins).

    records: how many. from_boot: whether the log reaches back to the kernel's first message. first, last: times of the
    oldest and newest record, by `clock`; None where no line carries one. first_text, last_text: their messages.
    cut: why the end of the text is missing, "" where it is whole. untimed: records without a time among others with.
    messages: by kind (kernel_message_catalog.KINDS) and text. error_like: by normal form, what no catalog knows.
    """

    records: int
    from_boot: bool
    clock: str
    first: float | None
    last: float | None
    first_text: str
    last_text: str
    cut: str
    untimed: int
    messages: Mapping[str, Mapping[str, Message]]
    error_like: Mapping[str, Message]


class _Words(dict[str, str]):
    """The form of a word by the word."""

    def __missing__(self, word: str) -> str:
        form = _VARIABLE.sub("#", word)
        if len(self) < _WORDS_KEPT:
            self[word] = form
        return form


def normal_form(text: str, words: _Words | None = None) -> str:
    """The message with all numbers, addresses and hexadecimal words replaced by #. words: what is remembered."""
    return " ".join(map((_Words() if words is None else words).__getitem__, text.split()))


class _Counted:
    """What has been seen of one text."""

    __slots__ = ("clock", "last", "occurrences", "priority", "text", "times")

    def __init__(self, record: Record) -> None:
        self.text = record.text[:_LONGEST_TEXT]
        self.occurrences = 0
        self.times: list[float] = []
        self.last: float | None = None
        self.clock = record.clock
        self.priority = record.priority

    def add(self, record: Record) -> None:
        self.occurrences += 1
        if record.time is not None:
            if len(self.times) < _TIMES_KEPT:
                self.times.append(record.time)
            self.last = record.time
            self.clock = record.clock
        if record.priority is not None and (self.priority is None or record.priority < self.priority):
            self.priority = record.priority

    def message(self) -> Message:
        return Message(self.text, self.occurrences, tuple(self.times), self.last, self.clock, self.priority)


class _Log:
    """Collects the records of one boot."""

    def __init__(self) -> None:
        self.records = 0
        self.untimed = 0
        self.from_boot = False
        self.first: Record | None = None
        self.last: Record | None = None
        self.first_text = ""
        self.messages: dict[str, dict[str, _Counted]] = {}
        self.error_like: dict[str, _Counted] = {}

    def begin(self) -> None:
        """Forget what belongs to earlier boots: the next record is the first of another one."""
        self.__init__()  # type: ignore[misc]

    def add(self, record: Record, kind: str, form: str) -> None:
        self.records += 1
        if self.records == 1:
            self.first_text = record.text
        if record.time is None:
            self.untimed += 1
        else:
            if self.first is None:
                self.first = record
                if record.clock == "boot" and record.time <= _BEGINNING_S:
                    self.from_boot = True
            self.last = record
        if kind == ORDINARY:
            return
        if kind == ERROR_LIKE:
            counted = self.error_like.get(form)
            if counted is None:
                counted = self.error_like[form] = _Counted(record)
            counted.add(record)
        else:
            of_kind = self.messages.setdefault(kind, {})
            counted = of_kind.get(record.text)
            if counted is None:
                counted = of_kind[record.text] = _Counted(record)
            counted.add(record)


def read_kernel_log(text: str, when: float) -> KernelLog:
    """The facts of a log in any form. when: seconds since the epoch at which it was printed. Never raises."""
    log = _Log()
    judge = _Judge()
    newest = -1.0
    last_text = ""
    to_read, left_out = without_ordinary(text)
    for record in read_records(to_read, when):
        of_boot_clock = record.time if record.clock == "boot" and not is_late(record) else None
        went_back = of_boot_clock is not None and of_boot_clock < min(newest - CLOCK_DISORDER_S, _YOUNG_BOOT_S)
        if record.begins_boot or went_back:
            log.begin()
            newest = -1.0
            # journalctl's mark alone, or a young boot alone, does not show that its first message is here.
            log.from_boot = bool(record.begins_boot and record.text)
            if not record.text:
                continue
        if of_boot_clock is not None and of_boot_clock > newest:
            newest = of_boot_clock
        last_text = record.text
        log.add(record, *judge.kind_and_form(record))
    first, last = log.first, log.last
    return KernelLog(
        records=log.records + left_out,
        from_boot=log.from_boot,
        clock=last.clock if last else "",
        first=first.time if first else None,
        last=last.time if last else None,
        first_text=log.first_text[:_LONGEST_TEXT],
        last_text=last_text[:_LONGEST_TEXT],
        cut="" if not text or text.endswith("\n") else "its last line has no end",
        untimed=log.untimed,
        messages={kind: {key: one.message() for key, one in of.items()} for kind, of in log.messages.items()},
        error_like={form: one.message() for form, one in log.error_like.items()},
    )


class _Judge:
    """Judges each normal form once."""

    def __init__(self) -> None:
        self._words = _Words()
        self._kinds: dict[str, str] = {}  # by normal form
        self._of_errors: dict[str, str] = {}  # by normal form, for what was printed as an error

    def kind_and_form(self, record: Record) -> tuple[str, str]:
        form = normal_form(record.text, self._words)
        kind = self._kinds.get(form)
        if kind is None:
            kind = self._kinds[form] = kind_of(record.text)
        if kind == ORDINARY and record.priority is not None and record.priority <= ERROR_PRIORITY:
            if form not in self._of_errors:
                self._of_errors[form] = ORDINARY if is_harmless(record.text) else ERROR_LIKE
            return self._of_errors[form], form
        return kind, form


def parse_kernel_log(result: ProbeResult) -> KernelLog:
    """The facts of a probe's log. Raises ParseError where not one line carries a time, as every kernel record does."""
    if not result.stdout.strip():
        raise ParseError(f"{result.says()}: no kernel record")
    log = read_kernel_log(result.stdout, result.when)
    if log.first is None:
        line = next(line for line in result.stdout.splitlines() if line.strip())
        raise ParseError(f"no kernel log, since no line of it carries a time: {line[:200]!r}")
    if result.outcome != "done":
        log = log._replace(cut=f"it {result.says()}")
    return log
