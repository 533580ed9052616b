# SPDX-License-Identifier: Apache-2.0
"""make_plan: what is done, what is left alone, and what is refused with which words."""

from collections.abc import Sequence
from typing import Any

import pytest
from ansible.module_utils.gpufleet.disk_content import Content, Signature
from ansible.module_utils.gpufleet.zfs_arc import ArcLimits
from ansible.module_utils.gpufleet.zfs_disk_choice import Refusal
from ansible.module_utils.gpufleet.zfs_pool_plan import make_plan
from ansible.module_utils.gpufleet.zfs_pool_record import Intent
from ansible.module_utils.gpufleet.zfs_pool_types import NodeState, Plan, Replacement, WantedFileSystem, WantedPool
from ansible.module_utils.gpufleet.zfs_properties import Property
from ansible.module_utils.gpufleet.zpool_import import ImportablePool, parse_zpool_import

from tests.unit.storage.conftest import (
    BLANK,
    DATA_DISKS,
    DOCKER_PROPERTIES,
    MIB,
    OS_DISK,
    POOL_GUID,
    RECORD,
    TOP_PROPERTIES,
    WANTED,
    ZFS_GPT,
    contents_of,
    empty_node,
    make_disk,
    member_path,
    node_with_pool,
    status,
    with_partition,
)

NEW = make_disk(6, "DATA0006")
EXT4 = Content((Signature("nvme3n1", "ext4", 1080, "u", "home"),), None)
FOREIGN_LABEL = Content((Signature("nvme3n1p1", "zfs_member", 1000, "99", "other"),), None)


def texts(plan: Plan) -> list[str]:
    return [step.text for step in plan.steps]


def commands(plan: Plan) -> list[str]:
    return [" ".join(step.argv) for step in plan.steps if step.kind == "command"]


def refused(wanted: WantedPool, state: NodeState) -> str:
    """Message and next step of the refusal."""
    with pytest.raises(Refusal) as caught:
        make_plan(wanted, state)
    return f"{caught.value} -> {caught.value.next_step}"


def importable(
    rows: Sequence[str] = (), state: str = "ONLINE", action: str = "", status_text: str = ""
) -> ImportablePool:
    """One pool of a `zpool import` listing over disks 1 to 5."""
    lines = [f"   pool: data\n     id: {POOL_GUID}\n  state: {state}"]
    lines += [f" status: {status_text}"] if status_text else []
    lines.append(f" action: {action or 'The pool can be imported using its name or numeric identifier.'}")
    lines.append(f" config:\n\n\tdata  {state}\n\t  raidz1-0  {state}")
    lines += [f"\t    {row}" for row in rows or [f"disk{number}  ONLINE" for number in range(1, 6)]]
    return parse_zpool_import("\n".join(lines) + "\n")[0]


# --- creation


def test_a_pool_is_created_over_the_five_disks_by_stable_names():
    plan = make_plan(WANTED, empty_node())
    create, docker = commands(plan)
    paths = " ".join(f"/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DATA000{number}_1" for number in range(1, 6))
    assert create == (
        "zpool create -o cachefile=none -o ashift=12 -o autotrim=on -O compression=lz4 -O recordsize=1M "
        "-O mountpoint=none -O canmount=off -O org.debian:periodic-scrub=disable -O org.debian:periodic-trim=disable "
        f"data raidz1 {paths}"
    )
    assert docker == "zfs create -o quota=512M -o mountpoint=/var/lib/docker data/docker"
    assert plan.overwritten == ("DATA0001", "DATA0002", "DATA0003", "DATA0004", "DATA0005")
    assert plan.attention == ()


def test_the_order_of_kernel_names_does_not_matter():
    moved = [disk._replace(kernel_name=f"nvme{9 - number}n1", path=f"/dev/nvme{9 - number}n1")
             for number, disk in enumerate(DATA_DISKS)]  # fmt: skip
    assert commands(make_plan(WANTED, empty_node(disks=[*moved, OS_DISK]))) == commands(make_plan(WANTED, empty_node()))


