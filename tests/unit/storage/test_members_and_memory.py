# SPDX-License-Identifier: Apache-2.0
"""Members as disks, and what the node remembers of them."""

import json
import os
import sys

import pytest
from ansible.module_utils.gpufleet import host_id, zfs_arc
from ansible.module_utils.gpufleet.zfs_pool_members import in_use_by_pools, parse_blkid, remember
from ansible.module_utils.gpufleet.zfs_pool_record import PoolMemory, new_intent

from tests.unit.storage.conftest import (
    DATA_DISKS,
    MIB,
    POOL_GUID,
    RECORD,
    make_disk,
    member_path,
    node_with_pool,
    remembered,
    status,
    with_partition,
)

# blkid --probe --output export of util-linux 2.38: blocks divided by an empty line, a label with an escaped blank
BLKID = """
DEVNAME=/dev/nvme1n1
PTUUID=aa
PTTYPE=gpt

DEVNAME=/dev/nvme1n1p1
VERSION=5000
LABEL=data
UUID=4242424242424242
UUID_SUB=1001
BLOCK_SIZE=4096
TYPE=zfs_member
USAGE=filesystem

DEVNAME=/dev/nvme2n1p1
LABEL=my\\ pool
TYPE=zfs_member
"""


def test_labels():
    assert parse_blkid(BLKID) == [
        ("/dev/nvme1n1p1", "data", POOL_GUID, "1001"),
        ("/dev/nvme2n1p1", "my pool", "", ""),
    ]
    assert parse_blkid("") == []


def test_members_follow_their_labels_to_other_kernel_names_and_other_by_id_names():
    """After a boot or a systemd upgrade path and kernel name may be others: the label decides."""
    moved = [with_partition(disk)._replace(by_id=(f"nvme-new-{disk.serial}",)) for disk in DATA_DISKS]
    state = node_with_pool(disks=moved)
    assert [(member.serial, member.place, member.guid) for member in state.members] == [
        (f"DATA000{n}", f"slot {n}", f"100{n}") for n in range(1, 6)
    ]


def test_a_path_that_leads_to_another_disk_does_not_make_it_the_member():
    """The by-id name of a pulled disk may belong to its successor by now."""
    text = status({3: f"{member_path(3)}  REMOVED  0 0 0"}, "DEGRADED")
    stranger = make_disk(3, "DATA0009")._replace(by_id=DATA_DISKS[2].by_id)
    disks = [*(with_partition(disk) for disk in DATA_DISKS if disk.slot != "3"), with_partition(stranger, "EFI")]
    member = node_with_pool(text, disks).members[2]
    assert (member.disk, member.serial, member.place) == (None, "DATA0003", "slot 3")


def test_what_is_known_of_a_lost_member_stays_in_the_record():
    text = status({3: f"{member_path(3)}  REMOVED  0 0 0"}, "DEGRADED")
    state = node_with_pool(text, [with_partition(disk) for disk in DATA_DISKS if disk.slot != "3"])
    record = remember(POOL_GUID, 7, state.members, RECORD)
    assert record == RECORD
    moved = [with_partition(disk)._replace(slot=f"9{disk.slot}") for disk in DATA_DISKS if disk.slot != "3"]
    record = remember(POOL_GUID, 7, node_with_pool(text, moved).members, RECORD)
    assert {item.serial: item.place for item in record.members}["DATA0001"] == "slot 91"
    assert remembered(3) in record.members
    assert remembered(3) not in remember("another pool", 7, state.members, RECORD).members


def test_disks_of_pools_are_in_use():
    first, second = (
        with_partition(DATA_DISKS[0])._replace(uses=("is claimed by the kernel or a program (x)",)),
        DATA_DISKS[1],
    )
    used, free = in_use_by_pools([first, second], {f"{first.path}p1": "other"})
    assert used.uses == ("is a member of the imported pool other",) and free.uses == ()


def test_record_and_intent_are_read_back(tmp_path):
    memory = PoolMemory("data", str(tmp_path / "new" / "folder"))
    assert memory.read_record() is None and memory.read_intent() is None
    memory.remove_intent()
    memory.write_record(RECORD)
    memory.write_intent(new_intent("create pool data", ["A", "B"]))
    assert memory.read_record() == RECORD
    intent = memory.read_intent()
    assert (intent.purpose, intent.serials) == ("create pool data", ("A", "B"))
    memory.remove_intent()
    assert memory.read_intent() is None
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == ["data.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"guid": "1", "host_id": 1, "members": [{"a": 1}]}'])
def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path, text):
    memory = PoolMemory("data", str(tmp_path))
    for path, read in ((memory.record_path, memory.read_record), (memory.intent_path, memory.read_intent)):
        with open(path, "w") as file:
            file.write(text)
        with pytest.raises(ValueError, match="data.*json is not understood.*move it away"):
            read()


def test_host_id(tmp_path):
    path, uuid, machine = tmp_path / "hostid", tmp_path / "uuid", tmp_path / "machine"
    assert host_id.read_host_id(str(path)) is None
    for content in (b"", b"\0\0\0\0", b"abc", b"abcde"):
        path.write_bytes(content)
        assert host_id.read_host_id(str(path)) is None
    host_id.write_host_id(0x01020304, str(path))
    assert path.read_bytes() == (0x01020304).to_bytes(4, sys.byteorder)
    assert host_id.read_host_id(str(path)) == 0x01020304
    machine.write_text("0123\n")
    uuid.write_text("4c4c4544-0042-3510-8054-b4c04f4e3832\n")
    own = host_id.derive_host_id(str(uuid), str(machine))
    assert 0 < own < 2**32
    machine.write_text("another installation\n")
    assert host_id.derive_host_id(str(uuid), str(machine)) == own
    uuid.write_text("00000000-0000-0000-0000-000000000000\n")
    assert host_id.derive_host_id(str(uuid), str(machine)) != own
    machine.write_text("")
    with pytest.raises(OSError, match="is empty"):
        host_id.derive_host_id(str(uuid), str(machine))


def test_arc_limits(tmp_path):
    with pytest.raises(FileNotFoundError):
        zfs_arc.read_limits(str(tmp_path), str(tmp_path / "arcstats"))
    for name in ("zfs_arc_min", "zfs_arc_max"):
        (tmp_path / name).write_text("0\n")
    (tmp_path / "arcstats").write_text("9 1 0x01\nname type data\nc_min 4 7\nc_max 4 1234\n")
    assert zfs_arc.read_limits(str(tmp_path), str(tmp_path / "arcstats")) == (0, 0, 1234)
    zfs_arc.set_limits(1, 2, str(tmp_path))
    assert zfs_arc.read_limits(str(tmp_path), str(tmp_path / "arcstats")) == (1, 2, 1234)
    (tmp_path / "arcstats").write_text("cut")
    with pytest.raises(ValueError, match="no c_max"):
        zfs_arc.read_limits(str(tmp_path), str(tmp_path / "arcstats"))
    assert zfs_arc.wanted_limits(None) == (0, 0)
    assert zfs_arc.wanted_limits(64 * 2**30) == (8 * 2**30, 64 * 2**30), "the minimum that ZFS takes by itself on 2 TiB"
    assert zfs_arc.wanted_limits(64 * MIB) == (32 * MIB, 64 * MIB)


def test_the_record_is_json_that_a_person_can_read(tmp_path):
    memory = PoolMemory("data", str(tmp_path))
    memory.write_record(RECORD)
    content = json.loads((tmp_path / "data.json").read_text())
    assert content["members"][2]["serial"] == "DATA0003"
