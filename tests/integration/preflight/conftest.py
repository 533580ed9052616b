# SPDX-License-Identifier: Apache-2.0
"""Runs the real ansible-playbook with the repository's configuration over inventories that a test writes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
PREFLIGHT = REPOSITORY / "playbooks" / "preflight.yml"

# A role with one variable of each kind that preflight treats on its own. The repository's roles are checked as well.
ROLE = {
    "meta/argument_specs.yml": {
        "argument_specs": {
            "main": {
                "options": {
                    "web_manage": {"type": "bool"},
                    "web_port": {"type": "int"},
                    "web_mirror": {"type": "str"},
                    "web_memory": {"type": "int"},
                    "web_password": {"type": "str", "no_log": True},
                }
            }
        }
    },
    "defaults/main.yml": {
        "web_manage": True,
        "web_port": 80,
        "web_mirror": "",
        "web_memory": "{{ profile.platform.cpu.sockets }}",
        "web_password": None,
    },
    "meta/preflight.yml": {
        "ranges": {"web_port": {"min": 1, "max": 65535}},
        "removed": {"web_url": "web_mirror"},
        "rules": [
            {
                "that": "web_port != 443 or web_mirror is match('https:')",
                "fail_msg": "port 443 without https",
                "next_step": "set web_mirror",
            }
        ],
    },
}

GOOD_VARS: dict[str, Any] = {
    "node_profile": "lab",
    "node_profile_overrides_fleet": {"platform": {"clock": {"servers": [{"address": "10.0.0.1"}]}}},
}


class Run:
    """One finished command: exit status and everything it said."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        self.code, self.said = done.returncode, done.stdout

    def problems(self) -> list[str]:
        """The numbered problems of preflight's message, each as one line: where | found | expected | next step."""
        _head, _found, rest = self.said.partition("No node was touched.\n")
        lines = rest.split("\nOrigin:")[0].strip("\n").splitlines()
        problems: list[str] = []
        for line in lines:
            if re.match(r" ?\d+\. ", line):
                problems.append(line.split(". ", 1)[1])
            elif line.strip():
                problems[-1] += " | " + line.split(":", 1)[1].strip()
        return problems


@pytest.fixture
def ansible(tmp_path: Path) -> Callable[..., Run]:
    """Run an ansible command: ``ansible("ansible-playbook", ...)``."""
    for file, content in ROLE.items():
        path = tmp_path / "roles" / "web" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": f"{REPOSITORY / 'roles'}:{tmp_path / 'roles'}",
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        "ANSIBLE_NOCOLOR": "1",
        "GPUFLEET_REPORTS_DIR": str(tmp_path / "reports"),
    }

    def run(*command: str) -> Run:
        return Run(list(command), environment)

    return run


@pytest.fixture
def preflight(ansible: Callable[..., Run], tmp_path: Path) -> Callable[..., Run]:
    """Run preflight over ``{host: its variables}``; further arguments go to ansible-playbook."""

    def run(hosts: dict[str, dict[str, Any]], *arguments: str, **group_vars: Any) -> Run:
        inventory = tmp_path / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": {**GOOD_VARS, **group_vars}}}))
        return ansible("ansible-playbook", "-i", str(inventory), str(PREFLIGHT), *arguments, "-v")

    return run