@pytest.mark.parametrize(
    ("layout", "group_size", "count", "groups"),
    [
        ("mirror", 2, 4, "mirror 1 2 mirror 3 4"),
        ("stripe", 5, 5, "1 2 3 4 5"),
        ("raidz2", 5, 5, "raidz2 1 2 3 4 5"),
    ],
)
def test_other_layouts(layout, group_size, count, groups):
    wanted = WANTED._replace(layout=layout, group_size=group_size, rules=WANTED.rules._replace(count=count))
    create = commands(make_plan(wanted, empty_node(disks=[OS_DISK, *DATA_DISKS[:count]])))[0]
    members = create.partition(" data ")[2].replace("/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DATA000", "").replace("_1", "")
    assert members == groups


def test_a_host_id_comes_first_and_the_arc_limit_is_set():
    plan = make_plan(WANTED, empty_node(host_id=None, arc=ArcLimits(0, 0, 9 * MIB)))
    assert [step.kind for step in plan.steps] == ["host_id", "command", "command", "arc"]


def disks_with(number: int, **changes: Any) -> list[Any]:
    """The node's disks, disk `number` with other values."""
    return [OS_DISK, *(disk._replace(**changes) if disk.slot == str(number) else disk for disk in DATA_DISKS)]


@pytest.mark.parametrize(
    "use",
    [
        "holds the running system (/ is on nvme3n1p2)",
        "is mounted at /srv (nvme3n1p1)",
        "is swap (nvme3n1p3)",
        "is part of the RAID md0",
        "is part of LVM (logical volume vg-home is active)",
        "is a path of the multipath device mpatha",
        "is a member of the imported pool other",
        "is write-protected",
        "is claimed by the kernel or a program (/dev/nvme3n1 is busy)",
    ],
)
def test_a_disk_in_use_is_never_taken_though_it_is_listed_for_wiping(use):
    said = refused(WANTED._replace(wipe_serials=("DATA0003",)), empty_node(disks=disks_with(3, uses=(use,))))
    assert f"in use: nvme3n1 (serial DATA0003, QEMU NVMe Ctrl, 1.1 GB, slot 3) {use}" in said
    assert "4 disks fit the rules and are free, but 5 are needed" in said


def test_a_missing_disk_is_too_few_and_each_disk_is_listed_with_its_reason():
    rules = WANTED.rules._replace(serial=("DATA*",))
    said = refused(WANTED._replace(rules=rules), empty_node(disks=[OS_DISK, *DATA_DISKS[:4], make_disk(6, "OTHER6")]))
    assert "4 disks fit the rules and are free, but 5 are needed (devices.data_disk.count)" in said
    assert "free: nvme1n1 (serial DATA0001" in said and "OTHER6' fits none of DATA*" in said


def test_no_disk_at_all():
    assert "the node shows no disk at all" in refused(WANTED, empty_node(disks=[]))


def test_more_disks_than_a_node_has_are_no_reason_to_pick_five():
    said = refused(WANTED, empty_node(disks=[OS_DISK, *DATA_DISKS, NEW]))
    assert "6 disks fit the rules and are free, more than the 5 that a node has" in said


def test_unequal_disks():
    said = refused(WANTED, empty_node(disks=disks_with(3, size=512 * MIB)))
    assert "unequal sizes" in said and "DATA0003, QEMU NVMe Ctrl, 0.5 GB" in said


def test_a_difference_within_the_tolerance_is_none():
    assert make_plan(WANTED, empty_node(disks=disks_with(3, size=1020 * MIB))).steps


@pytest.mark.parametrize(
    ("serial", "words"), [("", "reports no serial number"), ("DATA0004", "reports the serial number that nvme4n1")]
)
def test_a_disk_that_cannot_be_told_from_others(serial, words):
    assert words in refused(WANTED, empty_node(disks=disks_with(3, serial=serial)))


