# SPDX-License-Identifier: Apache-2.0
"""Disks as lsblk and sysfs show them: identity, place, and every kind of use."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet import block_devices
from ansible.module_utils.gpufleet.block_devices import BlockDeviceError, Disk, Roots, read_disks, stable_path
from ansible.module_utils.gpufleet.bounded_command import CommandResult

from tests.unit.storage.conftest import make_disk

PORT, FUNCTION = "pci0000:00/0000:00:03.0/0000:04:01.0", "0000:07:00.0"


class Machine:
    """Temporary /sys and /dev, and the lsblk that goes with them."""

    def __init__(self, root: Path) -> None:
        self.roots = Roots(str(root / "sys"), str(root / "dev"))
        self.root = root
        self.devices: list[dict[str, Any]] = []
        (root / "dev" / "disk" / "by-id").mkdir(parents=True)
        (root / "sys" / "block").mkdir(parents=True)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def add(self, name: str, children: Sequence[dict[str, Any]] = (), folder: str = f"{PORT}/{FUNCTION}/nvme/nvme0",
            **values: Any) -> None:  # fmt: skip
        """A disk below a PCI function, with what lsblk says of it."""
        real = self.root / "sys" / "devices" / folder / name
        real.mkdir(parents=True)
        (real / "device").symlink_to(real.parent)
        (self.root / "sys" / "block" / name).symlink_to(real)
        self.write(f"dev/{name}", "")
        self.devices.append(node(name, "disk", children=list(children), **values))
        for child in children:
            if child["type"] == "part":
                self.write(f"dev/{child['kname']}", "")

    def disks(self) -> list[Disk]:
        answer = CommandResult("done", 0, json.dumps({"blockdevices": self.devices}), "")
        return read_disks(lambda argv, limit_s: answer, self.roots)


def node(name: str, kind: str, **values: Any) -> dict[str, Any]:
    """A node of lsblk's tree."""
    return {
        "name": name, "kname": name, "path": f"/dev/{name}", "type": kind, "size": 1000, "ro": False, "serial": None,
        "model": None, "wwn": None, "partuuid": None, "partlabel": None, "mountpoints": [None], **values,
    }  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_identity_and_place(machine):
    machine.add("nvme0n1", serial="udev_says", wwn="eui.1", model="udev")
    machine.write(f"sys/devices/{PORT}/{FUNCTION}/nvme/nvme0/serial", "  DATA0001  \n")
    machine.write(f"sys/devices/{PORT}/{FUNCTION}/nvme/nvme0/model", "Dell Ent NVMe P5600   \n")
    for name, value in (("vendor", "0x1b36"), ("device", "0x0010"), ("class", "0x010802")):
        machine.write(f"sys/bus/pci/devices/{FUNCTION}/{name}", value + "\n")
    machine.write("sys/bus/pci/slots/0-5/address", "0000:07:00\n")
    machine.write("sys/bus/pci/slots/2/address", "0000:04:01\n")
    by_id = machine.root / "dev" / "disk" / "by-id"
    for name in ("nvme-x_DATA0001", "nvme-eui.1"):
        (by_id / name).symlink_to("../../nvme0n1")
    (by_id / "nvme-x_DATA0001-part1").symlink_to("../../nvme0n1p1")
    (disk,) = machine.disks()
    assert (disk.serial, disk.model, disk.wwn) == ("DATA0001", "Dell Ent NVMe P5600", "eui.1")
    assert disk.by_id == ("nvme-eui.1", "nvme-x_DATA0001")
    assert disk.pci == (FUNCTION, "1b36", "0010", "0108")
    assert (disk.slot, disk.place, disk.uses) == ("0-5", "slot 0-5", ())
    (machine.root / "sys/bus/pci/slots/0-5/address").write_text("0000:99:00\n")
    assert machine.disks()[0].slot == "2", "else the slot of the nearest bridge above it"


def test_a_disk_with_two_ports_is_found_below_its_subsystem(machine):
    folder = "virtual/nvme-subsystem/nvme-subsys0"
    machine.add("nvme0n1", folder=folder)
    controller = machine.root / "sys" / "devices" / PORT / FUNCTION / "nvme" / "nvme0"
    controller.mkdir(parents=True)
    link = machine.root / "sys" / "devices" / folder / "nvme0"
    link.symlink_to(controller)
    assert machine.disks()[0].pci.address == FUNCTION


