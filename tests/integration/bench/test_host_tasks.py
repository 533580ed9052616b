# SPDX-License-Identifier: Apache-2.0
"""The bench with the real ansible-playbook on a small playbook; only the network is left out: a stand-in for ssh runs
the command on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bench import host_tasks

FAKE_SSH = """#!/bin/sh
# options, host, command: run the command here
for command; do :; done
exec sh -c "$command"
"""
# Counted by hand below: what counts is every result, of loops every item.
PLAYBOOK = """
- name: On the controller
  hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Say one thing
      ansible.builtin.debug:
        msg: one

- name: On the node
  hosts: gpu_nodes
  gather_facts: false
  tasks:
    - name: Ask the node
      ansible.builtin.ping:

    - name: Run three items
      ansible.builtin.command: echo {{ item }}
      loop: [1, 2, 3]
      changed_when: false

    - name: Skip one
      ansible.builtin.ping:
      when: inventory_hostname == 'nobody'

    - name: Skip a whole file
      ansible.builtin.include_tasks: more.yml
      when: inventory_hostname == 'nobody'

    - name: Include a file of two tasks
      ansible.builtin.include_tasks: more.yml
"""
MORE = """
- name: First of the file
  ansible.builtin.command: "true"
  changed_when: false

- name: Second of the file
  ansible.builtin.debug:
    msg: two
"""
# ping; three items; skipped; skipped include; include; its two tasks
HOST_TASKS = 1 + 3 + 1 + 1 + 1 + 2
# ping, three items, one command: debug, skipped tasks and includes ask no node
ROUND_TRIPS = 1 + 3 + 1


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A playbook, an inventory with one node, and the stand-in for ssh."""
    fake = tmp_path / "ssh"
    fake.write_text(FAKE_SSH)
    fake.chmod(0o755)
    monkeypatch.setenv("GPUFLEET_BENCH_SSH", str(fake))
    (tmp_path / "site.yml").write_text(PLAYBOOK)
    (tmp_path / "more.yml").write_text(MORE)
    node = {"ansible_host": "192.0.2.1", "bmc_address": "192.0.2.101", "node_profile": "lab"}
    inventory = {"gpu_nodes": {"hosts": {"real-node": node}}}
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(inventory))
    return tmp_path


def bench(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the bench's command line."""
    return subprocess.run(
        [
            host_tasks.REPOSITORY / "bench" / "host_tasks",
            *("--playbook", site / "site.yml", "--inventory", site / "inventory.yml", "--json", site / "numbers.json"),
            *arguments,
        ],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_loops_skips_and_includes_are_counted_and_a_fleet_simulated(site: Path) -> None:
    done = bench(site, "--hosts", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = json.loads((site / "numbers.json").read_text())
    assert numbers["host_tasks"] == HOST_TASKS
    assert numbers["controller_host_tasks"] == 1
    assert numbers["round_trips"] == {"exec": ROUND_TRIPS, "transfer": 0}
    assert numbers["simulated"]["hosts"] == 5
    # the controller's own task once, all others five times
    assert numbers["simulated"]["host_tasks"] == 1 + 5 * HOST_TASKS
    assert 0 < numbers["simulated"]["cpu_s_per_host_task"] < 5
    assert "simulated fleet of 5 hosts" in done.stdout


def test_more_tasks_than_the_budget_allows_end_with_one(site: Path) -> None:
    tasks = "".join(f"    - {{name: Ask {number}, ansible.builtin.debug: {{msg: x}}}}\n" for number in range(81))
    (site / "site.yml").write_text(f"- name: Too much\n  hosts: gpu_nodes\n  gather_facts: false\n  tasks:\n{tasks}")
    done = bench(site, "--hosts", "0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "81 host-tasks, 80 allowed" in done.stdout


def test_a_node_that_never_converges_is_no_measurement(site: Path) -> None:
    (site / "site.yml").write_text(
        "- name: Never the same\n  hosts: gpu_nodes\n  gather_facts: false\n  tasks:\n"
        "    - {name: Change each time, ansible.builtin.command: 'true', changed_when: true}\n"
    )
    done = bench(site, "--hosts", "0")
    assert done.returncode == 2
    assert "real-node does not converge" in done.stderr
    assert "Change each time" in done.stdout


def test_an_inventory_without_nodes_is_named(site: Path) -> None:
    (site / "inventory.yml").write_text("other: {hosts: {x: }}\n")
    done = bench(site)
    assert done.returncode == 2
    assert "has no node" in done.stderr
