# SPDX-License-Identifier: Apache-2.0
"""Which packages make up the NVIDIA driver: by distribution, source, branch and flavour, as arguments for apt_stack.

Names come from: Azure/azhpc-images (nvidia-open behind nvidia-driver-pinning-<version>; nvidia-fabricmanager without a
branch from 580 on), NVIDIA/ansible-role-nvidia-driver (cuda-drivers), Debian 12 and 13 (read from their package lists),
Ubuntu's archive (by memory of its naming, nobody has tried them: docs/gpu-stack.md, "Assumptions").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .kernel_modules import module_package_name
from .package_version import natural, upstream_version

# NVIDIA's fabric manager lost the branch in its name (azhpc-images PR #456), and the pinning packages are seen since.
UNBRANCHED_SINCE = 580
# Regular expressions that unattended-upgrades compares with the beginning of names: the libraries too, since a hold of
# the driver alone let a companion move (pando85/homelab#4110, lyulyul/shine-cluster#50). The container toolkit has
# versions of its own.
NEVER_UPGRADED = (
    "nvidia-(?!container)",
    "libnvidia-(?!container)",
    "cuda-drivers",
    "libcuda1$",
    "libcudadebugger1$",
    "firmware-nvidia-gsp",
    "xserver-xorg-video-nvidia",
    "glx-alternative-nvidia",
    "linux-modules-nvidia-",
    "linux-objects-nvidia-",
    "linux-signatures-nvidia-",
)
# Patterns of apt_preferences(5) for what is built from one driver release.
OF_ONE_RELEASE = (
    "nvidia-*",
    "libnvidia-*",
    "cuda-drivers*",
    "libcuda1",
    "libcudadebugger1",
    "firmware-nvidia-gsp*",
    "xserver-xorg-video-nvidia*",
)
_OTHER_FLAVOUR = {"open": "proprietary", "proprietary": "open"}


class DriverPackagesError(ValueError):
    """The profile's driver cannot be had this way; next_step says what to alter."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


class Wish(NamedTuple):
    """packages.nvidia_driver of the profile, and whether NVSwitches call for a fabric manager."""

    source: str
    branch: str | None
    version: str | None
    kernel_modules: str
    modules_from: str
    module_package: str | None
    fabric_manager: bool


class DriverPackages(NamedTuple):
    """of_release: packages that carry the driver's version, the first one tells it. beside: packages with versions of
    their own. fabric_manager: its package, also in of_release; None where none is wanted. module: name that
    /etc/modprobe.d must use. load_list: the list of modules for the boot that the packages bring, None where none.
    other_flavour: what apt must take out for this flavour.
    """

    of_release: tuple[str, ...]
    beside: tuple[str, ...]
    first: tuple[str, ...]
    fabric_manager: str | None
    module: str
    load_list: str | None
    other_flavour: tuple[str, ...]


def fabric_manager_package(branch: str) -> str:
    """Name of NVIDIA's package: nvidia-fabricmanager-<branch> before 580, nvidia-fabricmanager from then on."""
    return "nvidia-fabricmanager" if int(branch) >= UNBRANCHED_SINCE else f"nvidia-fabricmanager-{branch}"


def driver_packages(distribution: str, wish: Wish, kernels: Sequence[str]) -> DriverPackages:
    """The packages for a node; distribution is ID of os-release (debian, ubuntu).

    Raises:
        DriverPackagesError: for a combination that no package serves.
    """
    prebuilt: tuple[str, ...] = ()
    if wish.modules_from == "prebuilt":
        try:
            prebuilt = tuple(module_package_name(wish.module_package, release) for release in kernels)
        except ValueError as error:
            raise DriverPackagesError(
                str(error), "set packages.nvidia_driver.module_package in the profile, e.g. nvidia-modules-{kernel}"
            ) from error
    if wish.source != "distro":
        return _vendor(wish, prebuilt)
    return _debian(wish, prebuilt) if distribution == "debian" else _ubuntu(wish, prebuilt)


def _vendor(wish: Wish, prebuilt: tuple[str, ...]) -> DriverPackages:
    if wish.branch is None:
        raise DriverPackagesError(
            f"packages.nvidia_driver.branch is null, which source {wish.source} needs for the names of packages",
            'set it to the first number of the driver\'s version, such as "580"',
        )
    if prebuilt:
        raise DriverPackagesError(
            f"source {wish.source} brings modules by dkms: nvidia-open and cuda-drivers depend on them",
            "set packages.nvidia_driver.modules_from to dkms, or source to distro",
        )
    names = {"open": "nvidia-open", "proprietary": "cuda-drivers"}
    manager = fabric_manager_package(wish.branch) if wish.fabric_manager else None
    pinning: tuple[str, ...] = ()
    if int(wish.branch) >= UNBRANCHED_SINCE:
        pinning = (f"nvidia-driver-pinning-{wish.version or wish.branch}",)
    return DriverPackages(
        of_release=(names[wish.kernel_modules], *([manager] if manager else [])),
        beside=(),
        first=pinning,
        fabric_manager=manager,
        module="nvidia",
        load_list=None,
        other_flavour=(names[_OTHER_FLAVOUR[wish.kernel_modules]],),
    )


