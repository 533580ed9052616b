# SPDX-License-Identifier: Apache-2.0
"""docker_daemon_json below a temporary root, and docker_plan, with an engine that answers from a table."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.docker_api import Info, NoAnswer

from tests.modules.conftest import Commands, RunModule, load_module

PATH = "/etc/docker/daemon.json"
INFO = Info(
    version="28.5.1",
    storage_driver="overlay2",
    data_root="/var/lib/docker",
    cgroup_version="2",
    cgroup_driver="systemd",
    live_restore=True,
    runtimes={"runc": "runc"},
    default_runtime="runc",
    running=0,
    containers_all=0,
    images=0,
    swarm=False,
)


class Node:
    """A temporary root. `info` is what the engine says, None where none runs."""

    def __init__(self, root: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.commands, self.monkeypatch = root, commands, monkeypatch
        self.info: Any = None
        self.running: dict[str, str] = {}
        self.module = load_module("docker_daemon_json")
        monkeypatch.setattr(self.module, "ROOT", str(root))
        self.use(self.module)

    def use(self, module: Any) -> None:
        """Let a module see this node's engine."""
        node = self

        class Engine:
            def __init__(self, _path: str) -> None:
                pass

            def info(self) -> Any:
                if isinstance(node.info, Exception):
                    raise node.info
                return node.info

            def running(self) -> dict[str, str]:
                return node.running

            def volumes(self) -> int:
                return 0

        self.monkeypatch.setattr(module, "Engine", Engine)
        self.monkeypatch.setattr(module, "is_active", lambda: self.info is not None)

    def write(self, text: str, path: str = PATH) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self) -> str:
        return (self.root / PATH.lstrip("/")).read_text()

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.root / "etc/docker").glob("*"))


@pytest.fixture
def node(tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("PATH", str(commands.folder))
    commands.answer("systemctl show *", "LoadState=loaded\nActiveState=inactive\n")
    (tmp_path / "root").mkdir()
    return Node(tmp_path / "root", commands, monkeypatch)


def test_a_node_without_the_file(node: Node, run_module: RunModule) -> None:
    wanted = {"live-restore": True}
    assert run_module(node.module, check=True, settings=wanted)["changed"]
    assert not (node.root / "etc").exists()
    result = run_module(node.module, settings=wanted)
    assert result["changed"] and result["backup_file"] is None and not result["validated"]
    assert json.loads(node.read()) == wanted
    assert not run_module(node.module, settings=wanted)["changed"]


def test_what_is_there_is_kept_and_backed_up(node: Node, run_module: RunModule) -> None:
    """NVIDIA/ansible-role-nvidia-docker#9: the whole file was overwritten."""
    before = {"hosts": ["unix:///run/docker.sock"], "runtimes": {"crun": {"path": "/c"}}, "storage-driver": "overlay2"}
    node.write(json.dumps(before))
    (node.root / PATH.lstrip("/")).chmod(0o600)
    result = run_module(node.module, settings={"live-restore": True, "storage-driver": "overlay2"})
    assert result["changed_keys"] == ["live-restore"]
    assert json.loads(node.read()) == {**before, "live-restore": True}
    assert json.loads(Path(result["backup_file"]).read_text()) == before
    assert (node.root / PATH.lstrip("/")).stat().st_mode & 0o777 == 0o600
    # Already there, in any layout: not written again.
    text = '{ "live-restore":true,"storage-driver":"overlay2" }'
    node.write(text)
    assert not run_module(node.module, settings={"live-restore": True})["changed"] and node.read() == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1\n "b": 2}', "line 2 column 2"),
        ('{"a": 1, "a": 2}', "'a' twice in one object, the second time at line 1 column 10"),
        ("[]", "holds a list"),
        ("null", "holds a single value"),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_a_file_that_cannot_be_merged_is_refused(
    node: Node, run_module: RunModule, text: str, said: str, check: bool
) -> None:
    node.write(text)
    result = run_module(node.module, check=check, settings={"live-restore": True})
    assert result["failed"] and said in result["msg"] and node.read() == text and node.files() == ["daemon.json"]