def test_a_disk_without_any_by_id_name():
    assert "has no name in /dev/disk/by-id" in refused(WANTED, empty_node(disks=disks_with(3, by_id=())))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (EXT4, "is not empty: ext4 'home' on nvme3n1"),
        (FOREIGN_LABEL, "is not empty: the label of ZFS pool 'other' on nvme3n1p1"),
        (Content((), "data of an unknown kind (a byte that is not blank at offset 77)"), "at offset 77"),
    ],
)
def test_a_disk_with_content_is_refused_unless_it_is_listed(content, words):
    state = empty_node(contents=contents_of({"DATA0003": content}))
    said = refused(WANTED, state)
    assert words in said and '{"zfs_pool_wipe_serials": ["<serial>"]}' in said
    assert words in refused(WANTED._replace(wipe_serials=("DATA0002",)), state)
    plan = make_plan(WANTED._replace(wipe_serials=("DATA0003",)), state)
    assert texts(plan)[0] == "wipe nvme3n1 (serial DATA0003, QEMU NVMe Ctrl, 1.1 GB, slot 3)"
    assert [step.kind for step in plan.steps].count("wipe") == 1


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("LVM2_member", "is part of LVM"),
        ("linux_raid_member", "is part of a RAID (md)"),
        ("isw_raid_member", "is part of a firmware RAID"),
        ("mpath_member", "is part of a multipath device"),
        ("bcache", "is part of bcache"),
    ],
)
def test_a_part_of_something_bigger_is_not_taken_even_where_it_is_listed(kind, words):
    content = Content((Signature("nvme3n1", kind, 0, "", ""),), None)
    state = empty_node(contents=contents_of({"DATA0003": content}))
    said = refused(WANTED._replace(wipe_serials=("DATA0003",)), state)
    assert words in said and "not taken even where its serial number is listed" in said


def test_a_mount_point_with_content_is_not_hidden():
    state = empty_node(hidden_entries=lambda place: 3 if place == "/var/lib/docker" else 0)
    assert "/var/lib/docker is to be the mount point of data/docker, but holds 3 entries" in refused(WANTED, state)


# --- what was cut off


def test_partitions_of_a_creation_that_was_cut_off_are_taken():
    intent = Intent("create pool data", ("DATA0003",), "2026-11-29T10:00:00Z")
    disks = [OS_DISK, *(with_partition(disk) if disk.slot == "3" else disk for disk in DATA_DISKS)]
    state = empty_node(disks=disks, intent=intent, contents=contents_of({"DATA0003": Content(ZFS_GPT, None)}))
    assert texts(make_plan(WANTED, state))[0].startswith("wipe nvme3n1")
    assert "is not empty: a GPT partition table" in refused(WANTED, state._replace(intent=None))
    other = intent._replace(serials=("DATA0001",))
    assert "is not empty" in refused(WANTED, state._replace(intent=other)), "only the disks that were noted"
    lived = contents_of({"DATA0003": Content((*ZFS_GPT, *FOREIGN_LABEL.signatures), None)})
    assert "is not empty" in refused(WANTED, state._replace(contents=lived)), "a label with uberblocks is a pool"
    foreign = [OS_DISK, *(with_partition(disk, "EFI") if disk.slot == "3" else disk for disk in DATA_DISKS)]
    assert "is not empty" in refused(WANTED, state._replace(disks=foreign)), "partitions of another program"


def test_a_finished_creation_is_imported_not_repeated():
    intent = Intent("create pool data", ("DATA0001",), "2026-11-29T10:00:00Z")
    assert commands(make_plan(WANTED, empty_node(intent=intent, importable=[importable()]))) == [
        f"zpool import -d /dev/disk/by-id -o cachefile=none {POOL_GUID} data"
    ]


def test_labels_that_make_no_pool_are_explained_and_wiped_only_when_listed():
    intent = Intent("create pool data", ("DATA0001", "DATA0002"), "2026-11-29T10:00:00Z")
    broken = importable(state="FAULTED", action="The pool cannot be imported due to damaged devices or data.")
    labelled = {POOL_GUID: ["DATA0001", "DATA0002"]}
    content = {"DATA0001": FOREIGN_LABEL, "DATA0002": FOREIGN_LABEL}
    state = empty_node(intent=intent, importable=[broken], labelled=labelled, contents=contents_of(content))
    said = refused(WANTED, state)
    assert "the creation of pool data was cut off at 2026-11-29T10:00:00Z" in said
    assert '"zfs_pool_wipe_serials": ["DATA0001", "DATA0002"]' in said
    plan = make_plan(WANTED._replace(wipe_serials=("DATA0001", "DATA0002")), state)
    assert [step.kind for step in plan.steps][:2] == ["wipe", "wipe"]


