# SPDX-License-Identifier: Apache-2.0
"""Preflight's checks of groups, host names and addresses."""

from typing import Any

import pytest
from ansible.module_utils.gpufleet_controller.preflight_findings import Findings
from ansible.module_utils.gpufleet_controller.preflight_inventory import (
    address_findings,
    group_findings,
    host_addresses,
    host_findings,
    host_networks,
)


def judge(hosts: dict[str, dict[str, Any]]) -> list[str]:
    """All findings about the addresses of an inventory, each as one line."""
    findings = Findings()
    addresses, networks = [], {}
    for host, values in hosts.items():
        own, wrong = host_addresses(host, values)
        addresses += own
        findings.extend(wrong, host)
        networks.update(host_networks(values, networks))
    address_findings(addresses, networks, findings)
    return [f"{item['where']}: {item['found']} {item['hosts']}" for item in findings.as_data()]


def test_group_must_exist_and_hold_hosts() -> None:
    assert group_findings({"gpu_nodes": ["a"]}) == []
    assert group_findings({"all": [], "gpu_nodes": []})[0].found == "the group is empty"
    (finding,) = group_findings({"all": ["a"], "gpu_node": ["a"]})
    assert finding.found == "no such group (there are: gpu_node); did you mean 'gpu_node'?"


@pytest.mark.parametrize("name", ["gpu-001", "GPU1", "gpu-1.rack-2.example.com", "1", "a" * 63])
def test_valid_host_name(name: str) -> None:
    assert host_findings(name, {}) == []


@pytest.mark.parametrize(
    "name", ["gpu_1", "-gpu", "gpu-", "gpu 1", "gpu..x", "a" * 64, ".".join(["a" * 60] * 5), "gpü"]
)
def test_invalid_host_name(name: str) -> None:
    (finding,) = host_findings(name, {})
    assert finding.found == "not a valid host name"


def test_local_connection_is_refused_unless_allowed() -> None:
    (finding,) = host_findings("a", {"ansible_connection": "local"})
    assert "reboot, the controller" in finding.found
    assert host_findings("a", {"ansible_connection": "local", "preflight_allow_local_connection": True}) == []
    # A string is no permission (and is refused by its type elsewhere).
    assert host_findings("a", {"ansible_connection": "local", "preflight_allow_local_connection": "no"})


GOOD = [
    {"a": {}, "b": {}},
    {"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.2"}},
    # the lab: one address, ports of their own
    {
        "a": {"ansible_host": "127.0.0.1", "ansible_port": 2201},
        "b": {"ansible_host": "127.0.0.1", "ansible_port": 2202},
    },
    {"a": {"ansible_host": "10.0.0.1", "ansible_port": 1}, "b": {"ansible_host": "10.0.0.1", "ansible_port": "2"}},
    # doubles of BMCs on loopback
    {"a": {"ansible_host": "127.0.0.1", "ansible_port": 22, "bmc_address": "127.0.0.1", "bmc_port": 8001}},
    {"a": {"ansible_connection": "local"}, "b": {"ansible_connection": "local"}},
    {"a": {"ansible_host": "alias_1"}, "b": {"ansible_host": "fe80::1"}, "c": {"bmc_address": "bmc-c.example.com"}},
    {
        "a": {
            "ansible_host": "10.0.0.1",
            "host_network": "10.0.0.0/24",
            "bmc_address": "10.1.0.1",
            "bmc_network": "10.1.0.0/24",
            "fabric_addresses": {"ipoib": "10.2.0.1"},
            "fabric_networks": {"ipoib": "10.2.0.0/24", "unused": "10.3.0.0/24"},
        }
    },
    # two sites with networks of their own
    {"a": {"host_network": "10.0.0.0/24"}, "b": {"host_network": "10.0.1.0/24"}},
]


@pytest.mark.parametrize("hosts", GOOD, ids=str)
def test_good_addresses(hosts: dict[str, dict[str, Any]]) -> None:
    assert judge(hosts) == []


