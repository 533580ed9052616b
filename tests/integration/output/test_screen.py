# SPDX-License-Identifier: Apache-2.0
"""What an operator sees: live lines on a terminal, plain lines in a log, readable at 511 nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import ALIVE, DEAD, REPOSITORY, Site, resize

PLAYS = """
- name: Platform
  hosts: gpu_nodes
  gather_facts: false
  serial: 2
  tasks:
    - name: Be quick
      ansible.builtin.debug:
        msg: all is well
    - name: Take a while
      ansible.builtin.command: sleep {{ 4 if inventory_hostname == 'gpu-2' else 0 }}
      changed_when: inventory_hostname == 'gpu-3'
    - name: Break one
      ansible.builtin.fail:
        msg: "no\x20good"
      when: inventory_hostname == 'gpu-4'
"""


def _visible(result, pattern: str) -> list[str]:
    """All lines that were on the screen at some time and match."""
    return [line for lines in result.seen for line in lines if re.search(pattern, line)]


def test_live_lines(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[1:5] {ALIVE}\ngpu-6 {DEAD}")
    site.write("site.yml", PLAYS)
    result = site.run_on_terminal("site.yml", NO_COLOR="1")
    assert result.rc == 4
    # while it ran
    assert _visible(result, r"^play 1 of 1: Platform, batch 1 of 3, nodes 1-2 of 6, \d+ s$")
    assert _visible(result, r"^play 1 of 1: Platform, batch 3 of 3, nodes 5-6 of 6, \d+ s$")
    assert _visible(result, r"^task 2 Take a while \(3 s\)$")
    assert _visible(result, r"^nodes: 1 of 2 done, 1 running; in this run 0 failed, 0 unreachable$")
    assert _visible(result, r"^waiting for gpu-2 \(\d s\)$")
    # what stays: failures as they happened and the summary, none of the live lines
    stays = result.screen
    assert stays.count("failed: gpu-4: no good [Break one]") == 1
    assert any(line.startswith("unreachable: gpu-6: ssh: connect") for line in stays)
    assert not [line for line in stays if re.search(r"running; in this run|^play 1|^task 2|^waiting for", line)]
    assert stays[-2].startswith("Report: ")
    assert "gpu-[1-2]: all is well [Be quick]" in stays
    # NO_COLOR: the lines are moved, never coloured
    assert not re.search(rb"\x1b\[[0-9;]*m", result.raw)
    assert not result.cursor_hidden
    assert result.raw.count(b"\x1b[?25l") == result.raw.count(b"\x1b[?25h")


def test_lines_are_redrawn_at_most_ten_times_a_second(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[1:12] {ALIVE}")
    site.write(
        "site.yml",
        """
        - name: Platform
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Loop fast
              ansible.builtin.debug:
                msg: "{{ item }}"
              loop: "{{ range(100) | list }}"
            - name: Loop over results
              ansible.builtin.set_fact:
                x: "{{ item }}"
              loop: "{{ range(100) | list }}"
        """,
    )
    # with -v each item is a line above, after which the live lines have to be drawn again
    result = site.run_on_terminal("site.yml", "-v")
    assert result.rc == 0
    assert result.draws
    # Over the whole run: on a busy machine what was written in several seconds may be read in one.
    assert len(result.draws) <= 10 * (max(result.draws) - min(result.draws)) + 2


def test_warnings_and_resize_do_not_garble(site: Site) -> None:
    """Ansible's own messages are whole lines above the live ones, in a window that shrinks meanwhile too."""
    site.inventory(gpu_nodes=f"gpu-[1:3] {ALIVE}")
    site.write(
        "library/warn.py",
        """\
        #!/usr/bin/python
        import time
        from ansible.module_utils.basic import AnsibleModule

        def main():
            module = AnsibleModule(dict(word=dict(), sleep=dict(type="float")))
            time.sleep(module.params["sleep"])
            module.warn("the module says " + module.params["word"])
            module.exit_json()

        if __name__ == "__main__":
            main()
        """,
    )
    name = "Do a thing with a rather long name that does not fit a narrow window at all, " * 2
    site.write(
        "site.yml",
        f"""
        - name: A play whose name is longer than any of the warnings below
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: "{name}"
              warn:
                word: "word-{{{{ inventory_hostname }}}}"
                sleep: "{{{{ inventory_hostname[-1] | int }}}}"
        """,
    )
    shrunk: list[int] = []

    def shrink(text: str, terminal: int) -> None:
        if not shrunk and "waiting for" in text:
            shrunk.append(1)
            resize(terminal, 60, 40)  # as xterm does it: what is on the screen stays as it is

    result = site.run_on_terminal("site.yml", act=shrink, NO_COLOR="1")
    assert result.rc == 0
    assert shrunk
    for number in (1, 2, 3):
        assert result.screen.count(f"[WARNING]: the module says word-gpu-{number}") == 1
    live = _visible(result, "^task 1 Do a thing")
    assert any(len(line) == 99 and line.endswith("...") for line in live), "cut to the window of 100"
    assert any(len(line) == 59 and line.endswith("...") for line in live), "cut to the window of 60"
    assert not [line for line in result.screen if re.search(r"running; in this run|^task 1", line)]


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"CI": "true"}, {"GPUFLEET_LIVE": "never"}])
def test_plain_lines_on_such_terminals(site: Site, env: dict[str, str]) -> None:
    site.inventory(gpu_nodes=f"gpu-1 {ALIVE}")
    site.write("site.yml", "- name: Platform\n  hosts: gpu_nodes\n  gather_facts: false\n  tasks:\n    - debug:\n")
    result = site.run_on_terminal("site.yml", NO_COLOR="1", **env)
    assert result.rc == 0
    assert b"\x1b" not in result.raw
    assert any(line.startswith("task 1 debug .. ok 1 (") for line in result.screen)


