# SPDX-License-Identifier: Apache-2.0
"""Order of Debian versions (deb-version(7)), without a process for each comparison."""

from __future__ import annotations

import functools
import re


def split_version(version: str) -> tuple[int, str, str]:
    """Epoch, upstream version and revision; the epoch is 0 and the revision "" where there is none."""
    epoch, colon, rest = version.partition(":")
    if not colon or not epoch.isdigit():
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    return (int(epoch), upstream, revision) if dash else (int(epoch), rest, "")


def _weight(character: str) -> int:
    # A tilde sorts before the end, letters before everything else.
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 256


def _compare_part(first: str, second: str) -> int:
    """Text and numbers in turn, as dpkg's verrevcmp does."""
    parts = [re.findall(r"(\D*)(\d*)", part) for part in (first, second)]
    for number in range(max(map(len, parts))):
        (text1, digits1), (text2, digits2) = (part[number] if number < len(part) else ("", "") for part in parts)
        for place in range(max(len(text1), len(text2))):
            weights = [_weight(text[place]) if place < len(text) else 0 for text in (text1, text2)]
            if weights[0] != weights[1]:
                return -1 if weights[0] < weights[1] else 1
        if int(digits1 or 0) != int(digits2 or 0):
            return -1 if int(digits1 or 0) < int(digits2 or 0) else 1
    return 0


def compare(first: str, second: str) -> int:
    """-1 where first is older than second, 1 where it is newer, 0 where they are equal."""
    parts1, parts2 = split_version(first), split_version(second)
    if parts1[0] != parts2[0]:
        return -1 if parts1[0] < parts2[0] else 1
    return _compare_part(parts1[1], parts2[1]) or _compare_part(parts1[2], parts2[2])


# Key for sorted() and max().
by_age = functools.cmp_to_key(compare)
