# SPDX-License-Identifier: Apache-2.0
"""The QEMU command line that follows from a node's shape and condition."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from lab.node import NodeDefinition, NodeFiles
from lab.qemu_command import qemu_command, rtc_argument

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
BAYS = ("DATA0001", "DATA0002")


def values(command: list[str], option: str) -> list[str]:
    return [command[index + 1] for index, word in enumerate(command) if word == option]


def test_numa_nodes_share_memory_and_cores_evenly(node: NodeDefinition, files: NodeFiles) -> None:
    command = qemu_command(node, files, BAYS, {}, 0, NOW)
    assert values(command, "-smp") == ["8,sockets=2,cores=4,threads=1"]
    assert [value for value in values(command, "-object") if value.startswith("memory")] == [
        f"memory-backend-ram,id=memory{number},size=512M" for number in range(4)
    ]
    cpus = [value for value in values(command, "-numa") if value.startswith("cpu,")]
    assert cpus[2:6] == [
        "cpu,node-id=1,socket-id=0,core-id=2,thread-id=0",
        "cpu,node-id=1,socket-id=0,core-id=3,thread-id=0",
        "cpu,node-id=2,socket-id=1,core-id=0,thread-id=0",
        "cpu,node-id=2,socket-id=1,core-id=1,thread-id=0",
    ]


def test_a_disk_in_no_bay_has_no_device_but_keeps_its_backing(node: NodeDefinition, files: NodeFiles) -> None:
    command = qemu_command(node, files, ("DATA0001", ""), {}, 0, NOW)
    devices = " ".join(values(command, "-device"))
    assert "serial=DATA0001" in devices and "serial=DATA0002" not in devices
    for serial in ("DATA0002", "SPARE0001"):
        assert any(f"node-name=data-{serial}" in value for value in values(command, "-blockdev"))
    assert "id=bay1" in devices, "the slot stays, so that the disk can be put back"


def test_a_disk_shows_the_serial_it_was_told_in_the_bay_it_is_in(node: NodeDefinition, files: NodeFiles) -> None:
    shown = {"SPARE0001": "DATA0002", "DATA0002": ""}
    devices = values(qemu_command(node, files, ("DATA0002", "SPARE0001"), shown, 0, NOW), "-device")
    # 20 characters of serial number; what follows goes into the NQN only, and keeps that unique.
    assert f"nvme,id=disk-DATA0002,bus=bay0,drive=data-DATA0002,serial={20 * ' '}DATA0002" in devices
    assert f"nvme,id=disk-SPARE0001,bus=bay1,drive=data-SPARE0001,serial=DATA0002{12 * ' '}SPARE0001" in devices


def test_bays_have_the_slot_numbers_that_status_shows(node: NodeDefinition, files: NodeFiles) -> None:
    devices = values(qemu_command(node, files, BAYS, {}, 0, NOW), "-device")
    bays = [value for value in devices if "id=bay" in value and "slot=" in value]
    assert [value.rpartition("slot=")[2] for value in bays] == ["1", "2"]


def test_ports_have_numbers_of_their_own(node: NodeDefinition, files: NodeFiles) -> None:
    devices = values(qemu_command(node, files, BAYS, {}, 0, NOW), "-device")
    chassis = [part for value in devices for part in value.split(",") if part.startswith("chassis=")]
    slots = [value.split("addr=")[1].split(",")[0] for value in devices if value.startswith("pcie-root-port")]
    assert len(chassis) == len(set(chassis))
    assert len(slots) == len(set(slots))


def test_stand_ins_lie_where_the_shape_says(node: NodeDefinition, files: NodeFiles) -> None:
    devices = values(qemu_command(node, files, BAYS, {}, 0, NOW), "-device")
    ports = {value.split("id=")[1].split(",")[0]: value.split(",")[0] for value in devices if "chassis=" in value}
    assert ports["path0-gpu"] == ports["path0-hca"] == "pcie-root-port"
    assert ports["path1-gpu"] == ports["path1-hca"] == "xio3130-downstream"
    assert "outside0" in ports
    assert not any("bus=outside0" in value for value in devices)


def test_ssh_is_forwarded_from_loopback_only(node: NodeDefinition, files: NodeFiles) -> None:
    assert values(qemu_command(node, files, BAYS, {}, 0, NOW), "-netdev")[0].endswith("hostfwd=tcp:127.0.0.1:20022-:22")


def test_the_network_between_nodes_exists_only_with_several(node: NodeDefinition, files: NodeFiles) -> None:
    with_peers = qemu_command(node, files, BAYS, {}, 0, NOW)
    alone = qemu_command(replace(node, peer_network=None), files, BAYS, {}, 0, NOW)
    assert any("mcast=" in value and "localaddr=127.0.0.1" in value for value in values(with_peers, "-netdev"))
    assert not any("mcast=" in value for value in values(alone, "-netdev"))


def test_a_comma_in_a_path_does_not_end_the_option(node: NodeDefinition, tmp_path: Path) -> None:
    files = NodeFiles(tmp_path / "a,b" / "lab-node-1", tmp_path)
    assert any("a,,b/lab-node-1/os.qcow2" in value for value in qemu_command(node, files, BAYS, {}, 0, NOW))


def test_clock() -> None:
    assert rtc_argument(0, NOW) == "base=utc,clock=host"
    assert rtc_argument(-1, NOW) == "base=utc,clock=host"
    assert rtc_argument(86400, NOW) == "base=2026-11-30T12:00:00,clock=host"
    assert rtc_argument(-86400, NOW) == "base=2026-11-28T12:00:00,clock=host"


def test_kvm_only_where_chosen(node: NodeDefinition, files: NodeFiles) -> None:
    assert values(qemu_command(node, files, BAYS, {}, 0, NOW), "-accel") == ["tcg,thread=multi"]
    assert values(qemu_command(replace(node, accelerator="kvm"), files, BAYS, {}, 0, NOW), "-accel") == ["kvm"]


def test_a_definition_survives_being_written_and_read(node: NodeDefinition, tmp_path: Path) -> None:
    node.save(tmp_path / "definition.json")
    assert NodeDefinition.load(tmp_path / "definition.json") == node
