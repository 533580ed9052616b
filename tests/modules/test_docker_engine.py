# SPDX-License-Identifier: Apache-2.0
"""docker_engine on doubles: an engine on a socket below a temporary root, systemctl from a table.

What a real engine does with it is in tests/integration/containers/test_engine.py.
"""

import http.server
import json
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet import docker_engine_control, docker_service
from ansible.module_utils.gpufleet.docker_engine_record import Record, read, write

from tests.modules.conftest import Commands, RunModule, load_module

UNIT = "docker.service"
SHOW = f"systemctl show {UNIT} *"
FILE = "etc/docker/daemon.json"
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"


class Answers(http.server.BaseHTTPRequestHandler):
    """What the test's engine says."""

    said: dict[str, Any] = {}

    def log_message(self, *_words: object) -> None:
        """Nothing."""

    def address_string(self) -> str:
        return "socket"

    def do_GET(self) -> None:
        content = json.dumps(self.said[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Engine:
    """A node with an engine. `says` is what /info answers."""

    def __init__(self, root: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.commands = root, commands
        monkeypatch.setattr(docker_engine_control, "ROOT", str(root))
        monkeypatch.setattr(docker_engine_control, "RELOAD_LIMIT_S", 0.2)
        (root / "run").mkdir()
        self.says: dict[str, Any] = {
            "ServerVersion": "28.5.1",
            "Driver": "overlay2",
            "DockerRootDir": "/var/lib/docker",
            "CgroupVersion": "2",
            "LiveRestoreEnabled": True,
            "Runtimes": {"runc": {"path": "runc"}},
            "DefaultRuntime": "runc",
            "ContainersRunning": 1,
        }
        self.containers = [{"Id": "1" * 64, "Names": ["/job"]}]
        Answers.said = {"/info": self.says, "/containers/json": self.containers, "/volumes": {"Volumes": None}}
        self.file({"live-restore": True, "log-opts": {"max-size": "10m"}})
        self.record(self.text)
        for unit in docker_service.UNITS:
            commands.answer(f"systemctl is-enabled {unit}", "enabled\n")
        self.monkeypatch = monkeypatch

    @property
    def text(self) -> str:
        return (self.root / FILE).read_text()

    def file(self, settings: dict[str, Any]) -> None:
        path = self.root / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))

    def record(self, text: str, invocation: str = "now", driver: "str | None" = None) -> None:
        write(self.record_path, Record(invocation, text, driver, {}))

    @property
    def record_path(self) -> str:
        return str(self.root / docker_engine_control.RECORD.lstrip("/"))

    def driver(self, version: str) -> None:
        path = self.root / "proc/driver/nvidia/version"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(DRIVER.format(version))

    def state(self, active: str = "active", invocation: str = "now", **more: str) -> None:
        """An answer of systemctl show."""
        lines = {"LoadState": "loaded", "ActiveState": active, "InvocationID": invocation, "MainPID": "1", **more}
        self.commands.answer(SHOW, "".join(f"{key}={value}\n" for key, value in lines.items()))

    def acted(self) -> list[str]:
        verbs = ("show", "is-enabled", "reset-failed")
        calls = [line.split(" ", 1)[1] for line in self.commands.calls("systemctl")]
        return [call for call in calls if call.split()[0] not in verbs]

    def on_restart(self, says: dict[str, Any]) -> None:
        """What the engine says once it has been started or restarted."""
        run = docker_service.run_bounded

        def run_and_change(argv: list[str], limit_s: float) -> Any:
            if argv[1] in ("restart", "start", "reload"):
                self.says.update(says)
            return run(argv, limit_s)

        self.monkeypatch.setattr(docker_service, "run_bounded", run_and_change)


@pytest.fixture
def engine(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    # A socket's path has at most 108 characters, which pytest's own folder may not leave.
    with tempfile.TemporaryDirectory(prefix="engine-", dir="/tmp") as folder:
        made = Engine(Path(folder), commands, monkeypatch)
        with socketserver.ThreadingUnixStreamServer(f"{folder}/run/docker.sock", Answers) as server:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            yield made
            server.shutdown()


@pytest.mark.parametrize("check", [False, True])
def test_converged(engine: Engine, run_module: RunModule, check: bool) -> None:
    engine.state()
    result = run_module("docker_engine", check=check, live_restore=True, storage_driver="overlay2", cgroup_version=2)
    assert (result["changed"], result["actions"], result["pending"]) == (False, [], [])
    assert engine.acted() == []
    assert result["gpufleet"]["facts"]["docker"]["version"] == "28.5.1"


def test_not_installed(engine: Engine, run_module: RunModule) -> None:
    engine.commands.answer(SHOW, "LoadState=not-found\nActiveState=inactive\n")
    result = run_module("docker_engine")
    assert result["failed"] and "docker_install" in result["next_step"]
    assert not run_module("docker_engine", check=True).get("failed")


def test_units_that_are_disabled_or_masked(engine: Engine, run_module: RunModule) -> None:
    engine.state()
    engine.commands.table = [entry for entry in engine.commands.table if "docker.socket" not in entry["line"]]
    engine.commands.answer("systemctl is-enabled docker.socket", "masked\n", rc=1)
    engine.commands.answer("systemctl unmask docker.socket")
    engine.commands.answer("systemctl enable docker.socket")
    assert run_module("docker_engine", check=True)["actions"] == ["enable docker.socket"] and engine.acted() == []
    assert run_module("docker_engine")["actions"] == ["enable docker.socket"]
    assert engine.acted() == ["unmask docker.socket", "enable docker.socket"]


def test_a_unit_that_has_changed_is_read_anew_before_a_start(engine: Engine, run_module: RunModule) -> None:
    """NVIDIA/deepops#1109: a restart without daemon-reload fails."""
    engine.state("inactive", NeedDaemonReload="yes")
    engine.state(invocation="new")
    for verb in ("daemon-reload", f"start {UNIT}", f"reset-failed {UNIT}"):
        engine.commands.answer(f"systemctl {verb}")
    result = run_module("docker_engine")
    assert result["actions"] == [f"start {UNIT}"], result
    assert engine.acted() == ["daemon-reload", f"start {UNIT}"]
    record = read(engine.record_path)
    assert record is not None and record.invocation == "new" and record.text == engine.text


def test_devices_are_linked_before_the_daemon_reload(
    engine: Engine, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine.root / "dev").mkdir()
    monkeypatch.setattr(docker_engine_control, "nodes", lambda _root: {"/dev/nvidia0": "195:0"})
    engine.state(NeedDaemonReload="yes")
    engine.commands.answer("systemctl daemon-reload")
    run_module("docker_engine")
    assert (engine.root / "dev/char/195:0").is_symlink()


def test_a_reload_where_that_is_enough(engine: Engine, run_module: RunModule) -> None:
    engine.file({"live-restore": True, "log-opts": {"max-size": "10m"}, "runtimes": {"nvidia": {"path": "n"}}})
    engine.state()
    engine.commands.answer(f"systemctl reload {UNIT}")
    engine.on_restart({"Runtimes": {"runc": {}, "nvidia": {"path": "n"}}})
    result = run_module("docker_engine", runtime="nvidia")
    assert result["actions"] == [f"reload {UNIT} (runtimes)"], result
    assert engine.acted() == [f"reload {UNIT}"]
    assert not run_module("docker_engine", runtime="nvidia")["changed"]


def test_a_reload_that_does_not_bring_the_runtime_is_followed_by_a_restart(
    engine: Engine, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA/ansible-role-nvidia-docker PR #12."""
    engine.file({"live-restore": True, "log-opts": {"max-size": "10m"}, "runtimes": {"nvidia": {"path": "n"}}})
    engine.state()
    engine.commands.answer(f"systemctl reload {UNIT}")
    engine.commands.answer(f"systemctl restart {UNIT}")
    engine.commands.answer(f"systemctl reset-failed {UNIT}")
    monkeypatch.setattr(docker_engine_control.time, "sleep", lambda _seconds: None)
    result = run_module("docker_engine")
    assert engine.acted() == [f"reload {UNIT}", f"restart {UNIT}"]
    assert "which a reload did not bring into effect" in result["actions"][1]
    # Still not there: what the engine says counts, not that a restart went well.
    result = run_module("docker_engine", runtime="nvidia")
    assert result["failed"] and "expected nvidia among them" in result["msg"]


def test_a_restart_for_what_a_reload_does_not_bring(engine: Engine, run_module: RunModule) -> None:
    engine.file({"live-restore": True, "log-opts": {"max-size": "20m"}})
    engine.state()
    engine.commands.answer(f"systemctl restart {UNIT}")
    engine.commands.answer(f"systemctl reset-failed {UNIT}")
    assert run_module("docker_engine", check=True)["actions"] == [f"restart {UNIT} (daemon.json: log-opts)"]
    assert engine.acted() == []
    assert run_module("docker_engine")["changed"]
    assert engine.acted() == [f"restart {UNIT}"]
    assert not run_module("docker_engine")["changed"]


def test_check_mode_judges_what_the_tasks_before_would_write(engine: Engine, run_module: RunModule) -> None:
    good = json.loads(engine.text)
    engine.state()
    # Somebody has altered the file, and it would be put right: nothing for the engine to do.
    engine.file({**good, "log-opts": {"max-size": "77m"}})
    assert not run_module("docker_engine", check=True, foreseen_settings=good)["changed"]
    assert run_module("docker_engine", check=True)["changed"]
    # A setting that is new: the restart is announced with it.
    engine.file(good)
    result = run_module("docker_engine", check=True, foreseen_settings={**good, "bip": "10.0.0.1/24"})
    assert result["actions"] == [f"restart {UNIT} (daemon.json: bip)"]
    # Without check mode the file counts.
    assert not run_module("docker_engine", foreseen_settings={"debug": True})["changed"]


def test_a_reload_is_not_repeated_while_a_restart_waits(engine: Engine, run_module: RunModule) -> None:
    engine.says["LiveRestoreEnabled"] = False
    engine.record(json.dumps({"log-opts": {"max-size": "10m"}}))
    engine.file({"debug": True, "log-opts": {"max-size": "20m"}})
    engine.state()
    engine.commands.answer(f"systemctl reload {UNIT}")
    first, second = run_module("docker_engine"), run_module("docker_engine")
    assert (first["actions"], second["actions"]) == ([f"reload {UNIT} (debug)"], [])
    assert first["pending"] == second["pending"] == ["daemon.json: log-opts"]
    assert engine.acted() == [f"reload {UNIT}"]


@pytest.mark.parametrize("check", [False, True])
def test_running_containers_are_not_stopped(engine: Engine, run_module: RunModule, check: bool) -> None:
    """kubespray#1813: an engine that was cycled on all nodes at once."""
    engine.says["LiveRestoreEnabled"] = False
    engine.file({"live-restore": False, "log-opts": {"max-size": "20m"}})
    engine.state()
    result = run_module("docker_engine", check=check, live_restore=True)
    assert not result["changed"] and result["pending"] == ["daemon.json: log-opts"]
    attention = result["gpufleet"]["attention"][0]
    assert "running containers: job" in attention["reason"] and "docker_restart_allowed" in attention["next_step"]
    assert engine.acted() == []
    engine.commands.answer(f"systemctl restart {UNIT}")
    engine.commands.answer(f"systemctl reset-failed {UNIT}")
    assert run_module("docker_engine", check=check, restart_allowed=True)["changed"]


def test_a_driver_that_was_exchanged_while_the_engine_ran(engine: Engine, run_module: RunModule) -> None:
    """NVIDIA/nvidia-container-toolkit#169."""
    engine.driver("580.95.05")
    engine.state()
    assert not run_module("docker_engine")["changed"]
    engine.driver("580.105.08")
    engine.commands.answer(f"systemctl restart {UNIT}")
    engine.commands.answer(f"systemctl reset-failed {UNIT}")
    result = run_module("docker_engine")
    assert "the GPU driver was exchanged while the engine ran" in result["actions"][0]
    assert not run_module("docker_engine")["changed"]


def test_a_container_that_is_lost_in_spite_of_live_restore(engine: Engine, run_module: RunModule) -> None:
    engine.file({"live-restore": True})
    engine.state()
    engine.commands.answer(f"systemctl restart {UNIT}")
    engine.commands.answer(f"systemctl reset-failed {UNIT}")
    run = docker_service.run_bounded

    def restart(argv: list[str], limit_s: float) -> Any:
        if argv[1] == "restart":
            engine.containers.clear()
        return run(argv, limit_s)

    engine.monkeypatch.setattr(docker_service, "run_bounded", restart)
    result = run_module("docker_engine")
    assert result["failed"] and "do not run any more: job" in result["msg"]


def test_an_engine_that_does_not_come_back(engine: Engine, run_module: RunModule) -> None:
    good = engine.text
    engine.file({"live-restore": True, "exec-root": "/none"})
    engine.state()
    engine.commands.answer(f"systemctl restart {UNIT}", rc=1, err="Job for docker.service failed")
    engine.commands.answer(f"systemctl start {UNIT}")
    engine.commands.answer(f"systemctl reset-failed {UNIT}")
    # 20.10.24 of Debian 12
    log = [
        'time="2026-11-30T20:51:34.451248463Z" level=info msg="Starting up"',
        "mkdir /none: not a directory",
        "docker.service: Main process exited, code=exited, status=1/FAILURE",
        "Failed to start docker.service - Docker Application Container Engine.",
    ]
    engine.commands.answer("journalctl *", "\n".join(log))
    result = run_module("docker_engine")
    # The first line is what the summary shows.
    first = result["msg"].splitlines()[0]
    assert result["failed"] and "mkdir /none: not a directory. The one that it last ran with" in first
    assert "is in place again, and the engine runs with it" in result["msg"]
    assert engine.text == good
    assert json.loads((engine.root / f"{FILE}.failed").read_text())["exec-root"] == "/none"
    assert engine.acted() == [f"restart {UNIT}", f"start {UNIT}"]


def test_an_engine_that_does_not_start_and_never_did(engine: Engine, run_module: RunModule) -> None:
    Path(engine.record_path).unlink()
    engine.state("failed")
    engine.commands.answer(f"systemctl start {UNIT}", rc=1, err="Job for docker.service failed")
    engine.commands.answer(f"systemctl reset-failed {UNIT}")
    engine.commands.answer("journalctl *", "no space left on device\n")
    before = engine.text
    result = run_module("docker_engine")
    assert result["failed"] and "no space left on device" in result["msg"] and engine.text == before


def test_a_restart_without_an_end(engine: Engine, run_module: RunModule) -> None:
    """A container whose process hangs in the kernel cannot be stopped."""
    engine.file({"live-restore": True})
    engine.says["LiveRestoreEnabled"] = False
    engine.record("{}")
    engine.file({"log-opts": {"max-size": "1m"}})
    engine.state()
    engine.commands.answer(f"systemctl reset-failed {UNIT}")
    engine.commands.answer(f"systemctl start {UNIT}")
    engine.commands.answer("journalctl *", "Container failed to exit\n")
    run = docker_service.run_bounded

    def hang(argv: list[str], limit_s: float) -> Any:
        if argv[1] == "restart":
            return docker_service.CommandResult("timeout", None, "", "no answer")
        return run(argv, limit_s)

    engine.monkeypatch.setattr(docker_service, "run_bounded", hang)
    result = run_module("docker_engine", restart_allowed=True, timeout_s=1)
    assert result["failed"] and "did not end within 1 s" in result["msg"] and "state D" in result["msg"]
    assert "Container failed to exit" in result["msg"]


def test_a_hung_engine_is_left_as_it_is(engine: Engine, run_module: RunModule) -> None:
    (engine.root / "run/docker.sock").unlink()
    engine.state()
    engine.commands.answer("journalctl *", "\n")
    result = run_module("docker_engine")
    assert result["failed"] and "does not answer" in result["msg"] and engine.acted() == []
    assert "restart docker.service" in result["next_step"]


@pytest.mark.parametrize(
    ("arguments", "said", "step"),
    [
        ({"cgroup_version": 1}, "cgroup version is 2, expected 1", "unified_cgroup_hierarchy"),
        ({"storage_driver": "zfs"}, "storage driver is overlay2, expected zfs", "journalctl"),
        ({"default_runtime": "nvidia"}, "default runtime is runc, expected nvidia", "journalctl"),
    ],
)
def test_an_engine_that_says_something_else(
    engine: Engine, run_module: RunModule, arguments: dict[str, Any], said: str, step: str
) -> None:
    engine.state()
    result = run_module("docker_engine", **arguments)
    assert result["failed"] and said in result["msg"] and step in result["next_step"]
    assert not run_module("docker_engine", check=True, **arguments).get("failed")


def test_an_older_engine_runs_than_is_installed(engine: Engine, run_module: RunModule) -> None:
    engine.state()
    engine.commands.answer("dpkg-query *", "ii |5:28.5.2-1~debian.12~bookworm\n")
    engine.commands.answer("apt-mark *", "")
    module = load_module("docker_engine")
    engine.monkeypatch.setattr(docker_engine_control.EngineOnNode, "_installed", lambda _self: "28.5.2")
    engine.commands.answer(f"systemctl restart {UNIT}")
    engine.commands.answer(f"systemctl reset-failed {UNIT}")
    engine.on_restart({"ServerVersion": "28.5.2"})
    result = run_module(module, engine_package="docker-ce")
    assert result["actions"] == [f"restart {UNIT} (version 28.5.2 is installed, 28.5.1 runs)"]


def test_a_missing_mount_keeps_the_engine_from_starting(engine: Engine, run_module: RunModule) -> None:
    engine.state("inactive")
    result = run_module("docker_engine", data_root_mount="/var/lib/docker")
    assert result["failed"] and "nothing is mounted at /var/lib/docker" in result["msg"] and engine.acted() == []
