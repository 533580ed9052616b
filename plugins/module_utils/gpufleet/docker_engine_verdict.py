# SPDX-License-Identifier: Apache-2.0
"""Whether a running engine has what daemon.json, its packages and the GPU driver call for, and what brings it about."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from .docker_api import Info
from .docker_daemon_json import RELOADED, differing


class Needs(NamedTuple):
    """reload: keys that SIGHUP brings into effect. restart: reasons for a restart, in words."""

    reload: list[str]
    restart: list[str]


class Expected(NamedTuple):
    """What an engine has to say of itself; None and empty = not judged."""

    version: str | None
    storage_driver: str | None
    data_root: str | None
    live_restore: bool | None
    cgroup_version: int | None
    runtime: str | None
    default_runtime: str | None


def _known(loaded: Mapping[str, Any], wanted: Mapping[str, Any], info: Info) -> dict[str, Any]:
    """What was loaded, corrected by what the engine says now."""
    found = {
        **loaded,
        "live-restore": info.live_restore,
        "default-runtime": info.default_runtime,
        "data-root": info.data_root,
    }
    if "storage-driver" in wanted:
        found["storage-driver"] = info.storage_driver
    if not set(wanted.get("runtimes", {})) <= set(info.runtimes):
        found.pop("runtimes", None)
    return found


def needs_of_file(loaded: Mapping[str, Any] | None, wanted: Mapping[str, Any], info: Info) -> Needs:
    """What daemon.json calls for. loaded: what the engine has read at its start; None where nothing tells."""
    known = _known(wanted if loaded is None else loaded, wanted, info)
    if "data-root" in wanted and os.path.realpath(wanted["data-root"]) == os.path.realpath(info.data_root):
        known["data-root"] = wanted["data-root"]
    keys = differing(known, wanted)
    # SIGHUP takes over what the file says; it does not take back what the file does not say any more.
    by_reload = [key for key in keys if key in RELOADED and key in wanted]
    restart = [f"daemon.json: {key}" for key in keys if key not in by_reload]
    if loaded is None and not restart:
        restart = ["daemon.json was altered after the engine had started, and what it was before nobody knows"]
    return Needs(by_reload, restart)


def needs_of_node(
    info: Info,
    installed: str | None,
    driver_then: str | None,
    driver_now: str | None,
    proxies_of_process: Mapping[str, str],
    proxies_of_unit: Mapping[str, str],
    proxies_then: Mapping[str, str],
) -> list[str]:
    """Reasons for a restart that are not in daemon.json.

    installed: version of the installed engine. driver_then, driver_now: version of the NVIDIA module that was loaded
    when the engine was started, and now. proxies_then: what the unit had at that time.
    """
    reasons = []
    if installed and info.version != installed:
        reasons.append(f"version {installed} is installed, {info.version} runs")
    # NVIDIA/nvidia-container-toolkit#169: containers fail after a live driver upgrade until dockerd restarts.
    if driver_then and driver_now and driver_then != driver_now:
        reasons.append(f"the GPU driver was exchanged while the engine ran ({driver_then}, now {driver_now})")
    other = [name for name, value in proxies_of_unit.items() if proxies_of_process.get(name) != value]
    other += [name for name in proxies_then if name not in proxies_of_unit and name in proxies_of_process]
    if other:
        reasons.append(f"proxy settings of the unit: {', '.join(sorted(other))}")
    return reasons


def mismatches(info: Info, expected: Expected) -> list[str]:
    """What the engine says other than expected, a phrase each."""
    cgroup = None if expected.cgroup_version is None else str(expected.cgroup_version)
    pairs: list[tuple[str, object, object]] = [
        ("version", info.version, expected.version),
        ("storage driver", info.storage_driver, expected.storage_driver),
        ("live restore", info.live_restore, expected.live_restore),
        ("cgroup version", info.cgroup_version, cgroup),
        ("default runtime", info.default_runtime, expected.default_runtime),
    ]
    judged = [pair for pair in pairs if pair[2] is not None]
    found = [f"{what} is {says}, expected {wanted}" for what, says, wanted in judged if says != wanted]
    if expected.data_root and os.path.realpath(expected.data_root) != os.path.realpath(info.data_root):
        found.append(f"data root is {info.data_root}, expected {expected.data_root}")
    if expected.runtime and expected.runtime not in info.runtimes:
        found.append(f"runtimes are {', '.join(sorted(info.runtimes))}, expected {expected.runtime} among them")
    return found


def may_restart(info: Info, allowed: bool) -> bool:
    """Whether a restart stops nothing, or the operator has allowed it."""
    return allowed or info.live_restore or info.running == 0
