# SPDX-License-Identifier: Apache-2.0
"""container_toolkit below a temporary root, with the stand-in for nvidia-ctk; and container_toolkit_plan."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.apt_packages import PackageState
from ansible.module_utils.gpufleet.container_toolkit_packages import PACKAGES

from tests.modules.conftest import Commands, RunModule, load_module
from tests.vendor_repository.container_stand_ins import program

FILE = "etc/docker/daemon.json"
SPEC = "run/cdi/nvidia.yaml"
UUID = "GPU-1234567{}-aaaa-bbbb-cccc-0123456789ab"
NODES = {"/dev/nvidia0": "195:0", "/dev/nvidiactl": "195:255"}


class Node:
    """A node with driver, GPUs and toolkit below a temporary root."""

    def __init__(self, root: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.commands, self.monkeypatch = root, commands, monkeypatch
        self.module = load_module("container_toolkit")
        monkeypatch.setattr(self.module, "ROOT", str(root))
        monkeypatch.setattr(self.module, "nodes", lambda _root: {})
        monkeypatch.setenv("NVIDIA_STAND_IN_ROOT", str(root))
        self.warnings: list[str] = []
        monkeypatch.setattr(
            "ansible.module_utils.basic.AnsibleModule.warn", lambda _self, text: self.warnings.append(text)
        )
        self.toolkit("1.18.2")
        commands.answer("dockerd --version", "Docker version 28.5.1, build x\n")
        commands.answer("dockerd --validate *", "configuration OK\n")
        commands.answer("systemctl show *", "LoadState=loaded\nActiveState=inactive\n")

    def toolkit(self, version: str) -> None:
        """Install the toolkit."""
        text = program("nvidia_ctk", version).replace("#!/usr/bin/python3", f"#!{sys.executable}", 1)
        for path in (self.commands.folder / "nvidia-ctk", self.root / "usr/bin/nvidia-ctk"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)

    def gpus(self, count: int, driver: str = "580.95.05") -> None:
        folder = self.root / "proc/driver/nvidia"
        for minor in range(count):
            place = folder / f"gpus/0000:{minor}b:00.0"
            place.mkdir(parents=True, exist_ok=True)
            (place / "information").write_text(f"GPU UUID: \t {UUID.format(minor)}\nDevice Minor: \t {minor}\n")
        (folder / "gpus").mkdir(parents=True, exist_ok=True)
        (folder / "version").write_text(
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
        )

    def file(self, settings: Any) -> None:
        path = self.root / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(settings if isinstance(settings, str) else json.dumps(settings))

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / FILE).read_text())
        return found


@pytest.fixture
def node(tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> Node:
    (tmp_path / "root").mkdir()
    return Node(tmp_path / "root", commands, monkeypatch)


def test_the_runtime_is_merged_into_what_is_there(node: Node, run_module: RunModule) -> None:
    """NVIDIA/nvidia-docker#504, #1346, #1448, #1575: the package overwrote daemon.json."""
    before = {"live-restore": True, "runtimes": {"crun": {"path": "/c"}}, "features": {"buildkit": True}}
    node.file(before)
    assert run_module(node.module, check=True)["changed"] and node.settings() == before
    result = run_module(node.module)
    assert result["actions"] == ["register the runtime nvidia with Docker, in /etc/docker/daemon.json"]
    assert node.settings() == {
        "live-restore": True,
        "runtimes": {"crun": {"path": "/c"}, "nvidia": {"args": [], "path": "nvidia-container-runtime"}},
        "features": {"buildkit": True, "cdi": True},
    }
    text = (node.root / FILE).read_text()
    assert not run_module(node.module)["changed"] and (node.root / FILE).read_text() == text


def test_the_default_runtime_is_set_only_when_asked(node: Node, run_module: RunModule) -> None:
    node.file({"default-runtime": "runc"})
    run_module(node.module)
    assert node.settings()["default-runtime"] == "runc"
    assert run_module(node.module, set_as_default=True)["changed"]
    assert node.settings()["default-runtime"] == "nvidia"
    assert not run_module(node.module, set_as_default=True)["changed"]


def test_without_docker_and_with_an_older_one(node: Node, run_module: RunModule) -> None:
    assert not run_module(node.module, docker=False)["changed"] and not (node.root / FILE).exists()
    node.commands.table = [entry for entry in node.commands.table if "--version" not in entry["line"]]
    node.commands.answer("dockerd --version", "Docker version 20.10.24+dfsg1, build 297e128\n")
    run_module(node.module)
    assert "features" not in node.settings()


@pytest.mark.parametrize("text", ['{"a": 1', '{"a": 1, "a": 2}', "[]"])
def test_a_file_that_is_not_valid_is_refused(node: Node, run_module: RunModule, text: str) -> None:
    node.file(text)
    result = run_module(node.module)
    assert result["failed"] and "was not altered" in result["msg"] and (node.root / FILE).read_text() == text


def test_a_runtime_that_is_a_flag_as_well(node: Node, run_module: RunModule) -> None:
    """NVIDIA/nvidia-docker#787: the engine does not start at the next boot."""
    place = "etc/systemd/system/docker.service.d/override.conf"
    (node.root / place).parent.mkdir(parents=True)
    (node.root / place).write_text("[Service]\nExecStart=\nExecStart=/usr/bin/dockerd --add-runtime=nvidia=/n\n")
    result = run_module(node.module)
    assert result["failed"] and f"runtimes (--add-runtime=nvidia=/n in /{place}, line 3)" in result["msg"]


