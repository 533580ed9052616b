# SPDX-License-Identifier: Apache-2.0
"""A fleet of files for playbooks/upgrade.yml: the real playbook, roles upgrade, drain and reboot, module drain_slurm.

Doubles stand for what would touch a machine: the roles of the stack, the modules on nodes, and scontrol (doubles/).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
DOUBLES = Path(__file__).resolve().parent / "doubles"
OLD, NEW = "550.163.01", "580.105.08"
# A run over a few nodes takes about 8 s on two busy cores; machines vary threefold.
LIMIT_S = 300

# Roles of the parts driver and docker, by the double of their tasks; {} = the role does nothing.
ROLES: dict[str, dict[str, Any]] = {
    "nvidia_driver": {
        "package": "nvidia-open",
        "version": "{{ nvidia_driver_version }}",
        "upgrade": "{{ nvidia_driver_upgrade }}",
        "loads": True,
    },
    "nvidia_peermem": {},
    "docker": {
        "package": "docker-ce",
        "version": "{{ docker_version }}",
        "upgrade": "{{ docker_upgrade and docker_restart_allowed }}",
        "loads": False,
    },
}


class Run:
    """What a run left. code is None where it was killed."""

    def __init__(self, code: int, output: str, reports: Path) -> None:
        self.code, self.output = code, output
        found = sorted(reports.glob("*/report.json"))
        self.report: dict[str, Any] = json.loads(found[-1].read_text()) if found else {}
        self.summary = output[output.rindex("Summary of ") :] if "Summary of " in output else ""

    def outcomes(self) -> dict[str, str]:
        return {name: host["outcome"] for name, host in self.report["hosts"].items()}


class Fleet:
    """Nodes in racks, their files, Slurm's file, and runs of the playbook over them."""

    def __init__(self, folder: Path, racks: Mapping[str, list[str]]) -> None:
        self.folder = folder
        self.names = [name for names in racks.values() for name in names]
        self.variables: dict[str, Any] = {
            "ansible_connection": "local",
            "preflight_allow_local_connection": True,
            "node_profile": "xe9680-h100",
            "node_profile_overrides_fleet": {
                "packages": {"nvidia_driver": {"version": NEW}},
                "platform": {"clock": {"servers": [{"address": "10.0.0.1"}]}},
            },
            "reboot_allowed": True,
            "upgrade_parts": ["driver"],
            "upgrade_batch_groups": "rack_*",
            "upgrade_batch_size": 3,
            "upgrade_group_size": 2,
            "drain_provider": "slurm",
            "drain_host": "localhost",
            "drain_poll": 1,
        }
        # groups beside gpu_nodes, such as the host that drains
        self.others: dict[str, Any] = {}
        self.racks = {name: {"hosts": dict.fromkeys(names, {})} for name, names in racks.items()}
        (folder / "nodes").mkdir(parents=True)
        for name in self.names:
            self.put(name)
        self.slurm({name: {} for name in self.names})
        self._make_roles()

    def _make_roles(self) -> None:
        """Each with the variables of the real role, so that preflight judges them, and a double for its tasks."""
        for name, arguments in ROLES.items():
            role = self.folder / "roles" / name
            shutil.copytree(REPOSITORY / "roles" / name / "meta", role / "meta")
            shutil.copytree(REPOSITORY / "roles" / name / "defaults", role / "defaults")
            (role / "tasks").mkdir()
            tasks = [{"name": f"Bring {name}", "stack_role": arguments}] if arguments else []
            (role / "tasks" / "main.yml").write_text(json.dumps(tasks))

    # -- the nodes ----------------------------------------------------------------------------

    def put(self, name: str, **what: Any) -> None:
        """Write a node's file; the default has the old driver and no fault."""
        node = {"installed": {"nvidia-open": f"{OLD}-1"}, "loaded": OLD, "requests": [], "upgrades": 0, "reboots": 0}
        (self.folder / "nodes" / f"{name}.json").write_text(json.dumps({**node, "fault": "", **what}))

    def mend(self, name: str) -> None:
        """What was wrong with it is no more."""
        file = self.folder / "nodes" / f"{name}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "fault": ""}))

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "nodes" / f"{name}.json").read_text())
        return found

    def upgraded(self) -> list[str]:
        """Nodes that run the new driver."""
        return [name for name in self.names if self.node(name)["loaded"] == NEW]

    def touched(self) -> list[str]:
        """Nodes whose packages or boot were altered."""
        return [name for name in self.names if self.node(name)["upgrades"] or self.node(name)["reboots"]]

    def slurm(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """What Slurm has on record: {node: base, drain, reason}."""
        every = {name: {"base": "IDLE", "drain": False, "reason": "", **node} for name, node in nodes.items()}
        (self.folder / "slurm.json").write_text(json.dumps(every))
        (self.folder / "slurm.log").write_text("")

    def drained(self) -> dict[str, str]:
        """{node: reason} of what Slurm has as drained."""
        found = json.loads((self.folder / "slurm.json").read_text())
        return {name: node["reason"] for name, node in found.items() if node["drain"]}

    def scontrol_calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "slurm.log").read_text().splitlines()]

    # -- runs ---------------------------------------------------------------------------------

    @property
    def journal(self) -> Path:
        """The journal of this inventory; there is one."""
        [file] = (self.folder / "state").glob("*/journal.jsonl")
        return file

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.journal.read_text().splitlines()]

    def steps(self) -> list[str]:
        return [record["step"] for record in self.records()]

    def environment(self, **more: str) -> dict[str, str]:
        base = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "GPUFLEET_"))}
        return {
            **base,
            "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
            "ANSIBLE_ACTION_PLUGINS": f"{DOUBLES / 'action'}:{REPOSITORY / 'plugins' / 'action'}",
            "ANSIBLE_ROLES_PATH": f"{self.folder / 'roles'}:{REPOSITORY / 'roles'}",
            "GPUFLEET_DOUBLES": str(self.folder),
            "GPUFLEET_REPORTS_DIR": str(self.folder / "reports"),
            "GPUFLEET_STATE_DIR": str(self.folder / "state"),
            "PATH": f"{DOUBLES / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(DOUBLES / "kill"),
            "NO_COLOR": "1",
            **more,
        }

    def command(self, *options: str) -> list[str]:
        inventory = self.folder / "inventory.json"
        children = {"gpu_nodes": {"vars": self.variables, "children": self.racks}, **self.others}
        inventory.write_text(json.dumps({"all": {"children": children}}))
        program = Path(sys.executable).parent / "ansible-playbook"
        return [str(program), "-i", str(inventory), "playbooks/upgrade.yml", *options]

    def start(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        """Start a run and return at once."""
        return subprocess.Popen(
            self.command(*options), cwd=REPOSITORY, env=self.environment(**environment), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, *options: str, **environment: str) -> Run:
        """A run to its end. Output goes to a file: workers that outlive a killed run keep a pipe open."""
        with (self.folder / "output").open("w+") as output:
            process = subprocess.Popen(
                self.command(*options), cwd=REPOSITORY, env=self.environment(**environment), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            code = process.wait(timeout=LIMIT_S)
            output.seek(0)
            return Run(code, output.read(), self.folder / "reports")

    def run_killed_after(self, records: int, *options: str, number: signal.Signals = signal.SIGKILL) -> Run:
        """A run that is killed right after its journal got this many records, and the worker that wrote the last one,
        which outlives it, has come to its end."""
        run = self.run(*options, GPUFLEET_KILL_AFTER=str(records), GPUFLEET_KILL_SIGNAL=str(int(number)))
        worker = Path("/proc", (self.folder / "worker").read_text())
        deadline = time.monotonic() + 60
        while worker.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not worker.exists(), f"{worker} goes on for a run that was killed"
        return run


FOUR = {"rack_1": ["gpu-1", "gpu-2"], "rack_2": ["gpu-3", "gpu-4"]}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Four nodes in two racks: a canary, then a batch of three."""
    return Fleet(tmp_path / "fleet", FOUR)
