# SPDX-License-Identifier: Apache-2.0
"""Count what a playbook costs on a converged node, and what it would cost for a whole fleet.

    bench/host_tasks --playbook site.yml                  count on the lab node, then simulate 511 hosts
    bench/host_tasks --playbook site.yml --hosts 32       the same with fewer hosts
    bench/host_tasks --playbook site.yml --hosts 0        count only

1. The playbook runs for real on one node of the inventory, until a run changes nothing (two runs at most). Host-tasks
   come from its report.json. Round trips are the real ssh, sftp and scp processes: bench/record_ssh stands in for
   them, passes everything on and keeps the node's answers. What runs on the controller makes no round trip.
2. The recorded answers are replayed for as many hosts as wanted (connection plugin bench/plugins/connection/replay.py):
   the controller templates, forks, builds every module and handles every result as for a fleet; only the network and
   the nodes' own time are missing.
3. Controller CPU seconds are user and system time of ansible-playbook with all its children (getrusage), divided by
   the host-tasks of that run.

Ends with 1 when bench/budget.yml is exceeded or the node does not converge, with 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
BUDGET = REPOSITORY / "bench" / "budget.yml"
GROUP = "gpu_nodes"
FLEET = 511
# Addresses of simulated hosts: the range for benchmarks (RFC 2544), so that preflight finds no address twice.
SIMULATED_NETWORK = ipaddress.ip_network("198.18.0.0/15")
# A simulated host on which one of these counts is not zero did not do what the recorded node did.
FAULTS = ("changed", "failed", "unreachable")
# Facts about this machine or this run, which ansible sets itself.
NOT_INVENTORY = ("ansible_version", "ansible_playbook_python", "ansible_facts")


class BenchError(Exception):
    """Nothing can be measured; the message says why and what to do."""


@dataclass(frozen=True)
class Usage:
    """One run of ansible-playbook; times in seconds, CPU with all children."""

    elapsed_s: float
    cpu_s: float
    report: dict[str, Any]

    @property
    def host_tasks(self) -> int:
        """Of all hosts together, the controller included."""
        hosts = sum(int(host["host_tasks"]) for host in self.report["hosts"].values())
        return hosts + controller_host_tasks(self.report)


@dataclass
class Measurement:
    """What the bench found; written as JSON."""

    playbook: str
    node: str
    host_tasks: int = 0
    host_tasks_by_role: dict[str, int] = field(default_factory=dict)
    controller_host_tasks: int = 0
    round_trips: dict[str, int] = field(default_factory=dict)
    elapsed_s: float = 0.0
    cpu_s_per_host_task: float = 0.0
    simulated: dict[str, float] | None = None
    over_budget: list[str] = field(default_factory=list)


def controller_host_tasks(report: Mapping[str, Any]) -> int:
    """Host-tasks on the controller itself (the implicit localhost), which the report has apart from the nodes."""
    return int((report["controller"] or {"host_tasks": 0})["host_tasks"])


def count(report: Mapping[str, Any], node: str, measurement: Measurement) -> None:
    """Take a node's host-tasks out of a report; those of the controller are counted apart."""
    hosts = report["hosts"]
    if node not in hosts:
        raise BenchError(f"the report has nothing on {node}, but on {', '.join(hosts) or 'no host'}")
    mine = hosts[node]
    measurement.host_tasks = mine["host_tasks"]
    measurement.host_tasks_by_role = dict(sorted(mine["host_tasks_by_role"].items()))
    measurement.controller_host_tasks = controller_host_tasks(report)


def over_budget(measurement: Measurement, budget: Mapping[str, Any]) -> list[str]:
    """A line for every limit of bench/budget.yml that is exceeded."""
    limits = budget["host_tasks"]
    lines = [
        f"role {role}: {tasks} host-tasks, {limits['per_role']} allowed"
        for role, tasks in measurement.host_tasks_by_role.items()
        if role and tasks > limits["per_role"]
    ]
    whole = limits["per_playbook"].get(Path(measurement.playbook).name)
    if whole is not None and measurement.host_tasks > whole:
        lines.append(f"{measurement.playbook}: {measurement.host_tasks} host-tasks, {whole} allowed")
    return lines