# --- a pool that is not imported


def test_the_own_pool_is_imported():
    plan = make_plan(WANTED, empty_node(importable=[importable()], record=RECORD))
    assert commands(plan) == [f"zpool import -d /dev/disk/by-id -o cachefile=none {POOL_GUID} data"]


def test_a_wipe_list_left_in_the_inventory_does_not_destroy_the_own_pool():
    serials = tuple(disk.serial for disk in DATA_DISKS)
    for record in (RECORD, None):  # None: the system was installed anew
        state = empty_node(importable=[importable()], record=record, labelled={POOL_GUID: serials})
        assert commands(make_plan(WANTED._replace(wipe_serials=serials), state))[0].startswith("zpool import")


def test_another_machines_pool_is_refused_until_it_is_named():
    foreign = importable()._replace(foreign=True, hostname="gpu-007")
    state = empty_node(importable=[foreign], labelled={POOL_GUID: ["DATA0001"]})
    said = refused(WANTED, state)
    assert "was last used by another machine (gpu-007) (on disks DATA0001)" in said
    assert f'{{"zfs_pool_import_foreign": ["{POOL_GUID}"]}}' in said
    assert "zpool import -f " in commands(make_plan(WANTED._replace(import_foreign=(POOL_GUID,)), state))[0]


def test_parts_of_another_machines_pool_are_wiped_only_when_all_are_listed():
    parts = importable(state="UNAVAIL", action="The pool cannot be imported due to damaged devices or data.")
    state = empty_node(
        importable=[parts._replace(foreign=True)],
        labelled={POOL_GUID: ["DATA0001", "DATA0002"]},
        contents=contents_of({"DATA0001": FOREIGN_LABEL, "DATA0002": FOREIGN_LABEL}),
    )
    said = refused(WANTED._replace(wipe_serials=("DATA0001",)), state)
    assert "hold parts of a pool named data" in said and '["DATA0001", "DATA0002"]' in said
    assert texts(make_plan(WANTED._replace(wipe_serials=("DATA0001", "DATA0002")), state))[0].startswith("wipe")


def test_too_many_lost_members_are_named_by_serial_and_slot():
    lost = [
        f"{member_path(1)}  UNAVAIL  cannot open",
        "1002  UNAVAIL  cannot open",
        *(f"disk{n}  ONLINE" for n in "345"),
    ]
    action = "The pool cannot be imported due to damaged devices or data."
    state = empty_node(importable=[importable(lost, "UNAVAIL", action)], record=RECORD)
    said = refused(WANTED, state)
    assert "disk DATA0001 (last seen in slot 1) is UNAVAIL; disk DATA0002 (last seen in slot 2) is UNAVAIL" in said
    assert "put the lost disks back" in said


def test_a_pool_that_is_gone_is_not_made_anew():
    said = refused(WANTED, empty_node(record=RECORD, disks=[OS_DISK, *DATA_DISKS[:4]]))
    assert f"pool data, id {POOL_GUID}, which this node had, is not there" in said
    assert "disk DATA0001: there (slot 1), without the pool's label" in said
    assert "disk DATA0005: missing (last seen in slot 5)" in said
    assert "remove /var/lib/gpufleet/zfs_pool/data.json" in said


def test_another_pool_of_the_name_is_not_taken_for_the_own():
    other = importable()._replace(guid="77")
    assert "has the id 4242424242424242, but its disks hold another pool" in refused(
        WANTED, empty_node(record=RECORD, importable=[other])
    )
    assert "there are 2 pools named data" in refused(WANTED, empty_node(importable=[other, importable()]))


def test_a_destroyed_pool_does_not_come_back():
    destroyed = importable()._replace(destroyed=True)
    state = empty_node(importable=[destroyed], contents=contents_of({"DATA0001": FOREIGN_LABEL}))
    assert "is not empty: the label of ZFS pool" in refused(WANTED, state)


