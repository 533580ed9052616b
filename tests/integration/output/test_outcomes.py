# SPDX-License-Identifier: Apache-2.0
"""Every node is in the summary and in the report with the outcome that it had: dead, hung, lost, stopped or well."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess

import pytest

from .conftest import ALIVE, DEAD, Site

TWO_PLAYS = """
- name: Platform
  hosts: gpu_nodes
  gather_facts: false
  tasks:
    - name: Reach the node
      ansible.builtin.raw: "true"
      changed_when: false
- name: Monitoring
  hosts: gpu_nodes
  gather_facts: false
  tasks:
    - name: Do a little
      ansible.builtin.debug:
        msg: done
"""


def test_no_node_dead(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[001:004] {ALIVE}")
    site.write("site.yml", TWO_PLAYS)
    result = site.run("site.yml")
    assert result.rc == 0
    assert set(result.outcomes().values()) == {"ok"}
    assert "  ok              4  changed=0 failed=0 unreachable=0  gpu-[001-004]" in result.summary
    assert "  all             4  changed=0 failed=0 unreachable=0" in result.summary
    assert "Needs attention" not in result.out
    assert not (result.folder / "attention.limit").exists()
    report = result.report
    assert report["playbook"] == "site.yml"
    assert report["exit"] == 0
    assert report["check"] is False
    assert report["interrupted"] is False
    assert report["inventory"] == [str(site.folder / "inventory")]
    assert re.fullmatch(r"\d{8}T\d{6}Z-site", result.folder.name)
    # a log: one line a task, not one a node, and no escape codes
    assert "task 1 Reach the node .. ok 4 (" in result.out
    assert "\x1b" not in result.out
    assert "gpu-001" not in result.out


def test_some_nodes_dead(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[001:003] {ALIVE}\ngpu-[004:006] {DEAD}")
    site.write("site.yml", TWO_PLAYS)
    result = site.run("site.yml")
    assert result.rc == 4
    assert result.report["exit"] == 4
    assert result.outcomes() == {
        **{f"gpu-00{n}": "ok" for n in (1, 2, 3)},
        **{f"gpu-00{n}": "unreachable" for n in (4, 5, 6)},
    }
    assert "  unreachable     3  changed=0 failed=0 unreachable=3  gpu-[004-006]" in result.summary
    text = "\n".join(result.summary)
    assert "  unreachable: gpu-[004-006] (3 nodes)" in text
    assert text.count("Connection refused") == 1, "the same reason is told once"
    assert "sshd" in text, "the next step fits what ssh said"
    limit = result.folder / "attention.limit"
    assert limit.read_text(encoding="utf-8") == "gpu-004\ngpu-005\ngpu-006\n"
    assert result.summary[-1].endswith("attention.limit")
    assert result.summary[-2].endswith("report.json")

    again = site.run("site.yml", "--limit", f"@{limit}")
    assert list(again.outcomes()) == ["gpu-004", "gpu-005", "gpu-006"]


def test_all_nodes_dead(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[001:030] {DEAD}")
    site.write("site.yml", TWO_PLAYS)
    result = site.run("site.yml")
    assert result.rc == 4
    assert set(result.outcomes().values()) == {"unreachable"}
    assert len(result.report["hosts"]) == 30
    assert "  unreachable: gpu-[001-030] (30 nodes)" in result.summary
    singly = [line for line in result.out.splitlines() if line.startswith("unreachable: gpu-")]
    assert len(singly) == 11, "ten failures one by one, the other twenty in one line"


def test_canary_batch_dies(site: Site) -> None:
    """The first batch fails: Ansible runs nothing more, but the nodes behind it are in the report."""
    site.inventory(gpu_nodes=f"gpu-[001:006] {ALIVE}")
    site.write(
        "site.yml",
        """
        - name: Roll out
          hosts: gpu_nodes
          gather_facts: false
          serial: [1, 3]
          tasks:
            - name: Break the canary
              ansible.builtin.fail:
                msg: the new driver does not load
        - name: Afterwards
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Never come here
              ansible.builtin.debug:
        """,
    )
    result = site.run("site.yml")
    assert result.rc == result.report["exit"] == 2
    assert result.outcomes() == {"gpu-001": "failed", **{f"gpu-00{n}": "not_run" for n in range(2, 7)}}
    text = "\n".join(result.summary)
    assert "not run: gpu-[002-006] (5 nodes)" in text
    assert "roll-out stopped before this node (play 'Roll out')" in text
    assert "the new driver does not load" in text
    assert "batch 1 of 3, nodes 1-1 of 6" in result.out
    limit = (result.folder / "attention.limit").read_text(encoding="utf-8")
    assert limit.split() == [f"gpu-00{n}" for n in range(1, 7)]


def test_second_batch_dies(site: Site) -> None:
    """Nodes that were done before the stop did not get the plays behind it."""
    site.inventory(gpu_nodes=f"gpu-[1:3] {ALIVE}")
    site.write(
        "site.yml",
        """
        - name: Roll out
          hosts: gpu_nodes
          gather_facts: false
          serial: 1
          tasks:
            - name: Break the second
              ansible.builtin.fail:
                msg: no
              when: inventory_hostname == 'gpu-2'
        - name: Afterwards
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Never come here
              ansible.builtin.debug:
        """,
    )
    result = site.run("site.yml")
    assert result.outcomes() == {"gpu-1": "not_run", "gpu-2": "failed", "gpu-3": "not_run"}
    assert "roll-out stopped; play 'Afterwards' did not run on this node" in result.out
    assert "batch 2 of 3, nodes 2-2 of 3" in result.out


def test_any_errors_fatal_stops_well_nodes(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[1:3] {ALIVE}")
    site.write(
        "site.yml",
        """
        - name: Together
          hosts: gpu_nodes
          gather_facts: false
          any_errors_fatal: true
          tasks:
            - name: Break one
              ansible.builtin.fail:
                msg: no
              when: inventory_hostname == 'gpu-2'
            - name: Never come here
              ansible.builtin.debug:
        """,
    )
    result = site.run("site.yml")
    assert result.rc == result.report["exit"] == 2
    assert result.outcomes() == {"gpu-1": "not_run", "gpu-2": "failed", "gpu-3": "not_run"}
    assert "roll-out stopped after 'Break one', because other nodes failed" in result.out


def test_max_fail_percentage_stops_well_nodes(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[1:6] {ALIVE}\ngpu-7 {DEAD}")
    site.write(
        "site.yml",
        """
        - name: In batches
          hosts: gpu_nodes
          gather_facts: false
          serial: 4
          max_fail_percentage: 30
          tasks:
            - name: Break two
              ansible.builtin.fail:
                msg: no
              when: inventory_hostname in ['gpu-2', 'gpu-3']
            - name: Never come here
              ansible.builtin.debug:
        """,
    )
    result = site.run("site.yml")
    assert result.rc == result.report["exit"] == 2
    assert result.outcomes() == {
        "gpu-1": "not_run",
        "gpu-2": "failed",
        "gpu-3": "failed",
        **{f"gpu-{n}": "not_run" for n in (4, 5, 6, 7)},
    }


def test_a_node_ended_on_purpose_is_well(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[1:2] {ALIVE}")
    site.write(
        "site.yml",
        """
        - name: Some are done early
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Do a little
              ansible.builtin.debug:
            - name: End here
              ansible.builtin.meta: end_host
              when: inventory_hostname == 'gpu-1'
            - name: Do more
              ansible.builtin.debug:
        """,
    )
    result = site.run("site.yml")
    assert result.outcomes() == {"gpu-1": "ok", "gpu-2": "ok"}
    assert result.report["hosts"]["gpu-2"]["host_tasks"] == 2, "a meta task is no host-task"


def test_hung_task(site: Site) -> None:
    """task_timeout fails the node that hangs; the others go on."""
    site.inventory(gpu_nodes=f"gpu-[1:3] {ALIVE}")
    site.write(
        "site.yml",
        """
        - name: Platform
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Read the sensors
              ansible.builtin.command: "{{ 'sleep 120' if inventory_hostname == 'gpu-2' else 'true' }}"
              changed_when: false
            - name: Go on
              ansible.builtin.debug:
        """,
    )
    result = site.run("site.yml", ANSIBLE_TASK_TIMEOUT="8")
    assert result.rc == 2
    assert result.outcomes() == {"gpu-1": "ok", "gpu-2": "timed_out", "gpu-3": "ok"}
    assert "  timed out: gpu-2" in result.summary
    assert "    reason: the task did not end within 8 s [Read the sensors]" in result.summary
    assert "what hangs" in "\n".join(result.summary)


def test_ssh_lost_in_the_middle(site: Site) -> None:
    """The connection works for a task and is gone in the next one."""
    fake_ssh = site.write(
        "fake-ssh",
        """\
        #!/bin/sh
        # Runs the remote command here, until the "node" has crashed; the last argument is the command.
        for last; do :; done
        if [ -e crashed ]; then
            cat >/dev/null # else it depends on the load whether Ansible can still send the module
            echo "client_loop: send disconnect: Broken pipe" >&2
            exit 255
        fi
        exec /bin/sh -c "$last"
        """,
    )
    fake_ssh.chmod(0o755)
    site.inventory(gpu_nodes=f"gpu-1 ansible_connection=ssh ansible_host=127.0.0.1 ansible_remote_tmp={site.folder}/r")
    site.write(
        "site.yml",
        f"""
        - name: Platform
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Work
              ansible.builtin.command: touch {site.folder}/crashed
              changed_when: true
            - name: Work on
              ansible.builtin.command: "true"
              changed_when: false
        """,
    )
    result = site.run("site.yml", ANSIBLE_SSH_EXECUTABLE=str(fake_ssh))
    assert result.rc == 4
    host = result.report["hosts"]["gpu-1"]
    assert host["outcome"] == "unreachable"
    assert host["changed"] == 1
    assert host["attention"][0]["reason"].startswith("connection lost in the middle (after 1 results): client_loop")
    assert "it may have crashed or rebooted" in "\n".join(result.summary)


def test_caught_failures_are_no_failures(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[1:2] {ALIVE}\ngpu-3 {DEAD}")
    site.write(
        "site.yml",
        """
        - name: Platform
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Ask without need
              ansible.builtin.raw: "true"
              changed_when: false
              ignore_unreachable: true
            - name: Try without need
              ansible.builtin.fail:
                msg: ignored
              ignore_errors: true
            - name: Try and mend
              block:
                - name: Break
                  ansible.builtin.fail:
                    msg: caught
              rescue:
                - name: Mend
                  ansible.builtin.debug:
        """,
    )
    result = site.run("site.yml")
    assert result.rc == result.report["exit"] == 0
    assert set(result.outcomes().values()) == {"ok"}
    host = result.report["hosts"]["gpu-3"]
    assert (host["failed"], host["unreachable"], host["rescued"], host["ignored"]) == (0, 0, 1, 2)
    assert "Needs attention" not in result.out


TELL = """
#!/usr/bin/python3
# A module that answers with its arguments.
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule({"answer": {"type": "dict", "required": True}})
module.exit_json(**module.params["answer"])
"""


def test_a_failure_of_the_controller_under_the_name_of_a_node(site: Site) -> None:
    """It stands beside what went well on localhost, and beside what the same node caught itself."""
    site.inventory(gpu_nodes=f"gpu-[1:2] {ALIVE}")
    site.write("library/tell.py", TELL.lstrip())
    site.write(
        "site.yml",
        """
        - name: Preflight
          hosts: localhost
          gather_facts: false
          tasks:
            - name: Check the inventory
              ansible.builtin.debug:
        - name: Batches
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Try and mend
              block:
                - name: Break
                  ansible.builtin.fail:
                    msg: caught
              rescue:
                - name: Mend
                  ansible.builtin.debug:
            - name: Go on only if all went well
              tell:
                answer:
                  failed: true
                  msg: the batch before failed
                  next_step: look at it
                  gpufleet: {on_controller: true}
              run_once: true
        """,
    )
    result = site.run("site.yml")
    assert result.rc == result.report["exit"] == 2
    assert [failure["message"] for failure in result.report["controller"]["failures"]] == ["the batch before failed"]
    assert sum("the batch before failed" in line for line in result.summary) == 1
    for host in result.report["hosts"].values():
        assert (host["failures"], host["failed"], host["rescued"]) == ([], 0, 1)


def test_a_node_that_mended_itself_and_was_stopped_later(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[1:2] {ALIVE}")
    site.write(
        "site.yml",
        """
        - name: Together
          hosts: gpu_nodes
          gather_facts: false
          any_errors_fatal: true
          tasks:
            - name: Try and mend
              block:
                - name: Break
                  ansible.builtin.fail:
                    msg: caught
                  when: inventory_hostname == 'gpu-1'
              rescue:
                - name: Mend
                  ansible.builtin.debug:
            - name: Break the other
              ansible.builtin.fail:
                msg: no
              when: inventory_hostname == 'gpu-2'
            - name: Never come here
              ansible.builtin.debug:
        """,
    )
    result = site.run("site.yml")
    assert result.outcomes() == {"gpu-1": "not_run", "gpu-2": "failed"}
    assert "roll-out stopped after 'Break the other', because other nodes failed" in result.out


def test_a_rescue_that_fails_is_a_failure(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-1 {ALIVE}")
    site.write(
        "site.yml",
        """
        - name: Platform
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Try and mend
              block:
                - name: Break
                  ansible.builtin.fail:
                    msg: first trouble
              rescue:
                - name: Mend
                  ansible.builtin.fail:
                    msg: second trouble
              always:
                - name: Tidy up
                  ansible.builtin.debug:
            - name: Never come here
              ansible.builtin.debug:
        """,
    )
    result = site.run("site.yml")
    assert result.rc == 2
    assert result.outcomes() == {"gpu-1": "failed"}
    assert "reason: second trouble [Mend]" in "\n".join(result.summary)
    assert "first trouble" not in "\n".join(result.summary)


def test_include_of_a_missing_file(site: Site) -> None:
    """Ansible tells such an include twice, first as ok."""
    site.inventory(gpu_nodes=f"gpu-[1:2] {ALIVE}")
    site.write(
        "site.yml",
        """
        - name: Platform
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Include
              ansible.builtin.include_tasks: missing.yml
              when: inventory_hostname == 'gpu-1'
            - name: Go on
              ansible.builtin.debug:
        """,
    )
    result = site.run("site.yml")
    assert result.rc == 2
    assert result.outcomes() == {"gpu-1": "failed", "gpu-2": "ok"}
    host = result.report["hosts"]["gpu-1"]
    assert (host["ok"], host["failed"], host["rescued"], host["host_tasks"]) == (0, 1, 0, 1)
    assert "task 1 Include .. skipped 1 failed 1 (" in result.out


def test_failed_preflight_is_shown_in_full(site: Site) -> None:
    """A play on localhost is no node, but its failure concerns all of them."""
    site.inventory(gpu_nodes=f"gpu-[1:2] {ALIVE}")
    site.write(
        "site.yml",
        """
        - name: Preflight
          hosts: localhost
          gather_facts: false
          tasks:
            - name: Check the inventory
              ansible.builtin.fail:
                msg: |-
                  2 things are wrong:
                  - gpu-1: node_profile is missing
                  - gpu-2: time_sync_servres is unknown, did you mean time_sync_servers?
        """
        + TWO_PLAYS.replace("\n", "\n        "),
    )
    result = site.run("site.yml")
    assert result.rc == result.report["exit"] == 2
    assert result.outcomes() == {"gpu-1": "not_run", "gpu-2": "not_run"}, "localhost is not in the inventory: no node"
    at = result.summary.index("Failed on this machine, in 'Check the inventory':")
    assert result.summary[at + 1 : at + 4] == [
        "  2 things are wrong:",
        "  - gpu-1: node_profile is missing",
        "  - gpu-2: time_sync_servres is unknown, did you mean time_sync_servers?",
    ]
    assert result.report["controller"]["failures"][0]["message"].count("\n") == 2
    assert "roll-out stopped before this node (play 'Platform' did not start)" in "\n".join(result.summary)


def test_error_before_any_play(site: Site) -> None:
    """Ansible gives up before the first play: no last event comes, the summary does."""
    site.inventory(gpu_nodes=f"gpu-[1:2] {ALIVE}")
    site.write("site.yml", "- hosts: gpu_nodes\n  serial: '{{ no_such_variable }}'\n  tasks: []\n")
    result = site.run("site.yml")
    assert result.rc not in (0, None)
    assert result.outcomes() == {"gpu-1": "not_run", "gpu-2": "not_run"}
    assert result.report["interrupted"] is True
    assert "'no_such_variable' is undefined" in result.out


def test_hosts_that_no_task_ran_on(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[1:2] {ALIVE}")
    site.write("site.yml", TWO_PLAYS)
    result = site.run("site.yml", "--tags", "no_such_tag")
    assert set(result.outcomes().values()) == {"not_run"}
    assert "check --tags" in result.out


def test_reports_directory_that_cannot_be_made(site: Site) -> None:
    """A report that cannot be written is a warning; summary and exit code stay."""
    site.inventory(gpu_nodes=f"gpu-1 {ALIVE}")
    site.write("site.yml", TWO_PLAYS)
    blocked = site.write("file", "not a folder")
    result = site.run("site.yml", GPUFLEET_REPORTS_DIR=str(blocked / "reports"))
    assert result.rc == 0
    assert "No run lock" in result.out
    assert "The report could not be written" in " ".join(result.out.split())
    assert "  all             1  changed=0 failed=0 unreachable=0" in result.summary


def test_full_disk(site: Site) -> None:
    """As above with a disk that has no room left, where this machine lets us make one."""
    site.inventory(gpu_nodes=f"gpu-1 {ALIVE}")
    site.write("site.yml", TWO_PLAYS)
    disk = site.folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            for _ in range(1000):
                filler.write(b"x" * 1024)
        result = site.run("site.yml", GPUFLEET_REPORTS_DIR=str(disk))
        left = [path for path in disk.rglob("*") if path.is_file() and path.suffix not in (".lock", "")]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert result.rc == 0
    assert "No space left on device" in " ".join(result.out.split())
    assert "  all             1  changed=0 failed=0 unreachable=0" in result.summary
    assert left == [], "no half report is left behind"
