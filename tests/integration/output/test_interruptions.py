# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed, and a second run at the same time."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from .conftest import ALIVE, Site, wait_for

SLOW = """
- name: Platform
  hosts: gpu_nodes
  gather_facts: false
  serial: 2
  tasks:
    - name: Touch the node
      ansible.builtin.command: touch {{ inventory_hostname }}.touched
      args:
        chdir: "{{ inventory_dir }}"
      changed_when: true
    - name: Take a while
      ansible.builtin.command: sleep {{ sleep_s | default(30) }}
      changed_when: false
"""


@pytest.fixture
def slow(site: Site) -> Site:
    """A site whose play hangs in its second task for half a minute."""
    site.inventory(gpu_nodes=f"gpu-[1:3] {ALIVE}")
    site.write("slow.yml", SLOW)
    return site


def _in_second_task(site: Site) -> None:
    wait_for(lambda: (site.folder / "gpu-2.touched").exists(), "the first task is done")
    time.sleep(1.5)


def _lock_file(site: Site) -> Path:
    [path] = (site.reports / ".locks").iterdir()
    return path


def _is_free(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_second_run_at_the_same_time(slow: Site) -> None:
    first = slow.start("slow.yml")
    try:
        _in_second_task(slow)
        for name in ("gpu-1.touched", "gpu-2.touched"):
            (slow.folder / name).unlink()

        second = slow.run("slow.yml")
        assert second.rc == 75
        assert f"pid {first.pid}" in second.out
        assert "Another run on this inventory is under way: slow.yml, started 20" in second.out
        assert "Nothing was done on any node." in second.out
        assert "Next step: wait" in second.out
        assert second.folder is None
        assert not list(slow.folder.glob("*.touched")), "the second run did nothing on any node"

        # the same on a terminal: nothing of the live lines stays
        on_terminal = slow.run_on_terminal("slow.yml")
        assert on_terminal.rc == 75
        assert "under way" in on_terminal.out

        checked = slow.run("slow.yml", "--check")
        assert checked.rc == 0, "a run in check mode needs no lock"
        assert checked.report["check"] is True
        listed = slow.run("slow.yml", "--list-hosts")
        assert listed.rc == 0
        assert "gpu-3" in listed.out

        # another inventory is another fleet
        slow.write("elsewhere", f"[gpu_nodes]\ngpu-9 {ALIVE} ansible_python_interpreter=/usr/bin/python3\n")
        other = slow.run("slow.yml", "-i", "elsewhere", "--limit", "gpu-9", "-e", "sleep_s=0")
        assert other.rc == 0, other.out
    finally:
        first.kill()
        first.wait()


def test_lock_is_free_after_a_regular_end(slow: Site) -> None:
    assert slow.run("slow.yml", "-e", "sleep_s=0").rc == 0
    assert _lock_file(slow).read_text(encoding="utf-8") == "", "a free lock names nobody"
    assert slow.run("slow.yml", "-e", "sleep_s=0").rc == 0


def test_kill_9_leaves_no_stale_lock(slow: Site) -> None:
    """Workers outlive a kill -9 of the run, hanging in their task; the lock does not."""
    first = slow.start("slow.yml")
    _in_second_task(slow)
    children = [int(pid) for pid in Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()]
    lock = _lock_file(slow)
    assert not _is_free(lock)
    first.kill()
    first.wait()
    try:
        assert any(Path(f"/proc/{pid}").exists() for pid in children), "a worker still runs, else this shows nothing"
        assert _is_free(lock)
    finally:
        for pid in children:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)


def test_sigterm(slow: Site) -> None:
    run = slow.start("slow.yml")
    _in_second_task(slow)
    run.terminate()
    out, _ = run.communicate(timeout=20)
    assert run.returncode == -signal.SIGTERM, "the run ends as a killed process does"
    [report] = slow.reports.glob("*/report.json")
    text = report.read_text(encoding="utf-8")
    assert '"interrupted": true' in text
    assert '"interrupted_by": "signal SIGTERM"' in text
    assert "The run did not come to its end: signal SIGTERM" in out
    assert "the run was ended in 'Take a while' before this node was done" in out
    assert "not run: gpu-3" in out
    assert "the run was ended before this node's turn" in out
    assert (report.parent / "attention.limit").read_text(encoding="utf-8").split() == ["gpu-1", "gpu-2", "gpu-3"]
    assert _is_free(_lock_file(slow))


def test_ctrl_c_on_a_terminal(slow: Site) -> None:
    pressed: list[float] = []

    def press(text: str, terminal: int) -> None:
        if not pressed and "task 2 Take a while (1 s)" in text:
            pressed.append(time.monotonic())
            os.write(terminal, b"\x03")

    result = slow.run_on_terminal("slow.yml", act=press)
    assert pressed
    assert result.rc == 99, "Ansible's own exit code for Ctrl-C"
    assert result.report["interrupted_by"] == "Ctrl-C"
    assert result.outcomes() == {"gpu-1": "not_run", "gpu-2": "not_run", "gpu-3": "not_run"}
    assert not result.cursor_hidden
    assert not any("running; in this run" in line for line in result.screen), "the live lines are gone"
    assert "Summary of slow.yml" in result.out
    assert _is_free(_lock_file(slow))


def test_two_reports_in_the_same_second(site: Site) -> None:
    site.inventory(gpu_nodes=f"gpu-1 {ALIVE}")
    site.write("site.yml", "- hosts: gpu_nodes\n  gather_facts: false\n  tasks:\n    - ansible.builtin.debug:\n")
    runs = [site.start("site.yml", "--check") for _ in range(3)]
    for run in runs:
        out, _ = run.communicate(timeout=60)
        assert run.returncode == 0, out
    assert len(list(site.reports.glob("*/report.json"))) == 3
