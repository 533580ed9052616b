#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for dcgmi: -v, discovery -l and health, with the texts of NVIDIA/DCGM 4.6.0 (dcgmi/*.cpp)."""

import json
import socket
import sys

VERSION = "0.0.0"
SYSTEMS = ["PCIe", "NVLINK", "Memory", "SM", "InfoROM", "Thermal", "Power", "Driver", "NvSwitch NF", "NvSwitch F"]
BUILD = "Build ID : 1\nBuild Date : 2026-01-01\nBuild Type : Release\nCommit ID : stand-in\nCPU Arch : x86_64\n"


def ask(question: "dict[str, str]", limit_s: "float | None" = None) -> "dict[str, object]":
    """The host engine's answer; raises OSError where it cannot be had."""
    with socket.create_connection(("127.0.0.1", 5555), limit_s) as connection:
        connection.settimeout(limit_s)
        connection.sendall(json.dumps(question).encode() + b"\n")
        with connection.makefile() as file:
            answer: dict[str, object] = json.loads(file.readline())
            return answer


def show_versions() -> None:
    """`dcgmi -v` waits for the host engine only shortly, and is silent where it does not answer."""
    print(f"\nLocal build info:\nVersion : {VERSION}\n{BUILD}")
    try:
        print(f"Hostengine build info:\nVersion : {ask({'ask': 'version'}, 0.5)['version']}\n{BUILD}")
    except OSError:
        sys.exit(1)


def health(arguments: "list[str]") -> None:
    """Set, clear or show the watches."""
    if arguments[0] in ("--set", "-s", "--clear"):
        ask({"ask": "set", "letters": "" if arguments[0] == "--clear" else arguments[1]})
        print("Health monitor systems set successfully.")
        return
    watched = ask({"ask": "get"})["watched"]
    assert isinstance(watched, list)
    line = f"+{'-' * 20}+{'-' * 56}+"
    rows = "".join(f"| {name:<18} | {'On' if name in watched else 'Off':<54} |\n" for name in SYSTEMS)
    print(f"Health monitor systems report\n{line}\n{rows}{line}")


def main() -> None:
    """One command."""
    arguments = sys.argv[1:]
    try:
        if arguments == ["-v"]:
            show_versions()
        elif arguments == ["discovery", "-l"]:
            print(f"{ask({'ask': 'discovery'})['gpus']} GPUs found.")
        elif arguments[:1] == ["health"]:
            health(arguments[1:])
        else:
            sys.exit(f"the stand-in of dcgmi knows no {arguments}")
    except OSError:
        print("Error: unable to establish a connection to the specified host: localhost")
        print("Error: Unable to connect to host engine. Host engine connection invalid/disconnected.")
        sys.exit(255)


if __name__ == "__main__":
    main()
