# SPDX-License-Identifier: Apache-2.0
"""Which packages make up the container engine, by source, as arguments for apt_stack.

Names: Docker's installation guide for Debian and Ubuntu (its four packages, and those of the distribution that they
exclude); Debian 12 and 13 by their package lists (docker-cli is apart in Debian 13); Ubuntu's archive by memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from .docker_error import DockerError

_VENDOR = ("docker-ce", "docker-ce-cli", "containerd.io", "docker-buildx-plugin")
_VENDOR_MORE = ("docker-ce-rootless-extras", "docker-compose-plugin", "docker-model-plugin")
_DISTRO = ("docker.io", "docker-cli", "containerd", "runc")
_DISTRO_MORE = ("docker-buildx", "docker-compose", "docker-compose-v2", "docker-doc", "podman-docker")
# All that may be installed of either.
KNOWN = (*_VENDOR, *_VENDOR_MORE, *_DISTRO, *_DISTRO_MORE)
# Of both sources alike: apt_stack lifts the holds of what these match, so that one can take the other's place.
NEVER_UPGRADED = ("docker[.-]", r"containerd(\.io)?$", "runc$")


class EnginePackages(NamedTuple):
    """engine: the package that tells the engine's version. of_release: packages that carry it, engine first. beside:
    packages with versions of their own. excluded: packages of the other source that cannot stay."""

    engine: str
    of_release: tuple[str, ...]
    beside: tuple[str, ...]
    excluded: tuple[str, ...]


def engine_packages(source: str, os_release: Mapping[str, str]) -> EnginePackages:
    """The packages of a source (vendor, mirror or distro) on a node."""
    if source != "distro":
        return EnginePackages(
            "docker-ce",
            ("docker-ce", "docker-ce-cli"),
            ("containerd.io", "docker-buildx-plugin"),
            (*_DISTRO, "docker-buildx", "docker-compose", "docker-compose-v2", "docker-doc", "podman-docker"),
        )
    number = os_release.get("VERSION_ID", "0").partition(".")[0]
    apart = os_release.get("ID") == "debian" and number.isdigit() and int(number) >= 13
    return EnginePackages(
        "docker.io",
        ("docker.io", "docker-cli") if apart else ("docker.io",),
        (),
        (*_VENDOR, *_VENDOR_MORE),
    )


def release_train(version: str) -> tuple[str, ...]:
    """The first two numbers: live restore is supported between engines that share them (Docker's documentation)."""
    return tuple(re.findall(r"\d+", version)[:2])


def refuse_other_source(
    packages: EnginePackages, source: str, installed: Mapping[str, str], replace: bool
) -> list[str]:
    """Installed packages of the other source, which the transaction may remove; raises DockerError unless `replace`."""
    other = [name for name in packages.excluded if name in installed]
    if other and not replace:
        listed = ", ".join(f"{name} {installed[name]}" for name in other)
        raise DockerError(
            f"packages.docker.source is {source}, and packages that it excludes are installed: {listed}. Nothing was "
            "changed",
            "set packages.docker.source to the source that they come from, or let them be replaced with -e "
            "'{\"docker_replace_packages\": true}' (images and containers stay, all containers have to be stopped)",
        )
    return other


def apt_arguments(
    packages: EnginePackages,
    version: str | None,
    upgrade: bool,
    downgrade: bool,
    leaving: list[str],
    confines: bool,
) -> dict[str, Any]:
    """Arguments of apt_stack, without source and name.

    :arg confines: the kernel confines programs by AppArmor. The engine then loads a profile for each container, with a
        program that its packages only recommend: without it no container starts.

    Without a version in the profile what is installed is kept by its hold alone: a pin of the version that the first
    run has brought would be a change of the second one.
    """
    return {
        "packages": [
            *({"name": name, **({"upstream": version} if version else {})} for name in packages.of_release),
            *({"name": name} for name in packages.beside),
            # Free to be updated with the system.
            *([{"name": "apparmor", "hold": False}] if confines else []),
        ],
        "never_upgraded": list(NEVER_UPGRADED),
        "may_remove": leaving,
        "upgrade": upgrade or downgrade,
        "downgrade": ["docker-*", "docker.io"] if downgrade else [],
    }
