# SPDX-License-Identifier: Apache-2.0
"""zpool import and zdb -l: which pools lie on disks, whose they are, and what a single disk says of itself."""

from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.zpool_import import (
    ACTIVE,
    DESTROYED,
    EXPORTED,
    SPARE,
    parse_label,
    parse_labels,
    parse_zpool_import,
)
from ansible.module_utils.gpufleet.zpool_status import ZpoolParseError, leaves

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "zfs"

# file -> for each pool: state, destroyed, importable, foreign, names of missing devices
EXPECTED = {
    "foreign": [("ONLINE", False, True, True, [])],
    "two-pools-degraded-and-incomplete": [
        ("DEGRADED", False, True, False, ["11817431061240519873"]),
        ("UNAVAIL", False, False, False, []),
    ],
    "destroyed": [("ONLINE", True, True, False, [])],
    "multihost-active": [("UNAVAIL", False, False, True, [])],
    "comment-2.3": [("FAULTED", False, False, False, ["sdb"])],
    "compatibility-2.1": [("ONLINE", False, True, False, [])],
    "recorded-exported": [("ONLINE", False, True, False, [])],
}


def read(kind: str, name: str) -> str:
    return (FIXTURES / kind / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", EXPECTED)
def test_pools_are_told_apart(name):
    pools = parse_zpool_import(read("import", name))
    assert [
        (pool.state, pool.destroyed, pool.importable, pool.foreign, [leaf.name for leaf in pool.missing])
        for pool in pools
    ] == EXPECTED[name]
    assert all(pool.guid.isdigit() for pool in pools)


def test_every_fixture_has_its_right_interpretation():
    assert {path.stem for path in (FIXTURES / "import").iterdir()} == set(EXPECTED)


def test_devices_of_other_roles_need_no_state():
    pool, incomplete = parse_zpool_import(read("import", "two-pools-degraded-and-incomplete"))
    assert [(top.role, top.kind, top.name, top.state) for top in pool.others] == [
        ("cache", "disk", "nvme-eui.0000000000000008", ""),
        ("spare", "disk", "nvme-eui.0000000000000012", ""),
        ("log", "mirror", "mirror-1", "ONLINE"),
    ]
    assert pool.data[0].children[1].note == "cannot open" and pool.data[0].read is None
    assert (pool.more_devices, incomplete.more_devices) == (False, True)
    assert len(leaves(incomplete.root)) == 2


def test_an_online_pool_may_still_not_be_importable():
    """An unfinished destroy of an older version, errata 2 of show_import()."""
    text = FOREIGN.replace("The pool can be imported using", "The pool cannot be imported with this version of ZFS")
    assert not parse_zpool_import(text)[0].importable


def test_the_other_host_is_named():
    (pool,) = parse_zpool_import(read("import", "multihost-active"))
    assert (pool.hostname, pool.hostid) == ("node-b", 0xDEADBEEF)


def test_advice_behind_a_comment_belongs_to_the_action():
    (pool,) = parse_zpool_import(read("import", "comment-2.3"))
    assert pool.comment == "rack 7"
    assert pool.action.endswith("can be imported using the '-f' flag.")


def test_without_a_pool_there_is_none():
    assert parse_zpool_import("no pools available to import\n") == []


@pytest.mark.parametrize("name", EXPECTED)
def test_a_listing_that_was_cut_never_shows_more_than_there_is(name):
    """A listing has no end mark: cut behind a row it is a shorter one. All else is refused."""
    text = read("import", name)
    whole = parse_zpool_import(text)
    lines = text.splitlines(keepends=True)
    for end in range(len(lines)):
        try:
            pools = parse_zpool_import("".join(lines[:end]))
        except ZpoolParseError:
            continue
        last = pools[-1]
        full = whole[len(pools) - 1]
        assert pools[:-1] == whole[: len(pools) - 1]
        assert (last.guid, last.state, last.foreign, last.importable) == (
            full.guid,
            full.state,
            full.foreign,
            full.importable,
        )
        assert {leaf.name for leaf in leaves(last.root)} <= {leaf.name for leaf in leaves(full.root)}


FOREIGN = read("import", "foreign")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "printed nothing"),
        ("cannot discover pools: permission denied\n", "expected `pool:` first"),
        (FOREIGN.split(" config:")[0], "ends before its devices"),
        (FOREIGN.split("\tdata")[0], "has no rows"),
        (FOREIGN.split("\t    nvme-eui.0000000000000002")[0], "at least 2 rows"),
        (FOREIGN.replace("     id: 17502164096278276766\n", ""), "`id:`"),
        (FOREIGN.replace("state: ONLINE", "state: ONLINE (BROKEN)"), "`state:`"),
        (FOREIGN.replace("state: ONLINE", "state: HAPPY"), "`state:`"),
        (FOREIGN.replace("   pool: data\n", ""), "line 1: expected `pool:` first"),
        (FOREIGN.replace(" config:\n", "\tand more\n config:\n"), "does not fit behind `see:`"),
        (FOREIGN.replace("status:", "comment: rack 7\n\tand more\nstatus:"), "does not fit behind `comment:`"),
        (FOREIGN.replace("   see:", " state: ONLINE\n   see:"), "second `state:`"),
        (
            read("import", "two-pools-degraded-and-incomplete").replace("0000000000000008", "0000000000000008  BROKEN"),
            "with its state",
        ),
        (FOREIGN + "garbage\n", "neither a keyword"),
        (
            FOREIGN.replace("\t    nvme-eui.0000000000000002  ONLINE", "\t    nvme-eui.0000000000000002"),
            "with its state",
        ),
    ],
)
def test_a_listing_that_does_not_fit_is_refused(text, said):
    with pytest.raises(ZpoolParseError) as caught:
        parse_zpool_import(text)
    assert said in str(caught.value)


