# SPDX-License-Identifier: Apache-2.0
"""Report files are whole or absent; the lock is one for each inventory and never stale."""

import errno
import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet_controller import report_files, run_lock
from ansible.module_utils.gpufleet_controller.report_files import write_report
from ansible.module_utils.gpufleet_controller.run_lock import LockHeldError, LockOwner, RunLock, lock_path, read_owner

WHEN = datetime(2026, 11, 29, 17, 45, 0, tzinfo=UTC)
OWNER = LockOwner("ann", "deploy-1", 4711, "site.yml", "2026-11-29T17:45:00Z", "inventories/lab")


def test_folder_and_files(tmp_path: Path) -> None:
    folder = write_report(tmp_path / "new" / "reports", WHEN, "playbooks/site.yml", {"a": 1}, ["gpu-1", "gpu-2"])
    assert folder.name == "20261129T174500Z-site"
    assert json.loads((folder / "report.json").read_text()) == {"a": 1}
    assert (folder / "attention.limit").read_text() == "gpu-1\ngpu-2\n"
    assert sorted(path.name for path in folder.iterdir()) == ["attention.limit", "report.json"]


def test_same_second_and_odd_names(tmp_path: Path) -> None:
    names = [write_report(tmp_path, WHEN, "my site!.yml", {}, []).name for _ in range(3)]
    assert names == [f"20261129T174500Z-my-site{end}" for end in ("", "-2", "-3")]
    assert not (tmp_path / names[0] / "attention.limit").exists()


def test_full_disk_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(report_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(tmp_path, WHEN, "site.yml", {}, ["gpu-1"])
    assert list(tmp_path.iterdir()) == []


def test_second_file_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """attention.limit is written, report.json is not: then neither stays."""
    replace = os.replace

    def only_once(source: str, target: Path) -> None:
        if target.name == "report.json":
            raise OSError(errno.EIO, "broken")
        replace(source, target)

    monkeypatch.setattr(report_files.os, "replace", only_once)
    with pytest.raises(OSError, match="broken"):
        write_report(tmp_path, WHEN, "site.yml", {}, ["gpu-1"])
    assert list(tmp_path.iterdir()) == []


def test_lock_is_held_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.lock"
    first, second = RunLock(path), RunLock(path)
    first.acquire(OWNER)
    with pytest.raises(LockHeldError) as caught:
        second.acquire(OWNER)
    assert caught.value.owner == OWNER
    message = caught.value.message()
    for word in ("site.yml", "2026-11-29T17:45:00Z", "ann", "deploy-1", "4711", "kill 4711", "--check"):
        assert word in message
    first.release()
    first.release()
    second.acquire(OWNER)
    second.release()
    assert path.exists(), "the file stays: removing it would let two runs lock two files"


def test_lock_file_of_a_colleague(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that we may only read locks as well: two operators with one checkout."""
    path = tmp_path / "x.lock"
    path.touch()
    real_open = os.open

    def read_only(name: Path, flags: int, *args: int) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_open(name, flags, *args)

    monkeypatch.setattr(run_lock.os, "open", read_only)
    first, second = RunLock(path), RunLock(path)
    first.acquire(OWNER)
    with pytest.raises(LockHeldError):
        second.acquire(OWNER)
    first.release()


def test_owner_not_yet_written(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.write_text("{half")
    assert read_owner(path, patience_s=0.1) is None
    assert "has not said yet" in LockHeldError(path, None).message()


def test_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """The child outlives its parent, as a worker in a hung task does."""
    path = tmp_path / "x.lock"
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        lock = RunLock(path)
        lock.acquire(OWNER)
        child = os.fork()
        if child == 0:
            os.write(writer, f"{os.getpid()}\n".encode())
            signal.pause()
            os._exit(0)
        os._exit(0)  # without releasing, as after kill -9
    os.close(writer)
    child = int(os.read(reader, 20))
    os.waitpid(parent, 0)
    try:
        lock = RunLock(path)
        lock.acquire(OWNER)
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reader)


def test_one_lock_for_each_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab").mkdir()
    (tmp_path / "link").symlink_to("lab")
    path = lock_path(tmp_path, ["lab"])
    assert path.parent == tmp_path / ".locks"
    assert path.name.startswith("lab-")
    assert lock_path(tmp_path, [str(tmp_path / "lab")]).name == path.name
    assert lock_path(tmp_path, ["link"]).name.rsplit("-", 1)[1] == path.name.rsplit("-", 1)[1], "the same folder"
    assert lock_path(tmp_path, ["other"]).name != path.name
    assert lock_path(tmp_path, ["a", "b"]).name == lock_path(tmp_path, ["b", "a"]).name
    assert lock_path(tmp_path, ["h1,h2"]).name != lock_path(tmp_path, ["h1,h3"]).name
    assert lock_path(tmp_path, []).name
