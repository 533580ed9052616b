# SPDX-License-Identifier: Apache-2.0
"""Wiping: what is removed, and that a disk is left alone which is not the one that was looked at."""

from pathlib import Path

import pytest
from ansible.module_utils.gpufleet import disk_wipe
from ansible.module_utils.gpufleet.block_devices import Disk
from ansible.module_utils.gpufleet.bounded_command import CommandResult
from ansible.module_utils.gpufleet.disk_content import END_BYTES
from ansible.module_utils.gpufleet.disk_wipe import WipeError, wipe_disk

from tests.unit.storage.conftest import MIB, make_disk, with_partition

SIZE = 32 * MIB


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """A disk whose device is a file full of x, with its names in <tmp>/by-id."""
    device = tmp_path / "nvme3n1"
    device.write_bytes(b"x" * SIZE)
    (tmp_path / "by-id").mkdir()
    disk = with_partition(make_disk(3, size=SIZE))._replace(path=str(device))
    for name in disk.by_id:
        (tmp_path / "by-id" / name).symlink_to(device)
    return disk


def wipe(disk: Disk, folder: Path, rc: int = 0) -> list[str]:
    """The commands that were run."""
    commands = []

    def run(argv, limit_s):
        commands.append(" ".join(argv))
        return CommandResult("done", rc, "", "no")

    wipe_disk(disk, run, str(folder / "by-id"))
    return commands


def test_signatures_blocks_and_both_ends(disk, tmp_path):
    commands = wipe(disk, tmp_path)
    assert commands[:2] == [f"wipefs --all /dev/nvme3n1p1 {disk.path}", f"blkdiscard {disk.path}"]
    content = Path(disk.path).read_bytes()
    assert content[:END_BYTES] + content[-END_BYTES:] == bytes(2 * END_BYTES) and len(content) == SIZE
    assert content[END_BYTES:-END_BYTES] == b"x" * (SIZE - 2 * END_BYTES)


def test_a_disk_that_moved_is_left_alone(disk, tmp_path):
    other = tmp_path / "nvme4n1"
    other.write_bytes(b"y")
    link = tmp_path / "by-id" / disk.by_id[1]
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(WipeError, match="is not where it was"):
        wipe(disk, tmp_path)
    assert Path(disk.path).read_bytes() == b"x" * SIZE and other.read_bytes() == b"y"


def test_a_disk_that_came_into_use_is_left_alone(disk, tmp_path, monkeypatch):
    def busy(*arguments):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(disk_wipe.os, "open", busy)
    with pytest.raises(WipeError, match="came into use meanwhile .*nothing on it was changed"):
        wipe(disk, tmp_path)


def test_wipefs_that_fails_ends_it(disk, tmp_path):
    with pytest.raises(WipeError, match="wipefs --all failed"):
        wipe(disk, tmp_path, rc=1)
    assert Path(disk.path).read_bytes() == b"x" * SIZE
