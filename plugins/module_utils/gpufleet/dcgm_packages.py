# SPDX-License-Identifier: Apache-2.0
"""Which packages make up DCGM 4 on a node, by the CUDA of its driver, as arguments for apt_stack.

Names and relations: NVIDIA/DCGM, cmake/packaging.cmake (release 4.6.0) and Azure/azhpc-images, which installs the four
packages below at one version. From 4.7 on -core is a metapackage (dsx-ai-factory/fleet-intelligence-agent PR #259).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

# Release 3 and older: one package, which -4-core conflicts with. It knows no CUDA 13 (NVIDIA/deepops PR #1394).
OLDER = "datacenter-gpu-manager"
CORE = f"{OLDER}-4-core"
# Proprietary modules: without them there are no profiling metrics (NVIDIA/dcgm-exporter PR #456) and diagnostics lack
# tests. apt only recommends them, and nothing recommended is installed here.
PROPRIETARY = f"{OLDER}-4-proprietary"
# What unattended-upgrades is kept from, and held: all of DCGM, and what release 4.7 split off. Not the exporter.
NEVER_UPGRADED = (f"{OLDER}-(?!exporter)", f"{OLDER}$", "nv-hostengine$", "libdcgm", "dcgmi$")
# First driver branch of each CUDA major (NVIDIA, CUDA Toolkit release notes, table 3: 580.65.06, 525.60.13, 450.36.06).
CUDA_MAJOR_SINCE = ((580, 13), (525, 12), (450, 11))
# The newest branch that is known to be of the last row; who goes beyond says the major in the profile.
NEWEST_BRANCH = 615


class DcgmError(ValueError):
    """DCGM or its exporter cannot be had as asked; next_step says what to do."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


class CudaMajor(NamedTuple):
    """major: None where nothing tells it. source: in words, for messages. driver: its version, or branch, or None."""

    major: int | None
    source: str
    driver: str | None


def cuda_major_of_driver(version: str) -> int | None:
    """Major of CUDA that a driver's user space has, by its version or branch; None for a branch outside the table."""
    branch = re.match(r"\d+", version)
    if branch is None or int(branch.group()) > NEWEST_BRANCH:
        return None
    return next((major for since, major in CUDA_MAJOR_SINCE if int(branch.group()) >= since), None)


def parse_cuda_of_nvidia_smi(text: str) -> int | None:
    """Major of "CUDA Version: 13.0", from branch 610 on "CUDA UMD Version: 13.3" (bug 015); None where neither is."""
    found = re.search(r"CUDA (?:UMD )?Version\s*: *(\d+)\.\d+", text)
    return int(found.group(1)) if found else None


def names(cuda_major: int) -> list[str]:
    """The packages, the one whose version tells DCGM's first."""
    return [CORE, f"{OLDER}-4-cuda{cuda_major}", PROPRIETARY, f"{PROPRIETARY}-cuda{cuda_major}"]


def installed_cuda_majors(installed: Mapping[str, str]) -> list[int]:
    """Majors of CUDA whose binaries are installed (name -> version)."""
    found = (re.fullmatch(rf"{OLDER}-4-cuda(\d+)", name) for name in installed)
    return sorted(int(match.group(1)) for match in found if match)


def choose_cuda_major(wanted: int | None, driver: CudaMajor) -> int:
    """The CUDA major to install for; raises DcgmError where it cannot be told, or the driver is too old for it."""
    if wanted is not None:
        if driver.major is not None and wanted > driver.major:
            raise DcgmError(
                f"packages.dcgm.cuda_major is {wanted}, but the driver ({driver.source}) has CUDA {driver.major}: "
                f"DCGM's binaries for CUDA {wanted} cannot run with it. Nothing was changed",
                "set packages.dcgm.cuda_major to null (what the driver has), or bring a newer driver first",
            )
        return wanted
    if driver.major is None:
        raise DcgmError(
            f"which CUDA DCGM's packages must be for cannot be told: {driver.source}. Nothing was changed",
            "install the driver first (playbooks/gpu_stack.yml), or set packages.dcgm.cuda_major in the profile",
        )
    return driver.major


def older_release(installed: Mapping[str, str], may_be_replaced: bool) -> list[str]:
    """Patterns of packages that may go for this release; raises DcgmError where an older one is there and may not."""
    version = installed.get(OLDER)
    if version is None:
        return []
    if not may_be_replaced:
        raise DcgmError(
            f"DCGM of another major release is installed ({OLDER} {version}), and release 4 cannot stand beside it. "
            "Nothing was changed",
            "run again with -e '{\"dcgm_replace_older_release\": true}': it is then removed in the same transaction. "
            "Programs that use its library (libdcgm.so.3) need one for libdcgm.so.4",
        )
    return [OLDER, f"{OLDER}-config", f"{OLDER}-fabricmanager*"]


def apt_arguments(
    cuda_major: int,
    version: str | None,
    installed: Mapping[str, str],
    may_replace: bool,
    upgrade: bool,
    downgrade: bool,
) -> dict[str, Any]:
    """Arguments of apt_stack without name, source and limits."""
    upstream = {"upstream": version} if version else {}
    return {
        "packages": [{"name": name, **upstream} for name in names(cuda_major)],
        "never_upgraded": [*NEVER_UPGRADED],
        "may_remove": older_release(installed, may_replace),
        "upgrade": upgrade or downgrade,
        "downgrade": [f"{OLDER}-4-*", "nv-hostengine", "libdcgm*", "dcgmi"] if downgrade else [],
    }


def warnings(
    wanted: int | None, cuda_major: int, driver: CudaMajor, installed: Mapping[str, str]
) -> list[tuple[str, str]]:
    """(reason, next step) of what works in part only."""
    found = []
    if wanted is not None and driver.major is not None and wanted < driver.major:
        found.append(
            (
                f"DCGM is for CUDA {wanted} (packages.dcgm.cuda_major), the driver has CUDA {driver.major}: the test "
                "pcie of dcgmi diag fails then (NVIDIA/DCGM#254)",
                "set packages.dcgm.cuda_major to null, unless the GPUs are older than CUDA "
                f"{driver.major} supports (Volta and before with CUDA 13)",
            )
        )
    others = [major for major in installed_cuda_majors(installed) if major != cuda_major]
    if others and cuda_major not in installed_cuda_majors(installed):
        listed = ", ".join(f"{OLDER}-4-cuda{major}" for major in others)
        found.append(
            (
                f"DCGM was installed for another CUDA ({listed}); the packages for CUDA {cuda_major} ({driver.source}) "
                "are added, and the others stay, which does no harm",
                f"apt-get remove {listed}, where nothing needs them",
            )
        )
    return found
