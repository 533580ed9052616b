# SPDX-License-Identifier: Apache-2.0
"""Which kernels of a node have a ZFS module, which packages bring it, and whether it fits user land and running kernel.

A kernel without the module boots without the pool, so every installed kernel counts, not only the running one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from .kernel_modules import KERNEL_STILL_GONE, MODULES_ROOT, module_package_name
from .modinfo import KernelModule
from .package_version import upstream_version

LOADED_VERSION = "/sys/module/zfs/version"

USER_LAND = ("zfsutils-linux", "zfs-zed")
DKMS_PACKAGE = "zfs-dkms"

# argv that exits 0 while the loaded module is another one than the running kernel would load. Where none is loaded,
# nothing old is in the kernel any more. A modinfo that cannot tell leaves the reason standing.
MODULE_STILL_DIFFERS = (
    "/bin/sh",
    "-c",
    "PATH=$PATH:/usr/sbin:/sbin; loaded=$(cat /sys/module/zfs/version 2>/dev/null) || exit 1; "
    'test "$loaded" != "$(modinfo -F version zfs)"',
)


class ZfsPackagesError(Exception):
    """The node cannot have ZFS as it is wanted: the message says what and where, next_step what to do."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


# What OpenZFS 2.x builds: 2.1 all of them, 2.2 and later spl and zfs.
MODULES = ("icp", "spl", "zavl", "zcommon", "zfs", "zlua", "znvpair", "zunicode", "zzstd")


def dkms_files(release: str, modules_root: str = MODULES_ROOT) -> list[str]:
    """Paths of all ZFS modules in dkms' folder of a kernel, readable or not, sorted."""
    folder = os.path.join(modules_root, release, "updates", "dkms")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    pattern = rf"({'|'.join(MODULES)})\.ko(\.(gz|xz|zst))?"
    return sorted(os.path.join(folder, name) for name in names if re.fullmatch(pattern, name))


def minor_release(version: str) -> str | None:
    """major.minor of a version of ZFS, None where the text has none: 2.3.2-2 -> 2.3."""
    found = re.match(r"\d+\.\d+", upstream_version(version))
    return found.group() if found else None


def module_package_of(pattern: str | None, release: str) -> str:
    """Name of the package with the prebuilt module of a kernel; raises ZfsPackagesError for a bad pattern."""
    try:
        return module_package_name(pattern, release)
    except ValueError as error:
        raise ZfsPackagesError(str(error), "set packages.zfs.module_package in the profile") from error


def same_upstream(module: KernelModule | None, package_version: str) -> bool:
    """Whether a module is of a package's upstream version, as one that dkms has built from it must be."""
    return module is not None and upstream_version(module.version) == upstream_version(package_version)


def fits(module: KernelModule | None, package_version: str, source: str) -> bool:
    """Whether a module can serve the user land of a package version.

    Both must be of one minor release. A newer module of the same major release does with source distro: Ubuntu 22.04
    ships ZFS 2.2 in its later (HWE) kernels beside a user land of 2.1.
    """
    have = minor_release(module.version) if module else None
    want = minor_release(package_version)
    if have is None or want is None:
        return False
    if source == "distro":
        (major, minor), (wanted_major, wanted_minor) = (map(int, text.split(".")) for text in (have, want))
        return major == wanted_major and minor >= wanted_minor
    return have == want


def kernels_without_module(modules: Mapping[str, KernelModule | None], running: str, source: str) -> str | None:
    """What is wrong where a kernel has no module, or None."""
    missing = [release for release, module in modules.items() if module is None]
    if not missing:
        return None
    named = ", ".join(f"{release} (running)" if release == running else release for release in missing)
    return (
        f"no zfs module for kernel {named} (source {source}): a boot into it would come up without the pool. Expected "
        f"one for each of the {len(modules)} installed kernels"
    )


def unfit_modules(modules: Mapping[str, KernelModule | None], user_land: str, source: str) -> str | None:
    """What is wrong where a module is of another minor release than the user land (a package version), or None."""
    wrong = [
        f"kernel {release} has {module.version} ({module.path})"
        for release, module in modules.items()
        if module is not None and not fits(module, user_land, source)
    ]
    if not wrong:
        return None
    return f"the zfs module does not fit the user land, zfsutils-linux {user_land}: {'; '.join(wrong)}"


def reboot_need(
    loaded: str | None, modules: Mapping[str, KernelModule | None], running: str
) -> tuple[str, tuple[str, ...]] | None:
    """(reason, argv that exits 0 while it stands) where only a boot brings what is installed, else None.

    A loaded module is never taken out: that would need the pool exported.
    """
    if loaded is None:
        return None
    if running not in modules:
        return (
            f"the running kernel {running} is no longer installed (installed: {', '.join(modules)}); zfs {loaded} is "
            "loaded, but none of its modules can be loaded any more",
            KERNEL_STILL_GONE,
        )
    module = modules[running]
    if module is None or module.version == loaded:
        return None
    return (
        f"zfs module {loaded} is loaded, {module.version} is installed for the running kernel {running}",
        MODULE_STILL_DIFFERS,
    )
