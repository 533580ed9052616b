# SPDX-License-Identifier: Apache-2.0
"""Kernel modules from outside the kernel: which kernels there are, what each would load, what dkms says, why not.

Shared by the roles that bring modules (ZFS, NVIDIA) and by the health checks. All but the walks over folders is text ->
facts. Every installed kernel counts, not only the running one: a boot into one without the module loses what it drives.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .package_version import natural

MODULES_ROOT = "/lib/modules"
BOOT_ROOT = "/boot"
DKMS_ROOT = "/var/lib/dkms"
MAKE_LOG_LINES = 15

# argv that exits 0 while the running kernel is not among the installed ones. uname is asked when it runs, so nothing of
# this node is written into the text.
KERNEL_STILL_GONE = ("/bin/sh", "-c", 'test ! -e "/boot/vmlinuz-$(uname -r)"')


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
    return sorted(found, key=natural)


def module_files(release: str, name: str, modules_root: str = MODULES_ROOT) -> list[str]:
    """Paths of all <name>.ko (compressed or not) of a kernel, sorted. modinfo shows only the one depmod prefers."""
    pattern = re.compile(rf"{re.escape(name)}\.ko(\.(gz|xz|zst))?")
    found = []
    for folder, _folders, names in os.walk(os.path.join(modules_root, release)):
        found += [os.path.join(folder, file) for file in names if pattern.fullmatch(file)]
    return sorted(found)


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


def module_package_name(pattern: str | None, release: str) -> str:
    """Name of the package with the prebuilt modules of a kernel; raises ValueError for a bad pattern."""
    if not pattern or "{kernel}" not in pattern:
        raise ValueError(
            f"module_package is {pattern!r}, expected the name of a package with {{kernel}} in it, such as "
            "zfs-modules-{kernel}"
        )
    name = pattern.replace("{kernel}", release)
    # Debian policy 5.6.1. A name that begins with '-' or ends with '-' means something else to apt-get.
    if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]", name):
        raise ValueError(
            f"{name!r} cannot be the name of a package (lower-case letters, digits, '+', '-' and '.')",
        )
    return name


class DkmsBuild(NamedTuple):
    """One line of `dkms status`. kernel is None for a module that is only added; state: added, built or installed."""

    module: str
    version: str
    kernel: str | None
    state: str


class DkmsStatus(NamedTuple):
    """broken: what dkms said instead of a state, a line each. Where it is not empty, builds may lack others' states."""

    builds: list[DkmsBuild]
    broken: list[str]


# dkms 3: "nvidia/570.148.08, 5.15.0-139-generic, x86_64: installed (original_module exists)"
# dkms 2: "nvidia, 396.45, 4.17.14-202.fc28.x86_64, x86_64: installed"; added only: "zfs/2.1.5: added"
_DKMS_LINE = re.compile(
    r"(?P<module>[^\s,/:]+)(?:/|, )(?P<version>[^\s,:]+)(?:, (?P<kernel>[^\s,:]+), (?P<arch>[^\s,:]+))?: "
    r"(?P<state>[a-z]+)(?: |$)"
)


def parse_dkms_status(text: str) -> DkmsStatus:
    """What `dkms status` printed, standard error included: one broken entry ends it early and hides the rest.

    Source: GoogleCloudPlatform/compute-gpu-installation#25 (bug 102), dkms 2.8 and 3.
    """
    builds, broken = [], []
    for line in (line.strip() for line in text.splitlines()):
        found = _DKMS_LINE.match(line)
        if found:
            builds.append(DkmsBuild(found["module"], found["version"], found["kernel"], found["state"]))
        elif line:
            broken.append(line)
    return DkmsStatus(builds, broken)


class MakeLog(NamedTuple):
    """The end of a dkms make.log, and the kernel it is about (None where it does not say)."""

    path: str
    release: str | None
    tail: str


def newest_make_log(module: str, dkms_root: str = DKMS_ROOT, lines: int = MAKE_LOG_LINES) -> MakeLog | None:
    """The make.log that dkms wrote last for a module, or None. A failed build leaves its log in .../build/make.log."""
    paths = []
    for folder, _folders, names in os.walk(os.path.join(dkms_root, module)):
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