def test_what_is_no_disk(machine):
    machine.add("nvme0n1")
    machine.add("nvme0c0n1", folder="x/0000:08:00.0/nvme0c0")
    machine.write("sys/devices/x/0000:08:00.0/nvme0c0/nvme0c0n1/hidden", "1\n")
    machine.add("sr0", folder="y/0000:09:00.0/sr", size=0)
    machine.devices += [node("zd0", "disk"), node("loop0", "loop"), node("md0", "raid1")]
    assert [disk.kernel_name for disk in machine.disks()] == ["nvme0n1"]


PARTITION = node("nvme0n1p1", "part", partuuid="ab", partlabel="zfs-1")


@pytest.mark.parametrize(
    ("children", "values", "use"),
    [
        ([{**PARTITION, "mountpoints": ["/boot/efi"]}], {}, "holds the running system (/boot/efi is on nvme0n1p1)"),
        ([], {"mountpoints": ["/srv"]}, "is mounted at /srv (nvme0n1)"),
        ([{**PARTITION, "mountpoints": ["[SWAP]"]}], {}, "is swap (nvme0n1p1)"),
        ([node("md0", "raid1")], {}, "is part of the RAID md0"),
        ([{**PARTITION, "children": [node("md127", "raid5")]}], {}, "is part of the RAID md127"),
        ([node("vg-home", "lvm")], {}, "is part of LVM (logical volume vg-home is active)"),
        ([node("mpatha", "mpath")], {}, "is a path of the multipath device mpatha"),
        ([node("luks", "crypt")], {}, "is opened as the encrypted device luks"),
        ([node("odd", "dm")], {}, "is held by odd"),
        ([], {"ro": True}, "is write-protected"),
        ([], {"ro": "1"}, "is write-protected"),
    ],
)
def test_uses(machine, children, values, use):
    machine.add("nvme0n1", children, **values)
    assert machine.disks()[0].uses == (use,)


def test_a_root_on_lvm_on_raid_is_found_through_all_layers(machine):
    root = node("vg-root", "lvm", mountpoints=["/"])
    machine.add("nvme0n1", [{**PARTITION, "children": [node("md0", "raid1", children=[root])]}])
    uses = machine.disks()[0].uses
    assert "holds the running system (/ is on vg-root)" in uses and "is part of the RAID md0" in uses


def test_what_no_list_shows_is_shown_by_the_kernels_lock(machine, monkeypatch):
    machine.add("nvme0n1", [PARTITION])
    real = os.open

    def busy(path: str, *arguments: Any) -> int:
        if path.endswith("nvme0n1p1"):
            raise OSError(16, "Device or resource busy")
        return real(path, *arguments)

    monkeypatch.setattr(block_devices.os, "open", busy)
    (use,) = machine.disks()[0].uses
    assert use.startswith("is claimed by the kernel or a program (") and use.endswith("nvme0n1p1 is busy)")


def test_a_disk_that_cannot_be_opened_is_not_free(machine):
    machine.add("nvme0n1")
    (machine.root / "dev" / "nvme0n1").unlink()
    assert "cannot be opened" in machine.disks()[0].uses[0]


@pytest.mark.parametrize(
    "answer",
    [
        CommandResult("timeout", None, "", "no answer within 60 s"),
        CommandResult("done", 1, "", "lsblk: failed"),
        CommandResult("done", 0, '{"blockdevices": [', ""),
        CommandResult("done", 0, "{}", ""),
    ],
)
def test_no_list_is_an_error_and_not_no_disks(answer):
    with pytest.raises(BlockDeviceError):
        read_disks(lambda argv, limit_s: answer)


def names(disk: Disk, *by_id: str) -> Disk:
    return disk._replace(by_id=by_id)


def test_the_stable_path():
    disk, other = make_disk(1), make_disk(2)
    assert stable_path(disk, [disk, other]) == "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DATA0001_1"
    old = names(disk, "nvme-QEMU_NVMe_Ctrl_DATA0001", "nvme-eui.01")  # before systemd 255
    assert stable_path(old, [old, other]).endswith("_DATA0001")
    # Two namespaces of one controller: the name without a number jumps between them.
    first, second = names(disk, "nvme-m_DATA0001", "nvme-eui.01"), names(make_disk(9, "DATA0001"), "nvme-eui.02")
    assert stable_path(first, [first, second]) == "/dev/disk/by-id/nvme-eui.01"
    assert stable_path(names(disk), [disk]) is None
