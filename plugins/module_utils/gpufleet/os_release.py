# SPDX-License-Identifier: Apache-2.0
"""Which operating system a node runs, read without gathering facts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

# os-release(5): the first one that exists counts.
PATHS = ("/etc/os-release", "/usr/lib/os-release")


def parse_os_release(text: str) -> dict[str, str]:
    """KEY=value lines of os-release(5) as a dict, quotes removed; lines that are none are ignored."""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if not equals or key.startswith("#"):
            continue
        try:
            found[key] = " ".join(shlex.split(value))
        except ValueError:
            continue
    return found


def os_name(release: Mapping[str, str]) -> str:
    """Such as "debian 12" or "ubuntu 24.04"."""
    return f"{release.get('ID', 'unknown')} {release.get('VERSION_ID', 'of unknown version')}".lower()


def read_os_release() -> dict[str, str]:
    """The node's own os-release; an empty dict where there is none."""
    for path in PATHS:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return parse_os_release(file.read())
        except OSError:
            continue
    return {}


def unsupported(release: Mapping[str, str], supported: Sequence[str]) -> str | None:
    """The message that refuses this system, or None where it is supported (an empty list supports all)."""
    name = os_name(release)
    if not supported or name in supported:
        return None
    return f"operating system {name} is not supported; supported are: {', '.join(supported)}. Nothing was changed."
