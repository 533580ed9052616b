# SPDX-License-Identifier: Apache-2.0
"""A second lab beside the session's, with two nodes: own ports, own keys, a network between the nodes."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.lab_directory import LabDirectory
from lab.ports import choose_port
from lab.process import ProcessId
from tests.integration.conftest import REPOSITORY, LabNode, run_lab

pytestmark = pytest.mark.lab


@pytest.fixture
def two_nodes(tmp_path: Path, lab_node: LabNode) -> Iterator[tuple[LabDirectory, dict[str, str]]]:
    """A lab of its own with two small nodes, whose first choice of port is taken by another program."""
    inventory = tmp_path / "inventory"
    (inventory / "group_vars" / "gpu_nodes").mkdir(parents=True)
    (inventory / "hosts.yml").write_text("gpu_nodes: {hosts: {lab-node-1: , lab-node-2: }}\n")
    for source in (REPOSITORY / "inventories/lab/group_vars/gpu_nodes").glob("*.yml"):
        (inventory / "group_vars" / "gpu_nodes" / source.name).write_text(source.read_text())
    shape = yaml.safe_load((REPOSITORY / "inventories/lab/group_vars/gpu_nodes/node_shape.yml").read_text())
    shape["lab_node_shape"].update(cores=2, numa_nodes_per_socket=1, memory_mib=1536, pci_paths=[])
    (inventory / "group_vars" / "gpu_nodes" / "node_shape.yml").write_text(yaml.safe_dump(shape))
    lab = LabDirectory(tmp_path / "lab")
    environment = {"GPUFLEET_LAB_DIR": str(lab.root)}
    with socket.socket() as other_program:
        other_program.bind(("127.0.0.1", choose_port(lab.root, ())))
        other_program.listen()
        try:
            run_lab("--inventory", str(inventory), "up", environment=environment)
            yield lab, environment
        finally:
            run_lab("down", environment=environment)


def test_two_nodes_beside_the_sessions_lab(two_nodes: tuple[LabDirectory, dict[str, str]], lab_node: LabNode) -> None:
    lab, environment = two_nodes
    one, two = LabNode("lab-node-1", environment), LabNode("lab-node-2", environment)
    assert one.run("hostname").strip() == "lab-node-1"
    assert two.run("hostname").strip() == "lab-node-2"
    assert one.run("cat /etc/machine-id") != two.run("cat /etc/machine-id")
    assert one.run("dmidecode -s system-serial-number") != two.run("dmidecode -s system-serial-number")

    # the network of their own, by name and in both directions
    one.wait_until("ping -c 2 -W 5 lab-node-2")
    two.wait_until("ping -c 2 -W 5 lab-node-1")

    # the session's lab has a node of the same name and noticed nothing
    assert lab_node.answers()
    assert lab_node.run("cat /etc/machine-id") != one.run("cat /etc/machine-id")
    ports = {node.status()["ssh_port"] for node in (one, two, lab_node)}
    assert len(ports) == 3

    # a supervisor that is killed takes its QEMU with it, and `down` still works
    state = two.status()
    supervisor = ProcessId.load(lab.node("lab-node-2").supervisor_pid)
    qemu = ProcessId(state["qemu_pid"], state["qemu_started"])
    assert supervisor is not None and qemu.alive()
    os.kill(supervisor.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while qemu.alive():
        assert time.monotonic() < deadline, "QEMU outlived its supervisor"
        time.sleep(0.1)
    assert two.status()["reason"] == "its supervisor is gone"

    run_lab("down", environment=environment)
    left = json.loads(run_lab("status", "--json", environment=environment).stdout)["nodes"]
    assert {node["power"] for node in left.values()} <= {"off", "failed"}
    assert not lab.sockets.exists()
    assert lab_node.answers()