BAD: list[tuple[dict[str, dict[str, Any]], str]] = [
    (
        {"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.1"}},
        "address 10.0.0.1: it is used 2 times: host address of a, b []",
    ),
    (
        {"a": {"ansible_host": "10.0.0.1"}, "b": {"bmc_address": "10.0.0.1"}},
        "address 10.0.0.1: it is used 2 times: host address of a; bmc_address of b []",
    ),
    (
        {"a": {"ansible_host": "10.0.0.1", "bmc_address": "10.0.0.1"}},
        "address 10.0.0.1: it is used 2 times: host address of a; bmc_address of a []",
    ),
    ({"a": {"bmc_address": "fd00::1"}, "b": {"bmc_address": "fd00:0::01"}}, "address fd00::1: it is used 2 times: "),
    ({"a": {"ansible_host": "Node1"}, "b": {"ansible_host": "node1."}}, "address Node1: it is used 2 times: "),
    ({"a": {"ansible_host": "b"}, "b": {}}, "address b: it is used 2 times: "),
    ({"a": {"ansible_host": "127.0.0.1"}, "b": {"ansible_host": "127.0.0.1"}}, "address 127.0.0.1: it is used 2 times"),
    ({"a": {"ansible_host": "10.0.0.300"}}, "ansible_host: '10.0.0.300' ['a']"),
    ({"a": {"ansible_host": "10.0.0"}}, "ansible_host: '10.0.0' ['a']"),
    ({"a": {"bmc_address": "fd00:::1"}}, "bmc_address: 'fd00:::1' ['a']"),
    ({"a": {"bmc_address": "https://bmc"}}, "bmc_address: 'https://bmc' ['a']"),
    ({"a": {"bmc_address": ""}}, "bmc_address: '' ['a']"),
    ({"a": {"bmc_address": None}}, "bmc_address: None ['a']"),
    (
        {"a": {"bmc_address": "10.2.0.1", "bmc_network": "10.1.0.0/24"}},
        "bmc_address: 10.2.0.1 is outside ['a']",
    ),
    (
        {"a": {"ansible_host": "10.1.0.255", "host_network": "10.1.0.0/24"}},
        "ansible_host: 10.1.0.255 is the network or broadcast address ['a']",
    ),
    ({"a": {"bmc_network": "10.1.0.0/33"}}, "bmc_network: '10.1.0.0/33' ("),
    (
        {"a": {"bmc_network": "10.1.0.7/24"}},
        "bmc_network: '10.1.0.7/24' (host bits are set, the network is 10.1.0.0/24)",
    ),
    ({"a": {"bmc_network": "10.1.0.0"}}, "bmc_network: '10.1.0.0' (no prefix length)"),
    (
        {"a": {"bmc_network": "10.1.0.0/24", "host_network": "10.1.0.0/16"}},
        "bmc_network and host_network: 10.1.0.0/24 and 10.1.0.0/16 overlap",
    ),
    (
        {"a": {"bmc_network": "10.1.0.0/16", "host_network": "10.1.0.0/24"}},
        "bmc_network and host_network: 10.1.0.0/16 and 10.1.0.0/24 overlap",
    ),
    (
        {"a": {"fabric_networks": {"rail0": "10.1.0.0/24", "rail1": "10.1.0.0/24"}}},
        "fabric_networks.rail0 and fabric_networks.rail1: 10.1.0.0/24 and 10.1.0.0/24 overlap",
    ),
    (
        {"a": {"fabric_networks": {"ipoib": "10.1.0.0/24"}, "fabric_addresses": {"ipob": "10.1.0.1"}}},
        "fabric_addresses.ipob: a network that fabric_networks does not name; did you mean 'ipoib'? ['a']",
    ),
    ({"a": {"fabric_addresses": ["10.1.0.1"]}}, "fabric_addresses: list ['10.1.0.1'] ['a']"),
    (
        {"a": {"fabric_networks": {"x": "10.1.0.0/24"}, "fabric_addresses": {"x": "10.2.0.1"}}},
        "fabric_addresses.x: 10.2.0.1 is outside ['a']",
    ),
]


@pytest.mark.parametrize(("hosts", "expected"), BAD, ids=str)
def test_bad_addresses(hosts: dict[str, dict[str, Any]], expected: str) -> None:
    (found,) = judge(hosts)
    assert found.startswith(expected)
