# SPDX-License-Identifier: Apache-2.0
"""Batches under two caps, always the same ones; who comes first; what a person reads."""

from collections import Counter

import pytest
from ansible.module_utils.gpufleet_controller.campaign_plan import (
    ROLES,
    Caps,
    Plan,
    groups_of_nodes,
    in_order,
    make_batches,
    plan_lines,
    roles_of,
)

NODES = [f"gpu-{number:03d}" for number in range(1, 512)]
GROUPS = {node: f"leaf_group_{index // 32 + 1:02d}" for index, node in enumerate(NODES)}


@pytest.mark.parametrize(
    "caps", [Caps(1, 32, 32), Caps(0, 32, 32), Caps(3, 32, 8), Caps(1, 32, 1), Caps(1, 1, 1), Caps(1, 600, 600)]
)
def test_every_node_once_and_never_more_than_the_caps(caps: Caps) -> None:
    batches = make_batches(NODES, GROUPS, caps)
    assert sorted(node for batch in batches for node in batch) == NODES
    assert make_batches(NODES, GROUPS, caps) == batches
    for number, batch in enumerate(batches):
        assert 0 < len(batch) <= (caps.canary if caps.canary and number == 0 else caps.batch)
        assert max(Counter(GROUPS[node] for node in batch).values()) <= caps.group


def test_group_by_group_or_spread() -> None:
    whole = make_batches(NODES, GROUPS, Caps(0, 32, 32))
    assert len(whole) == 16 and all(len({GROUPS[node] for node in batch}) == 1 for batch in whole)
    after_a_canary = make_batches(NODES, GROUPS, Caps(1, 32, 32))
    assert [len(batch) for batch in after_a_canary] == [1, 31, *[32] * 14, 31]
    uneven = make_batches(NODES, GROUPS, Caps(0, 32, 10))
    assert list(Counter(GROUPS[node] for node in uneven[0]).values()) == [10, 10, 10, 2]
    spread = make_batches(NODES, GROUPS, Caps(0, 32, 8))
    assert Counter(GROUPS[node] for node in spread[0]) == {f"leaf_group_{number:02d}": 8 for number in (1, 2, 3, 4)}


def test_who_was_begun_comes_first_then_the_inventory() -> None:
    groups = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
    assert in_order(["a1", "b1", "a2", "b2"], groups, []) == ["a1", "a2", "b1", "b2"]
    assert in_order(["a1", "b1", "a2", "b2"], groups, ["b2"]) == ["b2", "a1", "a2", "b1"]


def test_a_node_is_in_exactly_one_group() -> None:
    groups = {"all": ["x", "y", "z"], "rack_1": ["x", "y"], "rack_2": ["y"], "row_1": ["x"]}
    found, wrong = groups_of_nodes("rack_*", groups, ["x", "y", "z"])
    assert found == {"x": "rack_1"} and wrong == {"y": ["rack_1", "rack_2"], "z": []}
    # a pattern is no regular expression
    assert groups_of_nodes("rack_.", groups, ["x"])[1] == {"x": []}


def test_roles_in_the_order_of_their_dependence() -> None:
    assert roles_of(["exporter", "driver", "rdma"]) == [
        "rdma_stack",
        "nvidia_driver",
        "nvidia_peermem",
        "dcgm_exporter",
    ]
    assert roles_of(ROLES) == [
        "rdma_stack", "nvidia_driver", "nvidia_peermem", "docker", "nvidia_container_toolkit", "dcgm", "dcgm_exporter"
    ]  # fmt: skip


def test_what_a_person_reads() -> None:
    plan = Plan("20261130T194500Z-driver", ["driver"], roles_of(["driver"]), groups=GROUPS)
    plan.batches = make_batches(NODES[:40], GROUPS, Caps(1, 32, 32))
    plan.versions = {node: {"driver": ["550.1", "580.2"]} for node in NODES[:39]} | {
        NODES[39]: {"driver": ["580.2", "580.2"]}
    }
    plan.left, plan.right, plan.begun = {NODES[40]: "bad fan"}, NODES[41:], [NODES[39]]
    text = "\n".join(plan_lines(plan, Caps(1, 32, 32), "slurm"))
    for line in (
        "driver 550.1 -> 580.2                          39  gpu-[001-039]",
        "begun by an earlier run, come first             1  gpu-040",
        "drained by somebody else, left alone            1  gpu-041",
        "canary        1  gpu-001",
        "batch 2      31  gpu-[002-032]                                       31 of leaf_group_01",
        "batch 3       8  gpu-[033-040]                                       8 of leaf_group_02",
    ):
        assert line in text, text
    nothing = Plan("20261130T194500Z-driver", ["driver"], [], right=NODES)
    assert plan_lines(nothing, Caps(1, 32, 32), "slurm")[0] == "Nothing to do: driver; drain: slurm"
