# SPDX-License-Identifier: Apache-2.0
"""Leaves out of a long log, in one step, the records that no check reads: most of them, on a healthy node.

A log of 20,000 lines has a thousand forms. Lines that differ only in their numbers get the same skeleton by operations
on the whole text; one line of each skeleton is judged, and those that are ordinary are left out before the log is read.
"""

from __future__ import annotations

import re
from itertools import compress

from .kernel_log import CLOCK_DISORDER_S, ERROR_PRIORITY, read_usual
from .kernel_message_catalog import ORDINARY, is_harmless, kind_of

_HEXADECIMAL = re.compile(rb"0x[0-9a-fA-F]+")
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_RUNS = (b"0" * 16, b"0" * 4, b"00")
_SECONDS = re.compile(r"(?:\w+ *:\w+ *: )?\[ *(\d+)\.")
# A boot begins with a thousand records within seconds: looking at one record of so many shows that it began.
_STEP = 16
# With fewer lines to each skeleton it is faster to read the log as it is.
_WORTH_IT = 4


def _without_numbers(text: str) -> str:
    """A text whose digits are all 0 with each number of one digit, so that lines of one form are equal."""
    # one byte for each character: line ends stay where they are
    plain = _HEXADECIMAL.sub(b"0x0", text.encode("latin-1", "replace"))
    for run in _RUNS:
        while run in plain:
            plain = plain.replace(run, b"0")
    return plain.decode("latin-1")


def without_ordinary(text: str) -> tuple[str, int]:
    """The text without the lines whose records are ordinary, and how many these are.

    Left as it is: a log of several boots, and one in which few lines are alike. Kept in any case: the first and the
    last line, lines in other forms than those of the probes, and records that go over several lines.
    """
    lines = text.split("\n")
    if text.count("Linux version ") > 1 or text.startswith("-- ") or "\n-- " in text or _starts_again(lines):
        return text, 0
    # In two steps, since numbers of equal length leave few different lines for the slower one.
    shapes = text.encode("latin-1", "replace").translate(_DIGITS).decode("latin-1").split("\n")
    line_of = dict(zip(shapes, lines))  # noqa: B905 (equal by construction; strict= came with Python 3.10)
    skeleton_of = dict(zip(line_of, _without_numbers("\n".join(line_of)).split("\n")))  # noqa: B905 (the same)
    examples = dict(zip(skeleton_of.values(), line_of.values()))  # noqa: B905 (the same)
    if len(examples) * _WORTH_IT > len(lines):
        return text, 0
    dull = {skeleton for skeleton, line in examples.items() if _is_dull(line)}
    dull_shapes = {shape for shape, skeleton in skeleton_of.items() if skeleton in dull}
    keep = [shape not in dull_shapes for shape in shapes]
    keep[0] = True
    last = next((number for number in range(len(lines) - 1, 0, -1) if lines[number].strip()), 0)
    keep[last:] = [True] * len(keep[last:])
    if "\n " in text or "\n\t" in text:
        for number, line in enumerate(lines):
            if line[:1] in (" ", "\t") and number:
                keep[number - 1] = keep[number] = True
    kept = list(compress(lines, keep))
    return "\n".join(kept), len(lines) - len(kept)


def _is_dull(line: str) -> bool:
    record = read_usual(line)
    # The driver breaks sentences over several records, which are judged as one.
    if record is None or "NVRM" in record.text or kind_of(record.text) != ORDINARY:
        return False
    is_error = record.priority is not None and record.priority <= ERROR_PRIORITY
    return not is_error or is_harmless(record.text)


def _starts_again(lines: list[str]) -> bool:
    """Whether the clock of the boot starts again: there are two boots in the text."""
    found = map(_SECONDS.match, (*lines[::_STEP], *lines[-2:]))
    seconds = [int(one[1]) for one in found if one]
    return any(later < earlier - CLOCK_DISORDER_S for earlier, later in zip(seconds, seconds[1:]))  # noqa: B905
