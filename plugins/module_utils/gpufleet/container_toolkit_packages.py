# SPDX-License-Identifier: Apache-2.0
"""The four packages of the NVIDIA Container Toolkit, as arguments for apt_stack.

nvidia-container-toolkit wants -base and libnvidia-container-tools at exactly its version, libnvidia-container1 follows
by >= only (packaging/debian/control of NVIDIA/nvidia-container-toolkit): without pins the four can differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .container_toolkit_error import ToolkitError
from .package_version import upstream_version

PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
NEVER_UPGRADED = ("nvidia-container-", "libnvidia-container")


def versions_apart(installed: Mapping[str, str]) -> str | None:
    """The four with their versions where they differ, for a message; None where all that is there is equal."""
    versions = {name: upstream_version(installed[name]) for name in PACKAGES if name in installed}
    if len(set(versions.values())) <= 1:
        return None
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def apt_arguments(version: str | None, installed: Mapping[str, str], upgrade: bool, downgrade: bool) -> dict[str, Any]:
    """Arguments of apt_stack, without source and name. installed: name -> version of those that are there.

    Without a version in the profile what is installed is kept by its hold alone.

    Raises:
        ToolkitError: where the installed ones differ and no version says which of them is meant.
    """
    apart = versions_apart(installed)
    if apart and version is None and not upgrade:
        raise ToolkitError(
            f"the packages of the container toolkit have several versions: {apart}. Nothing was changed",
            "name the one version of all four in packages.container_toolkit.version, and bring the older ones there "
            "with -e '{\"nvidia_container_toolkit_upgrade\": true}'",
        )
    return {
        "packages": [{"name": name, **({"upstream": version} if version else {})} for name in PACKAGES],
        "never_upgraded": list(NEVER_UPGRADED),
        "upgrade": upgrade or downgrade,
        "downgrade": list(PACKAGES) if downgrade else [],
    }
