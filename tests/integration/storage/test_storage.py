# SPDX-License-Identifier: Apache-2.0
"""The pool on real disks: pulled, exchanged, put back, swapped, cut off from power, and every disk that is refused.

The tests follow each other on one node, since a boot takes over a minute. They begin on a node with the pool and end
on one with a fresh pool over the five disks of the lab's inventory. A file tree with checksums goes through all that
RAID-Z1 promises to survive.
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.lab_directory import LabDirectory
from tests.integration.conftest import LabNode, engine_stopped
from tests.playbook import PlaybookRun, run_playbook

pytestmark = pytest.mark.lab

DATA = ("DATA0001", "DATA0002", "DATA0003", "DATA0004", "DATA0005")
BY_ID = "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_{}"
TREE = r"""
mkdir -p /scratch/tree && cd /scratch/tree
for number in $(seq 40); do head -c $((number * 20000)) /dev/urandom > file$number; done
find . -type f -exec sha256sum {} + > /root/tree.sha256
sync
"""
CHECK_TREE = "cd /scratch/tree && sha256sum --quiet -c /root/tree.sha256"
# The ZFS test-suite's switch: a resilver that begins and makes no progress.
HOLD_RESILVER = "echo {} > /sys/module/zfs/parameters/zfs_scan_suspend_progress"
RECORD = "/var/lib/gpufleet/zfs_pool/data.json"
# All disks of the lab's kind, whatever serial number they show.
ANY_SERIAL = {"node_profile_overrides_host": {"storage": {"pool": {"disks": {"serial": []}}}}}


@pytest.fixture(scope="module", autouse=True)
def stopped_engine(lab_node: LabNode) -> Iterator[None]:
    """These tests suspend and destroy the pool that the container engine's data root lies on."""
    with engine_stopped(lab_node):
        yield


@pytest.fixture
def storage(lab_node: LabNode, tmp_path: Path) -> Iterator["Storage"]:
    yield Storage(lab_node, tmp_path)


class Storage:
    """The node's pool as an operator handles it, and its disks' backing files as nobody on the node sees them."""

    def __init__(self, node: LabNode, work: Path) -> None:
        self.node, self.work = node, work

    def run(self, *, tags: str = "zfs_pool_pool", **variables: Any) -> PlaybookRun:
        """The pool's part of playbooks/storage.yml."""
        work = self.work / str(time.monotonic_ns())
        return run_playbook("playbooks/storage.yml", work, "--tags", tags, "--extra-vars", json.dumps(variables))

    def succeeds(self, **variables: Any) -> dict[str, Any]:
        """The report's entry of the node after a run that must not fail."""
        done = self.run(**variables)
        assert done.code == 0, done.output
        return done.host(self.node.name)

    def attention(self, **variables: Any) -> str:
        """Reasons and next steps that a run without a failure reports."""
        return json.dumps(self.succeeds(**variables)["attention"])

    def refused(self, serials: Sequence[str], **variables: Any) -> str:
        """What the run says that must fail, and not change a byte on these disks."""
        before = self.checksums(serials)
        done = self.run(**variables)
        assert done.code == 2, done.output
        assert self.checksums(serials) == before, "a refused disk was written to"
        return json.dumps(done.host(self.node.name)["attention"])

    def checksums(self, serials: Sequence[str]) -> dict[str, str]:
        """SHA-256 of each disk's backing file, after the node has flushed what it holds."""
        self.node.run("sync; for disk in /dev/nvme*n1; do blockdev --flushbufs $disk; done")
        return {serial: digest(self.file(serial)) for serial in serials}

    def file(self, serial: str) -> Path:
        """A disk's backing file on this machine."""
        path: Path = LabDirectory().node(self.node.name).disk(serial)
        return path

    def states(self) -> dict[str, str]:
        """State of each member by the last part of its path, of the pool as `data`."""
        rows = [line.split() for line in self.node.run("zpool status -P data").splitlines()]
        table = [row for row in rows if len(row) >= 5 and row[1].isupper() and row[0] != "NAME"]
        return {row[0].rpartition("/")[2]: row[1] for row in table}

    def is_online(self) -> bool:
        """Whether the pool and all its five members are, without a resilver."""
        states = self.states()
        return len(states) == 7 and set(states.values()) == {"ONLINE"}

    def kernel_names(self) -> dict[str, str]:
        """Kernel name of each disk by its serial number."""
        listed = json.loads(self.node.run("lsblk --json --nodeps --output NAME,SERIAL"))["blockdevices"]
        return {disk["serial"]: disk["name"] for disk in listed if disk["serial"]}


