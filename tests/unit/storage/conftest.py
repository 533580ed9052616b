# SPDX-License-Identifier: Apache-2.0
"""A node with five data disks and an OS disk, as plain data; each test changes what it is about."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from ansible.module_utils.gpufleet.block_devices import Disk, Partition, PciFunction
from ansible.module_utils.gpufleet.disk_content import Content, Signature
from ansible.module_utils.gpufleet.zfs_arc import ArcLimits
from ansible.module_utils.gpufleet.zfs_disk_choice import DiskRules
from ansible.module_utils.gpufleet.zfs_pool_members import ZfsLabel, find_members
from ansible.module_utils.gpufleet.zfs_pool_record import PoolRecord, RememberedMember
from ansible.module_utils.gpufleet.zfs_pool_types import NodeState, WantedFileSystem, WantedPool
from ansible.module_utils.gpufleet.zfs_properties import Property
from ansible.module_utils.gpufleet.zpool_status import parse_zpool_status

MIB = 2**20
POOL_GUID = "4242424242424242"
BLANK = Content((), None)
ZFS_GPT = (Signature("nvme3n1", "gpt", 512, "", ""), Signature("nvme3n1", "PMBR", 510, "", ""))


def make_disk(number: int, serial: str = "", *, size: int = 1024 * MIB, uses: Sequence[str] = ()) -> Disk:
    """Disk `number` in bay `number`, as the lab's node shows it: nvme<number>n1, serial DATA000<number>."""
    serial = serial or f"DATA{number:04d}"
    name = f"nvme{number}n1"
    return Disk(
        kernel_name=name,
        path=f"/dev/{name}",
        size=size,
        serial=serial,
        model="QEMU NVMe Ctrl",
        wwn="",
        by_id=(f"nvme-QEMU_NVMe_Ctrl_{serial}", f"nvme-QEMU_NVMe_Ctrl_{serial}_1", f"nvme-nvme.1b36-{number:02x}"),
        pci=PciFunction(f"0000:05:{number:02x}.0", "1b36", "0010", "0108"),
        slot=str(number),
        partitions=(),
        uses=tuple(uses),
    )


def with_partition(disk: Disk, partlabel: str = "zfs-0123456789abcdef") -> Disk:
    """The disk as zpool partitions it."""
    part = Partition(f"{disk.kernel_name}p1", f"{disk.path}p1", f"uuid-of-{disk.serial}", partlabel)
    return disk._replace(partitions=(part,))


OS_DISK = make_disk(0, "OS-0001", uses=("holds the running system (/ is on nvme0n1p2)",))
DATA_DISKS = tuple(make_disk(number) for number in range(1, 6))
RULES = DiskRules(
    pci_match=({"vendor": "1b36", "device": "0010"},),
    by_id=(),
    serial=(),
    model=(),
    min_bytes=None,
    max_bytes=None,
    max_size_difference_percent=1,
    count=5,
)
WANTED = WantedPool(
    name="data",
    layout="raidz1",
    group_size=5,
    ashift=12,
    rules=RULES,
    properties={"autotrim": "on"},
    file_systems=(
        WantedFileSystem("data", "none", {"compression": "lz4", "recordsize": "1M"}),
        WantedFileSystem("data/docker", "/var/lib/docker", {"quota": "512M"}),
    ),
    arc_max_bytes=256 * MIB,
    wipe_serials=(),
    replacements=(),
    import_foreign=(),
)
TOP_PROPERTIES = {
    "compression": Property("lz4", "local"),
    "recordsize": Property("1048576", "local"),
    "mountpoint": Property("none", "local"),
    "canmount": Property("off", "local"),
    "mounted": Property("no", "-"),
    "org.debian:periodic-scrub": Property("disable", "local"),
    "org.debian:periodic-trim": Property("disable", "local"),
}
DOCKER_PROPERTIES = {
    "quota": Property("536870912", "local"),
    "mountpoint": Property("/var/lib/docker", "local"),
    "canmount": Property("on", "default"),
    "mounted": Property("yes", "-"),
}