def test_a_link_and_a_folder_in_its_place(node: Node, run_module: RunModule) -> None:
    node.write("{}", "/etc/docker/other.json")
    path = node.root / PATH.lstrip("/")
    path.symlink_to("other.json")
    result = run_module(node.module, settings={"live-restore": True})
    assert result["failed"] and "is a link to other.json" in result["msg"]
    path.unlink()
    path.mkdir()
    assert "is no file" in run_module(node.module, settings={"live-restore": True})["msg"]


def test_a_flag_of_the_unit(node: Node, run_module: RunModule) -> None:
    """NVIDIA/deepops PR #351: the units of DGX systems have flags of their own."""
    place = "/etc/systemd/system/docker.service.d/docker-override.conf"
    node.write("[Service]\nExecStart=\nExecStart=/usr/bin/dockerd -H fd:// -s overlay2\n", place)
    for check in (True, False):
        result = run_module(node.module, check=check, settings={"storage-driver": "overlay2", "debug": True})
        assert result["failed"] and f"storage-driver (-s overlay2 in {place}, line 3)" in result["msg"]
    assert "systemctl edit" in result["next_step"] and not (node.root / PATH.lstrip("/")).exists()
    assert run_module(node.module, settings={"debug": True})["changed"]


def test_the_engine_validates_with_the_flags_of_its_unit(node: Node, run_module: RunModule) -> None:
    unit = "/usr/lib/systemd/system/docker.service"
    node.write("[Service]\nExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/c.sock\n", unit)
    node.commands.answer("dockerd --validate --config-file=* -H fd:// --containerd=/run/c.sock", "configuration OK\n")
    assert run_module(node.module, settings={"debug": True})["validated"]
    node.commands.table.clear()
    said = "unable to configure the Docker daemon: the following directives don't match any configuration option: debgu"
    node.commands.answer("dockerd *", rc=1, err=said)
    before = node.read()
    result = run_module(node.module, settings={"debgu": True})
    assert result["failed"] and "any configuration option: debgu" in result["msg"] and node.read() == before
    # Releases before 23.0 cannot.
    node.commands.table.clear()
    node.commands.answer(
        "dockerd *", rc=125, err="Status: unknown flag: --validate\nSee 'dockerd --help'., Code: 125\n"
    )
    result = run_module(node.module, settings={"debug": False})
    assert result["changed"] and not result["validated"]


def test_storage_of_a_running_engine(node: Node, run_module: RunModule) -> None:
    node.info = INFO._replace(images=3, containers_all=1)
    result = run_module(node.module, settings={"storage-driver": "zfs", "data-root": "/var/lib/docker"})
    assert result["failed"] and "storage driver overlay2, wanted zfs" in result["msg"]
    assert "1 container, 3 images" in result["msg"] and not (node.root / PATH.lstrip("/")).exists()
    name = "overlay2 /var/lib/docker"
    node.running = {"1": "job"}
    result = run_module(node.module, settings={"storage-driver": "zfs"}, storage_left_behind=name)
    assert result["failed"] and "containers run: job" in result["msg"]
    node.running = {}
    assert run_module(node.module, settings={"storage-driver": "zfs"}, storage_left_behind=name)["changed"]


def test_storage_of_an_engine_that_does_not_run(node: Node, run_module: RunModule) -> None:
    node.write('{"data-root": "/raid/docker"}')
    (node.root / "raid/docker/containers/0123").mkdir(parents=True)
    result = run_module(node.module, settings={"data-root": "/var/lib/docker"})
    assert result["failed"] and "data root /raid/docker, wanted /var/lib/docker" in result["msg"]
    (node.root / "raid/docker/containers/0123").rmdir()
    assert run_module(node.module, settings={"data-root": "/var/lib/docker"})["changed"]


def test_an_engine_that_does_not_say_what_it_has(node: Node, run_module: RunModule) -> None:
    node.info = NoAnswer("no answer from /run/docker.sock within 60 s: timed out")
    result = run_module(node.module, settings={"live-restore": True})
    assert result["failed"] and "timed out" in result["msg"] and not (node.root / PATH.lstrip("/")).exists()


def test_a_swarm_excludes_live_restore(node: Node, run_module: RunModule) -> None:
    node.info = INFO._replace(swarm=True)
    assert "part of a swarm" in run_module(node.module, settings={"live-restore": True})["msg"]
    assert run_module(node.module, settings={"live-restore": False})["changed"]