def run_playbook(arguments: Iterable[str], environment: Mapping[str, str], work: Path) -> Usage:
    """Run ansible-playbook for real and measure it.

    Raises:
        BenchError: it failed, or left no report.
    """
    reports = Path(tempfile.mkdtemp(prefix="reports-", dir=work))
    command = [str(Path(sys.executable).parent / "ansible-playbook"), *arguments]
    log = work / f"{reports.name}.log"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    with log.open("wb") as output:
        code = subprocess.run(
            command,
            cwd=REPOSITORY,
            env={
                **os.environ,
                **environment,
                "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
                "GPUFLEET_REPORTS_DIR": str(reports),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    elapsed = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = log.read_text(errors="replace")
    if code != 0:
        raise BenchError(f"ansible-playbook ended with {code}:\n{text[-3000:]}")
    found = list(reports.glob("*/report.json"))
    if len(found) != 1:
        raise BenchError(f"{len(found)} reports of one run: does the callback gpufleet_report run?\n{text[-3000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Usage(elapsed, cpu, json.loads(found[0].read_text()))


def inventory_json(inventory: str) -> dict[str, Any]:
    """The inventory as ansible-inventory lists it."""
    command = [str(Path(sys.executable).parent / "ansible-inventory"), "-i", inventory, "--list"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{inventory} is no inventory: {done.stderr.strip()}")
    listing: dict[str, Any] = json.loads(done.stdout)
    return listing


def nodes_of(listing: Mapping[str, Any], group: str = GROUP) -> list[str]:
    """Names of the hosts in a group and the groups below it."""
    entry = listing.get(group, {})
    names = list(entry.get("hosts", []))
    for child in entry.get("children", []):
        names += nodes_of(listing, child)
    return list(dict.fromkeys(names))


def recorded_calls(folder: Path) -> list[dict[str, Any]]:
    """What bench/record_ssh kept, in order."""
    return [
        json.loads(file.read_text())
        for file in sorted(folder.glob("*.json"), key=lambda file: int(file.name.split("-")[0]))
    ]


def measure_node(playbook: str, inventory: str, node: str, work: Path) -> tuple[Measurement, list[dict[str, Any]]]:
    """Run the playbook on a real node until it changes nothing; returns the counts and the node's recorded answers."""
    measurement = Measurement(playbook, node)
    tools = work / "tools"
    tools.mkdir()
    for name in ("ssh", "sftp", "scp"):
        (tools / f"record_{name}").symlink_to(REPOSITORY / "bench" / "record_ssh")
    for attempt in (1, 2):
        calls = work / f"calls-{attempt}"
        calls.mkdir()
        usage = run_playbook(
            ["-i", inventory, "--limit", f"{node},localhost", playbook],
            {
                "ANSIBLE_SSH_EXECUTABLE": str(REPOSITORY / "bench" / "record_ssh"),
                "ANSIBLE_SFTP_EXECUTABLE": str(tools / "record_sftp"),
                "ANSIBLE_SCP_EXECUTABLE": str(tools / "record_scp"),
                "GPUFLEET_BENCH_CALLS": str(calls),
            },
            work,
        )
        count(usage.report, node, measurement)
        changed = [task["task"] for task in usage.report["hosts"][node]["changed_tasks"]]
        if not changed:
            break
        print(f"run {attempt} changed {len(changed)} things on {node}: {', '.join(changed)}", flush=True)
    else:
        raise BenchError(f"{node} does not converge: two runs changed something; see above")
    answers = recorded_calls(calls)
    measurement.round_trips = {kind: sum(call["kind"] == kind for call in answers) for kind in ("exec", "transfer")}
    measurement.elapsed_s = round(usage.elapsed_s, 1)
    measurement.cpu_s_per_host_task = round(usage.cpu_s / max(usage.host_tasks, 1), 4)
    return measurement, answers


def in_place_of(inventory_dir: str, value: Any) -> Any:
    """A value whose expressions still mean the real inventory's folder when they stand in another inventory."""
    if isinstance(value, dict):
        return {key: in_place_of(inventory_dir, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [in_place_of(inventory_dir, inner) for inner in value]
    if isinstance(value, str) and "{{" in value:
        return re.sub(r"\binventory_dir\b", repr(inventory_dir), value)
    return value


def simulated_inventory(variables: Mapping[str, Any], hosts: int, inventory_dir: str) -> dict[str, Any]:
    """An inventory of copies of one node; what holds an IP address gets one of its own for each copy."""
    shared = {
        key: in_place_of(inventory_dir, value)
        for key, value in variables.items()
        # `profile` is made by the vars plugin; the connection is replayed
        if key != "profile" and not key.startswith(NOT_INVENTORY) and not is_address(value)
    }
    addresses = [key for key, value in variables.items() if is_address(value) and key != "ansible_host"]
    ours = iter(SIMULATED_NETWORK.hosts())
    nodes = {
        f"node-{number:04d}": {"ansible_host": str(next(ours)), **{key: str(next(ours)) for key in addresses}}
        for number in range(1, hosts + 1)
    }
    return {GROUP: {"hosts": nodes, "vars": {**shared, "ansible_connection": "replay"}}}


def is_address(value: Any) -> bool:
    """True for text that is an IP address."""
    try:
        ipaddress.ip_address(value) if isinstance(value, str) else ipaddress.ip_address("")
    except ValueError:
        return False
    return True


def simulate(
    playbook: str, simulated: Mapping[str, Any], answers: list[dict[str, Any]], work: Path
) -> dict[str, float]:
    """Run the playbook for many hosts that answer like the recorded node.

    Raises:
        BenchError: a host did not end as the recorded node did.
    """
    nodes = simulated[GROUP]["hosts"]
    inventory = work / "simulated.yml"
    inventory.write_text(yaml.safe_dump(dict(simulated)))
    recording = work / "recording.json"
    recording.write_text(json.dumps(answers))
    counters = Path(tempfile.mkdtemp(prefix="counters-", dir=work))
    usage = run_playbook(
        ["-i", str(inventory), playbook],
        {
            "ANSIBLE_CONNECTION_PLUGINS": str(REPOSITORY / "bench" / "plugins" / "connection"),
            # as ansible.cfg says for ssh
            "ANSIBLE_PIPELINING": "1",
            "GPUFLEET_BENCH_RECORDING": str(recording),
            "GPUFLEET_BENCH_COUNTERS": str(counters),
        },
        work,
    )
    hosts = usage.report["hosts"]
    wrong = [name for name in nodes if name not in hosts or any(hosts[name][key] for key in FAULTS)]
    asked = {name: counters / node["ansible_host"] for name, node in nodes.items()}
    short = [name for name, file in asked.items() if len(answers) != (int(file.read_text()) if file.exists() else 0)]
    if wrong or short:
        raise BenchError(
            f"the simulation is not what was recorded: of {len(nodes)} hosts {len(wrong)} are missing in the report, "
            f"changed or failed, and {len(short)} were asked less often than the recorded node"
        )
    return {
        "hosts": len(nodes),
        "host_tasks": usage.host_tasks,
        "elapsed_s": round(usage.elapsed_s, 1),
        "cpu_s": round(usage.cpu_s, 1),
        "cpu_s_per_host_task": round(usage.cpu_s / max(usage.host_tasks, 1), 4),
    }


def print_table(measurement: Measurement) -> None:
    """What a person reads."""
    print(f"\n{measurement.playbook} on {measurement.node}, converged")
    print(f"  {'host-tasks':<44} {measurement.host_tasks:>8}")
    for role, tasks in measurement.host_tasks_by_role.items():
        print(f"    {role or '(plays themselves)':<42} {tasks:>8}")
    print(f"  {'host-tasks on the controller':<44} {measurement.controller_host_tasks:>8}")
    print(f"  {'round trips: commands (ssh)':<44} {measurement.round_trips['exec']:>8}")
    print(f"  {'round trips: file transfers (sftp, scp)':<44} {measurement.round_trips['transfer']:>8}")
    print(f"  {'seconds':<44} {measurement.elapsed_s:>8}")
    print(f"  {'controller CPU seconds for each host-task':<44} {measurement.cpu_s_per_host_task:>8}")
    if measurement.simulated:
        print(f"simulated fleet of {measurement.simulated['hosts']} hosts")
        for key, words in (
            ("host_tasks", "host-tasks"),
            ("elapsed_s", "seconds"),
            ("cpu_s", "controller CPU seconds"),
            ("cpu_s_per_host_task", "controller CPU seconds for each host-task"),
        ):
            print(f"  {words:<44} {measurement.simulated[key]:>8}")
    for line in measurement.over_budget:
        print(f"OVER BUDGET: {line}")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--playbook", required=True)
    parser.add_argument("--inventory", default="inventories/lab")
    parser.add_argument("--node", help=f"the real node; default: the first of {GROUP}")
    parser.add_argument("--hosts", type=int, default=FLEET, help=f"simulated hosts, 0 for none (default {FLEET})")
    parser.add_argument("--json", type=Path, default=REPOSITORY / "build" / "bench.json", help="where the numbers go")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    try:
        listing = inventory_json(arguments.inventory)
        nodes = nodes_of(listing)
        node = arguments.node or next(iter(nodes), None)
        if node not in nodes:
            raise BenchError(f"{arguments.inventory} has no node {node or ''} in {GROUP}")
        measurement, answers = measure_node(arguments.playbook, arguments.inventory, node, work)
        if arguments.hosts:
            variables = listing["_meta"]["hostvars"].get(node, {})
            where = Path(arguments.inventory).resolve()
            folder = where if where.is_dir() else where.parent
            simulated = simulated_inventory(variables, arguments.hosts, str(folder))
            measurement.simulated = simulate(arguments.playbook, simulated, answers, work)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(work, ignore_errors=True)
    measurement.over_budget = over_budget(measurement, yaml.safe_load(BUDGET.read_text()))
    print_table(measurement)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(asdict(measurement), indent=2) + "\n")
    print(f"numbers: {arguments.json}")
    return 1 if measurement.over_budget else 0


if __name__ == "__main__":
    sys.exit(main())
