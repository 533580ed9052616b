# SPDX-License-Identifier: Apache-2.0
"""The QEMU command line of a node: a pure function of its definition and present condition."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from lab.host_tools import OVMF_CODE
from lab.node import NodeDefinition, NodeFiles

FIRST_SLOT = 2
UPLINK, PEER_NIC = "uplink", "peers"
# QEMU can set the clock's start to the second only, so a small offset is no offset:
# with base=utc the guest's RTC follows the host's clock exactly.
EXACT_CLOCK_WITHIN_S = 2
MULTICAST_GROUP = "230.77.0.1"


def escape(value: str | Path) -> str:
    """QEMU ends a value at a comma unless it is doubled."""
    return str(value).replace(",", ",,")


def disk_device(serial: str, bay: int, shown: str) -> dict[str, str]:
    """A data disk as QMP's device_add takes it; the command line uses the same. `shown` is what the guest reads."""
    # QEMU makes the subsystem's name (NQN) of the whole text and the serial number of its first 20 characters.
    # Disks of metal have NQNs of their own whatever their serial; Linux rejects a second one with the same NQN.
    text = serial if shown == serial else f"{shown:<20}{serial}"
    return {
        "driver": "nvme",
        "id": f"disk-{serial}",
        "bus": f"bay{bay}",
        "drive": f"data-{serial}",
        "serial": text,
    }


def _device(properties: dict[str, str]) -> list[str]:
    driver = properties["driver"]
    rest = ",".join(f"{key}={escape(value)}" for key, value in properties.items() if key != "driver")
    return ["-device", f"{driver},{rest}"]


class _RootPorts:
    """Hands out root ports: slot numbers, chassis numbers and ids."""

    def __init__(self) -> None:
        self.slot, self.chassis = FIRST_SLOT, 1
        self.arguments: list[str] = []

    def root_port(self, name: str) -> str:
        # io-reserve=0: the firmware would keep 4 KiB of the 64 KiB of I/O space for each port, run out, and
        # then leave some empty bays without any window: a disk put in there could not be used until a reboot.
        self.arguments += [
            "-device",
            f"pcie-root-port,id={name},bus=pcie.0,addr=0x{self.slot:x},chassis={self.chassis},io-reserve=0",
        ]
        self.slot, self.chassis = self.slot + 1, self.chassis + 1
        return name

    def switch(self, name: str) -> str:
        """A switch below a root port of its own; returns the bus for its downstream ports."""
        self.root_port(f"{name}-root")
        self.arguments += ["-device", f"x3130-upstream,id={name},bus={name}-root"]
        return name

    def downstream(self, switch: str, number: int, name: str, slot: int = 0) -> str:
        """`slot`: the physical slot number that the guest shows in /sys/bus/pci/slots."""
        self.arguments += [
            "-device",
            f"xio3130-downstream,id={name},bus={switch},addr=0x{number:x},chassis={self.chassis},slot={slot}",
        ]
        self.chassis += 1
        return name


def rtc_argument(offset_s: int, now: datetime) -> str:
    """`-rtc` value that makes the node's clock run `offset_s` ahead of `now` (UTC)."""
    if abs(offset_s) <= EXACT_CLOCK_WITHIN_S:
        return "base=utc,clock=host"
    return f"base={(now + timedelta(seconds=offset_s)).strftime('%Y-%m-%dT%H:%M:%S')},clock=host"


