# SPDX-License-Identifier: Apache-2.0
"""Which release of the DCGM exporter goes with which DCGM.

The exporter is built for one DCGM and loads the node's library: a library of another major is not found at all
(libdcgm.so.4), and an older one answers "API version mismatch" to structures that it does not know (bug 090,
NVIDIA/dcgm-exporter#319 and #530). A newer library of the same major serves an older exporter.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Version = tuple[int, ...]

# Exporter -> the DCGM that it was built for. Source: the tags of NVIDIA/dcgm-exporter, "<DCGM>-<exporter>".
BUILT_FOR: dict[Version, Version] = {
    (3, 0, 0): (3, 0, 4),
    (3, 1, 2): (3, 1, 3),
    (3, 1, 5): (3, 1, 8),
    (3, 2, 0): (3, 3, 0),
    (3, 3, 0): (3, 3, 3),
    (3, 4, 0): (3, 3, 5),
    (3, 4, 2): (3, 3, 6),
    (3, 5, 0): (3, 3, 7),
    (3, 6, 0): (3, 3, 8),
    (3, 6, 1): (3, 3, 9),
    (4, 0, 1): (4, 0, 0),
    (4, 0, 3): (4, 1, 1),
    (4, 1, 0): (4, 2, 0),
    (4, 1, 1): (4, 2, 3),
    (4, 4, 0): (4, 3, 1),
    (4, 5, 0): (4, 4, 0),
    (4, 5, 2): (4, 4, 1),
    (4, 7, 0): (4, 4, 2),
    (4, 8, 0): (4, 5, 1),
    (4, 8, 1): (4, 5, 2),
    (4, 8, 2): (4, 5, 3),
}


class ImageVersions(NamedTuple):
    """What the tag of NVIDIA's image says: "4.5.3-4.8.2-ubuntu22.04" is exporter 4.8.2 with DCGM 4.5.3."""

    dcgm: str
    exporter: str


def parse_version(text: str) -> Version:
    """Numbers of a version; epoch, revision and what follows are left out ("1:4.5.3-1" -> 4, 5, 3)."""
    found = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", text)
    if not found:
        raise ValueError(f"{text!r} is no version")
    return tuple(int(number) for number in found.group(1).split("."))


def show(version: Version) -> str:
    """The version as people write it."""
    return ".".join(map(str, version))


def parse_image(image: str) -> ImageVersions | None:
    """Versions in the tag of an image; None for a digest, or a tag that is not NVIDIA's."""
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    found = re.match(r"(\d+\.\d+\.\d+)-(\d+\.\d+\.\d+)(?:-|$)", tag)
    return ImageVersions(found.group(1), found.group(2)) if found else None


def needs(exporter: str) -> Version:
    """The oldest DCGM for a release of the exporter: that of the newest listed release that is not newer than it."""
    wanted = parse_version(exporter)
    listed = [release for release in BUILT_FOR if release <= wanted]
    return BUILT_FOR[max(listed)] if listed else min(BUILT_FOR.values())


def mismatch(dcgm: str, exporter: str, built_for: str | None = None) -> str | None:
    """Why the exporter cannot work with this DCGM, in words, or None. built_for: where the exporter's image says it."""
    oldest = parse_version(built_for) if built_for else needs(exporter)
    have = parse_version(dcgm)
    if have[0] != oldest[0]:
        return (
            f"exporter {exporter} is for DCGM {oldest[0]} (built for {show(oldest)}), and the node has DCGM "
            f"{show(have)}, of another major release"
        )
    if have < oldest:
        return f"exporter {exporter} was built for DCGM {show(oldest)}, and the node has the older {show(have)}"
    return None


def newest_for(dcgm: str) -> str | None:
    """The newest listed exporter that works with this DCGM; None where none is listed."""
    have = parse_version(dcgm)
    fitting = [exporter for exporter, built in BUILT_FOR.items() if built[0] == have[0] and built <= have]
    return show(max(fitting)) if fitting else None
