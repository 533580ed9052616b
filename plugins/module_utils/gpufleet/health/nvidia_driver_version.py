# SPDX-License-Identifier: Apache-2.0
"""/proc/driver/nvidia/version: the kernel module's own version, which needs no library to read."""

from __future__ import annotations

from ..nvidia_loaded_driver import PROC_VERSION, LoadedDriver, parse_proc_version
from .probe import ParseError, Probe, ProbeResult

DRIVER_VERSION = "nvidia.driver_version"


def parse_driver_version(result: ProbeResult) -> LoadedDriver:
    """Version and flavour of the loaded kernel module. Raises ParseError."""
    text = "\n".join(line.removeprefix(f"{PROC_VERSION}:") for line in result.stdout.splitlines())
    try:
        return parse_proc_version(text)
    except ValueError as error:
        raise ParseError(str(error)) from error


PROBES: tuple[Probe, ...] = (Probe(DRIVER_VERSION, parse_driver_version, paths=(PROC_VERSION,), deadline_s=10),)
