# SPDX-License-Identifier: Apache-2.0
"""Links below /dev/char to the GPUs' device nodes, without which systemd takes GPUs from running containers.

With the systemd cgroup driver a container's device rules go through systemd, which finds a device by its link
/dev/char/<major>:<minor>. The NVIDIA driver's nodes are not made by udev and have none, so the next systemctl
daemon-reload drops them (NVIDIA/nvidia-container-toolkit#48, #251).
"""

from __future__ import annotations

import os
import stat


def nodes(root: str = "") -> dict[str, str]:
    """Device node -> "major:minor" of the NVIDIA driver's character devices, those of /dev/nvidia-caps too."""
    found = {}
    for folder in ("/dev", "/dev/nvidia-caps"):
        place = root + folder
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else []:
            if folder == "/dev" and not name.startswith("nvidia"):
                continue
            status = os.lstat(f"{place}/{name}")
            if stat.S_ISCHR(status.st_mode):
                found[f"{folder}/{name}"] = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return found


def unlinked(found: dict[str, str], root: str = "") -> list[str]:
    """Device nodes without their link, or whose link leads elsewhere."""
    wrong = []
    for node, number in found.items():
        link = f"{root}/dev/char/{number}"
        target = os.readlink(link) if os.path.islink(link) else None
        if target is None or os.path.normpath(os.path.join("/dev/char", target)) != node:
            wrong.append(node)
    return wrong


def make_links(wrong: list[str], found: dict[str, str], root: str = "") -> None:
    """Make the links as udev makes those of its own devices (../nvidia0)."""
    remove_wrong_links(wrong, found, root)
    os.makedirs(f"{root}/dev/char", exist_ok=True)
    for node in wrong:
        os.symlink(os.path.relpath(node, "/dev/char"), f"{root}/dev/char/{found[node]}")


def remove_wrong_links(wrong: list[str], found: dict[str, str], root: str = "") -> None:
    """Take away links that lead elsewhere, since nvidia-ctk leaves what is there."""
    for node in wrong:
        link = f"{root}/dev/char/{found[node]}"
        if os.path.islink(link):
            os.unlink(link)
