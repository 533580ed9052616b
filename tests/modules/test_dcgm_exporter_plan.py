# SPDX-License-Identifier: Apache-2.0
"""dcgm_exporter_plan: what is refused before the exporter is touched, and which version a node gets."""

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.listening_port import Listener

from tests.modules.conftest import Commands, RunModule, load_module

METRICS = [
    {"field": "DCGM_FI_DEV_GPU_TEMP", "type": "gauge", "help": "Temperature (in C)."},
    {"field": "DCGM_EXP_XID_ERRORS_COUNT", "type": "gauge", "help": "Xids"},
]
WANTED = {"run_as": "service", "metrics": METRICS, "host_engine": "localhost:5555", "port": 9400}
IMAGE = "nvcr.io/nvidia/k8s/dcgm-exporter:4.5.3-4.8.2-ubuntu22.04"
CONTAINER = {**WANTED, "run_as": "container", "image": IMAGE}


class Node:
    """A node with DCGM 4.5.3; packages, offers and listeners are what a test says."""

    def __init__(self, tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commands, self.monkeypatch = commands, monkeypatch
        self.module: Any = load_module("dcgm_exporter_plan")
        self.program = tmp_path / "dcgm-exporter"
        self.set(
            PROGRAM=str(self.program),
            read_os_release=lambda: {"ID": "debian", "VERSION_ID": "12"},
            gpus_on_bus=lambda: ["0000:19:00.0"],
            find_listeners=lambda _port: [],
        )
        self.installed({"datacenter-gpu-manager-4-core": "1:4.5.3-1"})
        self.offers("4.8.2-1", "4.7.0-1")

    def set(self, **values: Any) -> None:
        for name, value in values.items():
            self.monkeypatch.setattr(self.module, name, value)

    def installed(self, packages: dict[str, str]) -> None:
        self.set(installed_packages=lambda: packages)

    def offers(self, *versions: str) -> None:
        rows = "".join(f"     {version} 500\n        500 file:/srv ./ Packages\n" for version in versions)
        text = f"datacenter-gpu-manager-exporter:\n  Installed: (none)\n  Candidate: x\n  Version table:\n{rows}"
        self.commands.table = [entry for entry in self.commands.table if "apt-cache" not in entry["line"]]
        self.commands.answer("apt-cache policy *", text if versions else "")


@pytest.fixture
def node(tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, commands, monkeypatch)


def chosen(result: dict[str, Any]) -> dict[str, str]:
    assert not result.get("failed"), result
    (package,) = result["apt"]["packages"]
    found: dict[str, str] = package
    return found


@pytest.mark.parametrize("check", [False, True])
def test_the_newest_that_goes_with_the_dcgm(node: Node, run_module: RunModule, check: bool) -> None:
    name = "datacenter-gpu-manager-exporter"
    assert chosen(run_module(node.module, check=check, **WANTED)) == {"name": name, "upstream": "4.8.2"}
    node.installed({"datacenter-gpu-manager-4-core": "1:4.4.2-1"})
    assert chosen(run_module(node.module, check=check, **WANTED)) == {"name": name, "upstream": "4.7.0"}


def test_what_is_installed_stays_without_a_version_and_moves_with_an_upgrade(node: Node, run_module: RunModule) -> None:
    installed = {"datacenter-gpu-manager-4-core": "1:4.5.3-1", "datacenter-gpu-manager-exporter": "4.7.0-1"}
    node.installed(installed)
    assert chosen(run_module(node.module, **WANTED))["upstream"] == "4.7.0"
    result = run_module(node.module, upgrade=True, **WANTED)
    assert chosen(result)["upstream"] == "4.8.2" and result["apt"]["upgrade"] is True


@pytest.mark.parametrize("check", [False, True])
def test_a_pair_that_does_not_go_together_is_refused_before_it_is_installed(
    node: Node, run_module: RunModule, check: bool
) -> None:
    node.installed({"datacenter-gpu-manager-4-core": "1:4.4.2-1"})
    result = run_module(node.module, check=check, version="4.8.2", **WANTED)
    assert result["failed"] and "built for DCGM 4.5.3, and the node has the older 4.4.2" in result["msg"], result
    assert "Nothing was changed" in result["msg"] and "such as exporter 4.7.0" in result["next_step"]
    node.offers("4.8.2-1")
    result = run_module(node.module, check=check, **WANTED)
    assert result["failed"] and "do not go together" in result["msg"], "nothing that is offered fits"


def test_dcgm_of_the_generation_before_or_none_is_refused(node: Node, run_module: RunModule) -> None:
    node.installed({"datacenter-gpu-manager": "1:3.3.9"})
    result = run_module(node.module, version="4.8.2", **WANTED)
    assert result["failed"] and "which has DCGM 1:3.3.9" in result["msg"] and "role dcgm" in result["next_step"]
    node.installed({})
    assert run_module(node.module, **WANTED)["failed"]
    # A dry run on a fresh node: DCGM would be there by now.
    assert chosen(run_module(node.module, check=True, **WANTED)) == {"name": "datacenter-gpu-manager-exporter"}


def test_the_image_says_its_pair(node: Node, run_module: RunModule) -> None:
    result = run_module(node.module, **CONTAINER)
    assert result["apt"] is None and "gpufleet" not in result, result
    node.installed({"datacenter-gpu-manager-4-core": "1:4.4.2-1"})
    result = run_module(node.module, **CONTAINER)
    assert result["failed"] and "packages.dcgm_exporter.image" in result["next_step"]
    assert not run_module(node.module, **{**CONTAINER, "host_engine": ""}).get("failed"), "it brings its own DCGM"
    result = run_module(node.module, **{**CONTAINER, "image": "mirror/dcgm-exporter@sha256:" + "0" * 64})
    (line,) = result["gpufleet"]["attention"]
    assert "does not say its versions" in line["reason"]
    assert run_module(node.module, **{**CONTAINER, "image": None})["failed"]


def test_a_port_of_another_program_is_refused_by_name_and_the_exporters_own_is_not(
    node: Node, run_module: RunModule
) -> None:
    node.set(find_listeners=lambda _port: [Listener(42, "python3", 0)])
    node.commands.answer("systemctl show *", "MainPID=77\nActiveState=active\n")
    result = run_module(node.module, **WANTED)
    assert result["failed"] and "port 9400 is in use by python3 (pid 42). Nothing was changed" in result["msg"]
    assert "dcgm_exporter_port" in result["next_step"]
    for listener in (Listener(77, "anything", 0), Listener(99, "dcgm-exporter", 0)):
        node.set(find_listeners=lambda _port, own=listener: [own])
        assert not run_module(node.module, **WANTED).get("failed")
    # A second one, while ours does not run.
    node.commands.table.clear()
    node.offers("4.8.2-1")
    node.commands.answer("systemctl show *", "MainPID=0\nActiveState=inactive\n")
    assert "dcgm-exporter (pid 99)" in run_module(node.module, **WANTED)["msg"]


def test_metrics_that_the_installed_exporter_does_not_know_are_named(node: Node, run_module: RunModule) -> None:
    node.program.write_bytes(b"\0DCGM_FI_DEV_GPU_TEMPDCGM_FI_DEV_GPU_UTIL\0DCGM_EXP_XID_ERRORS_COUNT")
    node.installed({"datacenter-gpu-manager-4-core": "1:4.5.3-1", "datacenter-gpu-manager-exporter": "4.8.2-1"})
    assert not run_module(node.module, **WANTED).get("failed")
    wrong = {"field": "DCGM_FI_DEV_GPU_TEMPP", "type": "gauge", "help": "x"}
    result = run_module(node.module, **{**WANTED, "metrics": [*METRICS, wrong]})
    assert result["failed"], result
    assert "4.8.2 does not know DCGM_FI_DEV_GPU_TEMPP (did you mean DCGM_FI_DEV_GPU_TEMP?)" in result["msg"]
    assert "was not touched" in result["msg"]
    # Another version is to come: its names are not known yet.
    assert not run_module(node.module, **{**WANTED, "metrics": [wrong]}, version="4.8.1").get("failed")


def test_faults_of_the_list_are_refused_and_the_file_is_made(node: Node, run_module: RunModule) -> None:
    result = run_module(node.module, **{**WANTED, "metrics": []})
    assert result["failed"] and "the list is empty" in result["msg"]
    profiling = [{"field": "DCGM_FI_PROF_SM_ACTIVE", "type": "gauge", "help": "x"}]
    result = run_module(node.module, **{**WANTED, "metrics": profiling})
    assert result["failed"] and "profiling_metrics of the profile is false" in result["msg"]
    result = run_module(node.module, **{**WANTED, "metrics": profiling}, profiling=True)
    assert result["csv"].endswith('DCGM_FI_PROF_SM_ACTIVE,gauge,"x"\n') and result["gpus"] == ["0000:19:00.0"]


def test_a_downgrade_needs_the_version_of_the_profile(node: Node, run_module: RunModule) -> None:
    result = run_module(node.module, version="4.8.2", downgrade_to="4.7.0", **WANTED)
    assert result["failed"] and "dcgm_exporter_downgrade_to" in result["next_step"]
    assert run_module(node.module, version="4.7.0", downgrade_to="4.7.0", **WANTED)["apt"]["downgrade"]
    assert "debian 12 is not supported" in run_module(node.module, supported_os=["debian 13"], **WANTED)["msg"]
