# SPDX-License-Identifier: Apache-2.0
"""The command line of the lab: `python -m lab up|down|status|ssh|reset|fault|images`."""

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab import gpu_stand_in, life_cycle
from lab.errors import LabError
from lab.image import find_image, list_images
from lab.lab_directory import LabDirectory
from lab.qemu_command import EXACT_CLOCK_WITHIN_S
from lab.shape import parse_offset
from lab.supervisor import NodeState, load_state
from lab.supervisor_client import ask, is_running

FAULTS = {
    "clock": "WHEN: +3y, -3y, +90d, 2h ... off this machine's clock, or reset; the node is restarted with it",
    "disk-pull": "SERIAL: take a data disk out of its bay, into the drawer",
    "disk-insert": "SERIAL: put one from the drawer into its own bay, or the first empty one",
    "disk-swap": "SERIAL,SERIAL: exchange the bays of two disks",
    "disk-serial": "SERIAL=SHOWN: let a disk report SHOWN as its serial; SERIAL= blank, SERIAL=SERIAL its own",
    "disk-blank": "SERIAL: make one in the drawer a new, empty one",
    "gpu": "STATE | none: let nvidia-smi on the node answer as in a recorded state (no GPU is emulated)",
    "network": "cut | restore",
    "power": "off (button) | on | cut (hard) | cycle (hard, then on)",
}

# What the supervisor calls the fault's one word.
FAULT_ARGUMENT = {
    "clock": "to",
    "disk-pull": "serial",
    "disk-insert": "serial",
    "disk-swap": "serials",
    "disk-serial": "shows",
    "disk-blank": "serial",
    "network": "action",
    "power": "action",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description="Virtual XE9680 nodes on this machine.")
    parser.add_argument(
        "--inventory",
        type=Path,
        help="inventory that says which nodes; default: the one used last in this lab, at first inventories/lab",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="build the image if needed, start the nodes, wait for ssh")
    up.add_argument("--nodes", nargs="+", metavar="NODE", help="only these; default all of the inventory")
    commands.add_parser("down", help="stop the nodes; their disks stay")
    status = commands.add_parser("status", help="what runs")
    status.add_argument("--json", action="store_true", help="for programs")
    ssh = commands.add_parser("ssh", help="log in, or run a command")
    ssh.add_argument("node")
    ssh.add_argument("remote", nargs=argparse.REMAINDER, metavar="COMMAND")
    reset = commands.add_parser("reset", help="fresh disks, booted again; the hardware clock stays as it is")
    reset.add_argument("node", nargs="?", help="default: all nodes")
    reset.add_argument("--clock", metavar="WHEN", help="boot with a hardware clock that is off: --clock=-3y")
    fault = commands.add_parser(
        "fault", help="break something, or mend it", formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {kind:12} {text}" for kind, text in FAULTS.items()),
    )  # fmt: skip
    fault.add_argument("node")
    fault.add_argument("kind", choices=FAULTS)
    # REMAINDER: argparse would take -3y for an option.
    fault.add_argument("what", nargs=argparse.REMAINDER, help="one word, see below")
    images = commands.add_parser("images", help="list the cached images")
    images.add_argument("--prune", action="store_true", help="remove those that no node uses and no up would use")
    return parser


def _inventory(lab: LabDirectory, options: argparse.Namespace) -> Path:
    if options.inventory:
        path: Path = options.inventory.resolve()
        return path
    # A lab stays what it was made as, until another inventory is named.
    return Path(lab.load().inventory)


def _node_status(lab: LabDirectory, name: str, node: dict[str, Any]) -> dict[str, Any]:
    files = lab.node(name)
    if is_running(files):
        # The supervisor may have been started by an older version, without the newest keys.
        state = {**asdict(NodeState()), **ask(files, "status", limit_s=30)}
    else:
        state = asdict(load_state(files.state) or NodeState())
        if state["power"] in ("on", "starting"):
            state.update(power="failed", reason="its supervisor is gone")
    return {"ssh_port": node["ssh_port"], "boot_seconds": node["boot_seconds"], "console": str(files.console), **state}


def _shown_as(serial: str, node: dict[str, Any]) -> str:
    shown = node["shown_serials"].get(serial)
    return serial if shown is None else f"{serial} (reports {shown or 'a blank serial'})"


