# SPDX-License-Identifier: Apache-2.0
"""What this machine must have before a lab can be built: programs, firmware, disk space."""

import os
import shutil
from pathlib import Path

from lab.errors import LabError

# program -> Debian/Ubuntu package
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mcopy": "mtools",
    "mkfs.vfat": "dosfstools",
    "sfdisk": "fdisk",
    "mke2fs": "e2fsprogs",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "setpriv": "util-linux",
}
OVMF_CODE = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")
OVMF_VARS = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")
DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Debian keeps mkfs.vfat, sfdisk and mke2fs where an ordinary user's PATH does not look.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def require_host_tools() -> None:
    """Raise LabError naming, in one line, every package that is missing."""
    missing = {package for program, package in PROGRAMS.items() if not shutil.which(program, path=SEARCH_PATH)}
    if not OVMF_CODE.exists() or not OVMF_VARS.exists():
        missing.add("ovmf")
    if not DEBIAN_KEYRING.exists():
        missing.add("debian-archive-keyring")
    if os.geteuid() != 0 and not shutil.which("newuidmap", path=SEARCH_PATH):
        missing.add("uidmap")
    if missing:
        names = " ".join(sorted(missing))
        raise LabError(f"the lab needs packages that are not installed; run: apt-get install {names}")


def require_free_space(directory: Path, needed_mib: int, what_for: str) -> None:
    """Raise LabError unless `needed_mib` MiB are free where `directory` (which exists) lies."""
    free_mib = shutil.disk_usage(directory).free // 2**20
    if free_mib < needed_mib:
        raise LabError(
            f"no space for {what_for}: {directory} has {free_mib} MiB free, {needed_mib} MiB are needed; "
            "free some, or point GPUFLEET_CACHE (images) or GPUFLEET_LAB_DIR (nodes) to another disk"
        )
