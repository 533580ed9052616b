# SPDX-License-Identifier: Apache-2.0
"""The virtual node itself: its hardware is what the inventory says, it breaks on demand and comes back.

Tests follow each other on the session's node; a boot costs over a minute, so each
boot shows several things. Every test leaves the node running, mended and on time.
"""

import json
import time
from collections.abc import Iterator

import pytest

from lab.inventory import read_inventory
from tests.integration.conftest import LabNode, engine_stopped

pytestmark = pytest.mark.lab

# Seconds between this machine's clock and the node's, as ssh's own duration allows.
CLOCK_TOLERANCE_S = 20
DAY_S = 86400


def clock_ahead(node: LabNode) -> float:
    """Seconds that the node's clock is ahead of this machine's."""
    before = time.time()
    there = float(node.run("date +%s.%N"))
    return there - (before + time.time()) / 2


def serials(node: LabNode) -> set[str]:
    """Serial numbers of all NVMe disks (not of controllers without a namespace) in the guest."""
    listed = json.loads(node.run("lsblk --json --nodeps --output NAME,SERIAL,SIZE --bytes"))["blockdevices"]
    return {str(disk["serial"]) for disk in listed if disk["name"].startswith("nvme")}


def test_hardware_is_what_the_inventory_says(lab_node: LabNode) -> None:
    shape = read_inventory()[0].shape
    assert lab_node.run("dmidecode -s system-manufacturer").strip() == shape.manufacturer
    assert lab_node.run("dmidecode -s system-product-name").strip() == shape.product
    assert lab_node.run("dmidecode -s system-serial-number").strip() == shape.service_tag
    assert lab_node.run("hostname").strip() == lab_node.name
    assert len(lab_node.run("ls -d /sys/devices/system/node/node[0-9]*").split()) == shape.numa_nodes
    packages = lab_node.run("cat /sys/devices/system/cpu/cpu*/topology/physical_package_id").split()
    assert (len(packages), len(set(packages))) == (shape.cores, shape.sockets)
    assert {disk.serial for disk in shape.data_disks} < serials(lab_node), "the rest is the OS disk"
    assert len(serials(lab_node)) == len(shape.data_disks) + 1


def test_a_bmc_answers(lab_node: LabNode) -> None:
    assert "Device Available" in lab_node.run("ipmitool mc info")


def test_pairs_lie_below_ports_with_and_without_acs(lab_node: LabNode) -> None:
    """Root ports have an ACS capability, a switch's ports have none; the stand-ins are found by PCI id."""
    shape = read_inventory()[0].shape
    for vendor_device in ("8086:5845", "8086:10d3"):
        found = lab_node.run(f"lspci -D -d {vendor_device}").splitlines()
        assert len(found) == len(shape.pci_paths)
        parents = [
            lab_node.run(f"basename $(dirname $(readlink -f /sys/bus/pci/devices/{line.split()[0]}))").strip()
            for line in found
        ]
        have_acs = ["Access Control Services" in lab_node.run(f"lspci -vvv -s {parent}") for parent in parents]
        assert have_acs == [path.below == "root_ports" for path in shape.pci_paths]


def test_first_boot_left_the_node_its_own(lab_node: LabNode) -> None:
    """No identity comes from the image, and package lists must be refreshed as on a fresh node."""
    assert len(lab_node.run("cat /etc/machine-id").strip()) == 32
    assert lab_node.run("systemctl is-enabled systemd-timesyncd || systemctl is-enabled chrony").strip()
    assert "bookworm-security" in lab_node.run("cat /etc/apt/sources.list")
    assert lab_node.run("systemctl --failed --no-legend").strip() == ""


def slots(node: LabNode) -> dict[str, str]:
    """Serial number of the disk in each bay as the guest sees it, by the number of its PCI slot."""
    listed = node.run(
        "for disk in /sys/class/nvme/nvme*; do"
        " [ -e $disk/nvme*n1 ] || continue;"
        " address=$(cat $disk/address);"
        " slot=$(basename $(dirname $(grep -lx ${address%.*} /sys/bus/pci/slots/*/address)));"
        ' echo "$slot:$(tr -d " " < $disk/serial)"; done'
    )
    return dict(line.split(":") for line in listed.splitlines())


@pytest.fixture(scope="module")
def node_without_pool(lab_node: LabNode) -> Iterator[LabNode]:
    """The node with its pool put aside: without its disks a pool in use is suspended, which blocks the next reboot."""
    unit = "gpufleet-zpool.service"
    has_pool = lab_node.run(f"systemctl is-enabled {unit}", check=False).strip() == "enabled"
    with engine_stopped(lab_node):
        if has_pool:
            lab_node.run(f"systemctl disable --quiet {unit}; zpool export -a; sync")
        yield lab_node
        if has_pool:
            lab_node.run(f"systemctl enable --quiet {unit}; systemctl restart {unit}; zpool list data; sync")


