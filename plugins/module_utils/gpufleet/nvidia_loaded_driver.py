# SPDX-License-Identifier: Apache-2.0
"""Which NVIDIA kernel module is loaded, by its own word: for the roles and the health checks.

Texts: NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PROC_VERSION = "/proc/driver/nvidia/version"

OPEN, PROPRIETARY = "open", "proprietary"


class LoadedDriver(NamedTuple):
    """The loaded module: version such as 580.105.08; flavour is OPEN or PROPRIETARY."""

    version: str
    flavour: str


# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 ...", with the open module
# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build ..."
_PROC_VERSION = re.compile(r"^NVRM version: .*?(Open )?Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)(?=\s|$)", re.MULTILINE)


def parse_proc_version(text: str) -> LoadedDriver:
    """The module that /proc/driver/nvidia/version describes; raises ValueError for any other text."""
    found = _PROC_VERSION.search(text)
    if not found:
        raise ValueError(f"{PROC_VERSION} has no line 'NVRM version: ... Kernel Module ...': {text[:200]!r}")
    return LoadedDriver(found.group(2), OPEN if found.group(1) else PROPRIETARY)


def flavour_of(license_text: str) -> str | None:
    """OPEN or PROPRIETARY by a module's license ("Dual MIT/GPL", "NVIDIA"); None for any other."""
    return {"Dual MIT/GPL": OPEN, "NVIDIA": PROPRIETARY}.get(license_text)
