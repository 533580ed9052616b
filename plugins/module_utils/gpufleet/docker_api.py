# SPDX-License-Identifier: Apache-2.0
"""The engine's API on its socket (Docker Engine API, /info, /containers/json, /volumes), without the docker command."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import Any, NamedTuple

SOCKET = "/run/docker.sock"
ANSWER_LIMIT_S = 60.0


class NoAnswer(Exception):
    """The engine did not answer: nobody listens, it took too long, or what came is no answer."""


class Info(NamedTuple):
    """What /info says. containers: running and paused ones. images, containers_all: how many there are at all."""

    version: str
    storage_driver: str
    data_root: str
    cgroup_version: str
    cgroup_driver: str
    live_restore: bool
    runtimes: dict[str, str]
    default_runtime: str
    running: int
    containers_all: int
    images: int
    swarm: bool


class _OverSocket(http.client.HTTPConnection):
    def __init__(self, path: str, limit_s: float) -> None:
        super().__init__("localhost", timeout=limit_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Engine:
    """The engine behind a socket."""

    def __init__(self, path: str = SOCKET, limit_s: float = ANSWER_LIMIT_S) -> None:
        self._path, self._limit_s = path, limit_s

    def get(self, path: str) -> Any:
        """What the engine answers to GET, parsed. Raises NoAnswer."""
        connection = _OverSocket(self._path, self._limit_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read()
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NoAnswer(f"nobody listens on {self._path} ({error.strerror})") from error
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(
                f"no answer from {self._path} within {self._limit_s:g} s: {error or type(error).__name__}"
            ) from error
        finally:
            connection.close()
        try:
            found = json.loads(content)
        except ValueError as error:
            raise NoAnswer(f"{self._path} answered to {path} with {content[:80]!r}, which is no JSON") from error
        if answer.status != http.client.OK:
            said = found.get("message", found) if isinstance(found, dict) else found
            raise NoAnswer(f"{self._path} answered to {path} with status {answer.status}: {said}")
        return found

    def info(self) -> Info:
        """What the running engine says of itself. Raises NoAnswer."""
        found = self.get("/info")
        if not isinstance(found, dict) or not found.get("ServerVersion"):
            # The engine answers without its version while something that it depends on fails.
            errors = found.get("ServerErrors") if isinstance(found, dict) else None
            raise NoAnswer(f"the engine does not say its version: {errors or str(found)[:200]}")
        return Info(
            version=str(found["ServerVersion"]),
            storage_driver=str(found.get("Driver", "")),
            data_root=str(found.get("DockerRootDir", "")),
            # Only named from cgroups v2's first support on (API 1.41); before that there was v1 alone.
            cgroup_version=str(found.get("CgroupVersion", "1")),
            cgroup_driver=str(found.get("CgroupDriver", "")),
            live_restore=bool(found.get("LiveRestoreEnabled")),
            runtimes={name: str(entry.get("path", "")) for name, entry in (found.get("Runtimes") or {}).items()},
            default_runtime=str(found.get("DefaultRuntime", "")),
            running=int(found.get("ContainersRunning", 0)) + int(found.get("ContainersPaused", 0)),
            containers_all=int(found.get("Containers", 0)),
            images=int(found.get("Images", 0)),
            swarm=(found.get("Swarm") or {}).get("LocalNodeState", "inactive") not in ("", "inactive"),
        )

    def running(self) -> dict[str, str]:
        """Id -> name of the containers that run or are paused. Raises NoAnswer."""
        found = {}
        for entry in self.get("/containers/json"):
            names = entry.get("Names") or [entry["Id"][:12]]
            found[str(entry["Id"])] = str(names[0]).lstrip("/")
        return found

    def volumes(self) -> int:
        """How many volumes there are. Raises NoAnswer."""
        return len(self.get("/volumes").get("Volumes") or [])

    def wait(self, limit_s: float) -> Info:
        """/info as soon as the engine answers; raises NoAnswer after limit_s seconds."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                return self.info()
            except NoAnswer:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.5)


def names(containers: dict[str, str], most: int = 5) -> str:
    """Names of containers for a message, cut short."""
    listed = sorted(containers.values())
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