def member_path(number: int) -> str:
    return f"/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DATA{number:04d}_1-part1"


def status(
    rows: Mapping[int, str] | None = None, state: str = "ONLINE", extra: str = "", layout: str = "raidz1"
) -> str:
    """`zpool status -P -p` of a pool over disks 1 to 5; rows: other text than ONLINE 0 0 0 for some of them."""
    lines = [
        f"  pool: data\n state: {state}\n{extra}config:\n\n\tNAME  STATE  READ WRITE CKSUM\n\tdata  {state}  0 0 0"
    ]
    lines.append(f"\t  {layout}-0  {state}  0 0 0")
    for number in range(1, 6):
        row = (rows or {}).get(number) or f"{member_path(number)}  ONLINE  0 0 0"
        lines.append("\n".join(f"\t    {line}" for line in row.splitlines()))
    return "\n".join(lines) + "\n\nerrors: No known data errors\n"


def remembered(number: int) -> RememberedMember:
    return RememberedMember(
        guid=f"100{number}",
        serial=f"DATA{number:04d}",
        model="QEMU NVMe Ctrl",
        size=1024 * MIB,
        place=f"slot {number}",
        partuuid=f"uuid-of-DATA{number:04d}",
        path=member_path(number),
    )


RECORD = PoolRecord(POOL_GUID, 7, tuple(remembered(number) for number in range(1, 6)))
READS_CONTENT = Callable[[Sequence[Disk]], Mapping[str, Content]]


def contents_of(special: Mapping[str, Content]) -> READS_CONTENT:
    """Reads contents: those given by serial, all others blank."""
    return lambda disks: {disk.kernel_name: special.get(disk.serial, BLANK) for disk in disks}


def empty_node(**changes: Any) -> NodeState:
    """A node whose five disks are blank."""
    state = NodeState(
        disks=(OS_DISK, *DATA_DISKS),
        pool=None,
        members=(),
        guid="",
        ashift=None,
        pool_properties={},
        file_systems={},
        importable=(),
        loaded=True,
        labelled={},
        labelled_names={},
        contents=contents_of({}),
        hidden_entries=lambda place: 0,
        record=None,
        record_path="/var/lib/gpufleet/zfs_pool/data.json",
        intent=None,
        host_id=7,
        own_host_id=7,
        arc=ArcLimits(32 * MIB, 256 * MIB, 256 * MIB),
        zfs_version=(2, 1),
    )
    return state._replace(**changes)


def node_with_pool(text: str = "", disks: Sequence[Disk] | None = None, **changes: Any) -> NodeState:
    """A node as the role leaves it; `text`: another zpool status; `disks`: other disks than the five members."""
    pool = parse_zpool_status(text or status())[0]
    mine = [with_partition(disk)._replace(uses=("is a member of the imported pool data",)) for disk in DATA_DISKS]
    disks = (OS_DISK, *(mine if disks is None else disks))
    labels = [
        ZfsLabel(part.path, "data", POOL_GUID, f"100{disk.serial[-1]}")
        for disk in disks
        for part in disk.partitions
        if part.partlabel.startswith("zfs-")
    ]
    by_name = {f"/dev/disk/by-id/{name}-part1": f"{disk.path}p1" for disk in disks for name in disk.by_id}
    members = find_members(
        (pool.root, *pool.others), disks, labels, RECORD, lambda path: by_name.get(path, path), by_name.__contains__
    )
    state = empty_node(
        disks=disks,
        pool=pool,
        members=members,
        guid=POOL_GUID,
        ashift=12,
        pool_properties={"autotrim": Property("on", "local"), "cachefile": Property("none", "local")},
        file_systems={"data": TOP_PROPERTIES, "data/docker": DOCKER_PROPERTIES},
        record=RECORD,
    )
    return state._replace(**changes)


@pytest.fixture
def wanted() -> WantedPool:
    return WANTED