def test_equal_diffs_are_shown_once(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-[1:3] {ALIVE}")
    site.write("file.j2", "a line\n{{ 'odd' if inventory_hostname == 'gpu-3' else 'even' }}\n")
    site.write(
        "site.yml",
        f"""
        - name: Platform
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Write a file
              ansible.builtin.template:
                src: file.j2
                dest: "{site.folder}/out-{{{{ inventory_hostname }}}}"
                mode: "0644"
            - name: Write in a loop
              ansible.builtin.template:
                src: file.j2
                dest: "{site.folder}/loop-{{{{ item }}}}"
                mode: "0644"
              loop: [1]
              when: inventory_hostname == 'gpu-3'
        """,
    )
    result = site.run("site.yml", "--check", "--diff")
    assert result.rc == 0
    assert "diff of gpu-[1-2] [Write a file]" in result.out
    assert "diff of gpu-3 [Write a file]" in result.out
    assert result.out.count("+even") == 1
    assert result.out.count("+odd") == 2
    assert result.out.count("diff of gpu-3 [Write in a loop]") == 1
    on_terminal = site.run_on_terminal("site.yml", "--check", "--diff", NO_COLOR="1")
    assert on_terminal.screen.count("diff of gpu-[1-2] [Write a file]") == 1
    assert on_terminal.screen.count("+even") == 1


def test_verbose_shows_results(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-1 {ALIVE}")
    site.write(
        "site.yml",
        "- name: Platform\n  hosts: gpu_nodes\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.command: echo word\n",
    )
    result = site.run("site.yml", "-v")
    assert re.search(r'^  changed: \[gpu-1\] => .*"stdout": "word"', result.out, re.MULTILINE)
    most = site.run_on_terminal("site.yml", "-vvvv", NO_COLOR="1", columns=200)
    assert most.rc == 0
    assert "EXEC" in most.out
    assert "task path:" in most.out
    assert not [line for line in most.screen if "running; in this run" in line]


def test_pause_asks_on_a_quiet_screen(site: Site) -> None:
    """While a task waits for the keyboard nothing is drawn over its question."""
    site.inventory(gpu_nodes=f"gpu-1 {ALIVE}")
    site.write(
        "site.yml",
        "- name: Platform\n  hosts: gpu_nodes\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.pause:\n        prompt: Go on\n",
    )
    answered: list[float] = []

    def answer(text: str, terminal: int) -> None:
        if not answered and "Go on:" in text:
            answered.append(time.monotonic())
            time.sleep(0.5)
            os.write(terminal, b"\n")

    result = site.run_on_terminal("site.yml", act=answer)
    assert result.rc == 0
    assert not _visible(result, "running; in this run")


def test_511_nodes(site: Site) -> None:
    """All of the fleet fits on one screen, and the log has a line a task."""
    site.inventory(gpu_nodes=f"gpu-[001:511] {ALIVE}")
    site.write(
        "site.yml",
        """
        - name: Platform
          hosts: gpu_nodes
          gather_facts: false
          tasks:
            - name: Look at the node
              ansible.builtin.assert:
                that: inventory_hostname not in ['gpu-100', 'gpu-200'] and inventory_hostname[-1] != '7'
                fail_msg: "{{ 'link down on ' ~ inventory_hostname if inventory_hostname[-1] == '7' else 'odd' }}"
                quiet: true
        """,
    )
    began = time.monotonic()
    result = site.run("site.yml")
    assert time.monotonic() - began < 180
    assert result.rc == 2
    outcomes = result.outcomes()
    assert len(outcomes) == 511
    assert sum(outcome == "failed" for outcome in outcomes.values()) == 53
    assert len(result.summary) <= 60
    assert max(len(line) for line in result.summary) <= 160
    assert len(result.out.splitlines()) <= 80
    assert "failed 53" in next(line for line in result.out.splitlines() if line.startswith("task 1 "))
    text = "\n".join(result.summary)
    assert "reason: link down on <node> [Look at the node]" in text
    assert "failed: gpu-[100,200] (2 nodes)" in text
    assert len((result.folder / "attention.limit").read_text(encoding="utf-8").split()) == 53


def test_under_ansible_runner(site: Site, tmp_path: Path) -> None:
    """ansible-runner brings its own folder of callbacks; with ours named too, summary and report are there."""
    site.inventory(gpu_nodes=f"gpu-1 {ALIVE}")
    playbook = site.write("site.yml", "- hosts: gpu_nodes\n  gather_facts: false\n  tasks:\n    - debug:\n")
    code = (
        "import ansible_runner, sys; r = ansible_runner.run(private_data_dir=sys.argv[1], playbook=sys.argv[2],"
        " inventory=sys.argv[3], cmdline='', envvars={'ANSIBLE_CONFIG': sys.argv[4] + '/ansible.cfg',"
        " 'ANSIBLE_CALLBACK_PLUGINS': sys.argv[4] + '/plugins/callback'}); print('status', r.status)"
    )
    data = tmp_path / "runner"
    data.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, data, playbook, site.folder / "inventory", REPOSITORY],
        env=site.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "status successful" in done.stdout
    assert "  all             1  changed=0 failed=0 unreachable=0" in done.stdout
    assert len(list(site.reports.glob("*/report.json"))) == 1


def test_documentation_is_complete() -> None:
    """ansible-doc can read both callbacks."""
    for name in ("gpufleet_report", "gpufleet_progress"):
        done = subprocess.run(
            [Path(sys.executable).parent / "ansible-doc", "-t", "callback", name],
            env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "OPTIONS" in done.stdout
