#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs once inside a new lab node: take name, keys and addresses from the lab.

The supervisor hands node.json to the guest through QEMU's firmware configuration
device (fw_cfg), the same way a cloud's metadata service would. Standard library
only; Python 3.9 or later.
"""

import json
import os
import socket
from pathlib import Path

NODE_JSON = Path("/sys/firmware/qemu_fw_cfg/by_name/opt/gpufleet/node.json/raw")
DONE = Path("/var/lib/gpufleet-lab/configured")


def write(path, text, mode=0o644):
    """Write a file with the mode set before the content is there."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(text)


def main():
    """Apply node.json and leave the mark that ends this unit's work."""
    node = json.loads(NODE_JSON.read_text())
    name = node["name"]
    write("/etc/hostname", name + "\n")
    socket.sethostname(name)
    peers = "".join(f"{peer['address']} {peer['name']}\n" for peer in node["peers"])
    write(
        "/etc/hosts",
        f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost ip6-loopback\n{peers}",
    )
    write("/etc/ssh/ssh_host_ed25519_key", node["host_key"], 0o600)
    write("/etc/ssh/ssh_host_ed25519_key.pub", node["host_key_public"])
    os.makedirs("/root/.ssh", mode=0o700, exist_ok=True)
    write("/root/.ssh/authorized_keys", node["authorized_key"], 0o600)
    if node["peer_network"]:
        network = node["peer_network"]
        write(
            "/etc/systemd/network/05-lab-nodes.network",
            "# The network between the lab nodes.\n"
            f"[Match]\nMACAddress={network['mac']}\n\n"
            f"[Network]\nAddress={network['address']}/{network['prefix']}\n"
            "LinkLocalAddressing=no\nIPv6AcceptRA=no\n",
        )
    write(DONE, name + "\n")


if __name__ == "__main__":
    main()
