# SPDX-License-Identifier: Apache-2.0
"""Which nodes the lab has and what shape each is: read from an Ansible inventory by Ansible's own code."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.shape import NodeShape, merge, parse_shape

REPOSITORY = Path(__file__).resolve().parents[1]
DEFAULT_INVENTORY = REPOSITORY / "inventories" / "lab"
GROUP = "gpu_nodes"


@dataclass(frozen=True)
class InventoryNode:
    """A host of the group gpu_nodes."""

    name: str
    shape: NodeShape


def read_inventory(inventory: Path = DEFAULT_INVENTORY) -> list[InventoryNode]:
    """The nodes of the lab, in the inventory's order. Raises LabError when the inventory is unusable."""
    if not inventory.exists():
        raise LabError(f"there is no inventory {inventory}")
    # The lab needs plain host and group variables; the project's own plugins must not be able to stop it.
    os.environ["ANSIBLE_VARS_ENABLED"] = "host_group_vars"
    os.environ.setdefault("ANSIBLE_CONFIG", str(REPOSITORY / "ansible.cfg"))
    from ansible.errors import AnsibleError
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.vars.manager import VariableManager

    try:
        loader = DataLoader()
        manager = InventoryManager(loader=loader, sources=[str(inventory)])
        variables = VariableManager(loader=loader, inventory=manager)
        hosts = manager.get_hosts(GROUP)
        found = [(host.name, variables.get_vars(host=host)) for host in hosts]
    except AnsibleError as error:
        raise LabError(f"the inventory {inventory} cannot be read: {error}") from error
    if not found:
        raise LabError(f"the inventory {inventory} has no host in the group {GROUP}")
    nodes = []
    for index, (name, values) in enumerate(found):
        if "lab_node_shape" not in values:
            raise LabError(f"{inventory}: {name} has no variable lab_node_shape")
        data: Any = merge(_plain(values["lab_node_shape"]), _plain(values.get("lab_node_shape_overrides", {})))
        nodes.append(InventoryNode(name, parse_shape(data, f"LAB{index + 1:04d}", f"{name}: lab_node_shape")))
    return nodes


def _plain(value: Any) -> Any:
    """Ansible's tagged values as ordinary ones."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
