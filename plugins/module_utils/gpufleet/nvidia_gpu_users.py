# SPDX-License-Identifier: Apache-2.0
"""Which processes have NVIDIA's device files open, containers' included: while there are any, the module cannot go.

nvidia-smi cannot tell after an upgrade: its library is of another version than the loaded module (bug 098).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

# They hold the GPUs for the node itself and are stopped for a reload, in this order, and started in the reverse one.
NODE_SERVICES = (
    "nvidia-dcgm-exporter.service",
    "nvidia-dcgm.service",
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
)


class GpuUser(NamedTuple):
    """unit: name of the systemd service, None where it is in none."""

    pid: int
    name: str
    unit: str | None

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}{f', {self.unit}' if self.unit else ''})"


def _unit(cgroup: str) -> str | None:
    found = re.findall(r"/([^/\n]+\.service)", cgroup)
    return found[-1] if found else None


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _has_open(folder: str) -> bool:
    for name in os.listdir(folder):
        try:
            if re.match(r"/dev/nvidia", os.readlink(os.path.join(folder, name))):
                return True
        except OSError:
            continue  # closed meanwhile
    return False


def gpu_users(proc: str = "/proc") -> list[GpuUser]:
    """All processes that have a file /dev/nvidia* open. A process that ends meanwhile is none."""
    found = []
    for entry in sorted(filter(str.isdigit, os.listdir(proc)), key=int):
        place = os.path.join(proc, entry)
        try:
            if _has_open(os.path.join(place, "fd")):
                name = _read(os.path.join(place, "comm")).strip()
                found.append(GpuUser(int(entry), name, _unit(_read(os.path.join(place, "cgroup")))))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def others(users: Iterable[GpuUser], services: Collection[str] = NODE_SERVICES) -> list[GpuUser]:
    """Those that are none of the node's own services."""
    return [user for user in users if user.unit not in services]
