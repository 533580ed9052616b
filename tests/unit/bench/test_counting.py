# SPDX-License-Identifier: Apache-2.0
"""What the bench makes of reports, budgets and inventories."""

import pytest

from bench import host_tasks
from bench.plugins.connection import replay

BUDGET = {"host_tasks": {"per_role": 8, "per_playbook": {"site.yml": 80}}}


def measured(total: int, roles: dict[str, int], playbook: str = "site.yml") -> host_tasks.Measurement:
    return host_tasks.Measurement(playbook, "node", host_tasks=total, host_tasks_by_role=roles)


def test_the_budget_itself_is_allowed() -> None:
    assert host_tasks.over_budget(measured(80, {"time_sync": 8, "": 30}), BUDGET) == []


@pytest.mark.parametrize(
    ("measurement", "line"),
    [
        (measured(20, {"time_sync": 9}), "role time_sync: 9 host-tasks, 8 allowed"),
        (measured(81, {"": 81}), "site.yml: 81 host-tasks, 80 allowed"),
    ],
)
def test_one_too_many_is_named(measurement: host_tasks.Measurement, line: str) -> None:
    assert host_tasks.over_budget(measurement, BUDGET) == [line]


def test_a_playbook_without_a_limit_has_only_the_roles_limits() -> None:
    assert host_tasks.over_budget(measured(500, {"": 500}, "other.yml"), BUDGET) == []


def test_counts_are_the_nodes_and_the_controllers_are_apart() -> None:
    report = {
        "controller": {"host_tasks": 2},
        "hosts": {"node": {"host_tasks": 7, "host_tasks_by_role": {"time_sync": 5, "": 2}}},
    }
    measurement = measured(0, {})
    host_tasks.count(report, "node", measurement)
    assert measurement.host_tasks == 7
    assert measurement.host_tasks_by_role == {"": 2, "time_sync": 5}
    assert measurement.controller_host_tasks == 2


def test_a_node_missing_in_the_report_is_no_zero() -> None:
    with pytest.raises(host_tasks.BenchError, match="nothing on node"):
        host_tasks.count({"hosts": {}, "controller": None}, "node", measured(0, {}))


def test_nodes_of_groups_below_are_found_once() -> None:
    listing = {
        "gpu_nodes": {"children": ["rack1", "rack2"]},
        "rack1": {"hosts": ["a", "b"]},
        "rack2": {"hosts": ["b", "c"]},
    }
    assert host_tasks.nodes_of(listing) == ["a", "b", "c"]


def test_no_two_simulated_hosts_share_an_address() -> None:
    variables = {
        "ansible_host": "192.0.2.1",
        "bmc_address": "192.0.2.2",
        "node_profile": "lab",
        "profile": "{{ made by the vars plugin }}",
        "number": 5,
    }
    group = host_tasks.simulated_inventory(variables, 300, "/real")["gpu_nodes"]
    assert group["vars"] == {"node_profile": "lab", "number": 5, "ansible_connection": "replay"}
    addresses = [address for host in group["hosts"].values() for address in host.values()]
    assert len(addresses) == len(set(addresses)) == 600
    assert set(group["hosts"]["node-0001"]) == {"ansible_host", "bmc_address"}


def test_expressions_still_mean_the_real_inventorys_folder() -> None:
    variables = {"lab": {"key": ["{{ inventory_dir ~ '/key' }}", "inventory_dir is a word", "{{ my_inventory_dir }}"]}}
    group = host_tasks.simulated_inventory(variables, 1, "/real")["gpu_nodes"]
    assert group["vars"]["lab"] == {
        "key": ["{{ '/real' ~ '/key' }}", "inventory_dir is a word", "{{ my_inventory_dir }}"]
    }


def test_a_replayed_clock_goes_on() -> None:
    """Otherwise time_sync would find every simulated node's clock wrong, and run more than the real node did."""
    assert replay.moved_on(b"x\ngpufleet-clock=100.250000000\nID=debian", 60.5) == (
        b"x\ngpufleet-clock=160.750000000\nID=debian"
    )
    assert replay.moved_on(b"no clock", 5.0) == b"no clock"
