# SPDX-License-Identifier: Apache-2.0
"""Versions of packages and releases of kernels: their order, and what of them is the vendor's."""

from __future__ import annotations

import re


def natural(text: str) -> list[tuple[int, str]]:
    """Key that sorts releases and versions by their numbers: 6.1.0-9 before 6.1.0-26."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", text)]


def upstream_version(version: str) -> str:
    """The upstream part of a Debian version: 1:2.3.2-2~bpo12+1 -> 2.3.2 (deb-version(7))."""
    without_epoch = version.partition(":")[2] or version
    return without_epoch.rpartition("-")[0] or without_epoch