def _debian(wish: Wish, prebuilt: tuple[str, ...]) -> DriverPackages:
    if wish.fabric_manager:
        raise DriverPackagesError(
            "Debian has no fabric manager, which this node's NVSwitches (devices.nvswitch) need",
            "set packages.nvidia_driver.source to vendor or mirror in the profile",
        )
    names = {"open": "nvidia-open-kernel-dkms", "proprietary": "nvidia-kernel-dkms"}
    suffix = {"open": "current-open", "proprietary": "current"}[wish.kernel_modules]
    return DriverPackages(
        of_release=("nvidia-smi", "libcuda1", *([] if prebuilt else [names[wish.kernel_modules]])),
        # nvidia-persistenced is released apart from the driver (535.171.04 beside 535.261.03).
        beside=("nvidia-persistenced", *prebuilt),
        first=(),
        fabric_manager=None,
        module=f"nvidia-{suffix}",
        load_list=f"/etc/nvidia/{suffix}/nvidia-load.conf",
        other_flavour=(names[_OTHER_FLAVOUR[wish.kernel_modules]],),
    )


def _ubuntu(wish: Wish, prebuilt: tuple[str, ...]) -> DriverPackages:
    if wish.branch is None:
        raise DriverPackagesError(
            "packages.nvidia_driver.branch is null, which the names of Ubuntu's packages carry",
            'set it to a branch of Ubuntu\'s -server packages, such as "580"',
        )
    # The -server series is the one that Ubuntu keeps for data centre GPUs.
    series = f"{wish.branch}-server"
    ending = {"open": "-open", "proprietary": ""}
    flavour = f"{series}{ending[wish.kernel_modules]}"
    other = f"{series}{ending[_OTHER_FLAVOUR[wish.kernel_modules]]}"
    manager = f"nvidia-fabricmanager-{wish.branch}" if wish.fabric_manager else None
    return DriverPackages(
        of_release=(
            f"nvidia-utils-{series}",
            f"libnvidia-compute-{series}",
            f"nvidia-compute-utils-{series}",
            *([] if prebuilt else [f"nvidia-dkms-{flavour}"]),
            *([manager] if manager else []),
        ),
        beside=prebuilt,
        first=(),
        fabric_manager=manager,
        module="nvidia",
        load_list=None,
        other_flavour=(f"nvidia-dkms-{other}",),
    )


def of_another_branch(installed: Sequence[str], branch: str | None) -> list[str]:
    """Installed packages whose names carry another branch: libnvidia-compute-550, nvidia-fabricmanager-535."""
    found = []
    for name in installed:
        match = re.fullmatch(r"(?:lib)?nvidia-.*?-(\d{3,4})(?:[.-].*)?|cuda-drivers-(\d{3,4})(?:-.*)?", name)
        if match and branch is not None and (match.group(1) or match.group(2)) != branch:
            found.append(name)
    return found


def newest_common_release(offers: Mapping[str, Sequence[str]]) -> str | None:
    """The newest upstream version that is offered of every package; None where they have none in common.

    Debian's security updates take nvidia-smi to 535.309 and leave nvidia-open-kernel-dkms at 535.261 [tried], so the
    candidates of one driver do not fit each other.
    """
    releases = [{upstream_version(version) for version in versions} for versions in offers.values()]
    common = set.intersection(*releases) if releases else set()
    return max(common, key=natural, default=None)


def apt_arguments(
    packages: DriverPackages,
    wish: Wish,
    installed: Mapping[str, str],
    upgrade: bool,
    downgrade: bool,
    offered: str | None = None,
) -> dict[str, Any]:
    """Arguments of apt_stack. installed: name -> version of the driver's packages that are there.

    Without a version in the profile all packages of the release follow the one that is installed, so that a fabric
    manager that is added later is not of a newer release than the driver; else they follow `offered`, the newest
    release that the package lists have of all of them (None where that is not known).
    """
    told = installed.get(packages.of_release[0])
    release = wish.version or (upstream_version(told) if told and not upgrade else offered)
    # Companions too: where libnvidia-cfg1 is offered in a newer release, apt takes libnvidia-tesla-470-cfg1 in its
    # place [tried on Debian 12], which brings a second driver's alternatives.
    pins = []
    if release or (wish.branch and wish.source != "distro"):
        pins.append({"packages": list(OF_ONE_RELEASE), "version": f"{release or f'{wish.branch}.*'}-*"})
    leaving = [name for name in packages.other_flavour if name in installed]
    # They conflict with each other, and hold nothing but pins.
    leaving += [name for name in installed if name.startswith("nvidia-driver-pinning-")]
    if upgrade or downgrade:
        leaving += of_another_branch(list(installed), wish.branch)
    wanted = {*packages.of_release, *packages.beside, *packages.first}
    return {
        "packages": [
            *({"name": name, **({"upstream": release} if release else {})} for name in packages.of_release),
            *({"name": name} for name in packages.beside),
        ],
        "first": list(packages.first),
        "headers": wish.modules_from == "dkms",
        "pins": pins,
        "never_upgraded": list(NEVER_UPGRADED),
        "may_remove": sorted(set(leaving) - wanted),
        "upgrade": upgrade or downgrade,
        "downgrade": [*OF_ONE_RELEASE] if downgrade else [],
    }