def qemu_command(
    node: NodeDefinition, files: NodeFiles, bays: Sequence[str], shown_serials: Mapping[str, str], rtc_offset_s: int,
    now: datetime,
) -> list[str]:  # fmt: skip
    """The whole command line. `bays` has the serial of the disk in each bay, "" for none."""
    shape = node.shape
    ports = _RootPorts()
    devices: list[str] = []

    bus = ports.root_port("rp-uplink")
    devices += [
        "-netdev",
        f"user,id={UPLINK},ipv6=off,hostfwd=tcp:127.0.0.1:{node.ssh_port}-:22",
        *_device({"driver": "virtio-net-pci", "id": "nic-uplink", "netdev": UPLINK, "mac": node.mac(0), "bus": bus,
                  "romfile": ""}),
    ]  # fmt: skip
    bus = ports.root_port("rp-os")
    devices += [
        "-blockdev",
        "driver=qcow2,node-name=os,discard=unmap,cache.no-flush=on,"
        f"file.driver=file,file.filename={escape(files.overlay)}",
        *_device({"driver": "nvme", "id": "os-disk", "drive": "os", "serial": f"OS-{node.index:04d}", "bus": bus,
                  "bootindex": "0"}),
    ]  # fmt: skip

    backing: list[str] = []
    switch = ports.switch("bays")
    for bay, serial in enumerate(bays):
        ports.downstream(switch, bay, f"bay{bay}", slot=bay + 1)
        if serial:
            devices += _device(disk_device(serial, bay, shown_serials.get(serial, serial)))
    # no-flush: a cut of the node's power ends QEMU and not this machine, whose page cache holds all that QEMU
    # has written. What the guest has flushed was written before, so it survives; what the guest itself still
    # held in memory is lost, as it should be. Only a crash of this machine could lose flushed data.
    for disk in shape.disks:
        backing += [
            "-blockdev",
            f"driver=raw,node-name=data-{disk.serial},discard=unmap,cache.no-flush=on,"
            f"file.driver=file,file.filename={escape(files.disk(disk.serial))}",
        ]

    for number, path in enumerate(shape.pci_paths):
        if path.below == "switch":
            switch = ports.switch(f"path{number}")
            gpu_bus = ports.downstream(switch, 0, f"path{number}-gpu")
            hca_bus = ports.downstream(switch, 1, f"path{number}-hca")
        else:
            gpu_bus, hca_bus = ports.root_port(f"path{number}-gpu"), ports.root_port(f"path{number}-hca")
        # Stand-ins that no disk or NIC of the node shares its PCI id with: an NVMe controller
        # without a namespace (8086:5845) for the GPU, an e1000e (8086:10d3) for the HCA.
        devices += _device({"driver": "nvme", "id": f"gpu{number}", "serial": f"GPU-{path.name}", "use-intel-id": "on",
                            "bus": gpu_bus})  # fmt: skip
        devices += _device({"driver": "e1000e", "id": f"hca{number}", "mac": node.mac(2, number), "bus": hca_bus,
                            "romfile": ""})  # fmt: skip
    for number in range(shape.bridges_outside_paths):
        ports.root_port(f"outside{number}")
    if node.peer_network:
        bus = ports.root_port("rp-peers")
        devices += [
            "-netdev",
            f"socket,id={PEER_NIC},mcast={MULTICAST_GROUP}:{node.peer_network.port},localaddr=127.0.0.1",
            *_device({"driver": "virtio-net-pci", "id": "nic-peers", "netdev": PEER_NIC, "mac": node.mac(1),
                      "bus": bus, "romfile": ""}),
        ]  # fmt: skip

    numa: list[str] = []
    per_node = shape.cores // shape.numa_nodes
    for number in range(shape.numa_nodes):
        numa += [
            "-object",
            f"memory-backend-ram,id=memory{number},size={shape.memory_mib // shape.numa_nodes}M",
            "-numa",
            f"node,nodeid={number},memdev=memory{number}",
        ]
        socket, within = divmod(number, shape.numa_nodes_per_socket)
        for core in range(within * per_node, (within + 1) * per_node):
            numa += ["-numa", f"cpu,node-id={number},socket-id={socket},core-id={core},thread-id=0"]

    return [
        "qemu-system-x86_64",
        "-name", f"{node.name},process=gpufleet-lab",
        "-nodefaults", "-no-user-config", "-no-reboot",
        "-display", "none", "-vga", "none",
        "-machine", "q35,kernel-irqchip=split",
        # Hot plug by the ports themselves, as on a server: only then are the slots named by the ports' numbers.
        "-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off",
        "-accel", "kvm" if node.accelerator == "kvm" else "tcg,thread=multi",
        # Emulated, a fifth level of page tables and smap's instructions around each copy cost time and show nothing.
        "-cpu", "max,la57=off,smap=off",
        "-smp", f"{shape.cores},sockets={shape.sockets},cores={shape.cores // shape.sockets},threads=1",
        "-m", f"{shape.memory_mib}M",
        *numa,
        "-uuid", node.uuid,
        "-rtc", rtc_argument(rtc_offset_s, now),
        "-device", "intel-iommu,intremap=on",
        "-smbios",
        f"type=1,manufacturer={escape(shape.manufacturer)},product={escape(shape.product)},"
        f"serial={escape(shape.service_tag)}",
        "-device", "ipmi-bmc-sim,id=bmc0", "-device", "isa-ipmi-kcs,bmc=bmc0",
        "-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={escape(OVMF_CODE)}",
        "-drive", f"if=pflash,unit=1,format=raw,file={escape(files.firmware_variables)}",
        "-fw_cfg", f"name=opt/gpufleet/node.json,file={escape(files.guest_configuration)}",
        "-object", "rng-random,id=entropy,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=entropy,bus=pcie.0",
        "-chardev", f"file,id=console,append=on,path={escape(files.console)}", "-serial", "chardev:console",
        "-qmp", f"unix:{escape(files.qmp_socket)},server=on,wait=off",
        *ports.arguments,
        *backing,
        *devices,
    ]  # fmt: skip