def digest(path: Path) -> str:
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            sha256.update(chunk)
    return sha256.hexdigest()


def is_partitioned(path: Path) -> bool:
    """Whether a disk has a GPT (its header lies in the second sector, UEFI specification 5.3.2)."""
    with path.open("rb") as file:
        file.seek(512)
        return file.read(8) == b"EFI PART"


class PowerCut(threading.Thread):
    """Cuts the node's power as soon as one of the disks has a partition table."""

    def __init__(self, node: LabNode, files: Mapping[str, Path]) -> None:
        super().__init__()
        self.node, self.files, self.has_cut = node, files, False
        self.start()

    def run(self) -> None:
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            if any(is_partitioned(path) for path in self.files.values()):
                self.node.fault("power", "cut")
                self.has_cut = True
                return
            time.sleep(0.05)

    def wait(self) -> None:
        """Until the power is cut."""
        self.join()
        assert self.has_cut, "no disk was partitioned within ten minutes"


def test_the_pool_is_there_and_takes_a_tree_of_files(storage: Storage) -> None:
    """From a node with any state of the pool's software: the whole role, then a second run that changes nothing."""
    storage.succeeds(tags="zfs_pool")
    assert storage.succeeds(tags="zfs_pool")["changed_tasks"] == []
    assert storage.is_online()
    storage.node.run(TREE)
    storage.node.run(CHECK_TREE)


def test_a_pulled_disk_is_reported_by_serial_and_slot(storage: Storage) -> None:
    storage.node.fault("disk-pull", "DATA0003")
    storage.node.wait_until("zpool status data | grep -q REMOVED")
    said = storage.attention()
    assert "disk DATA0003 (last seen in slot 3): REMOVED" in said
    storage.node.run(CHECK_TREE)


def test_a_smaller_disk_and_one_with_a_file_system_do_not_replace_it(storage: Storage) -> None:
    node = storage.node
    node.fault("disk-insert", "SMALL0001")
    node.wait_until(f"test -e {BY_ID.format('SMALL0001')}")
    replace = [{"old": "DATA0003", "new": "SMALL0001"}]
    said = storage.refused(["SMALL0001"], zfs_pool_replace=replace, **ANY_SERIAL)
    assert "serial SMALL0001" in said and "is smaller than the members of pool data" in said
    node.fault("disk-pull", "SMALL0001")
    node.fault("disk-insert", "DATA0006")
    node.wait_until(f"test -e {BY_ID.format('DATA0006')}")
    node.run(f"mke2fs -q -F -t ext4 -L home {BY_ID.format('DATA0006')}")
    assert '\\"old\\": \\"DATA0003\\", \\"new\\": \\"DATA0006\\"' in storage.attention(), "offered by its serial number"
    replace = [{"old": "DATA0003", "new": "DATA0006"}]
    said = storage.refused(["DATA0006"], zfs_pool_replace=replace)
    assert "serial DATA0006" in said and "ext4 'home'" in said
    assert "has no such member" in storage.refused(["DATA0006"], zfs_pool_replace=[{"old": "NONE", "new": "DATA0006"}])


def test_a_power_cut_in_the_resilver_on_a_boot_where_kernel_names_move(storage: Storage) -> None:
    node = storage.node
    node.run(HOLD_RESILVER.format(1))
    replace = [{"old": "DATA0003", "new": "DATA0006"}]
    entry = storage.succeeds(
        zfs_pool_replace=replace, zfs_pool_wipe_serials=["DATA0006"], zfs_pool_resilver_timeout_s=5
    )
    assert "is being resilvered" in json.dumps(entry["attention"]) and entry["changed"] == 1
    before = storage.kernel_names()
    # Writing when the power goes. systemd-run: it must not end with the ssh session.
    node.run("systemd-run --quiet dd if=/dev/urandom of=/scratch/half bs=64k count=100000")
    node.fault("power", "cut")
    node.fault("disk-swap", "DATA0001,DATA0005")
    node.fault("power", "on")
    after = storage.kernel_names()
    assert after["DATA0001"] != before["DATA0001"], "the fault did not work: no kernel name has moved"
    assert node.run("systemctl is-active gpufleet-zpool.service").strip() == "active"
    members = [name for name in storage.states() if "DATA" in name]
    assert {serial for serial in (*DATA, "DATA0006") if any(serial in name for name in members)} >= {
        "DATA0001", "DATA0002", "DATA0004", "DATA0005", "DATA0006",
    }  # fmt: skip
    node.run(CHECK_TREE)
    entry = storage.succeeds(zfs_pool_replace=replace)
    assert entry["attention"] == [] and storage.is_online()
    assert not any("DATA0003" in name for name in storage.states())
    node.run(f"rm /scratch/half; zpool scrub -w data; {CHECK_TREE}")
    assert "with 0 errors" in node.run("zpool status data")
    assert storage.succeeds(zfs_pool_replace=replace)["changed"] == 0, "a replacement that is done is not begun again"


