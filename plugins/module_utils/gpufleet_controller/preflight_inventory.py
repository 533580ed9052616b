# SPDX-License-Identifier: Apache-2.0
"""Checks of the inventory as a whole: the group gpu_nodes, host names, addresses of host, BMC and fabric.

Addresses are compared over the whole inventory, whatever ``--limit`` says: a duplicate outside the limit does the
same harm. The variables read are documented in ``inventories/example/group_vars/all/networks.yml``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.gpufleet.profile_schema import did_you_mean

from .node_names import fold_names
from .preflight_findings import Finding, Findings

GROUP = "gpu_nodes"
# Variables of a host that these checks read.
VARIABLES = (
    "ansible_connection",
    "ansible_host",
    "ansible_port",
    "host_network",
    "bmc_address",
    "bmc_port",
    "bmc_network",
    "fabric_addresses",
    "fabric_networks",
    "preflight_allow_local_connection",
)

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
# RFC 1123: what a node can have as its own host name.
_NODE_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
# An address may also be an alias of ssh_config, where underscores are common.
_ADDRESS_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")
_LOOKS_LIKE_IP = re.compile(r"[0-9.]+|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*")


@dataclass(frozen=True)
class Address:
    """One address of one host, as the inventory states it."""

    host: str
    kind: str  # "host", "BMC" or "fabric <name of the network>"
    variable: str
    value: str
    port: int | None  # None: the whole address is the host's own, whatever the port
    network: str | None  # the network it must lie in


def group_findings(groups: Mapping[str, Iterable[str]]) -> list[Finding]:
    """The group gpu_nodes is there and not empty."""
    if list(groups.get(GROUP, [])):
        return []
    if GROUP in groups:
        found = "the group is empty"
    else:
        others = [name for name in groups if name not in ("all", "ungrouped")]
        found = f"no such group (there are: {', '.join(sorted(others)) or 'none'})"
        hint = did_you_mean(GROUP, others)
        found += f"; {hint}" * bool(hint)
    return [
        Finding(
            f"group {GROUP} of the inventory",
            found,
            "at least one host",
            "put the nodes into it, or name another inventory with -i (inventories/example shows one)",
        )
    ]


def host_findings(host: str, values: Mapping[str, Any]) -> list[Finding]:
    """A node's name and connection.

    :arg values: the values of ``VARIABLES`` that the host has.
    """
    findings = []
    if len(host) > 253 or not _NODE_NAME.fullmatch(host):
        findings.append(
            Finding(
                f"host name {host!r}",
                "not a valid host name",
                "letters, digits and hyphens, in labels of at most 63 characters separated by dots",
                "rename it in the inventory (its address goes into ansible_host)",
            )
        )
    if values.get("ansible_connection") == "local" and values.get("preflight_allow_local_connection") is not True:
        findings.append(
            Finding(
                "ansible_connection",
                "local: roles would change, and reboot, the controller itself",
                "a connection to the node, e.g. ssh",
                "remove it, or set preflight_allow_local_connection: true for this host if that is meant",
            )
        )
    return findings


def host_addresses(host: str, values: Mapping[str, Any]) -> tuple[list[Address], list[Finding]]:
    """The addresses that a host states, and what is wrong with the form of the variables."""
    addresses: list[Address] = []
    findings: list[Finding] = []

    def add(kind: str, variable: str, value: Any, port: Any, network: Any) -> None:
        if isinstance(value, str) and value.strip():
            port_number = port if isinstance(port, int) else int(port) if str(port).isdigit() else None
            addresses.append(Address(host, kind, variable, value, port_number, network))
        else:
            findings.append(
                Finding(variable, repr(value), "an IP address or a name", f"correct {variable}, or leave it out")
            )

    if values.get("ansible_connection") != "local":
        # Several nodes may share one address with different ports (the lab's do: 127.0.0.1).
        add(
            "host",
            "ansible_host" if "ansible_host" in values else "inventory_hostname",
            values.get("ansible_host", host),
            values.get("ansible_port", 22),
            values.get("host_network"),
        )
    if "bmc_address" in values:
        add("BMC", "bmc_address", values["bmc_address"], values.get("bmc_port", 443), values.get("bmc_network"))
    fabric, networks = values.get("fabric_addresses", {}), values.get("fabric_networks", {})
    for variable, value in (("fabric_addresses", fabric), ("fabric_networks", networks)):
        if not isinstance(value, Mapping):
            findings.append(
                Finding(
                    variable,
                    f"{type(value).__name__} {value!r}",
                    "a section {name of the network: value}",
                    f"correct {variable} (inventories/example shows it)",
                )
            )
    if isinstance(fabric, Mapping) and isinstance(networks, Mapping):
        for name, value in fabric.items():
            if name not in networks:
                hint = did_you_mean(name, networks)
                findings.append(
                    Finding(
                        f"fabric_addresses.{name}",
                        "a network that fabric_networks does not name" + f"; {hint}" * bool(hint),
                        f"one of {', '.join(map(str, networks)) or '(fabric_networks is empty)'}",
                        "add the network to fabric_networks, or correct the name",
                    )
                )
            add(f"fabric {name}", f"fabric_addresses.{name}", value, None, networks.get(name))
    return addresses, findings


def host_networks(values: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """The networks that a host declares, by the name of the variable.

    :arg known: those of other hosts. Groups of hosts may have networks of their own: a second one of the same variable
        gets the network itself added to its name.
    """
    declared = {name: values[name] for name in ("host_network", "bmc_network") if name in values}
    fabric = values.get("fabric_networks")
    if isinstance(fabric, Mapping):
        declared.update({f"fabric_networks.{name}": network for name, network in fabric.items()})
    return {
        name if known.get(name, network) == network else f"{name} {network}": network
        for name, network in declared.items()
    }


def address_findings(addresses: Iterable[Address], networks: Mapping[str, str], findings: Findings) -> None:
    """Invalid addresses, addresses outside their network, duplicates, and networks that overlap.

    :arg networks: every declared network of the inventory, {"bmc_network": "10.1.0.0/16", ...}.
    """
    import netaddr  # type: ignore[import-untyped]  # here, since the controller may lack it: a finding by itself

    parsed_networks: dict[str, Any] = {}
    for variable, cidr in networks.items():
        try:
            if "/" not in str(cidr):
                raise ValueError("no prefix length")
            network = netaddr.IPNetwork(cidr)
            if network.ip != network.network:
                raise ValueError(f"host bits are set, the network is {network.cidr}")
            parsed_networks[variable] = network
        except (netaddr.AddrFormatError, ValueError, TypeError) as error:
            findings.add(
                Finding(variable, f"{cidr!r} ({error})", "a network such as 10.20.0.0/22", f"correct {variable}")
            )
    names = sorted(parsed_networks)
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            one, other = parsed_networks[first], parsed_networks[second]
            if one in other or other in one:
                findings.add(
                    Finding(
                        f"{first} and {second}",
                        f"{one} and {other} overlap",
                        "networks of their own for hosts, BMCs and each fabric",
                        "correct one of them",
                    )
                )
    valid_networks = {str(network): network for network in parsed_networks.values()}

    users: dict[tuple[str, ...], list[Address]] = defaultdict(list)
    for address in addresses:
        identity: tuple[str, ...]
        if _LOOKS_LIKE_IP.fullmatch(address.value):
            try:
                ip = netaddr.IPAddress(address.value)
            except (netaddr.AddrFormatError, ValueError):
                findings.add(
                    Finding(address.variable, repr(address.value), "a valid IP address", "correct the address"),
                    address.host,
                )
                continue
            _check_network(address, ip, valid_networks.get(str(address.network)), findings)
            identity = (str(ip),)
            if ip.is_loopback():
                # Forwarded ports of virtual nodes: told apart by the port alone.
                identity = (str(ip), address.kind, str(address.port))
        elif _ADDRESS_NAME.fullmatch(address.value):
            identity = (address.value.lower().rstrip("."),)
        else:
            findings.add(
                Finding(address.variable, repr(address.value), "an IP address or a host name", "correct the address"),
                address.host,
            )
            continue
        users[identity].append(address)
    for same in users.values():
        _check_duplicates(same, findings)


def _check_network(address: Address, ip: Any, network: Any, findings: Findings) -> None:
    if network is None:
        return
    wrong = ""
    if ip not in network:
        wrong = f"{address.value} is outside"
    elif network.size > 2 and ip in (network.network, network.broadcast):
        wrong = f"{address.value} is the network or broadcast address"
    if wrong:
        findings.add(
            Finding(
                address.variable, wrong, f"an address of a host in {network}", "correct the address or the network"
            ),
            address.host,
        )


def _check_duplicates(same: list[Address], findings: Findings) -> None:
    """Addresses that are equal: fine only for hosts that are reached through different ports."""
    if len(same) < 2:
        return
    ports_differ = len({address.port for address in same}) == len(same)
    if {address.kind for address in same} == {"host"} and ports_differ:
        return
    by_use: dict[str, list[str]] = defaultdict(list)
    for address in same:
        by_use[f"{address.variable}" if address.kind != "host" else "host address"].append(address.host)
    uses = "; ".join(f"{use} of {', '.join(fold_names(hosts))}" for use, hosts in by_use.items())
    findings.add(
        Finding(
            f"address {same[0].value}",
            f"it is used {len(same)} times: {uses}",
            "every address belongs to one interface of one node",
            "correct ansible_host, bmc_address or fabric_addresses of these hosts",
        )
    )