class ModprobeFailure(NamedTuple):
    """kind: key_rejected, missing, kernel_gone, other_kernel, unknown_symbol, not_permitted, no_device or other."""

    kind: str
    what: str
    next_step: str


def explain_modprobe(module: str, said: str, running: str, kernels: Sequence[str]) -> ModprobeFailure:
    """What it means that modprobe printed `said` when it could not load `module` into the kernel `running`.

    The texts are the C library's for the errors of finit_module(2): EKEYREJECTED, ENOKEY, EPERM (lockdown, or a
    container without CAP_SYS_MODULE), ENOEXEC (version magic), ENOENT (unknown symbol), ENODEV (nothing there
    that the module drives).
    """
    lower = said.lower()
    if "key was rejected" in lower or "required key not available" in lower:
        return ModprobeFailure(
            "key_rejected",
            "the kernel rejects the module's signature: Secure Boot is on and the key that signed it is not enrolled",
            "enrol the key at the node's console (mokutil --import /var/lib/dkms/mok.pub on Debian, "
            "/var/lib/shim-signed/mok/MOK.der on Ubuntu, then confirm in the boot menu), or switch Secure Boot off, or "
            "take a module that the distribution has signed",
        )
    if "not found in directory" in lower or f"module {module} not found" in lower:
        if running not in kernels:
            return ModprobeFailure(
                "kernel_gone",
                f"the running kernel {running} is no longer installed (installed: {', '.join(kernels) or 'none'}), so "
                "its modules are gone",
                "reboot the node into an installed kernel, then run again",
            )
        return ModprobeFailure(
            "missing",
            f"there is no {module} module for the running kernel {running}",
            f"look at /lib/modules/{running} (find -name '{module}.ko*'), then depmod {running}",
        )
    if "exec format error" in lower or "invalid module format" in lower or "version magic" in lower:
        return ModprobeFailure(
            "other_kernel",
            f"the module was built for another kernel than {running} (version magic)",
            f"compare modinfo -F vermagic {module} with uname -r and see dmesg; build it anew (dkms) or install the "
            f"package made for {running}",
        )
    if "unknown symbol" in lower or "disagrees about version of symbol" in lower:
        return ModprobeFailure(
            "unknown_symbol",
            "the module asks for a symbol that the kernel, or another module that it was built with, does not have",
            "see dmesg for the symbol; modules that belong together must be of one build, and built for this kernel",
        )
    if "operation not permitted" in lower:
        return ModprobeFailure(
            "not_permitted",
            "the kernel does not allow a module to be loaded: lockdown (Secure Boot) with an unsigned module, "
            "kernel.modules_disabled, or a container",
            "see dmesg; sign the module and enrol the key, or boot without the restriction; in a container do not load",
        )
    if "no such device" in lower:
        return ModprobeFailure(
            "no_device", "the module found no device that it drives", "see dmesg and lspci -nn on the node"
        )
    return ModprobeFailure("other", "modprobe failed", "see dmesg on the node")


class Resolved(NamedTuple):
    """What modprobe would take for a name: the file at path, or the module called name in place of it."""

    path: str | None
    name: str | None


def parse_show_depends(text: str) -> Resolved | None:
    """What `modprobe --set-version <release> --show-depends <name>` printed; None where there is no such module.

    modinfo reads no configuration of modprobe. Debian renames NVIDIA's modules and has in /etc/modprobe.d
    `install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS`, so modinfo knows of no nvidia there [tried: kmod 30,
    nvidia-open-kernel-support 535.261.03].
    """
    found = None
    for line in text.splitlines():
        insmod = re.match(r"insmod (\S+)", line)
        install = re.match(r"install .*\bmodprobe\b.*? (?:-i|--ignore-install) (\S+)", line)
        if insmod:
            found = Resolved(insmod.group(1), None)
        elif install:
            found = Resolved(None, install.group(1))
    return found