def test_a_found_pool_of_another_layout_is_refused():
    wanted = WANTED._replace(layout="raidz2")
    said = refused(wanted, empty_node(importable=[importable()]))
    assert "is raidz1 over 5 disks, the profile wants raidz2 over 5 disks" in said


def test_check_mode_without_zfs_says_what_the_labels_say():
    state = empty_node(
        loaded=False, labelled={POOL_GUID: ["DATA0002", "DATA0001"], "9": ["X"]},
        labelled_names={POOL_GUID: "data", "9": "other"}, contents=contents_of({"DATA0001": FOREIGN_LABEL}),
    )  # fmt: skip
    (step,) = make_plan(WANTED, state).steps
    assert step.text == f"import pool data (id {POOL_GUID}) or say why not, once ZFS is installed"
    assert step.before == "labels of a pool data on DATA0001, DATA0002"
    assert "is not empty" in refused(WANTED, state._replace(labelled_names={"9": "other"}))


# --- a pool that is imported


def test_a_converged_node_has_nothing_to_do():
    plan = make_plan(WANTED, node_with_pool())
    assert (plan.steps, plan.attention) == ((), ())


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (WANTED._replace(layout="raidz2"), "pool data is raidz1 over 5 disks, the profile wants raidz2 over 5 disks"),
        (WANTED._replace(group_size=6, rules=WANTED.rules._replace(count=6)), "the profile wants raidz1 over 6 disks"),
        (WANTED._replace(layout="stripe"), "the profile wants stripe over 5 disks"),
        (WANTED._replace(ashift=13), "was made with ashift 12, the profile wants 13"),
    ],
)
def test_what_cannot_be_changed_is_refused(wanted, words):
    assert words in refused(wanted, node_with_pool())


def test_changed_properties_are_applied_and_equal_spellings_are_not():
    top = {**TOP_PROPERTIES, "compression": Property("off", "local"), "recordsize": Property("131072", "local")}
    docker = {**DOCKER_PROPERTIES, "quota": Property("0", "default")}
    pool = {"autotrim": Property("off", "local"), "cachefile": Property("-", "default")}
    state = node_with_pool(file_systems={"data": top, "data/docker": docker}, pool_properties=pool)
    assert commands(make_plan(WANTED, state)) == [
        "zpool set autotrim=on data",
        "zpool set cachefile=none data",
        "zfs set compression=lz4 data",
        "zfs set recordsize=1M data",
        "zfs set quota=512M data/docker",
    ]


def test_a_new_file_system_is_created_and_an_unmounted_one_mounted():
    state = node_with_pool(file_systems={"data": TOP_PROPERTIES})
    assert commands(make_plan(WANTED, state)) == ["zfs create -o quota=512M -o mountpoint=/var/lib/docker data/docker"]
    unmounted = {**DOCKER_PROPERTIES, "mounted": Property("no", "-")}
    state = node_with_pool(file_systems={"data": TOP_PROPERTIES, "data/docker": unmounted})
    assert commands(make_plan(WANTED, state)) == ["zfs mount data/docker"]
    state = state._replace(hidden_entries=lambda place: 1)
    assert "holds 1 entries" in refused(WANTED, state)


def test_a_mount_point_that_is_no_longer_wanted_is_inherited():
    wanted = WANTED._replace(file_systems=(WANTED.file_systems[0], WantedFileSystem("data/docker", None, {})))
    assert commands(make_plan(wanted, node_with_pool())) == ["zfs inherit mountpoint data/docker"]


PULLED = {3: f"{member_path(3)}  REMOVED  0 0 0"}
MEMBERS_BUT_3 = [with_partition(disk)._replace(uses=("is a member of the imported pool data",))
                 for disk in DATA_DISKS if disk.slot != "3"]  # fmt: skip


def test_a_pulled_disk_is_named_by_serial_and_slot():
    plan = make_plan(WANTED, node_with_pool(status(PULLED, "DEGRADED"), MEMBERS_BUT_3))
    assert plan.steps == ()
    (note,) = plan.attention
    assert note.reason == "pool data: disk DATA0003 (last seen in slot 3): REMOVED"
    assert '{"old": "DATA0003", "new": "<serial of the new disk>"}' in note.next_step and note.severity == "fail"


