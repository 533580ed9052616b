# SPDX-License-Identifier: Apache-2.0
"""Nodes compared with each other: what most have is right, and where nothing has a majority all are named."""

import time
from typing import Any

import pytest
from ansible.module_utils.gpufleet_controller.fleet_comparison import MAX_VALUES, differences


def fleet(*values: str | None, kind: str = "h100", name: str = "NVIDIA driver") -> dict[str, dict[str, Any]]:
    """Nodes n0, n1, ... with one value each; None for a node that has none."""
    return {
        f"{kind}-{number}": {"kind": kind, "values": {} if value is None else {name: value}}
        for number, value in enumerate(values)
    }


def reasons(nodes: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    return {node: [note["reason"] for note in notes] for node, notes in differences(nodes).items()}


def test_equal_nodes_need_nobody() -> None:
    assert differences(fleet("535", "535", "535")) == {}
    assert differences({}) == {}
    assert differences(fleet("535")) == {}


def test_who_differs_from_the_majority_is_named_with_both_values() -> None:
    assert reasons(fleet("535", "535", "550", "535")) == {
        "h100-2": ["differs from the other nodes: NVIDIA driver is 550; 3 of 4 nodes have 535"]
    }
    (note,) = differences(fleet("535", "535", "550"))["h100-2"]
    assert note["severity"] == "warn"
    assert "profile" in note["next_step"]


@pytest.mark.parametrize("values", [("535", "550"), ("535", "550", "535", "550"), ("535", "550", "560")])
def test_without_a_majority_all_are_named(values: tuple[str, ...]) -> None:
    found = reasons(fleet(*values))
    assert len(found) == len(values)
    assert len({reason for (reason,) in found.values()}) == 1, "one reason, so that the summary has one entry"
    assert "no value has a majority" in found["h100-0"][0]
    assert all(f"{value} ({values.count(value)})" in found["h100-0"][0] for value in set(values))


def test_just_half_is_no_majority() -> None:
    assert len(reasons(fleet("535", "535", "550", "560"))) == 4


def test_a_node_without_a_value_is_not_compared() -> None:
    assert reasons(fleet("535", None, None, "535")) == {}
    assert list(reasons(fleet("535", None, "550", "535"))) == ["h100-2"]


def test_kinds_are_compared_apart() -> None:
    assert differences({**fleet("535", "535"), **fleet("550", "550", kind="a100")}) == {}


def test_a_node_may_differ_in_several_values() -> None:
    nodes = fleet("535", "535", "550")
    for number, kernel in enumerate(("6.8", "6.8", "5.15")):
        nodes[f"h100-{number}"]["values"]["kernel"] = kernel
    assert len(reasons(nodes)["h100-2"]) == 2


def test_long_and_many_values_are_cut() -> None:
    (reason,) = reasons(fleet(*(f"{number}{'x' * 500}" for number in range(20))))["h100-0"]
    assert f"and {20 - MAX_VALUES} more" in reason
    assert len(reason) < 600


def test_a_whole_fleet_takes_no_time() -> None:
    nodes = {
        f"gpu-{number:03d}": {"kind": "h100", "values": {f"value {key}": str(key) for key in range(60)}}
        for number in range(511)
    }
    nodes["gpu-007"]["values"]["value 3"] = "another"
    began = time.process_time()
    assert list(differences(nodes)) == ["gpu-007"]
    assert time.process_time() - began < 1