def _status(lab: LabDirectory, as_json: bool) -> None:
    record = lab.load()
    nodes = {name: _node_status(lab, name, node) for name, node in record.nodes.items()}
    if as_json:
        data = {"directory": str(lab.root), "ssh_config": str(lab.ssh_config), "ntp_port": record.ntp_port,
                "inventory": record.inventory, "nodes": nodes}  # fmt: skip
        print(json.dumps(data, indent=1))
        return
    print(f"lab {lab.root}" + ("" if nodes else ": no nodes; start it with: make lab-up"))
    for name, node in nodes.items():
        extra = [f"ssh 127.0.0.1:{node['ssh_port']}", f"started {node['starts']} times"]
        if node["boot_seconds"]:
            extra.append(f"last `up` had ssh after {node['boot_seconds']} s")
        if abs(node["rtc_offset_s"]) > EXACT_CLOCK_WITHIN_S:
            extra.append(f"clock {node['rtc_offset_s']:+d} s")
        extra.append("bays: " + ", ".join(_shown_as(serial, node) or "empty" for serial in node["bays"]))
        if node["drawer"]:
            extra.append("in the drawer: " + ", ".join(_shown_as(serial, node) for serial in node["drawer"]))
        if node["network"] == "cut":
            extra.append("network cut")
        print(f"  {name}: {node['power']} ({node['reason']}); {'; '.join(extra)}")


def _fault(lab: LabDirectory, name: str, kind: str, words: list[str]) -> None:
    if len(words) != 1:
        raise LabError(f"fault {kind} takes one word: {FAULTS[kind]}")
    what = words[0]
    if name not in lab.load().nodes:
        raise LabError(f"there is no node {name!r}; the lab has {', '.join(lab.load().nodes) or 'none'}")
    allowed = {"network": ("cut", "restore"), "power": ("off", "on", "cut", "cycle")}.get(kind)
    if allowed and what not in allowed:
        raise LabError(f"fault {kind} takes {', '.join(allowed)}, not {what!r}")
    if kind == "gpu":
        gpu_stand_in.install(lab, name, what)
        life_cycle.say(f"{name}: nvidia-smi {what}: done")
        return
    state = ask(lab.node(name), kind, {FAULT_ARGUMENT[kind]: what})
    boots = kind == "clock" or (kind == "power" and what in ("on", "cycle"))
    if boots and state["network"] == "up":
        life_cycle.wait_for_ssh(lab, name)
    life_cycle.say(f"{name}: {kind} {what}: done")


def _images(prune: bool) -> None:
    current = find_image()
    for image in list_images():
        size_mib = sum(path.stat().st_blocks * 512 for path in image.directory.iterdir()) // 2**20
        used = [str(path) for path in image.users()]
        note = "current" if current and image.key == current.key else "old"
        unused = note == "old" and not used
        print(f"{image.key}  {size_mib} MiB  {note}  {'used by ' + ', '.join(used) if used else 'not used by a node'}")
        if prune and unused:
            shutil.rmtree(image.directory)
            print(f"{image.key}  removed")


def _run(options: argparse.Namespace) -> None:
    lab = LabDirectory()
    match options.command:
        case "up" | "reset":
            inventory = _inventory(lab, options)
            only = options.nodes if options.command == "up" else None
            if options.command == "reset":
                names = [options.node] if options.node else list(lab.load().nodes)
                life_cycle.reset(lab, names, parse_offset(options.clock) if options.clock else None)
                only = names or None
            names = life_cycle.up(lab, inventory, only)
            life_cycle.say(
                f"the lab is up; next: ansible-playbook site.yml, or log in with: make lab-ssh NODE={names[0]}"
            )
        case "down":
            life_cycle.down(lab)
        case "status":
            _status(lab, options.json)
        case "ssh":
            if options.node not in lab.load().nodes:
                raise LabError(f"there is no node {options.node!r}; start the lab with: make lab-up")
            life_cycle.exec_ssh(lab, options.node, options.remote)
        case "fault":
            _fault(lab, options.node, options.kind, options.what)
        case "images":
            _images(options.prune)


def main() -> int:
    """Run one command; a message for the operator and exit status 1 when it fails."""
    try:
        _run(_parser().parse_args())
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted; `python -m lab up` goes on where this ended", file=sys.stderr)
        return 130
    return 0
