# SPDX-License-Identifier: Apache-2.0
"""One question to the node, and what came back, untouched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

# done: it ended with an exit status that counts as an answer, and the whole output is there. missing: no such program
# or file. failed: another exit status (kept in rc). timeout: no end within the deadline. truncated: more output than
# max_bytes, or a capture whose stdout is shorter than its meta.json says.
OUTCOMES = ("done", "missing", "failed", "timeout", "truncated")

DEFAULT_MAX_BYTES = 4 << 20


class ProbeResult(NamedTuple):
    """What a probe brought. rc: exit status, None where the command did not end. seconds: how long it ran.

    when: seconds since the epoch at its start, by the node's clock. root: whether it ran with effective user id 0.
    stdout, stderr: text, bytes that are no UTF-8 replaced. why: reason of `missing`, in words.
    """

    probe: str
    outcome: str
    rc: int | None
    stdout: str
    stderr: str
    seconds: float
    when: float
    root: bool
    why: str = ""

    def says(self) -> str:
        """The outcome in words, for a message: "ended with exit status 15: GPU is lost"."""
        printed = " ".join((self.stderr.strip() or self.stdout.strip()).split())[:200]
        if self.outcome == "failed":
            return f"ended with exit status {self.rc}: {printed or 'no output'}"
        words = {
            "missing": self.why or "is missing",
            "timeout": f"gave no answer within {self.seconds:.0f} s",
            "truncated": "gave an answer that was cut off",
            "done": "gave an answer",
        }
        return words[self.outcome]


class Probe(NamedTuple):
    """A command (argv) or files (paths: shell patterns, each file read as "<path>:<line>" per line, as grep prints it).

    id: stable, dotted, such as nvidia_smi.query; the name of its folder in a capture. parse: turns the result into
    facts; raises ParseError. A parser sees only results whose outcome is in `parses`. good_rc: exit statuses that
    count as an answer. root: without root the answer is poorer; such a result says so by its field `root`.
    heavy: not run unless asked for.
    """

    id: str
    parse: Callable[[ProbeResult], Any]
    argv: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    deadline_s: float = 30
    good_rc: tuple[int, ...] = (0,)
    parses: tuple[str, ...] = ("done",)
    root: bool = False
    heavy: bool = False
    max_bytes: int = DEFAULT_MAX_BYTES

    @property
    def source(self) -> str:
        """The command or the files, as a person would write them."""
        return " ".join(self.argv or self.paths)

    @property
    def title(self) -> str:
        """The source for a message: a script of several lines is only called one."""
        return "its script" if "\n" in self.source else self.source


class ParseError(ValueError):
    """Output that is not what the tool prints; the message names the line. Nothing is guessed from such output."""


class NoEvidence(Exception):
    """A check cannot say anything: `probe` gave no usable answer, for `reason`."""

    def __init__(self, probe: str, reason: str) -> None:
        super().__init__(f"probe {probe}: {reason}")
        self.probe = probe
        self.reason = reason
