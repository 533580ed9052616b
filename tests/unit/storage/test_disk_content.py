# SPDX-License-Identifier: Apache-2.0
"""Blank or not: signatures as wipefs prints them, and bytes on real (sparse) files."""

from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.block_devices import BlockDeviceError
from ansible.module_utils.gpufleet.bounded_command import CommandResult
from ansible.module_utils.gpufleet.disk_content import END_BYTES, Content, parse_wipefs, read_contents, sample_data

from tests.unit.storage.conftest import MIB, make_disk, with_partition

WIPEFS = """{"signatures": [
  {"device": "nvme3n1", "offset": "0x200", "type": "gpt", "uuid": "u", "label": null},
  {"device": "nvme3n1", "offset": "0x1fe", "type": "PMBR", "uuid": null, "label": null},
  {"device": "nvme3n1p1", "offset": "0x3f000", "type": "zfs_member", "uuid": "99", "label": "other"},
  {"device": "nvme3n1p1", "offset": "0x3e000", "type": "zfs_member", "uuid": "99", "label": "other"}
]}"""
SIZE = 256 * MIB


def disk_file(path: Path, *writes: tuple[int, bytes]) -> str:
    """A sparse file of SIZE with some bytes in it."""
    with path.open("wb") as file:
        file.truncate(SIZE)
        for place, data in writes:
            file.seek(place)
            file.write(data)
    return str(path)


def test_signatures_of_a_disk_and_its_partitions_in_words():
    disks = [with_partition(make_disk(3)), make_disk(4)]
    contents = read_contents(disks, lambda argv, limit_s: CommandResult("done", 0, WIPEFS, ""), lambda path, size: None)
    assert str(contents["nvme3n1"]) == "a GPT partition table on nvme3n1, the label of ZFS pool 'other' on nvme3n1p1"
    assert not contents["nvme3n1"].blank and contents["nvme4n1"].blank
    assert contents["nvme3n1"].group is None


def test_all_devices_are_asked_at_once():
    asked = []

    def run(argv, limit_s):
        asked.append(list(argv))
        return CommandResult("done", 0, "", "")

    read_contents([with_partition(make_disk(3)), make_disk(4)], run, lambda path, size: None)
    assert asked == [["wipefs", "--json", "--no-act", "/dev/nvme3n1", "/dev/nvme3n1p1", "/dev/nvme4n1"]]
    assert read_contents([], run) == {} and len(asked) == 1


@pytest.mark.parametrize(
    "answer",
    [CommandResult("done", 1, "", "wipefs: error"), CommandResult("done", 0, '{"signatures": [', ""),
     CommandResult("timeout", None, "", "no answer"), CommandResult("done", 0, '{"signatures": [{}]}', "")],
)  # fmt: skip
def test_no_answer_is_not_blank(answer):
    with pytest.raises(BlockDeviceError):
        read_contents([make_disk(3)], lambda argv, limit_s: answer, lambda path, size: None)


def test_no_signatures():
    assert parse_wipefs("") == [] and parse_wipefs('{"signatures": []}') == []
    assert str(Content((), None)) == "nothing"


@pytest.mark.parametrize("fill", [b"\0", b"\xff"])
def test_a_disk_of_one_blank_value_is_blank(tmp_path, fill):
    path = tmp_path / "disk"
    path.write_bytes(fill * (16 * MIB))
    assert sample_data(str(path), 16 * MIB) is None


@pytest.mark.parametrize("place", [0, 1_000_000, END_BYTES - 1, SIZE // 2 + 5, SIZE - END_BYTES, SIZE - 1])
def test_one_byte_is_data(tmp_path, place):
    assert f"at offset {place})" in sample_data(disk_file(tmp_path / "disk", (place, b"x")), SIZE)


def test_a_mixture_of_both_blank_values_is_data(tmp_path):
    assert sample_data(disk_file(tmp_path / "disk", (SIZE - 10, b"\xff" * 10)), SIZE)


def test_a_disk_smaller_than_its_ends(tmp_path):
    path = tmp_path / "disk"
    path.write_bytes(b"\0" * 1000 + b"x")
    assert "at offset 1000)" in sample_data(str(path), 1001)


def test_a_disk_that_cannot_be_read(tmp_path):
    with pytest.raises(BlockDeviceError, match="cannot be read"):
        sample_data(str(tmp_path / "none"), 100)