def test_disks_move_between_bays_and_drawer(node_without_pool: LabNode) -> None:
    """With the power on: a spare takes the place of a pulled disk, reports a false serial, and is blank again."""
    lab_node = node_without_pool
    before, at_first = serials(lab_node), lab_node.status()
    spare = at_first["drawer"][0]
    full = lab_node.lab("fault", lab_node.name, "disk-insert", spare, check=False)
    assert full.returncode == 1 and "no bay is free" in full.stderr and "disk-pull SERIAL" in full.stderr
    lab_node.fault("disk-pull", "DATA0003")
    try:
        assert before - serials(lab_node) == {"DATA0003"}
        lab_node.fault("disk-insert", spare)
        assert lab_node.status()["bays"] == [spare if bay == "DATA0003" else bay for bay in at_first["bays"]]
        lab_node.wait_until(f"lsblk --nodeps --output SERIAL | grep -q {spare}")
        bay = next(slot for slot, serial in slots(lab_node).items() if serial == spare)
        assert bay == str(at_first["bays"].index("DATA0003") + 1)
        lab_node.run(f"echo written > /dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_{spare}; sync")

        lab_node.fault("disk-serial", f"{spare}=DATA0001")
        lab_node.wait_until("test $(lsblk --nodeps --noheadings --output SERIAL | grep -c DATA0001) = 2")
        assert slots(lab_node)[bay] == "DATA0001"
        refused = lab_node.lab("fault", lab_node.name, "disk-blank", spare, check=False)
        assert refused.returncode == 1 and f"disk {spare} is in bay {bay}; pull it first" in refused.stderr
        lab_node.fault("disk-pull", spare)
        lab_node.fault("disk-blank", spare)
        lab_node.fault("disk-serial", f"{spare}=")
        lab_node.fault("disk-insert", spare)
        lab_node.wait_until("grep -qx ' *' /sys/class/nvme/nvme*/serial")
        name = lab_node.run("dirname $(grep -lx ' *' /sys/class/nvme/nvme*/serial)").strip()
        assert lab_node.run(f"head -c 8 /dev/$(basename {name})n1 | tr -d '\\000'") == "", "it is a new disk"
    finally:
        lab_node.fault("disk-pull", spare)
        lab_node.fault("disk-serial", f"{spare}={spare}")
        lab_node.fault("disk-insert", "DATA0003")
    lab_node.wait_until("lsblk --nodeps --output SERIAL | grep -q DATA0003")
    assert serials(lab_node) == before
    after = lab_node.status()
    assert (after["bays"], sorted(after["drawer"])) == (at_first["bays"], sorted(at_first["drawer"]))


def test_a_network_cut_ends_ssh_until_it_is_restored(lab_node: LabNode) -> None:
    lab_node.fault("network", "cut")
    try:
        assert not lab_node.answers()
    finally:
        lab_node.fault("network", "restore")
    deadline = time.monotonic() + 180
    while not lab_node.answers():
        assert time.monotonic() < deadline, "ssh did not come back after the network did"
        time.sleep(1)


def test_clock_fault_ends_when_the_guest_sets_its_hardware_clock(lab_node: LabNode) -> None:
    """The clock of the next boot is what the guest wrote, over a reset by the BMC too."""
    first = lab_node.boot_id()
    lab_node.run("systemctl disable --now chrony || true")  # it would mend the clock before the test has seen it
    try:
        lab_node.fault("clock", "+90d")
        second = lab_node.boot_id()
        assert second != first
        assert clock_ahead(lab_node) == pytest.approx(90 * DAY_S, abs=CLOCK_TOLERANCE_S)
        lab_node.run(f"date --set @{time.time():.0f} && hwclock --systohc --utc && sync")
        lab_node.run("ipmitool chassis power reset", check=False)
        lab_node.wait_for_new_boot()
        assert lab_node.boot_id() != second
        assert abs(clock_ahead(lab_node)) < CLOCK_TOLERANCE_S
    finally:
        lab_node.run("systemctl enable --now chrony; sync")  # the next test cuts the power


def test_power_cut_then_on_with_disks_pulled_and_swapped_meanwhile(node_without_pool: LabNode) -> None:
    lab_node = node_without_pool
    before = lab_node.boot_id()
    bays = lab_node.status()["bays"]
    moved = {"DATA0001": None, "DATA0002": "DATA0005", "DATA0005": "DATA0002"}
    expected = {str(number): moved.get(serial, serial) for number, serial in enumerate(bays, 1)}
    # The first bytes are the boot code of a protective MBR, which nothing uses: a pool on the disk stays whole.
    lab_node.run("echo flushed > /dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DATA0005; sync")
    lab_node.fault("power", "cut")
    assert lab_node.status()["power"] == "off"
    assert not lab_node.answers()
    refused = lab_node.lab("fault", lab_node.name, "disk-pull", "NOSUCH", check=False)
    assert refused.returncode == 1 and "it has DATA0001, DATA0002" in refused.stderr
    lab_node.fault("disk-pull", "DATA0001")
    lab_node.fault("disk-swap", "DATA0002,DATA0005")
    lab_node.fault("power", "on")
    try:
        assert lab_node.boot_id() != before
        assert "DATA0001" not in serials(lab_node)
        found = {slot: serial for slot, serial in slots(lab_node).items() if not serial.startswith("OS-")}
        assert found == {slot: serial for slot, serial in expected.items() if serial}
        assert lab_node.run("head -c 7 /dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DATA0005") == "flushed", "contents move too"
    finally:
        lab_node.fault("disk-swap", "DATA0005,DATA0002")
        lab_node.fault("disk-insert", "DATA0001")
    lab_node.wait_until("lsblk --nodeps --output SERIAL | grep -q DATA0001")
    assert lab_node.status()["bays"] == bays
    assert lab_node.lab("up").returncode == 0, "up leaves a running node alone"
    lab_node.run("dd if=/dev/zero of=/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DATA0005 bs=8 count=1 conv=fsync")
