# SPDX-License-Identifier: Apache-2.0
"""Which version of a part of the stack a node has, by its packages, by what is loaded, and by what still waits.

A node is right where the packages have the wanted version, what is loaded is of it too, and no role of the part asks
for a reboot any more. Names of packages: nvidia_packages.py, docker_packages.py, dcgm_packages.py and role rdma_stack.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .package_version import upstream_version

NONE = "none"
# Patterns of names, those of the vendor and those of a distribution. Only packages that carry the part's version.
_DRIVER_VENDOR = r"nvidia-open|cuda-drivers|nvidia-fabricmanager(-\d+)?"
_DRIVER_DISTRO = r"nvidia-smi|libcuda1|nvidia-utils-\d+-server|libnvidia-compute-\d+-server|nvidia-fabricmanager-\d+"
_PACKAGES: dict[str, dict[str, str]] = {
    "driver": {"vendor": _DRIVER_VENDOR, "distro": _DRIVER_DISTRO},
    "rdma": {"vendor": "doca-ofed", "distro": "rdma-core"},
    "docker": {"vendor": "docker-ce|docker-ce-cli", "distro": r"docker\.io"},
    "toolkit": {
        "vendor": "nvidia-container-toolkit(-base)?|libnvidia-container-tools|libnvidia-container1",
    },
    "dcgm": {"vendor": r"datacenter-gpu-manager-4-(core|cuda\d+|proprietary|proprietary-cuda\d+)"},
    "exporter": {"vendor": "datacenter-gpu-manager-exporter"},
}
PARTS = tuple(_PACKAGES)
# Roles of a part that may ask for a reboot.
REBOOTS_ASKED_BY: dict[str, tuple[str, ...]] = {"driver": ("nvidia_driver",), "rdma": ("rdma_stack",)}


class Wanted(NamedTuple):
    """What the profile says of a part. version: exact, or an image where `image` is true."""

    version: str
    source: str
    image: bool = False


class Evidence(NamedTuple):
    """found: version or versions of what is there, for people. right: nothing is left to do; why: what is, if not."""

    found: str
    wanted: str
    right: bool
    why: str

    def as_dict(self) -> dict[str, object]:
        """For a module's result."""
        return self._asdict()


def packages_of(part: str, source: str, installed: Mapping[str, str]) -> dict[str, str]:
    """Installed packages (name -> version) that carry the version of a part; raises KeyError for an unknown part."""
    families = _PACKAGES[part]
    pattern = families.get("distro" if source == "distro" else "vendor", families["vendor"])
    return {name: version for name, version in installed.items() if re.fullmatch(pattern, name)}


def judge(
    part: str,
    wanted: Wanted,
    installed: Mapping[str, str],
    loaded: str | None = None,
    reboots: Sequence[str] = (),
    image: str | None = None,
) -> Evidence:
    """Compare a part with what is wanted.

    loaded: version of the kernel module that is loaded, None where none is, or none tells. reboots: reasons for which
    roles of the part ask for a reboot. image: what runs where an image is wanted.
    """
    if wanted.image:
        right = image == wanted.version
        return Evidence(image or NONE, wanted.version, right, "" if right else "another image runs")
    mine = packages_of(part, wanted.source, installed)
    versions = sorted({upstream_version(version) for version in mine.values()})
    found = " and ".join(versions) or NONE
    reasons = []
    if versions != [wanted.version]:
        reasons.append(f"installed: {found}")
    if loaded is not None and loaded != wanted.version:
        reasons.append(f"loaded: {loaded}")
        found += f", {loaded} loaded" * (loaded != found)
    reasons += [f"waits for a reboot: {reason}" for reason in reboots]
    return Evidence(found, wanted.version, not reasons, "; ".join(reasons))
