# SPDX-License-Identifier: Apache-2.0
"""/proc/driver/nvidia/version: the kernel module's own version, which needs no library to read."""

from __future__ import annotations

import re

from .probe import ParseError, Probe, ProbeResult

DRIVER_VERSION = "nvidia.driver_version"
_PATH = "/proc/driver/nvidia/version"
# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 ...", with the open module
# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build ..."
_LINE = re.compile(r"NVRM version: .*Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")


def parse_driver_version(result: ProbeResult) -> str:
    """Version of the loaded kernel module, e.g. 535.183.01. Raises ParseError."""
    for line in result.stdout.splitlines():
        text = line[len(_PATH) + 1 :] if line.startswith(_PATH + ":") else line
        found = _LINE.match(text + " ")
        if found:
            return found.group(1)
    first = result.stdout.strip().splitlines()[0][:200] if result.stdout.strip() else "nothing"
    raise ParseError(f"{_PATH} has no line 'NVRM version: ... Kernel Module ...': {first!r}")


PROBES: tuple[Probe, ...] = (Probe(DRIVER_VERSION, parse_driver_version, paths=(_PATH,), deadline_s=10),)