def test_a_new_disk_in_the_bay_is_offered_by_serial_but_not_taken():
    plan = make_plan(WANTED, node_with_pool(status(PULLED, "DEGRADED"), [*MEMBERS_BUT_3, NEW]))
    assert plan.steps == () and '{"old": "DATA0003", "new": "DATA0006"}' in plan.attention[0].next_step


def test_a_member_that_has_only_a_number_left_is_still_named():
    text = status({3: f"1003  UNAVAIL  0 0 0  was {member_path(3)}"}, "DEGRADED")
    plan = make_plan(WANTED, node_with_pool(text, MEMBERS_BUT_3))
    assert "disk DATA0003 (last seen in slot 3): UNAVAIL" in plan.attention[0].reason


def test_a_disk_is_lost_before_zfs_has_noticed():
    (note,) = make_plan(WANTED, node_with_pool(disks=MEMBERS_BUT_3)).attention
    assert note.reason == "pool data: disk DATA0003 (last seen in slot 3) is gone, though ZFS has not noticed yet"
    assert '"old": "DATA0003"' in note.next_step and note.severity == "fail"


def test_without_a_record_a_lost_member_has_its_path():
    state = node_with_pool(status(PULLED, "DEGRADED"), MEMBERS_BUT_3)
    members = [member if member.disk else member._replace(serial="", place="") for member in state.members]
    assert f"member {member_path(3)}: REMOVED" in make_plan(WANTED, state._replace(members=members)).attention[0].reason


def test_a_disk_that_was_put_back_is_taken_in_again():
    back = with_partition(DATA_DISKS[2])
    plan = make_plan(WANTED, node_with_pool(status(PULLED, "DEGRADED"), [*MEMBERS_BUT_3, back]))
    assert commands(plan) == ["zpool online data 1003"]


def test_a_disk_that_somebody_took_offline_stays_so():
    text = status({3: f"{member_path(3)}  OFFLINE  0 0 0"}, "DEGRADED")
    disks = [with_partition(disk) for disk in DATA_DISKS]
    plan = make_plan(WANTED, node_with_pool(text, disks))
    assert plan.steps == () and "zpool online data 1003" in plan.attention[0].next_step


REPLACE = WANTED._replace(replacements=(Replacement("DATA0003", "DATA0006"),))


def test_a_named_replacement():
    plan = make_plan(REPLACE, node_with_pool(status(PULLED, "DEGRADED"), [*MEMBERS_BUT_3, NEW]))
    assert commands(plan) == ["zpool replace data 1003 /dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DATA0006_1"]
    assert plan.overwritten == ("DATA0006",)


def test_a_replacement_that_is_under_way_or_over_is_not_begun_again():
    pair = [f"{member_path(3)}  REMOVED  0 0 0", f"{member_path(6)}  ONLINE  0 0 0  (resilvering)"]
    rows = "\n  ".join(["replacing-2  DEGRADED  0 0 0", *pair])
    new = with_partition(NEW)._replace(uses=("is a member of the imported pool data",))
    plan = make_plan(REPLACE, node_with_pool(status({3: rows}, "DEGRADED"), [*MEMBERS_BUT_3, new]))
    assert plan.steps == () and plan.attention == ()
    pair[1] = f"{member_path(6)}  UNAVAIL  0 0 0"
    text = status({3: "\n  ".join(["replacing-2  UNAVAIL  0 0 0", *pair])}, "DEGRADED")
    lost = make_plan(WANTED, node_with_pool(text, MEMBERS_BUT_3)).attention
    assert any(f"{member_path(6)}: UNAVAIL" in note.reason for note in lost), "the successor is lost as well"
    assert not any("DATA0003" in note.reason for note in lost)
    over = make_plan(REPLACE, node_with_pool(status({3: f"{member_path(6)}  ONLINE  0 0 0"}), [*MEMBERS_BUT_3, new]))
    assert over.steps == () and over.attention == ()


