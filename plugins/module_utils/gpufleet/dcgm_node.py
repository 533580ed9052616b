# SPDX-License-Identifier: Apache-2.0
"""What a node has of GPUs, driver and DCGM, read without asking anything that may hang."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from .bounded_command import run_bounded
from .dcgm_packages import OLDER, CudaMajor, DcgmError, cuda_major_of_driver, parse_cuda_of_nvidia_smi

PCI_DEVICES = "/sys/bus/pci/devices"
PROC_GPUS = "/proc/driver/nvidia/gpus"
# Vendor of NVIDIA; PCI class 03 is a display controller, which a GPU is and an NVSwitch (06) is not.
NVIDIA, DISPLAY = "0x10de", "0x03"
# Debian and Ubuntu, x86-64 and arm64; Debian's own package of the driver adds a folder.
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
)
DPKG_LIMIT_S, NVIDIA_SMI_LIMIT_S = 60, 30


def gpus_on_bus(devices: str = PCI_DEVICES) -> list[str]:
    """PCI addresses of NVIDIA's GPUs, by the bus: a driver that fails does not hide them."""
    found = []
    for address in sorted(os.listdir(devices)) if os.path.isdir(devices) else []:
        vendor, kind = (_read(os.path.join(devices, address, name)) for name in ("vendor", "class"))
        if vendor.strip() == NVIDIA and kind.startswith(DISPLAY):
            found.append(address)
    return found


def gpus_of_driver(folder: str = PROC_GPUS) -> int:
    """Number of GPUs that the loaded driver has taken."""
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def installed_packages(patterns: Sequence[str] = (f"{OLDER}*",)) -> dict[str, str]:
    """Name -> version of the installed packages that the patterns fit; raises DcgmError where dpkg does not answer."""
    form = "--showformat=${Package}|${db:Status-Abbrev}|${Version}\n"
    result = run_bounded(["dpkg-query", "--show", form, *patterns], DPKG_LIMIT_S)
    # dpkg-query(1): 1 = a pattern fits nothing, which is an answer.
    if result.outcome != "done" or result.rc not in (0, 1):
        raise DcgmError(
            f"dpkg-query cannot tell what is installed: {result.said()}",
            "look after the node's dpkg database (/var/lib/dpkg), then run again",
        )
    rows = (line.split("|") for line in result.stdout.splitlines() if line.count("|") == 2)
    return {name: version for name, status, version in rows if status[1:2] == "i"}


def driver_library_version(folders: Sequence[str] = LIBRARY_FOLDERS) -> str | None:
    """Version of the installed user space of the driver, by the file behind libcuda.so.1; None where there is none.

    Azure/azhpc-images reads it there as well: it needs neither a GPU nor a loaded module.
    """
    for folder in folders:
        path = os.path.join(folder, "libcuda.so.1")
        if os.path.exists(path):
            found = re.fullmatch(r"libcuda\.so\.(\d+(?:\.\d+)+)", os.path.basename(os.path.realpath(path)))
            if found:
                return found.group(1)
    return None


def driver_cuda_major(branch: str | None, folders: Sequence[str] = LIBRARY_FOLDERS) -> CudaMajor:
    """CUDA of the node's driver: by its library, else by nvidia-smi, else by the branch that the profile names."""
    version = driver_library_version(folders)
    major = cuda_major_of_driver(version) if version else None
    if major is not None:
        return CudaMajor(major, f"driver {version}", version)
    result = run_bounded(["nvidia-smi"], NVIDIA_SMI_LIMIT_S)
    said = parse_cuda_of_nvidia_smi(result.stdout) if result.outcome == "done" and result.rc == 0 else None
    if said is not None:
        return CudaMajor(said, "nvidia-smi", version)
    if version is not None:
        return CudaMajor(None, f"no CUDA is known here for driver {version}, and nvidia-smi names none", version)
    if branch and cuda_major_of_driver(branch) is not None:
        return CudaMajor(cuda_major_of_driver(branch), f"branch {branch} of the profile's driver", branch)
    return CudaMajor(None, "the node has no driver (libcuda.so.1), and nvidia-smi says nothing", None)