def test_a_label_tells_pool_member_and_host():
    label = parse_label(read("label", "raidz1-one-missing"))
    assert (label.name, label.pool_guid, label.guid) == ("data", "17502164096278276766", "10000000000000000000")
    assert (label.state, label.txg, label.hostid, label.hostname) == (ACTIVE, 1234, 3735928559, "node-a")
    assert (label.kind, label.nparity, label.ashift, label.vdev_children) == ("raidz", 1, 12, 1)
    assert (label.numbers, label.unreadable, label.bad_checksum) == ((0, 1, 2, 3), (), False)
    assert [member.missing for member in label.children] == [False, True, False]
    member = label.children[1]
    assert (member.guid, member.path) == ("10000000000000000001", "/dev/disk/by-id/nvme-LAB_DISK_S1-part1")
    assert (member.devid, member.phys_path) == ("nvme-LAB_DISK_S1-part1", "pci-0000:01:00.0-nvme-1")
    assert member.whole_disk and member.within == "raidz"


@pytest.mark.parametrize(
    ("name", "state", "txg"), [("recorded-imported", ACTIVE, 4), ("recorded-exported", EXPORTED, 61)]
)
def test_a_recorded_label_names_all_five_members(name, state, txg):
    label = parse_label(read("label", name))
    assert (label.name, label.state, label.txg, label.hostid) == ("tank", state, txg, 1525057500)
    assert [member.devid for member in label.children] == [
        f"nvme-QEMU_NVMe_Ctrl_DATA000{number}-part1" for number in range(1, 6)
    ]
    assert [member.phys_path for member in label.children] == [f"pci-0000:0{slot}:00.0-nvme-1" for slot in range(5, 10)]
    assert label.guid == label.children[0].guid and all(member.whole_disk for member in label.children)


def test_members_below_a_replacement_are_found():
    text = read("label", "raidz1-one-missing")
    child = "        children[1]:\n            type: 'disk'\n"
    nested = (
        "        children[1]:\n            type: 'replacing'\n            id: 1\n"
        "            children[0]:\n                type: 'disk'\n                guid: 7\n                offline: 1\n"
        "            children[1]:\n                type: 'disk'\n                guid: 8\n                removed: 1\n"
    )
    before, after = text.split(child)
    label = parse_label(before + nested + "        children[2]:" + after.split("        children[2]:")[1])
    assert [(member.guid, member.within, member.offline, member.removed) for member in label.children] == [
        ("10000000000000000000", "raidz", False, False),
        ("7", "replacing", True, False),
        ("8", "replacing", False, True),
        ("10000000000000000002", "raidz", False, False),
    ]


