# SPDX-License-Identifier: Apache-2.0
"""Which kernels of a node have a ZFS module, which packages bring it, and whether it fits user land and running kernel.

A kernel without the module boots without the pool, so every installed kernel counts, not only the running one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

MODULES_ROOT = "/lib/modules"
BOOT_ROOT = "/boot"
LOADED_VERSION = "/sys/module/zfs/version"
DKMS_ROOT = "/var/lib/dkms"

USER_LAND = ("zfsutils-linux", "zfs-zed")
DKMS_PACKAGE = "zfs-dkms"

MAKE_LOG_LINES = 15

# argv that exits 0 while the running kernel is not among the installed ones. uname is asked when it runs, so nothing of
# this node is written into the text.
KERNEL_STILL_GONE = ("/bin/sh", "-c", 'test ! -e "/boot/vmlinuz-$(uname -r)"')
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


class KernelModule(NamedTuple):
    """The module that a kernel would load: its file, and what it says is its version (2.3.2-2, 2.2.2-0ubuntu9)."""

    path: str
    version: str


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", text)]


def installed_kernels(modules_root: str = MODULES_ROOT, boot_root: str = BOOT_ROOT) -> list[str]:
    """Releases that can be booted, oldest first: those with modules and with /boot/vmlinuz-<release>.

    A folder of modules without a kernel is what a removed kernel leaves (files that dkms or an operator put there).
    """
    try:
        releases = os.listdir(modules_root)
    except FileNotFoundError:
        return []
    found = [
        release
        for release in releases
        if os.path.isdir(os.path.join(modules_root, release))
        and os.path.exists(os.path.join(boot_root, f"vmlinuz-{release}"))
    ]
    return sorted(found, key=_natural)


def module_files(release: str, modules_root: str = MODULES_ROOT) -> list[str]:
    """Paths of all zfs.ko (compressed or not) of a kernel, sorted. modinfo shows only the one that depmod prefers."""
    found = []
    for folder, _folders, names in os.walk(os.path.join(modules_root, release)):
        found += [os.path.join(folder, name) for name in names if re.fullmatch(r"zfs\.ko(\.(gz|xz|zst))?", name)]
    return sorted(found)


# What OpenZFS 2.x builds: 2.1 all of them, 2.2 and later spl and zfs.
MODULES = ("icp", "spl", "zavl", "zcommon", "zfs", "zlua", "znvpair", "zunicode", "zzstd")


def dkms_files(release: str, modules_root: str = MODULES_ROOT) -> list[str]:
    """Paths of all ZFS modules in dkms' folder of a kernel, readable or not, sorted."""
    folder = os.path.join(modules_root, release, "updates", "dkms")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    pattern = rf"({'|'.join(MODULES)})\.ko(\.(gz|xz|zst))?"
    return sorted(os.path.join(folder, name) for name in names if re.fullmatch(pattern, name))


def built_by_dkms(path: str) -> bool:
    """Whether a module lies where dkms puts what it has built on Debian and Ubuntu (dkms(8): updates/dkms)."""
    return "/updates/dkms/" in path


def both_spellings(paths: Iterable[str]) -> list[str]:
    """Each path as a package may spell it, below /lib and below /usr/lib: the former is a link to the latter."""
    spelt = []
    for path in paths:
        short = path[len("/usr") :] if path.startswith("/usr/lib/") else path
        spelt += [short, f"/usr{short}"] if short.startswith("/lib/") else [path]
    return spelt


def files_of_packages(text: str) -> set[str]:
    """The paths in what `dpkg-query --search <path>...` printed: those that a package owns."""
    return {path for _packages, colon, path in (line.partition(": ") for line in text.splitlines()) if colon}


def upstream_version(version: str) -> str:
    """The upstream part of a Debian version: 1:2.3.2-2~bpo12+1 -> 2.3.2 (deb-version(7))."""
    without_epoch = version.partition(":")[2] or version
    return without_epoch.rpartition("-")[0] or without_epoch


def minor_release(version: str) -> str | None:
    """major.minor of a version of ZFS, None where the text has none: 2.3.2-2 -> 2.3."""
    found = re.match(r"\d+\.\d+", upstream_version(version))
    return found.group() if found else None


