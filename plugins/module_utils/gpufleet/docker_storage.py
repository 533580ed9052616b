# SPDX-License-Identifier: Apache-2.0
"""Where images, containers and volumes lie, and whether that may be left for another place or driver.

With another storage driver or data root an engine sees nothing of what it had: containers, images and volumes are not
moved, and nobody deletes them either.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from .docker_api import Info
from .docker_error import DockerError

# What volumes/ holds beside the volumes.
_NO_VOLUMES = frozenset({"metadata.db", "backingFsBlockDev"})


class Storage(NamedTuple):
    """driver is None where nothing tells; holds is "" for an empty store, else what is in it, in words."""

    driver: str | None
    data_root: str
    holds: str

    def __str__(self) -> str:
        return f"{self.driver or 'unknown'} {self.data_root}"


def _words(containers: int, images: int, volumes: int) -> str:
    counted = ((containers, "container"), (images, "image"), (volumes, "volume"))
    return ", ".join(f"{number} {what}{'s' if number > 1 else ''}" for number, what in counted if number)


def of_engine(info: Info, volumes: int) -> Storage:
    """Storage of a running engine."""
    return Storage(info.storage_driver, info.data_root, _words(info.containers_all, info.images, volumes))


def _entries(path: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(path))
    return []


def of_folder(data_root: str, root: str = "") -> Storage:
    """Storage of an engine that does not run, by what lies in its data root.

    Images of the containerd image store lie below /var/lib/containerd and are not seen; containers and volumes are.
    """
    place = root + data_root
    drivers = {}
    for driver in _entries(f"{place}/image"):
        drivers[driver] = len(_entries(f"{place}/image/{driver}/imagedb/content/sha256"))
    containers = len(_entries(f"{place}/containers"))
    volumes = len([name for name in _entries(f"{place}/volumes") if name not in _NO_VOLUMES])
    used = max(drivers, key=lambda name: drivers[name], default=None)
    return Storage(used, data_root, _words(containers, sum(drivers.values()), volumes))


def refuse_loss(
    now: Storage, driver: str | None, data_root: str | None, left_behind: str | None, running: str = ""
) -> None:
    """Raise DockerError where a change of driver or data root would leave something behind that nobody named.

    driver, data_root: what is wanted, None where it is not said. running: names of containers that run.
    """
    changes = []
    if driver and now.driver and driver != now.driver:
        changes.append(f"storage driver {now.driver}, wanted {driver}")
    if data_root and os.path.realpath(data_root) != os.path.realpath(now.data_root):
        changes.append(f"data root {now.data_root}, wanted {data_root}")
    if not changes or not now.holds:
        return
    if running:
        raise DockerError(
            f"the engine has {'; '.join(changes)}, and containers run: {running}. Nothing was changed",
            "stop these containers first: the engine would lose them while they go on running",
        )
    if left_behind != str(now):
        raise DockerError(
            f"the engine has {'; '.join(changes)}, and what it has would be out of its sight: {now.holds}. Nothing was "
            "changed",
            "save what is needed (docker save, copies of volumes) and remove the rest, or let it be left behind with "
            f'-e \'{{"docker_storage_left_behind": "{now}"}}\'',
        )
