# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a profile, for the files that describe its sections and their rules."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong with a profile."""

    path: str  # where, as a dotted path: platform.clock.max_offset_s
    expected: str
    found: str
    hint: str = ""  # what to do, e.g. the key that was probably meant

    def __str__(self) -> str:
        text = f"{self.path}: expected {self.expected}, found {self.found}"
        return f"{text}; {self.hint}" if self.hint else text
