# SPDX-License-Identifier: Apache-2.0
"""Whether anybody computes on the node's GPUs, with proof or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .bounded_command import CommandResult, run_bounded

QUERY = ("nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader")
# With a dead GPU nvidia-smi waits for the driver for ever.
LIMIT_S = 60
DRIVER_GPUS = "/proc/driver/nvidia/gpus"


class GpuProcesses(NamedTuple):
    """processes: one "<pid> <name>" each. unknown: why it cannot be told, or None where the list is complete."""

    processes: list[str]
    unknown: str | None


def find_gpu_processes(
    run: Callable[[Sequence[str], float], CommandResult] = run_bounded, driver_gpus: str = DRIVER_GPUS
) -> GpuProcesses:
    """Ask nvidia-smi. A node without nvidia-smi and without GPUs in the driver has no GPU processes."""
    result = run(QUERY, LIMIT_S)
    if result.outcome == "missing":
        if os.path.isdir(driver_gpus) and os.listdir(driver_gpus):
            return GpuProcesses([], "the driver has GPUs, but nvidia-smi is missing")
        return GpuProcesses([], None)
    if result.outcome != "done" or result.rc != 0:
        status = "" if result.rc is None else f" with exit status {result.rc}"
        return GpuProcesses([], f"nvidia-smi failed{status}: {result.said()}")
    processes = []
    for line in filter(None, (line.strip() for line in result.stdout.splitlines())):
        match = re.fullmatch(r"(\d+), (.+)", line)
        if match is None:
            return GpuProcesses([], f"nvidia-smi printed a line that is no process: {line!r}")
        processes.append(f"{match.group(1)} {match.group(2)}")
    return GpuProcesses(processes, None)