def test_the_specification_is_made_and_kept_current(node: Node, run_module: RunModule) -> None:
    node.gpus(2)
    arguments = {"docker": False}
    assert run_module(node.module, check=True, **arguments)["changed"] and not (node.root / SPEC).exists()
    result = run_module(node.module, **arguments)
    assert result["actions"] == ["make /run/cdi/nvidia.yaml (there is none)"] and result["gpus"] == 2
    assert not run_module(node.module, **arguments)["changed"]
    # A driver upgrade, a GPU that is gone, a toolkit that makes other hooks.
    node.gpus(2, driver="580.105.08")
    assert "it is of 580.95.05, and 580.105.08 is loaded" in run_module(node.module, **arguments)["actions"][0]
    node.gpus(3, driver="580.105.08")
    assert "GPUs 0, 1, and the driver has 0, 1, 2" in run_module(node.module, **arguments)["actions"][0]
    os.utime(node.root / SPEC, (1, 1))
    assert "the toolkit was installed after it was made" in run_module(node.module, **arguments)["actions"][0]
    assert not run_module(node.module, **arguments)["changed"]


def test_a_node_without_a_gpu(node: Node, run_module: RunModule) -> None:
    result = run_module(node.module, docker=False)
    assert (result["changed"], result["gpus"], result["cdi_specification"]) == (False, 0, None)
    node.gpus(0)
    assert not run_module(node.module, docker=False)["changed"]


def test_a_driver_that_does_not_answer(node: Node, run_module: RunModule) -> None:
    node.gpus(1)
    node.monkeypatch.setenv("NVIDIA_STAND_IN_ROOT", "/nonexistent")
    result = run_module(node.module, docker=False)
    assert result["failed"] and "Driver Not Loaded" in result["msg"] and "nvidia-smi" in result["next_step"]
    assert not run_module(node.module, docker=False, gpus_demanded=False).get("failed")
    assert "cannot be made" in node.warnings[0]


def test_an_outdated_specification_that_nobody_keeps(node: Node, run_module: RunModule) -> None:
    node.gpus(1)
    run_module(node.module, docker=False)
    (node.root / "etc/cdi").mkdir(parents=True)
    (node.root / "etc/cdi/nvidia.yaml").write_text((node.root / SPEC).read_text())
    assert "gpufleet" not in run_module(node.module, docker=False)
    node.gpus(1, driver="580.105.08")
    attention = run_module(node.module, docker=False)["gpufleet"]["attention"]
    assert "/etc/cdi/nvidia.yaml is outdated" in attention[0]["reason"] and "remove it" in attention[0]["next_step"]


def test_links_without_which_a_daemon_reload_takes_gpus_away(node: Node, run_module: RunModule) -> None:
    """NVIDIA/nvidia-container-toolkit#48, #251, #1227."""
    node.monkeypatch.setattr(node.module, "nodes", lambda _root: NODES)
    links = node.root / "dev/char"
    links.mkdir(parents=True)
    (links / "195:255").symlink_to("/dev/nvidia-modeset")
    calls = []

    def ctk(_self: Any, *words: str) -> None:
        calls.append(words)
        for name, number in NODES.items():
            if not (links / number).is_symlink():
                (links / number).symlink_to(name)

    node.monkeypatch.setattr(node.module.ToolkitOnNode, "ctk", ctk)
    result = run_module(node.module, check=True, docker=False)
    assert result["changed"] and calls == []
    result = run_module(node.module, docker=False)
    assert result["actions"] == ["make the links below /dev/char (/dev/nvidia0, /dev/nvidiactl had none)"]
    assert calls == [("system", "create-dev-char-symlinks", "--create-all")]
    assert os.readlink(links / "195:255") == "/dev/nvidiactl"
    assert not run_module(node.module, docker=False)["changed"]
    # A toolkit that makes none.
    (links / "195:0").unlink()
    node.monkeypatch.setattr(node.module.ToolkitOnNode, "ctk", lambda _self, *_words: None)
    result = run_module(node.module, docker=False)
    assert result["failed"] and "daemon-reload would take these" in result["msg"] and "cgroupfs" in result["next_step"]


def test_without_the_toolkit(node: Node, run_module: RunModule) -> None:
    (node.commands.folder / "nvidia-ctk").unlink()
    node.monkeypatch.setenv("PATH", str(node.commands.folder))
    assert "there is no nvidia-ctk" in run_module(node.module)["msg"]
    result = run_module(node.module, check=True)
    assert result["actions"] == ["register the runtime nvidia with Docker"] and result["toolkit"] is None


def test_the_plan(node: Node, run_module: RunModule) -> None:
    module = load_module("container_toolkit_plan")
    versions = dict.fromkeys(PACKAGES, "1.18.2-1")
    node.monkeypatch.setattr(
        module, "read_states", lambda names, _run: {name: PackageState(versions[name], True) for name in names}
    )
    node.monkeypatch.setattr(module, "read_os_release", lambda: {"ID": "debian", "VERSION_ID": "12"})
    assert not run_module(module)["apt"]["upgrade"]
    assert run_module(module, version="1.18.2", downgrade_to="1.17.8")["failed"]
    asked = run_module(module, version="1.17.8", downgrade_to="1.17.8")["apt"]
    assert asked["upgrade"] and set(asked["downgrade"]) == set(PACKAGES)
    versions["libnvidia-container1"] = "1.17.8-1"
    result = run_module(module)
    assert result["failed"] and "libnvidia-container1 1.17.8" in result["msg"]
    assert run_module(module, supported_os=["debian 13"])["failed"]
