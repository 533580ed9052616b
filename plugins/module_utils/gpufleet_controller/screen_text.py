# SPDX-License-Identifier: Apache-2.0
"""Text that came from a node, made safe for a terminal: no control characters, cut to a width."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

# CSI and OSC sequences first (as a whole), then every other control character but newline and tab.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|\x9b[0-?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def clean_text(value: Any) -> str:
    """Return ``value`` as text without escape sequences, control and direction-changing characters.

    Newlines and tabs stay; a carriage return with newline becomes a newline. Surrogates
    (undecodable bytes) become '?', so that the text can be written as UTF-8.
    """
    text = value if isinstance(value, str) else str(value)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROL.sub("", _ESCAPES.sub("", text))
    return text.encode("utf-8", "replace").decode("utf-8")


def clean_data(value: Any) -> Any:
    """Clean every string in nested data (for example a diff or facts of a result)."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): clean_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [clean_data(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return clean_text(value)


def first_line(text: str) -> str:
    """Return the first line that is not blank, without surrounding space ('' where there is none)."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def cells(text: str) -> int:
    """Count the columns that text takes on a terminal (wide East Asian characters take two)."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def cut(text: str, width: int) -> str:
    """Cut text to ``width`` columns; what is cut ends with '...'."""
    if cells(text) <= width:
        return text
    room = max(width - 3, 0)
    kept = ""
    for char in text:
        if cells(kept) + cells(char) > room:
            break
        kept += char
    return (kept + "...")[: max(width, 0)]


def duration(seconds: float) -> str:
    """Tell a duration as a person would: 34 s, 3 min 42 s, 2 h 05 min."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
