# SPDX-License-Identifier: Apache-2.0
"""The HCAs of a node, by PCI and by RDMA, and the rule by which RDMA devices get their names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .rdma_facts import MELLANOX, RdmaDevice, parse_infiniband_devices

NVIDIA = "10de"
DISPLAY_CLASS = "03"

# systemd's udev takes a file of /etc in place of the one of the same name of /usr/lib (udev(7)), here rdma-core's.
NAMING_RULES = "/etc/udev/rules.d/60-rdma-persistent-naming.rules"

_PCI_NAME = "(ib|roce|iw|opa|rdma)(P[0-9]+)?p[0-9]+s[0-9]+(f[0-9]+)?"
_STABLE_NAME = f"({_PCI_NAME}|(ib|roce|iw|opa|rdma)x[0-9a-f]{{16}})"
# Names of the devices with a PCI address, one a line; a virtual one (soft-RoCE) has no such address.
_NAMES = "find /sys/class/infiniband -mindepth 1 -maxdepth 1 -printf '%f %l\\n' 2>/dev/null | sed -n '\\|/pci|s/ .*//p'"
# argv that exits 0 while a device has another kind of name than wanted.
NAMES_STILL_DIFFER = {
    "pci": ("/bin/sh", "-c", f"{_NAMES} | grep -Eqvx '{_PCI_NAME}'"),
    "kernel": ("/bin/sh", "-c", f"{_NAMES} | grep -Eqx '{_STABLE_NAME}'"),
}


def _id(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="ascii") as file:
            return file.read().strip()[2:]
    except OSError:
        return ""  # it went away, or does not answer


def functions_that_match(rules: Sequence[Mapping[str, str | None]], sys_root: str = "/sys") -> list[str]:
    """Addresses of the PCI functions that match one of the rules, as a profile's devices.<kind>.match has them.

    vendor and device are four hexadecimal digits, class is a prefix of six; what a rule leaves out matches anything.
    """
    folder = os.path.join(sys_root, "bus", "pci", "devices")
    found = []
    for address in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        ids = {name: _id(os.path.join(folder, address), name) for name in ("vendor", "device", "class")}
        for rule in rules:
            if all(ids[name].startswith(rule[name] or "") for name in ids if name in rule):
                found.append(address)
                break
    return found


def hcas_of_mlx5(rules: Sequence[Mapping[str, str | None]], sys_root: str = "/sys") -> list[str]:
    """Addresses of the profile's HCAs that mlx5 drives."""
    ours = functions_that_match([{"vendor": MELLANOX}], sys_root)
    return [address for address in functions_that_match(rules, sys_root) if address in ours]


def gpus_of_nvidia(sys_root: str = "/sys") -> list[str]:
    """Addresses of NVIDIA's GPUs on the bus (class 0300 or 0302), whatever the driver says; NVSwitches are 0680."""
    return functions_that_match([{"vendor": NVIDIA, "class": DISPLAY_CLASS}], sys_root)


def rdma_devices(sys_root: str = "/sys") -> list[RdmaDevice]:
    """What lies below /sys/class/infiniband; empty where ib_core is not loaded."""
    folder = os.path.join(sys_root, "class", "infiniband")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    links = [f"{name} {os.readlink(os.path.join(folder, name))}" for name in names]
    return parse_infiniband_devices("\n".join(links))