def parse_modinfo(text: str) -> KernelModule:
    """The module in what `modinfo -k <release> zfs` printed; raises ValueError where file or version are missing."""
    fields = dict(re.findall(r"^(filename|version):[ \t]+(\S.*)$", text, re.MULTILINE))
    missing = [key for key in ("filename", "version") if key not in fields]
    if missing:
        raise ValueError(f"modinfo prints no {' and no '.join(missing)}")
    return KernelModule(fields["filename"].strip(), fields["version"].strip())


def module_package_of(pattern: str | None, release: str) -> str:
    """Name of the package with the prebuilt module of a kernel; raises ZfsPackagesError for a bad pattern."""
    if not pattern or "{kernel}" not in pattern:
        raise ZfsPackagesError(
            f"module_package is {pattern!r}, expected the name of a package with {{kernel}} in it, such as "
            "zfs-modules-{kernel}",
            "set packages.zfs.module_package in the profile",
        )
    name = pattern.replace("{kernel}", release)
    # Debian policy 5.6.1. A name that begins with '-' or ends with '-' means something else to apt-get.
    if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]", name):
        raise ZfsPackagesError(
            f"{name!r} cannot be the name of a package (lower-case letters, digits, '+', '-' and '.')",
            "correct packages.zfs.module_package in the profile",
        )
    return name


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


def explain_modprobe(said: str, running: str, kernels: Sequence[str]) -> tuple[str, str]:
    """(what is wrong, what to do) for what modprobe printed when it could not load zfs.

    The texts are the C library's for the errors of finit_module(2): EKEYREJECTED, ENOKEY, EPERM (lockdown, or a
    container without CAP_SYS_MODULE), ENOEXEC (version magic), ENOENT (unknown symbol).
    """
    lower = said.lower()
    if "key was rejected" in lower or "required key not available" in lower:
        return (
            "the kernel rejects the module's signature: Secure Boot is on and the key that signed it is not enrolled",
            "enrol the key at the node's console (mokutil --import /var/lib/dkms/mok.pub on Debian, "
            "/var/lib/shim-signed/mok/MOK.der on Ubuntu, then confirm in the boot menu), or switch Secure Boot off, or "
            "take a module that the distribution has signed (source distro)",
        )
    if "not found in directory" in lower or "module zfs not found" in lower:
        if running not in kernels:
            return (
                f"the running kernel {running} is no longer installed (installed: {', '.join(kernels) or 'none'}), so "
                "its modules are gone",
                "reboot the node into an installed kernel, then run again",
            )
        return (
            f"there is no zfs module for the running kernel {running}",
            f"look at /lib/modules/{running} (find -name 'zfs.ko*'), then depmod {running}",
        )
    if "exec format error" in lower or "invalid module format" in lower or "version magic" in lower:
        return (
            f"the module was built for another kernel than {running} (version magic)",
            f"compare modinfo -F vermagic zfs with uname -r and see dmesg; build it anew (dkms) or install the package "
            f"made for {running}",
        )
    if "unknown symbol" in lower or "disagrees about version of symbol" in lower:
        return (
            "the module asks for a symbol that the kernel, or the spl module beside it, does not have",
            "see dmesg for the symbol; zfs and spl must be of one build, and built for this kernel",
        )
    if "operation not permitted" in lower:
        return (
            "the kernel does not allow a module to be loaded: lockdown (Secure Boot) with an unsigned module, "
            "kernel.modules_disabled, or a container",
            "see dmesg; sign the module and enrol the key, or boot without the restriction; in a container do not load",
        )
    return ("modprobe failed", "see dmesg on the node")


class MakeLog(NamedTuple):
    """The end of a dkms make.log, and the kernel it is about (None where it does not say)."""

    path: str
    release: str | None
    tail: str


def newest_make_log(dkms_root: str = DKMS_ROOT, lines: int = MAKE_LOG_LINES) -> MakeLog | None:
    """The make.log that dkms wrote last for zfs, or None. A build that failed leaves its log in .../build/make.log."""
    paths = []
    for folder, _folders, names in os.walk(os.path.join(dkms_root, "zfs")):
        paths += [os.path.join(folder, "make.log")] if "make.log" in names else []
    if not paths:
        return None
    path = max(paths, key=os.path.getmtime)
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    # First line: "DKMS make.log for zfs-2.1.11 for kernel 6.1.0-26-amd64 (x86_64)", in 3.2 " (x86_64)" is the same.
    header = re.search(r"for kernel (\S+)", text[:400])
    kept = [line for line in text.splitlines() if line.strip()][-lines:]
    return MakeLog(path, header.group(1) if header else None, "\n".join(kept))
