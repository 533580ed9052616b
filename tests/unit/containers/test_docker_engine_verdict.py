# SPDX-License-Identifier: Apache-2.0
"""What a running engine needs: nothing, SIGHUP, or a restart, with the reason."""

from typing import Any

import pytest
from ansible.module_utils.gpufleet.docker_api import Info
from ansible.module_utils.gpufleet.docker_engine_record import Record, read, read_at_start, write
from ansible.module_utils.gpufleet.docker_engine_verdict import (
    Expected,
    may_restart,
    mismatches,
    needs_of_file,
    needs_of_node,
)

INFO = Info(
    version="28.5.1",
    storage_driver="overlay2",
    data_root="/var/lib/docker",
    cgroup_version="2",
    cgroup_driver="systemd",
    live_restore=True,
    runtimes={"runc": "runc"},
    default_runtime="runc",
    running=1,
    containers_all=1,
    images=1,
    swarm=False,
)
LOADED: dict[str, Any] = {"live-restore": True, "log-opts": {"max-size": "10m"}, "storage-driver": "overlay2"}
ANYTHING = Expected(None, None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("wanted", "reload", "restart"),
    [
        ({}, [], []),
        ({"default-runtime": "runc", "log-driver": "json-file", "data-root": "/var/lib/docker"}, [], []),
        ({"debug": True}, ["debug"], []),
        ({"live-restore": False}, ["live-restore"], []),
        ({"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}, ["runtimes"], []),
        ({"log-opts": {"max-size": "20m"}}, [], ["daemon.json: log-opts"]),
        ({"storage-driver": "zfs"}, [], ["daemon.json: storage-driver"]),
        ({"features": {"cdi": True}, "debug": True}, ["debug"], ["daemon.json: features"]),
    ],
)
def test_what_the_file_calls_for(wanted: dict[str, Any], reload: list[str], restart: list[str]) -> None:
    assert needs_of_file(LOADED, {**LOADED, **wanted}, INFO) == (reload, restart)


def test_a_key_that_was_taken_out_needs_a_restart() -> None:
    """SIGHUP takes over what the file says, and keeps what it does not say any more."""
    assert needs_of_file({**LOADED, "registry-mirrors": ["https://m.example.com"]}, LOADED, INFO) == (
        [],
        ["daemon.json: registry-mirrors"],
    )


def test_what_the_engine_says_counts_more_than_what_was_read() -> None:
    off = INFO._replace(live_restore=False)
    assert needs_of_file(LOADED, LOADED, off).reload == ["live-restore"]
    # A runtime that is in the file and that the engine does not know (NVIDIA/ansible-role-nvidia-docker PR #12).
    known = {**LOADED, "runtimes": {"nvidia": {"path": "n"}}}
    assert needs_of_file(known, known, INFO).reload == ["runtimes"]


def test_a_file_that_was_altered_after_the_start() -> None:
    needs = needs_of_file(None, LOADED, INFO)
    assert needs.reload == [] and "altered after the engine had started" in needs.restart[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"installed": "28.5.2"}, ["version 28.5.2 is installed, 28.5.1 runs"]),
        ({"installed": None}, []),
        (
            {"driver_now": "580.105.08"},
            ["the GPU driver was exchanged while the engine ran (580.95.05, now 580.105.08)"],
        ),
        ({"driver_then": None}, []),
        ({"driver_now": None}, []),
        ({"proxies_of_unit": {"HTTP_PROXY": "http://b"}}, ["proxy settings of the unit: HTTP_PROXY"]),
        ({"proxies_of_unit": {}}, ["proxy settings of the unit: HTTP_PROXY"]),
        # From systemd's own environment, and never of the unit.
        ({"proxies_of_unit": {}, "proxies_then": {}}, []),
    ],
)
def test_what_the_node_calls_for(change: dict[str, Any], said: list[str]) -> None:
    of_unit = {"HTTP_PROXY": "http://a"}
    given: dict[str, Any] = {
        "installed": "28.5.1",
        "driver_then": "580.95.05",
        "driver_now": "580.95.05",
        "proxies_of_process": of_unit,
        "proxies_of_unit": of_unit,
        "proxies_then": of_unit,
    }
    assert needs_of_node(INFO, **{**given, **change}) == said


@pytest.mark.parametrize(
    ("live_restore", "running", "allowed", "expected"),
    [(True, 1, False, True), (False, 0, False, True), (False, 1, False, False), (False, 1, True, True)],
)
def test_a_restart_must_stop_nothing(live_restore: bool, running: int, allowed: bool, expected: bool) -> None:
    assert may_restart(INFO._replace(live_restore=live_restore, running=running), allowed) is expected


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ({}, []),
        ({"version": "28.5.1", "cgroup_version": 2, "live_restore": True, "runtime": "runc"}, []),
        ({"version": "28.5.2"}, ["version is 28.5.1, expected 28.5.2"]),
        ({"storage_driver": "zfs"}, ["storage driver is overlay2, expected zfs"]),
        ({"data_root": "/data"}, ["data root is /var/lib/docker, expected /data"]),
        ({"live_restore": False}, ["live restore is True, expected False"]),
        ({"cgroup_version": 1}, ["cgroup version is 2, expected 1"]),
        ({"runtime": "nvidia"}, ["runtimes are runc, expected nvidia among them"]),
        ({"default_runtime": "nvidia"}, ["default runtime is runc, expected nvidia"]),
    ],
)
def test_what_the_engine_says_is_held_against_the_profile(expected: dict[str, Any], said: list[str]) -> None:
    assert mismatches(INFO, ANYTHING._replace(**expected)) == said


def test_the_record_of_a_start(tmp_path: Any) -> None:
    path = str(tmp_path / "below" / "engine.json")
    assert read(path) is None
    record = Record("abc", "{}", "580.95.05", {"HTTP_PROXY": "x"})
    write(path, record)
    assert read(path) == record
    (tmp_path / "below" / "engine.json").write_text("{")
    assert read(path) is None

    # Our own note on this start; else the file, where it is older than the start.
    assert read_at_start(record, "abc", '{"debug": true}', 200, 100) == "{}"
    assert read_at_start(record, "other", '{"debug": true}', 50, 100) == '{"debug": true}'
    assert read_at_start(record, "other", '{"debug": true}', 200, 100) is None
    assert read_at_start(None, "abc", "", 0, 100) == ""
