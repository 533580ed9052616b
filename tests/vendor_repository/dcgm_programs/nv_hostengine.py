#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for DCGM's host engine: answers the stand-ins of dcgmi and of the exporter over TCP, a line of JSON each.

It sees as many GPUs as the PCI bus shows. Watches live as long as the process. While HANGS exists it accepts
connections and answers nothing.
"""

import argparse
import json
import os
import socketserver

VERSION = "0.0.0"
HANGS = "/run/dcgm-stand-in-hangs"
PCI = "/sys/bus/pci/devices"
LETTERS = {"p": ["PCIe"], "m": ["Memory"], "i": ["InfoROM"], "t": ["Thermal", "Power"], "n": ["NVLINK"]}
watched: "set[str]" = set()


def count_gpus() -> int:
    """NVIDIA's display controllers on the bus."""
    count = 0
    for address in os.listdir(PCI):
        with open(f"{PCI}/{address}/vendor") as vendor, open(f"{PCI}/{address}/class") as kind:
            count += vendor.read().strip() == "0x10de" and kind.read().startswith("0x03")
    return count


def answer(question: "dict[str, str]") -> "dict[str, object]":
    """One answer."""
    if question["ask"] == "set":
        watched.clear()
        for letter in question["letters"]:
            watched.update(LETTERS[letter])
    return {"version": VERSION, "gpus": count_gpus(), "watched": sorted(watched)}


class Connection(socketserver.StreamRequestHandler):
    """A client."""

    def handle(self) -> None:
        for line in self.rfile:
            if os.path.exists(HANGS):
                continue
            self.wfile.write(json.dumps(answer(json.loads(line))).encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    """One thread for each client."""

    allow_reuse_address, daemon_threads = True, True


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", action="store_true")
    parser.add_argument("--service-account", default="")
    parser.add_argument("-b", default="127.0.0.1")
    parser.add_argument("-p", type=int, default=5555)
    wanted = parser.parse_args()
    with Server((wanted.b, wanted.p), Connection) as server:
        print(f"Started host engine version {VERSION} using port number: {wanted.p}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