def test_the_same_disk_put_back_is_taken_in_again(storage: Storage) -> None:
    node = storage.node
    node.fault("disk-pull", "DATA0002")
    node.wait_until("zpool status data | grep -q REMOVED")
    node.run("head -c 3000000 /dev/urandom > /scratch/tree/meanwhile; cd /scratch/tree; "
             "sha256sum meanwhile >> /root/tree.sha256; sync")  # fmt: skip
    node.fault("disk-insert", "DATA0002")
    node.wait_until(f"test -e {BY_ID.format('DATA0002')}")
    storage.succeeds()  # the event daemon may have been faster; then this run has nothing to do
    node.wait_until("zpool wait -t resilver data && ! zpool status data | grep -qE 'REMOVED|DEGRADED'")
    assert storage.is_online()
    node.run(CHECK_TREE)


def test_a_pool_that_has_lost_too_many_disks_is_told_apart_and_comes_back(storage: Storage) -> None:
    node = storage.node
    for serial in ("DATA0001", "DATA0002"):
        node.fault("disk-pull", serial)
    # Without a write ZFS does not notice; the writer hangs, as a job would.
    node.run("systemd-run --quiet sh -c 'echo x > /scratch/hangs; sync'")
    node.wait_until("zpool status data | grep -q SUSPENDED")
    said = storage.refused([])
    assert "pool data is suspended" in said and "zpool clear data" in said
    assert "disk DATA0001 (last seen in slot" in said and "disk DATA0002 (last seen in slot" in said
    # A disk goes into the first free bay: in this order each comes back into the one it was pulled from.
    for serial in ("DATA0002", "DATA0001"):
        node.fault("disk-insert", serial)
        node.wait_until(f"test -e {BY_ID.format(serial)}")
    # As the runbook says. Whatever ZFS has not taken in by itself, the run does.
    node.wait_until("zpool clear data && ! zpool status data | grep -q SUSPENDED")
    storage.succeeds()
    node.run(f"zpool wait -t resilver data; zpool scrub -w data; zpool clear data; {CHECK_TREE}")
    node.wait_until("! zpool status data | grep -qE 'REMOVED|DEGRADED'")
    assert storage.is_online() and storage.succeeds()["attention"] == []


def test_a_destroyed_pools_disks_are_refused(storage: Storage) -> None:
    """From here on there is no pool: the disks of the lab's inventory are back in their bays."""
    node = storage.node
    node.run(f"zpool destroy data && rm {RECORD}")
    node.fault("disk-pull", "DATA0006")
    node.fault("disk-insert", "DATA0003")
    node.fault("disk-swap", "DATA0001,DATA0005")
    node.wait_until(f"test -e {BY_ID.format('DATA0003')} -a -e {BY_ID.format('DATA0001')}")
    assert node.status()["bays"] == list(DATA)
    said = storage.refused(DATA)
    for serial in DATA:
        assert f"(serial {serial}," in said
    assert "the label of ZFS pool 'data'" in said and "zfs_pool_wipe_serials" in said


# mdadm and lvm2 are unpacked, not installed: their scripts would rebuild the initramfs, minutes on an emulated node.
# Without their udev rules the tools must not wait for udev.
SHELL_WORDS = r"""
set -e
tools=/opt/disk-tools
export PATH=$tools/sbin:$PATH DM_DISABLE_UDEV=1
export LD_LIBRARY_PATH=$tools/lib/x86_64-linux-gnu:$tools/usr/lib/x86_64-linux-gnu
disk() { echo /dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DATA000$1; }
empty() { for number in 1 2 3 4 5; do wipefs -q -a $(disk $number); blkdiscard -f $(disk $number); done; sync; }
"""
UNPACK_TOOLS = r"""
mkdir -p $tools && cd $tools
apt-get -qq download mdadm lvm2 dmsetup libdevmapper1.02.1 libdevmapper-event1.02.1 libaio1
for package in *.deb; do dpkg -x $package .; done
"""
TAKE_ALL = r"""
empty
mke2fs -q -F $(disk 1); mkdir -p /srv/one; mount -o ro $(disk 1) /srv/one
mkswap -q $(disk 2); swapon $(disk 2)
mdadm --quiet --create /dev/md9 --run --level=1 --raid-devices=2 $(disk 3) missing
pvcreate -q $(disk 4); vgcreate -q vgx $(disk 4); lvcreate -q -y -n one -L 64M vgx
dmsetup create mpatha --uuid mpath-test --table "0 2000 linear $(disk 5) 0"
sync
"""
LET_GO = r"""
umount /srv/one; swapoff -a; mdadm --quiet --stop /dev/md9; vgchange -q -an vgx; dmsetup remove mpatha
blockdev --setro $(disk 1)
"""
EMPTY_ALL = "mdadm --zero-superblock $(disk 3); vgremove -q -f vgx; pvremove -q $(disk 4); empty"


