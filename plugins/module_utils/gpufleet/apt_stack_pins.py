# SPDX-License-Identifier: Apache-2.0
"""Pins of a stack, what apt makes of all pins, and whose pin stands in the way (apt_preferences(5))."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

DPKG_STATUS = "/var/lib/dpkg/status"
# Keeps its version against newer ones, and never makes apt go back by itself (that begins at 1001).
PINNED = 1000


class Policy(NamedTuple):
    """A package in the package lists: `offered` is version -> priority of what some source has; candidate is None where
    apt would install none."""

    candidate: str | None
    offered: dict[str, int]


class Blocker(NamedTuple):
    """A stanza with a negative priority that fits a package."""

    path: str
    line: int
    packages: str
    pin: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line} (Package: {self.packages}, Pin: {self.pin})"


def parse_policy(text: str) -> dict[str, Policy]:
    """What `apt-cache policy NAME...` prints, per package; packages that no list knows are missing."""
    found = {}
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        name, colon, _rest = block.partition(":\n")
        if not colon:
            continue
        candidate = re.search(r"^  Candidate: (\S+)$", block, re.MULTILINE)
        offered: dict[str, int] = {}
        version, priority = "", 0
        for line in block.splitlines():
            head = re.match(r"^ (?:\*\*\*|   ) (\S+) (-?\d+)$", line)
            if head:
                version, priority = head.group(1), int(head.group(2))
            elif version and re.match(r"^ {8,} *-?\d+ ", line) and not line.endswith(DPKG_STATUS):
                offered[version] = priority
        chosen = candidate.group(1) if candidate else "(none)"
        found[name] = Policy(None if chosen == "(none)" else chosen, offered)
    return found


def fits(pattern: str, package: str) -> bool:
    """Whether one word of a Package: field is for the package: a name, a glob or a /regular expression/."""
    pattern = re.sub(r":(any|native|[a-z0-9]+)$", "", pattern)
    if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/"):
        try:
            return re.search(pattern[1:-1], package) is not None
        except re.error:
            return False
    return fnmatch.fnmatchcase(package, pattern)


def blockers(package: str, files: Mapping[str, str]) -> list[Blocker]:
    """Stanzas of preferences files (path -> text) that may put the package below zero, in the order apt reads them."""
    found = []
    for path in sorted(files):
        fields: dict[str, str] = {}
        begin = 0
        for number, line in enumerate([*files[path].splitlines(), ""]):
            if line.strip():
                if not line.startswith("#"):
                    begin = begin if fields else number
                    key, _colon, value = line.partition(":")
                    fields[key.strip().lower()] = value.strip()
                continue
            try:
                negative = int(fields.get("pin-priority", "0")) < 0
            except ValueError:
                negative = False
            if negative and any(fits(word, package) for word in fields.get("package", "").split()):
                found.append(Blocker(path, begin + 1, fields["package"], fields.get("pin", "")))
            fields = {}
    return found


def _stanza(packages: str, pin: str, priority: int) -> str:
    return f"Package: {packages}\nPin: {pin}\nPin-Priority: {priority}\n"


def render_pins(
    packages: Sequence[Mapping[str, Any]], pins: Sequence[Mapping[str, Any]], keep_out: Sequence[str], stack: str
) -> str:
    """The preferences file of a stack, "" where it has no pin. The first stanza that fits a version counts."""
    stanzas = []
    for package in packages:
        if package["version"]:
            stanzas.append(_stanza(package["name"], f"version {package['version']}", PINNED))
        elif package["upstream"]:
            # With and without an epoch and a revision; one Pin takes one pattern.
            for pattern in (package["upstream"], f"{package['upstream']}-*", f"*:{package['upstream']}-*"):
                stanzas.append(_stanza(package["name"], f"version {pattern}", PINNED))
    for pin in pins:
        what = f'origin "{pin["origin"]}"' if pin["version"] is None else f"version {pin['version']}"
        stanzas.append(_stanza(" ".join(pin["packages"]), what, pin["priority"]))
    if keep_out:
        stanzas.append(_stanza(" ".join(keep_out), "version *", -1))
    if not stanzas:
        return ""
    head = f"# Written by gpufleet for the stack {stack}; changes made here are lost.\n"
    return head + "\n".join(stanzas)
