# SPDX-License-Identifier: Apache-2.0
"""Node names for people: many names folded into ranges, long lists cut with a count."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

# The number that is folded is the last one of the first label: rack01-gpu007.example.com -> 007.
_NAME = re.compile(r"^(?P<prefix>[^.]*?)(?P<number>\d+)(?P<suffix>[^.\d]*(?:\..*)?)$")


def fold_names(names: Iterable[str]) -> list[str]:
    """Fold names into ranges: gpu-001..gpu-200 and gpu-203 become ``gpu-[001-200,203]``.

    Names without a number, and numbers that stand alone, stay as they are.
    The order is that of the prefix, then of the number.
    """
    plain: set[str] = set()
    numbers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name in names:
        match = _NAME.match(name)
        # Addresses are no counted names: folding their first octet would only confuse.
        if match is None or re.fullmatch(r"[\d.:a-fA-F]+", name):
            plain.add(name)
        else:
            numbers[match["prefix"], match["suffix"]].add(match["number"])
    folded = sorted(plain)
    for (prefix, suffix), digits in sorted(numbers.items()):
        # "07" and "7" are different names, so numbers of unlike padding are folded apart.
        padded_lengths = {len(number) for number in digits if number.startswith("0") and len(number) > 1}
        by_padding: dict[int, list[int]] = defaultdict(list)
        for number in digits:
            by_padding[len(number) if len(number) in padded_lengths else 0].append(int(number))
        for padding, values in sorted(by_padding.items()):
            runs = _runs(sorted(values))
            if len(values) == 1:
                folded.append(f"{prefix}{values[0]:0{padding}d}{suffix}")
                continue
            inside = ",".join(
                f"{first:0{padding}d}" if first == last else f"{first:0{padding}d}-{last:0{padding}d}"
                for first, last in runs
            )
            folded.append(f"{prefix}[{inside}]{suffix}")
    return folded


def _runs(values: list[int]) -> list[tuple[int, int]]:
    """Split sorted numbers into runs without gaps: (first, last) of each."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs


def short_names(names: Iterable[str], width: int = 60) -> str:
    """Give the folded names in at most about ``width`` characters.

    What does not fit is cut and its number told: ``gpu-[001,003,005,...] (256 nodes)``.
    """
    unique = set(names)
    folded = ", ".join(fold_names(unique))
    if len(folded) <= width:
        return folded
    tail = f" ... ({len(unique)} nodes)"
    room = max(width - len(tail), 10)
    cut = folded[:room]
    # Cut at the last comma, so that no half number is read as a node.
    if "," in cut:
        cut = cut[: cut.rindex(",")]
    if cut.count("[") > cut.count("]"):
        cut += ",...]"
        return f"{cut} ({len(unique)} nodes)"
    return cut + tail
