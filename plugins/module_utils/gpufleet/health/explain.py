# SPDX-License-Identifier: Apache-2.0
"""What a code or a check means, as plain advice for the person who has to act."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Sequence

from .check import Check
from .sxid_catalog import SXIDS, SxidEntry, sxid_entry
from .xid_catalog import ALL_GPUS, XIDS, XidEntry, xid_entry

_WIDTH = 100
_TOPIC = re.compile(r"(s?xid)[ :#_-]*(\d+)$", re.IGNORECASE)

_HOW_BAD = {
    "fail": "The node must not train until this is mended.",
    "warn": "The node may go on; somebody must look.",
}
_ACTIONS = {
    "none": "nothing",
    "observe": "watch it",
    "restart_service": "restart the service",
    "reset_gpu": "reset the GPU",
    "reboot": "reboot the node",
    "power_cycle": "switch the node's power off and on",
    "reseat": "reseat the part",
    "inspect": "inspect the hardware",
    "replace": "replace the part",
}
_CAUSES = {
    "application": "mostly the program that runs",
    "gpu": "the GPU or its memory",
    "link": "NVLink",
    "driver": "driver or firmware",
    "notice": "no fault by itself: the driver tells of a state",
    "unpublished": "not published",
    "unused": "not known: the number is not in use",
}


class UnknownTopicError(ValueError):
    """A topic that cannot be explained; the message says what was probably meant."""


def explain(topic: str, checks: Sequence[Check]) -> str:
    """The text for "xid 79", "sxid 12028" or the id of a check. Raises UnknownTopicError.

    checks: the table of checks; an id explains itself by the documentation of its function.
    """
    words = " ".join(topic.split())
    if code := _TOPIC.match(words):
        number = int(code[2])
        return _sxid(sxid_entry(number)) if code[1].lower() == "sxid" else _xid(xid_entry(number))
    for check in checks:
        if check.id == words:
            return _check(check)
    below = [check.id for check in checks if check.id.startswith(words + ".")]
    if words and below:
        raise UnknownTopicError(f"{words} is a group of checks: explain one of {', '.join(below)}")
    raise UnknownTopicError(f"nothing is known of {topic!r}; {_did_you_mean(words, checks)}")


def _did_you_mean(words: str, checks: Sequence[Check]) -> str:
    topics = (
        [check.id for check in checks] + [f"xid {number}" for number in XIDS] + [f"sxid {number}" for number in SXIDS]
    )
    close = difflib.get_close_matches(words.lower(), topics, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Topics are xid NUMBER, sxid NUMBER and the ids of checks (node-health checks lists them)"


def _text(title: str, paragraphs: Sequence[tuple[str, str]]) -> str:
    lines = [title, ""]
    for heading, text in paragraphs:
        lines += textwrap.wrap(f"{heading}: {text}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def _xid(entry: XidEntry) -> str:
    title = f"Xid {entry.number}" + (f" ({entry.name})" if entry.name else "")
    return _text(
        title,
        (
            ("What it means", entry.meaning),
            ("Where it comes from", f"{_CAUSES[entry.cause]}."),
            ("How bad", _HOW_BAD[entry.severity] + _by_the_line(entry.number)),
            ("Action", f"{_ACTIONS[entry.action]}."),
            ("First", entry.advice),
            ("If it comes back", entry.if_it_returns),
            ("On which GPUs", _gpus(entry)),
            ("Source", "this project's Xid catalog; driver header 595.45.04 and the Xid workbook of 2025-09-30."),
        ),
    )


def _by_the_line(number: int) -> str:
    """What a line may say that stands above its number."""
    if 144 <= number <= 150:
        return " With the word Fatal in the line it must not train."
    notes = {
        13: " Several jobs that fail on one unit of the GPU point to the hardware.",
        31: " Several jobs that fail on one unit of the GPU point to the hardware.",
        45: " Three or more followed by a hung task: the driver is stuck, reboot.",
        64: " A line that says that all reserved rows are remapped asks for a replacement.",
        74: " Register bits that are notices only make it a warning.",
        94: " With RST: Yes in the line the GPU must be reset.",
        154: " Whatever the driver demands there, but None, must be done before the node trains again.",
    }
    return notes.get(number, "")


def _gpus(entry: XidEntry) -> str:
    if not entry.gpus:
        return "none that is known."
    if entry.gpus == ALL_GPUS:
        return f"all data-centre GPUs since {ALL_GPUS[0]} ({', '.join(ALL_GPUS)})."
    return f"{', '.join(entry.gpus)}."


def _sxid(entry: SxidEntry) -> str:
    title = f"SXid {entry.number}" + (f" ({entry.name})" if entry.name else "")
    where = {
        "older": "known to the driver, but not raised by the switch of HGX H100.",
        "unknown": "in no table; the driver may be newer.",
    }.get(entry.kind, "raised by the NVSwitch of HGX H100 and later ones.")
    paragraphs = [
        ("What it means", entry.meaning),
        ("How bad", f"{_HOW_BAD[entry.severity]} The word Fatal or Non-fatal in the line stands above this."),
        ("Action", f"{_ACTIONS[entry.action]}."),
        ("First", entry.advice),
        ("If it comes back", entry.if_it_returns),
        ("On which switches", where),
        ("Source", "this project's SXid catalog; open driver 595.45.04."),
    ]
    if entry.text:
        seen = f'"{entry.text}"; numbers move between driver branches, so compare the text.'
        paragraphs.insert(1, ("What the line says", seen))
    return _text(title, paragraphs)


def _check(check: Check) -> str:
    probes = ", ".join(check.needs) + (f"; reads as well {', '.join(check.also)}" if check.also else "")
    return f"Check {check.id}\n\n{check.documentation}\n\nProbes that it needs: {probes}\n"
