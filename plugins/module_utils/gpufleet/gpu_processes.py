# SPDX-License-Identifier: Apache-2.0
"""Whether anybody computes on the node's GPUs, with proof or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .bounded_command import CommandResult, run_bounded
from .nvidia_gpu_users import gpu_users, others

QUERY = ("nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader")
# With a dead GPU nvidia-smi waits for the driver for ever.
LIMIT_S = 60
DRIVER_GPUS = "/proc/driver/nvidia/gpus"
PROC = "/proc"


class GpuProcesses(NamedTuple):
    """processes: one "<pid> <name>" each. unknown: why it cannot be told, or None where the list is complete."""

    processes: list[str]
    unknown: str | None


def find_gpu_processes(
    run: Callable[[Sequence[str], float], CommandResult] = run_bounded,
    driver_gpus: str = DRIVER_GPUS,
    proc: str = PROC,
) -> GpuProcesses:
    """Ask nvidia-smi and, where it gives no answer, see who has the driver's device files open.

    The second is what tells after an upgrade of the driver, whose nvidia-smi fails until the reboot (bug 098), and on a
    node whose driver finds no GPU. A node without nvidia-smi and without GPUs in the driver has no GPU processes.
    """
    result = run(QUERY, LIMIT_S)
    if result.outcome == "missing":
        if os.path.isdir(driver_gpus) and os.listdir(driver_gpus):
            return _by_open_files("the driver has GPUs, but nvidia-smi is missing", proc)
        return GpuProcesses([], None)
    if result.outcome != "done" or result.rc != 0:
        status = "" if result.rc is None else f" with exit status {result.rc}"
        return _by_open_files(f"nvidia-smi failed{status}: {result.said()}", proc)
    processes = []
    for line in filter(None, (line.strip() for line in result.stdout.splitlines())):
        match = re.fullmatch(r"(\d+), (.+)", line)
        if match is None:
            return _by_open_files(f"nvidia-smi printed a line that is no process: {line!r}", proc)
        processes.append(f"{match.group(1)} {match.group(2)}")
    return GpuProcesses(processes, None)


def _by_open_files(why: str, proc: str) -> GpuProcesses:
    """Who has a device file open, but for the node's own services, and nvidia-smi: one that hangs computes nothing."""
    try:
        users = [user for user in others(gpu_users(proc)) if user.name != "nvidia-smi"]
    except OSError as error:
        return GpuProcesses([], f"{why}; and {error.filename or proc} cannot be read: {error.strerror}")
    return GpuProcesses([f"{user.pid} {user.name}" for user in users], None)