def test_disks_in_use_are_refused_though_all_are_listed_for_wiping(storage: Storage) -> None:
    storage.node.run(SHELL_WORDS + UNPACK_TOOLS + TAKE_ALL)
    listed = [*DATA, "OS-0001"]
    said = storage.refused(DATA, zfs_pool_wipe_serials=listed, **ANY_SERIAL)
    assert "0 disks fit the rules and are free, but 5 are needed" in said
    for use in (
        "is mounted at /srv/one",
        "is swap",
        "is part of the RAID md9",
        "is part of LVM (logical volume vgx-one is active)",
        "is a path of the multipath device mpatha",
        "holds the running system",
    ):
        assert use in said, use
    # Nothing uses them any more, but two are still parts of something, and one cannot be written.
    storage.node.run(SHELL_WORDS + LET_GO)
    said = storage.refused(DATA, zfs_pool_wipe_serials=listed)
    assert "is write-protected" in said and "4 disks fit the rules" in said
    storage.node.run(f"blockdev --setrw {BY_ID.format('DATA0001')}")
    said = storage.refused(DATA, zfs_pool_wipe_serials=listed)
    assert "is part of a RAID (md)" in said and "is part of LVM (LVM2_member" in said


def test_disks_that_are_not_what_they_should_be(storage: Storage) -> None:
    node = storage.node
    node.run(SHELL_WORDS + EMPTY_ALL)
    # data without any signature, in the middle of the disk
    node.run(f"dd if=/dev/urandom of={BY_ID.format('DATA0004')} bs=1M seek=500 count=40 conv=fsync status=none")
    said = storage.refused(DATA)
    assert "serial DATA0004" in said and "data of an unknown kind" in said
    node.run(f"blkdiscard -f {BY_ID.format('DATA0004')}; sync")

    node.fault("disk-serial", "DATA0005=DATA0004")
    said = storage.refused(DATA)
    assert "reports the serial number that" in said and said.count("serial DATA0004") >= 2
    node.fault("disk-serial", "DATA0005=")
    said = storage.refused(DATA, **ANY_SERIAL)
    assert "reports no serial number" in said
    node.fault("disk-serial", "DATA0005=DATA0005")
    node.fault("disk-pull", "DATA0005")
    assert "4 disks fit the rules and are free, but 5 are needed" in storage.refused(DATA)
    node.fault("disk-insert", "SMALL0001")
    node.wait_until(f"test -e {BY_ID.format('SMALL0001')}")
    said = storage.refused([*DATA, "SMALL0001"], **ANY_SERIAL)
    assert "unequal sizes" in said and "serial SMALL0001" in said
    node.fault("disk-pull", "SMALL0001")
    node.fault("disk-insert", "DATA0005")
    node.wait_until(f"test -e {BY_ID.format('DATA0005')}")


def test_a_power_cut_in_the_creation_is_finished_by_the_next_run(storage: Storage) -> None:
    """The power goes as soon as the first disk has a partition table; what is left is this role's own."""
    node = storage.node
    node.run("sync")
    files = {serial: storage.file(serial) for serial in DATA}
    assert not any(is_partitioned(path) for path in files.values())
    cut = PowerCut(node, files)
    done = storage.run()
    cut.wait()
    assert done.code != 0, "the power went too late: the run has ended well"
    node.fault("power", "on")
    partitioned = [serial for serial, path in files.items() if is_partitioned(path)]
    assert partitioned, "the fault did not work: no disk has a partition table"
    finished = storage.run()
    if finished.code:
        said = json.dumps(finished.host(node.name)["attention"])
        assert "the creation of pool data was cut off" in said and '\\"DATA0001\\"' in said
        finished = storage.run(zfs_pool_wipe_serials=list(DATA))
    assert finished.code == 0, finished.output
    entry = storage.succeeds(tags="zfs_pool")
    assert entry["attention"] == [] and storage.is_online()
    assert storage.succeeds(tags="zfs_pool")["changed_tasks"] == []
    assert node.status()["bays"] == list(DATA), "the node is not as it was found"