def test_a_recorded_replacement_names_the_old_disk_and_the_new_one():
    label = parse_label(read("label", "recorded-replacing"))
    assert [(member.devid[-14:-6], member.within, member.missing) for member in label.children] == [
        ("DATA0001", "raidz", False),
        ("DATA0002", "raidz", False),
        ("DATA0003", "replacing", True),
        ("DATA0006", "replacing", False),
        ("DATA0004", "raidz", False),
        ("DATA0005", "raidz", False),
    ]


def test_the_newest_label_counts():
    text = read("label", "older-copies-at-the-end")
    assert [(label.txg, label.numbers) for label in parse_labels(text)] == [(1234, (0, 1)), (1200, (2, 3))]
    assert parse_label(text).txg == 1234


def test_labels_of_two_pools_are_no_answer():
    text = read("label", "two-pools")
    assert [(label.name, label.state, label.bad_checksum) for label in parse_labels(text)] == [
        ("data", ACTIVE, False),
        ("old", DESTROYED, True),
    ]
    with pytest.raises(ZpoolParseError, match=r"different pools: data \(\d+\), old \(\d+\)"):
        parse_label(text)


def test_half_of_the_copies_is_a_label():
    label = parse_label(read("label", "exported-half-readable"))
    assert (label.state, label.numbers, label.unreadable) == (EXPORTED, (0, 1), (2, 3))


def test_a_spare_names_no_pool():
    label = parse_label(read("label", "spare"))
    assert (label.state, label.name, label.pool_guid, label.guid) == (SPARE, "", "", "10000000000000000000")
    assert label.children == ()


def test_an_older_zdb_prints_a_header_for_every_copy():
    failed = "".join(f"{'-' * 44}\nLABEL {copy}\n{'-' * 44}\nfailed to unpack label {copy}\n" for copy in (0, 1))
    label = parse_label(failed + GOOD.replace("LABEL 0", "LABEL 2").replace("labels = 0 1 2 3", "labels = 2 3"))
    assert (label.unreadable, label.numbers) == ((0, 1), (2, 3))


def test_a_pool_of_single_disks_has_itself_as_the_only_member():
    text = read("label", "raidz1-one-missing").split("        children[0]:")[0].replace("type: 'raidz'", "type: 'disk'")
    label = parse_label(text + "        path: '/dev/sdb1'\n    labels = 0 1 2 3 \n")
    assert [(member.path, member.within) for member in label.children] == [("/dev/sdb1", "")]


def test_what_follows_the_labels_of_a_cache_device_is_left_out():
    text = read("label", "spare").replace("state: 3", "state: 4")
    more = "-" * 36 + "\nL2ARC device header\n" + "-" * 36 + "\n    magic: 6504978260106102853\n"
    assert parse_label(text + more).state == 4


LABELS = sorted(path.stem for path in (FIXTURES / "label").iterdir())


@pytest.mark.parametrize("name", LABELS)
def test_a_label_that_was_cut_is_refused(name):
    text = read("label", name)
    end_of_text = len(text.rstrip())
    for end in range(end_of_text):
        with pytest.raises(ZpoolParseError):
            parse_labels(text[:end])


GOOD = read("label", "raidz1-one-missing")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected all four copies"),
        ("cannot open '/dev/sdx': No such file or directory\n", "expected a label"),
        (read("label", "none"), "no copy of the label is readable"),
        (GOOD.replace("    labels = 0 1 2 3", "    labels = 0 1 2"), "expected all four copies"),
        (GOOD.replace("    pool_guid: 17502164096278276766\n", ""), "lacks pool_guid"),
        (GOOD.replace("    state: 0\n", ""), "lacks its state"),
        (GOOD.partition("    vdev_tree:")[0] + "    labels = 0 1 2 3 \n", "its vdev_tree"),
        (GOOD.partition("    features")[0] + GOOD, "without saying which copies"),
        ("---\nLABEL 0\n---\n" + GOOD, "has no content"),
        (GOOD.replace("        type: 'raidz'", "       type: 'raidz'"), "indentation"),
        (GOOD.replace("    errata: 0", "     errata: 0"), "indentation"),
        (GOOD.replace("    errata: 0", "        errata: 0"), "indentation"),
        (GOOD.replace("    errata: 0", "errata: 0"), "indentation"),
        (GOOD.replace("    errata: 0", "    an odd line"), "does not fit a label"),
    ],
)
def test_labels_that_do_not_fit_are_refused(text, said):
    with pytest.raises(ZpoolParseError) as caught:
        parse_label(text)
    assert said in str(caught.value)