@pytest.mark.parametrize(
    ("new", "replacement", "words"),
    [
        (None, ("DATA0003", "DATA0006"), "no disk reports it"),
        (NEW, ("DATA0009", "DATA0006"), "has no such member; it has disk DATA0001 (slot 1)"),
        (NEW._replace(size=512 * MIB), ("DATA0003", "DATA0006"), "is smaller than the members"),
        (NEW._replace(uses=("is swap (nvme6n1)",)), ("DATA0003", "DATA0006"), "is swap (nvme6n1)"),
        (NEW._replace(pci=None), ("DATA0003", "DATA0006"), "is no data disk: its PCI function (none)"),
        (NEW, ("DATA0003", "OS-0001"), "holds the running system"),
    ],
)
def test_replacements_that_are_refused(new, replacement, words):
    state = node_with_pool(status(PULLED, "DEGRADED"), [*MEMBERS_BUT_3, *([new] if new else [])])
    assert words in refused(WANTED._replace(replacements=(Replacement(*replacement),)), state)


def test_two_disks_that_report_the_new_serial():
    state = node_with_pool(status(PULLED, "DEGRADED"), [*MEMBERS_BUT_3, NEW, make_disk(7, "DATA0006")])
    assert "2 disks report it" in refused(REPLACE, state)


def test_a_new_disk_with_content_is_wiped_only_when_listed():
    state = node_with_pool(status(PULLED, "DEGRADED"), [*MEMBERS_BUT_3, NEW])
    state = state._replace(contents=contents_of({"DATA0006": EXT4}))
    assert "the new disk cannot be taken" in refused(REPLACE, state)
    plan = make_plan(REPLACE._replace(wipe_serials=("DATA0006",)), state)
    assert [step.kind for step in plan.steps] == ["wipe", "command"]


def test_a_suspended_and_an_unusable_pool_are_refused_with_what_is_lost():
    two = {2: f"{member_path(2)}  REMOVED  0 0 0", **PULLED}
    extra = "status: One or more devices are faulted in response to IO failures.\n"
    said = refused(WANTED, node_with_pool(status(two, "ONLINE", extra), [d for d in MEMBERS_BUT_3 if d.slot != "2"]))
    assert "pool data is suspended" in said and "zpool clear data" in said
    assert "disk DATA0002 (last seen in slot 2) is REMOVED; disk DATA0003 (last seen in slot 3) is REMOVED" in said
    # As recorded: ZFS suspends a pool before it has noticed the second loss.
    text = status(PULLED, "DEGRADED", extra)
    said = refused(WANTED, node_with_pool(text, [d for d in MEMBERS_BUT_3 if d.slot != "2"]))
    assert "disk DATA0002 (last seen in slot 2) is gone, though ZFS has not noticed yet; disk DATA0003" in said
    said = refused(WANTED, node_with_pool(status(two, "UNAVAIL"), MEMBERS_BUT_3))
    assert "pool data is UNAVAIL" in said


def test_a_member_with_errors_in_a_pool_that_is_online_needs_attention():
    text = status({3: f"{member_path(3)}  ONLINE  0 0 7"})
    (note,) = make_plan(WANTED, node_with_pool(text)).attention
    assert "disk DATA0003 (slot 3): 0 read, 0 write and 7 checksum errors" in note.reason and note.severity == "warn"


def test_a_disk_that_is_no_member_is_mentioned():
    disks = [with_partition(disk)._replace(uses=("is a member of the imported pool data",)) for disk in DATA_DISKS]
    (note,) = make_plan(WANTED, node_with_pool(disks=[*disks, NEW])).attention
    assert "DATA0006" in note.reason and "is no member" in note.reason


def test_a_limit_that_zfs_ignores_is_set_again():
    arc = ArcLimits(32 * MIB, 256 * MIB, 1500 * MIB)
    assert [step.kind for step in make_plan(WANTED, node_with_pool(arc=arc)).steps] == ["arc"]
    assert make_plan(WANTED._replace(arc_max_bytes=None), node_with_pool(arc=ArcLimits(0, 0, 5))).steps == ()


def test_blank_is_blank():
    assert BLANK.blank and not EXT4.blank
