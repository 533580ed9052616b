# SPDX-License-Identifier: Apache-2.0
"""Which initramfs images hold modules whose modprobe.d file is newer than the image, and so have to be made anew.

An image that holds none of the modules needs nothing of the file (bug 103: somebody
rebuilt that of another kernel for weeks).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from .bounded_command import run_bounded
from .kernel_modules import BOOT_ROOT

# Listing and making an image take seconds, and minutes on an emulated node.
LIMIT_S = 1800


class InitramfsError(Exception):
    """An image cannot be read or made anew: the message says which and why, next_step what to do."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


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


def outdated_images(
    releases: Sequence[str],
    configuration: str,
    names: Collection[str],
    record: str,
    remember: bool,
    boot_root: str = BOOT_ROOT,
) -> list[str]:
    """Kernels whose image holds one of the modules and is older than the file that configures them.

    record: JSON file of the images that hold none, so that each is looked into once; written only where `remember`.
    Raises InitramfsError where an image cannot be read.
    """
    seen = _read_record(record)
    older = older_images(releases, configuration, seen, boot_root)
    found = []
    for release, pair in older.items():
        path = image_of(release, boot_root)
        result = run_bounded(["lsinitramfs", path], LIMIT_S)
        if result.outcome != "done" or result.rc != 0:
            raise InitramfsError(
                f"lsinitramfs cannot tell what {path} holds, which is older than {configuration}: {result.said()}",
                f"make the image anew by hand (update-initramfs -u -k {release}), then run again",
            )
        if holds_modules(result.stdout, names):
            found.append(release)
        else:
            seen[release] = pair
    if older and remember:
        os.makedirs(os.path.dirname(record), exist_ok=True)
        with open(record + ".new", "w", encoding="ascii") as file:
            json.dump({release: pair for release, pair in seen.items() if release in releases}, file)
        os.replace(record + ".new", record)
    return found


def _read_record(path: str) -> dict[str, list[int]]:
    try:
        with open(path, encoding="ascii") as file:
            return dict(json.load(file))
    except (FileNotFoundError, ValueError):
        return {}


def rebuild_image(release: str) -> None:
    """Make a kernel's image anew; raises InitramfsError."""
    argv = ["update-initramfs", "-u", "-k", release]
    result = run_bounded(argv, LIMIT_S)
    if result.outcome != "done" or result.rc != 0:
        raise InitramfsError(
            f"the initramfs of kernel {release} was not made anew, so it would still load with the old settings: "
            f"{result.said()}",
            f"is {BOOT_ROOT} full? Then run on the node: {' '.join(argv)}",
        )
