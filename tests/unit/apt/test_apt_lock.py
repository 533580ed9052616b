# SPDX-License-Identifier: Apache-2.0
"""Locks of apt that another process holds, for real."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet import apt_lock
from ansible.module_utils.gpufleet.apt_stack_error import AptStackError

HOLD = (
    "import fcntl, sys; lock = open(sys.argv[1], 'a'); fcntl.lockf(lock, fcntl.LOCK_EX); "
    "print('locked', flush=True); sys.stdin.read()"
)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A lock file, and the process that holds it until its input ends."""
    path = tmp_path / "lock-frontend"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        yield path, process
        process.kill()


def test_names_the_holder(held: tuple[Path, subprocess.Popen[str]]) -> None:
    path, process = held
    found = apt_lock.holder(str(path))
    assert found is not None and (found.pid, found.path) == (process.pid, str(path))
    assert found.command.startswith(sys.executable)
    with pytest.raises(AptStackError, match=rf"\(pid {process.pid}, {path}\) still held its lock after 7 s"):
        apt_lock.wait_for_locks(time.monotonic(), 7, [str(path)])


def test_goes_on_once_it_is_free(held: tuple[Path, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    path, process = held

    def release(_seconds: float) -> None:
        process.kill()
        process.wait()

    monkeypatch.setattr(apt_lock.time, "sleep", release)
    apt_lock.wait_for_locks(time.monotonic() + 60, 60, [str(path)])
    assert process.returncode is not None


def test_a_lock_that_is_not_there_is_free(tmp_path: Path) -> None:
    assert apt_lock.holder(str(tmp_path / "none")) is None
    (tmp_path / "free").touch()
    apt_lock.wait_for_locks(0, 0, [str(tmp_path / "none"), str(tmp_path / "free")])
    assert apt_lock.command_line(2**22 + 1) == ""
