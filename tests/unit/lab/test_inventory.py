# SPDX-License-Identifier: Apache-2.0
"""Nodes and their shapes come from a real inventory, group and host variables included."""

from pathlib import Path

import pytest

from lab.errors import LabError
from lab.inventory import read_inventory

SHAPE = """\
lab_node_shape:
  sockets: 2
  numa_nodes_per_socket: 1
  cores: 4
  memory_mib: 2048
  smbios: {manufacturer: Dell Inc., product: PowerEdge XE9680}
  data_disks: [{serial: DATA0001, size_mib: 64}]
  pci_paths: []
"""


def inventory(root: Path, hosts: str, **files: str) -> Path:
    (root / "hosts.yml").write_text(hosts)
    for name, text in {"group_vars/gpu_nodes.yml": SHAPE, **files}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_repositorys_own_lab() -> None:
    nodes = read_inventory()
    assert [node.name for node in nodes] == ["lab-node-1"]
    assert nodes[0].shape.product == "PowerEdge XE9680"
    assert len(nodes[0].shape.data_disks) == 5


def test_two_nodes_of_which_one_differs(tmp_path: Path) -> None:
    files = {"host_vars/b.yml": "lab_node_shape_overrides: {numa_nodes_per_socket: 2, smbios: {service_tag: OTHER}}\n"}
    nodes = read_inventory(inventory(tmp_path, "gpu_nodes: {hosts: {a: , b: }}\n", **files))
    assert [(node.name, node.shape.numa_nodes, node.shape.service_tag) for node in nodes] == [
        ("a", 2, "LAB0001"),
        ("b", 4, "OTHER"),
    ]


def test_a_wrong_override_names_the_host(tmp_path: Path) -> None:
    files = {"host_vars/a.yml": "lab_node_shape_overrides: {numa_node_per_socket: 2}\n"}
    with pytest.raises(LabError, match=r"a: lab_node_shape.numa_node_per_socket is unknown; did you mean numa_nodes"):
        read_inventory(inventory(tmp_path, "gpu_nodes: {hosts: {a: }}\n", **files))


def test_an_inventory_without_nodes(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="has no host in the group gpu_nodes"):
        read_inventory(inventory(tmp_path, "others: {hosts: {a: }}\n"))


def test_an_inventory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="there is no inventory"):
        read_inventory(tmp_path / "nothing")


def test_a_host_without_a_shape(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("gpu_nodes: {hosts: {a: }}\n")
    with pytest.raises(LabError, match="a has no variable lab_node_shape"):
        read_inventory(tmp_path)