def test_a_pool_that_is_missing(node: Node, run_module: RunModule) -> None:
    arguments = {"settings": {"data-root": "/var/lib/docker"}, "data_root_mount": "/var/lib/docker"}
    result = run_module(node.module, **arguments)
    assert result["failed"] and "fill the root disk" in result["msg"] and "storage.yml" in result["next_step"]
    # The pool of a fresh node is made by the run that is foreseen.
    assert run_module(node.module, check=True, **arguments)["changed"]


class Plan:
    """docker_plan on a node with packages and an engine."""

    def __init__(self, node: Node, run_module: RunModule) -> None:
        self.node, self._run = node, run_module
        self.module = load_module("docker_plan")
        node.use(self.module)
        node.monkeypatch.setattr(self.module, "read_os_release", lambda: {"ID": "debian", "VERSION_ID": "12"})

    def packages(self, **installed: str) -> None:
        from ansible.module_utils.gpufleet.apt_packages import PackageState

        names = {name.replace("_", "-").replace("-io", ".io"): version for name, version in installed.items()}
        self.node.monkeypatch.setattr(
            self.module,
            "read_states",
            lambda asked, _run: {name: PackageState(names.get(name), True) for name in asked},
        )

    def ask(self, **arguments: Any) -> dict[str, Any]:
        return self._run(self.module, source="vendor", **arguments)


@pytest.fixture
def plan(node: Node, run_module: RunModule) -> Plan:
    return Plan(node, run_module)


def test_a_plan_names_packages_of_the_other_source(plan: Plan) -> None:
    plan.packages(docker_io="20.10.24+dfsg1-1", containerd="1.6.20~ds1-1", runc="1.1.5+ds1-1")
    result = plan.ask(version="28.5.1")
    assert result["failed"] and "docker.io 20.10.24+dfsg1-1, containerd 1.6.20~ds1-1, runc" in result["msg"]
    result = plan.ask(version="28.5.1", replace=True)
    assert result["apt"]["may_remove"] == ["docker.io", "containerd", "runc"]
    plan.node.info, plan.node.running = INFO, {"1": "job"}
    result = plan.ask(version="28.5.1", replace=True, restart_allowed=True)
    assert result["failed"] and "containers run: job" in result["msg"]


@pytest.mark.parametrize(
    ("live_restore", "version", "allowed", "said"),
    [
        (True, "28.5.2", False, None),
        (False, "28.5.2", False, "live restore is off"),
        (True, "29.0.1", False, "does not reach from 28.5.1 to 29.0.1, only between patch releases"),
        (True, None, False, "does not reach from 28.5.1 to whatever is newest"),
        (False, "29.0.1", True, None),
        (True, "28.5.1", False, None),
    ],
)
def test_an_upgrade_that_would_stop_containers(
    plan: Plan, live_restore: bool, version: "str | None", allowed: bool, said: "str | None"
) -> None:
    plan.packages(docker_ce="5:28.5.1-1~debian.12~bookworm", docker_ce_cli="5:28.5.1-1~debian.12~bookworm")
    plan.node.info, plan.node.running = INFO._replace(live_restore=live_restore, running=1), {"1": "job"}
    wanted = {"version": version, "upgrade": True, "restart_allowed": allowed}
    result = plan.ask(**{key: value for key, value in wanted.items() if value is not None})
    if said is None:
        assert not result.get("failed") and result["apt"]["upgrade"] is True
    else:
        assert result["failed"] and said in result["msg"] and "job" in result["msg"]
        plan.node.running = {}
        assert not plan.ask(**{key: value for key, value in wanted.items() if value is not None}).get("failed")


def test_a_way_back_is_named_twice(plan: Plan) -> None:
    plan.packages(docker_ce="5:28.5.2-1")
    assert plan.ask(version="28.5.2", downgrade_to="28.5.1")["failed"]
    asked = plan.ask(version="28.5.1", downgrade_to="28.5.1")["apt"]
    assert asked["upgrade"] and asked["downgrade"] == ["docker-*", "docker.io"]
    # Without a word nothing moves, and nobody is asked what runs.
    plan.node.info = NoAnswer("hung")
    assert plan.ask(version="28.5.1")["apt"]["upgrade"] is False
    assert "does not say which containers run" in plan.ask(version="28.5.1", downgrade_to="28.5.1")["msg"]
