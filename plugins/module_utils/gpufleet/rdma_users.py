# SPDX-License-Identifier: Apache-2.0
"""Who would lose something if the RDMA stack were taken out of the kernel and loaded anew (openibd restart).

mlx5_core drives the node's Ethernet cards of the same vendor too: a restart cuts the operator's own connection where
that goes over one of them (on an XE9680 it does: 2 x 100 GbE ConnectX-6 Dx).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from .gpu_processes import GpuProcesses, find_gpu_processes

# File systems whose clients use RDMA where they can, so any mount counts.
RDMA_FILE_SYSTEMS = ("lustre", "beegfs", "gpfs", "wekafs")
# Modules over ib_core that hold something open without a mount or a process.
HOLDERS = {
    "ko2iblnd": "Lustre's network",
    "nvmet_rdma": "an NVMe-oF target",
    "ib_isert": "an iSER target",
    "ib_srpt": "an SRP target",
    "rds_rdma": "RDS",
}
# More lines than this say nothing more.
SHOWN = 5
# A stack of bond, bridge and VLAN is three deep.
_MAX_DEPTH = 8


def users_of_mounts(mounts: str) -> list[str]:
    """What /proc/mounts shows: mounts over RDMA."""
    found = []
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        kind, options = fields[2], fields[3].split(",")
        over_rdma = kind.startswith(("nfs", "cifs", "smb3", "9p")) and {"proto=rdma", "rdma", "trans=rdma"} & {*options}
        if kind in RDMA_FILE_SYSTEMS or over_rdma:
            found.append(f"{fields[1]} is mounted ({kind})")
    return found


def users_of_nvme(sys_root: str = "/sys") -> list[str]:
    """NVMe controllers over RDMA."""
    folder = os.path.join(sys_root, "class", "nvme")
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if _read(os.path.join(folder, name, "transport")).strip() == "rdma":
            found.append(f"{name} is an NVMe-oF controller over RDMA")
    return found


def users_of_modules(sys_root: str = "/sys") -> list[str]:
    """Modules that serve or reach storage over ib_core."""
    folder = os.path.join(sys_root, "module")
    return [f"{name} is loaded ({what})" for name, what in HOLDERS.items() if os.path.isdir(os.path.join(folder, name))]


def users_of_devices(proc_root: str = "/proc") -> list[str]:
    """Processes that have a device below /dev/infiniband open."""
    found = []
    for pid in sorted((name for name in os.listdir(proc_root) if name.isdigit()), key=int):
        folder = os.path.join(proc_root, pid, "fd")
        # A process that ends meanwhile uses nothing.
        with contextlib.suppress(OSError):
            for handle in os.listdir(folder):
                target = os.readlink(os.path.join(folder, handle))
                if target.startswith("/dev/infiniband/"):
                    name = _read(os.path.join(proc_root, pid, "comm")).strip() or "?"
                    found.append(f"process {pid} ({name}) has {target} open")
                    break
    return found


def users_of_routes(proc_root: str = "/proc", sys_root: str = "/sys") -> list[str]:
    """Network interfaces of mlx5_core, or over one, that carry a route of IPv4 or IPv6."""
    names = {
        line.split()[0] for line in _read(os.path.join(proc_root, "net", "route")).splitlines()[1:] if line.split()
    }
    ipv6 = _read(os.path.join(proc_root, "net", "ipv6_route")).splitlines()
    # fe80::/64 and ff00::/8 are there as soon as an interface is up.
    names |= {line.split()[-1] for line in ipv6 if line.split() and not line.startswith(("fe80", "ff00"))}
    return [
        f"network interface {name} carries a route and is driven by mlx5_core"
        for name in sorted(names)
        if _is_of_mlx5(name, sys_root)
    ]


def _is_of_mlx5(name: str, sys_root: str, depth: int = 0) -> bool:
    folder = os.path.join(sys_root, "class", "net", name)
    with contextlib.suppress(OSError):
        if os.path.basename(os.readlink(os.path.join(folder, "device", "driver"))) == "mlx5_core":
            return True
    lower: Iterable[str] = ()
    with contextlib.suppress(OSError):
        lower = [entry[len("lower_") :] for entry in os.listdir(folder) if entry.startswith("lower_")]
    return depth < _MAX_DEPTH and any(_is_of_mlx5(other, sys_root, depth + 1) for other in lower)


def find_users(
    proc_root: str = "/proc",
    sys_root: str = "/sys",
    gpu_processes: Callable[[], GpuProcesses] = find_gpu_processes,
) -> list[str]:
    """All of the above, and who computes on GPUs, a sentence each. What cannot be told counts as a user."""
    found = users_of_mounts(_read(os.path.join(proc_root, "mounts"))) + users_of_nvme(sys_root)
    found += users_of_modules(sys_root) + users_of_devices(proc_root) + users_of_routes(proc_root, sys_root)
    gpus = gpu_processes()
    found += [f"GPU process {process}" for process in gpus.processes]
    if gpus.unknown:
        found.append(f"whether GPUs are in use cannot be told: {gpus.unknown}")
    return found


def name_users(users: list[str]) -> str:
    """The first of them for a message, and how many more there are."""
    more = len(users) - SHOWN
    return "; ".join(users[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
