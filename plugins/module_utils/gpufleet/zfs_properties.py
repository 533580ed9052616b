# SPDX-License-Identifier: Apache-2.0
"""Properties of pools and datasets: what is set, and whether a wanted value is the one that is set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .zfs_property_value import canonical


class Property(NamedTuple):
    """A value and where it comes from: local, default, inherited from <dataset>, received, temporary or -."""

    value: str
    source: str


class Difference(NamedTuple):
    """is_value is None where the pool or dataset has no such property (zfs is too old, or it is a volume's)."""

    is_value: str | None
    wanted: str


# zprop_print_one_property(), libzfs_util.c; "none" for what `get` cannot attribute
_SOURCE = re.compile(r"(-|none|local|default|temporary|received|inherited from \S.*)$")


def parse_properties(text: str) -> dict[str, dict[str, Property]]:
    """`zpool get -Hp all [pool]` or `zfs get -Hp all|<properties> [dataset]` -> {name: {property: Property}}.

    The columns name, property, value and source, separated by tabs; a value may hold tabs itself. Empty text is {}:
    nothing was printed, so nothing is known. Raises ValueError naming the first line that does not fit.
    """
    found: dict[str, dict[str, Property]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 4 or not fields[0] or not fields[1] or not _SOURCE.match(fields[-1]):
            raise ValueError(f"line {number}: expected name, property, value and source, got: {line!r}")
        found.setdefault(fields[0], {})[fields[1]] = Property("\t".join(fields[2:-1]), fields[-1])
    return found


def differences(
    wanted: Mapping[str, str | int],
    actual: Mapping[str, Property | tuple[str, str]],
    zfs_version: tuple[int, int] | None = None,
) -> dict[str, Difference]:
    """What must be set, in the order of `wanted`: property -> (is_value, wanted), both as `get -p` spells them.

    actual: the properties of one pool or dataset from parse_properties(). Where a value comes from does not matter.
    Raises ValueError as canonical() does.
    """
    found: dict[str, Difference] = {}
    for name, value in wanted.items():
        want = canonical(name, value, zfs_version)
        is_value = canonical(name, actual[name][0], zfs_version) if name in actual else None
        if is_value != want:
            found[name] = Difference(is_value, want)
    return found
