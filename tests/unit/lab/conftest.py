# SPDX-License-Identifier: Apache-2.0
"""What the lab's unit tests share: a shape as the inventory gives it, and a node made from it."""

from pathlib import Path
from typing import Any

import pytest

from lab.node import NodeDefinition, NodeFiles, PeerNetwork
from lab.shape import parse_shape


@pytest.fixture
def shape_data() -> dict[str, Any]:
    """A small but complete shape; tests change single values."""
    return {
        "sockets": 2,
        "numa_nodes_per_socket": 2,
        "cores": 8,
        "memory_mib": 2048,
        "smbios": {"manufacturer": "Dell Inc.", "product": "PowerEdge XE9680"},
        "clock_offset": 0,
        "data_disks": [{"serial": "DATA0001", "size_mib": 64}, {"serial": "DATA0002", "size_mib": 64}],
        "spare_disks": [{"serial": "SPARE0001", "size_mib": 32}],
        "pci_paths": [{"name": "rail-1", "below": "root_ports"}, {"name": "rail-2", "below": "switch"}],
        "bridges_outside_paths": 1,
    }


@pytest.fixture
def node(shape_data: dict[str, Any]) -> NodeDefinition:
    """A node with a network to a second one."""
    return NodeDefinition(
        "lab-node-1", 1, 20022, "/cache/node.raw", "tcg", "11111111-2222-3333-4444-555555555555",
        parse_shape(shape_data, "LAB0001"), PeerNetwork(20099, "10.77.0.1"),
    )  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    """Paths in an empty lab."""
    return NodeFiles(tmp_path / "nodes" / "lab-node-1", tmp_path / "s")
