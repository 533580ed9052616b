# SPDX-License-Identifier: Apache-2.0
"""Which nodes a play is for: all that it matches under --limit, and its batches.

Events name only nodes that did something, so a node that was never reached would be missing
from a report made of events. Ansible's own objects (Play, InventoryManager) are asked instead.
"""

from __future__ import annotations

import re
from typing import Any

from ansible.utils.helpers import pct_to_int

from .screen_text import clean_text


def _inventory(play: Any) -> Any:
    return play.get_variable_manager()._inventory


def nodes_of_play(play: Any) -> list[str]:
    """All nodes the play matches under --limit, in the play's order, in whatever batch.

    The implicit localhost (not in the inventory) is not a node.
    """
    order = None if play.order == "shuffle" else play.order
    hosts = _inventory(play).get_hosts(play.hosts, ignore_restrictions=True, order=order)
    return [host.name for host in hosts if not host.implicit]


def nodes_of_batch(play: Any) -> list[str]:
    """The nodes of the batch that is about to start (Ansible restricts the inventory to it)."""
    return [host.name for host in _inventory(play).get_hosts(play.hosts) if not host.implicit]


def hosts_in_batch(play: Any) -> list[str]:
    """All hosts of the batch, the implicit localhost too: those whose results the screen counts."""
    return [host.name for host in _inventory(play).get_hosts(play.hosts)]


def nodes_of_unstarted_play(play: Any) -> list[str]:
    """Nodes of a play that the run never came to; [] where its pattern cannot be known.

    Its hosts may be a template or a group that an earlier play makes: then there is no answer, and
    none is guessed.
    """
    patterns = play.hosts if isinstance(play.hosts, list) else [play.hosts]
    inventory = _inventory(play)
    for pattern in patterns:
        if not isinstance(pattern, str) or "{{" in pattern:
            return []
        for part in re.split(r"[:,]", pattern):
            name = part.lstrip("!&")
            plain = re.fullmatch(r"[\w.-]+", name)
            # get_hosts warns on screen about a name it does not know
            if plain and name not in inventory.groups and name not in inventory.hosts and name != "all":
                return []
    return nodes_of_play(play)


def batch_sizes(serial: list[Any], nodes: int) -> list[int]:
    """Sizes of the batches that ``serial`` makes of this number of nodes (as PlaybookExecutor does it)."""
    steps = serial or [-1]
    sizes: list[int] = []
    left = nodes
    while left > 0:
        size = pct_to_int(steps[min(len(sizes), len(steps) - 1)], nodes)
        if size <= 0:
            sizes.append(left)
            break
        sizes.append(min(size, left))
        left -= size
    return sizes


def play_name(play: Any) -> str:
    """The play's name, cleaned; its hosts where it has none."""
    return clean_text(play.get_name()).strip() or clean_text(play.hosts)


def role_name(task: Any) -> str:
    """Name of the role the task is in, '' for a task of a play."""
    role = getattr(task, "_role", None)
    return clean_text(role.get_name()) if role else ""


def task_name(task: Any) -> str:
    """Name of the task without its role; the action where it has none."""
    return first(clean_text(task.name or "")) or clean_text(task.action)


def first(text: str) -> str:
    """A name on one line."""
    return " ".join(text.split())
