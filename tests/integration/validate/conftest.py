# SPDX-License-Identifier: Apache-2.0
"""playbooks/validate.yml for real, over local connections: each node replays a capture of its own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health.capture import write_capture
from ansible.module_utils.gpufleet.health.probe import ProbeResult
from ansible.module_utils.gpufleet.health.profile_proposal import profile_text, propose_profile
from ansible.module_utils.gpufleet.health.registry import CHECKS, PROBES

from tests.health_node import healthy_node, nvidia_smi
from tests.playbook import PlaybookRun, run_playbook

STATES = {
    "healthy": "550.163.01-h100-healthy",
    "remap": "550.163.01-h100-gpu3-remap-failure",
    "lost": "550.163.01-h100-gpu3-lost-handle",
}
# What the recorded node follows (clock.sources).
NTP_SERVER = "10.0.0.1"
# Nothing listens on the port "discard" of the loopback address.
DEAD = {"ansible_connection": "ssh", "ansible_host": "127.0.0.2", "ansible_port": 9}


class Fleet:
    """Captures, the profile of their healthy node, and an inventory of nodes that replay them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        healthy = healthy_node()
        for name, state in STATES.items():
            self.capture(name, {**healthy, **nvidia_smi(state)})
        # One node of the fleet was set up by another hand: the profile does not name the arguments of its kernel.
        kernel = healthy["platform.kernel"]
        other = kernel._replace(stdout=kernel.stdout.replace("iommu=pt", "iommu=pt mitigations=off"))
        self.capture("other", {**healthy, "platform.kernel": other})
        self.capture("empty", {})
        created, profile = propose_profile(str(folder / "healthy"), PROBES, CHECKS)
        # the one that the captured node follows
        profile["platform"]["clock"]["servers"] = [{"address": NTP_SERVER}]
        (folder / "profiles").mkdir()
        (folder / "profiles" / "proposed.yml").write_text(profile_text(profile, created))

    def capture(self, name: str, results: Mapping[str, ProbeResult]) -> None:
        """Write a capture that nodes can replay by its name."""
        write_capture(str(self.folder / name), results, PROBES, 1_796_000_000.0)

    def inventory(self, nodes: Mapping[str, Any]) -> Path:
        """An inventory: for each node the name of its capture, or variables of its own."""
        hosts = {
            node: {"validate_replay_from": str(self.folder / chosen)} if isinstance(chosen, str) else chosen
            for node, chosen in nodes.items()
        }
        variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "/usr/bin/python3",
            "node_profile": "proposed",
            "node_profile_dir": str(self.folder / "profiles"),
            "preflight_allow_local_connection": True,
        }
        path = self.folder / "inventory.json"
        path.write_text(json.dumps({"gpu_nodes": {"hosts": hosts, "vars": variables}}))
        return path


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


class Validation:
    """A run of the playbook and the summary that it printed."""

    def __init__(self, run: PlaybookRun) -> None:
        self.code, self.output, self.report = run.code, run.output, run.report
        self.summary = run.output[run.output.rindex("Summary of ") :] if "Summary of " in run.output else ""

    def health(self, node: str) -> dict[str, Any]:
        health: dict[str, Any] = self.report["hosts"][node]["facts"]["health"]
        return health

    def verdicts(self) -> dict[str, str]:
        return {node: self.health(node)["verdict"] for node in self.report["hosts"]}


@pytest.fixture
def validate(fleet: Fleet, tmp_path: Path) -> Any:
    """validate(nodes, *options) -> Validation."""

    def run(nodes: Mapping[str, Any], *options: str) -> Validation:
        inventory = fleet.inventory(nodes)
        return Validation(run_playbook("playbooks/validate.yml", tmp_path, "-i", str(inventory), *options))

    return run
