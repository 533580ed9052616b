# SPDX-License-Identifier: Apache-2.0
"""Which initramfs images hold modules whose modprobe.d file is newer than the image, and so have to be made anew.

An image that holds none of the modules needs nothing of the file (bug 103: somebody
rebuilt that of another kernel for weeks).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping

BOOT_ROOT = "/boot"


def image_of(release: str, boot_root: str = BOOT_ROOT) -> str:
    """Path of a kernel's image as initramfs-tools names it."""
    return os.path.join(boot_root, f"initrd.img-{release}")


def holds_modules(listing: str, names: Collection[str]) -> bool:
    """Whether what `lsinitramfs <image>` printed has the file of one of these modules, compressed or not."""
    found = re.findall(r"([^/\s]+)\.ko(?:\.(?:gz|xz|zst))?\s*$", listing, re.MULTILINE)
    return any(name.replace("-", "_") in {one.replace("-", "_") for one in names} for name in found)


def older_images(
    releases: Iterable[str],
    configuration: str,
    seen: Mapping[str, list[int]],
    boot_root: str = BOOT_ROOT,
) -> dict[str, list[int]]:
    """Kernels whose image is older than the configuration file -> [time of image, time of file], in nanoseconds.

    seen: the same pairs of images that were looked into before and hold none of the modules. A kernel without an image
    and a file that is not there (check mode on a fresh node) give nothing.
    """
    try:
        written = os.stat(configuration).st_mtime_ns
    except FileNotFoundError:
        return {}
    found = {}
    for release in releases:
        try:
            made = os.stat(image_of(release, boot_root)).st_mtime_ns
        except FileNotFoundError:
            continue
        pair = [made, written]
        if made <= written and seen.get(release) != pair:
            found[release] = pair
    return found
