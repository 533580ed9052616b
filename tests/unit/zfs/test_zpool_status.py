# SPDX-License-Identifier: Apache-2.0
"""zpool status: what it says is read completely, judged by all of it, and never guessed."""

from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.zpool_status import (
    KINDS,
    NO_SCAN,
    SEVERITIES,
    Vdev,
    ZpoolParseError,
    judge,
    leaves,
    parse_zpool_status,
)

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "zfs" / "status"
HEALTHY = [[]]
DISK = "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DATA000{}-part1"

# file -> for each pool what must be found, the worst first: severity, kind, component
EXPECTED = {
    "three-pools": [[], [], []],
    "features-two-mirrors": HEALTHY,
    "features-raidz1": HEALTHY,
    "raidz-expansion": HEALTHY,
    "recorded-kernel-names": HEALTHY,
    "recorded-online": HEALTHY,
    "recorded-resilvered": HEALTHY,
    "recorded-offline": [[("fail", "degraded", "tank"), ("warn", "offline_member", DISK.format(2))]],
    "recorded-faulted": [[("fail", "degraded", "tank"), ("fail", "faulted_member", DISK.format(2))]],
    "recorded-pulled": [[("fail", "degraded", "tank"), ("fail", "removed_member", DISK.format(3))]],
    "recorded-missing-at-import": [
        [("fail", "degraded", "tank"), ("fail", "unavailable_member", "836585339232207498")]
    ],
    "recorded-replacing": [
        [
            ("fail", "degraded", "tank"),
            ("fail", "unavailable_member", "836585339232207498"),
            ("info", "resilvering", "tank"),
        ]
    ],
    "recorded-replacing-new-one-offline": [
        [
            ("fail", "degraded", "tank"),
            ("fail", "unavailable_member", "836585339232207498"),
            ("warn", "offline_member", DISK.format(6)),
            ("info", "resilvering", "tank"),
        ]
    ],
    "recorded-checksum-errors": [[("warn", "member_errors", DISK.format(4))]],
    "recorded-checksum-errors-exact": [[("warn", "member_errors", "/dev/nvme4n1p1")]],
    "recorded-scrub-paused": HEALTHY,
    "recorded-scrub-stopped": HEALTHY,
    "recorded-resilver-standing-still": [[("info", "resilvering", "tank")]],
    "online-but-unavail": [[("fail", "unavailable_member", "nbd0")]],
    "logs-cache-spares": [
        [
            ("fail", "degraded", "data"),
            ("fail", "unavailable_member", "14807975228228307538"),
            ("warn", "unavailable_member", "nvme-eui.0000000000000009"),
            ("warn", "unavailable_member", "nvme-eui.0000000000000013"),
        ]
    ],
    "draid-sequential-resilver": [
        [
            ("fail", "degraded", "aggr0"),
            ("fail", "faulted_member", "0a-2"),
            ("warn", "member_errors", "spare-2"),
            ("warn", "member_errors", "0a-2"),
            ("warn", "spare_in_use", "draid2-0-0"),
            ("info", "resilvering", "aggr0"),
        ]
    ],
    "suspended": [
        [
            ("fail", "suspended", "data"),
            ("fail", "degraded", "data"),
            ("fail", "degraded", "raidz1-0"),
            ("fail", "faulted_member", "7766977507585751734"),
            ("fail", "member_errors", "raidz1-0"),
            ("warn", "member_errors", "sdd"),
        ]
    ],
    "suspended-while-online": [
        [
            ("fail", "suspended", "data"),
            ("fail", "data_errors", "data"),
            ("fail", "member_errors", "data"),
            ("fail", "member_errors", "raidz1-0"),
        ]
    ],
    "suspended-multihost": [[("fail", "suspended", "data"), ("fail", "data_errors", "data")]],
    "unavailable-pool": [
        [
            ("fail", "faulted", "data"),
            ("fail", "unavailable_member", "3817046254183106124"),
            ("fail", "unavailable_member", "11817431061240519873"),
        ]
    ],
    "replacing": [
        [
            ("fail", "degraded", "data"),
            ("fail", "unavailable_member", "11817431061240519873"),
            ("info", "resilvering", "data"),
        ]
    ],
    "resilver-just-begun": [[("info", "resilvering", "data")]],
    "permanent-errors": [
        [
            ("fail", "data_errors", "data"),
            ("warn", "member_errors", "/srv/a.img"),
            ("warn", "scrub_errors", "data"),
        ],
        [],
    ],
    "removed-and-offline": [
        [("fail", "degraded", "data"), ("fail", "removed_member", "sdb"), ("warn", "offline_member", "sdc")]
    ],
    "hostid-mismatch": [[("warn", "hostid_mismatch", "data")]],
    "hostid-mismatch-without-paragraph": [[("warn", "hostid_mismatch", "storage")]],
    "unknown-status": [[("warn", "unknown_status", "data")]],
}


def read(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text()


def one(text: str):
    (pool,) = parse_zpool_status(text)
    return pool


@pytest.mark.parametrize("name", EXPECTED)
def test_all_that_is_not_healthy_is_found_and_nothing_else(name):
    pools = parse_zpool_status(read(name))
    found = [[(concern.severity, concern.kind, concern.component) for concern in judge(pool)] for pool in pools]
    assert found == EXPECTED[name]
    assert all(concern.what.strip() for pool in pools for concern in judge(pool))


def test_every_fixture_has_its_right_interpretation():
    names = {path.stem for path in FIXTURES.iterdir()}
    assert {name for name in names if not name.startswith("refused-")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.iterdir()))
def test_a_text_that_was_cut_is_never_healthy(name):
    """Cut behind each character: refused, or the pools before the cut, or a pool that is failing anyway."""
    text = read(name)
    whole = [] if name.startswith("refused-") else parse_zpool_status(text)
    for end in range(len(text)):
        try:
            pools = parse_zpool_status(text[:end])
        except ZpoolParseError:
            continue
        assert 0 < len(pools) <= len(whole)
        assert pools[:-1] == whole[: len(pools) - 1]
        if pools[-1] != whole[len(pools) - 1]:
            assert any(concern.severity == "fail" for concern in judge(pools[-1])), text[:end]
            assert not pools[-1].errors or pools[-1].error_files or pools[-1].suspended


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("refused-*.txt")))
def test_a_piece_of_the_output_is_refused(name):
    with pytest.raises(ZpoolParseError):
        parse_zpool_status(read(name))


def test_remarks_behind_the_counters():
    text = (
        "  pool: vz\n state: DEGRADED\nconfig:\n\n" + read("refused-leaf-remarks") + "\nerrors: No known data errors\n"
    )
    text = text.replace(  # the sample leaves out rows of the second group
        "    /dev/disk/by-id/wwn-0x50000000aaaa0001-part1  FAULTED     12   304     0  too many errors\n",
        "    /dev/disk/by-id/wwn-0x50000000aaaa0001-part1  FAULTED     12   304     0  too many errors\n"
        "\t    sdi  ONLINE       0     0     0\n\t    sdj  ONLINE       0     0     0\n",
    )
    mirror, raidz = one(text).data
    assert (mirror.kind, raidz.kind, mirror.children[0].kind) == ("mirror", "raidz2", "replacing")
    members = leaves(mirror) + leaves(raidz)[:1]
    assert [(member.name, member.state, member.note) for member in members] == [
        ("ata-DISKMODEL_SERIAL0001", "OFFLINE", ""),
        ("sdh", "ONLINE", "(resilvering)"),
        ("ata-DISKMODEL_SERIAL0002", "DEGRADED", "too many errors"),
        ("/dev/disk/by-id/wwn-0x50000000aaaa0001-part1", "FAULTED", "too many errors"),
    ]
    assert members[3].read == 12 and members[3].write == 304
    assert ("degraded", "ata-DISKMODEL_SERIAL0002") in [(c.kind, c.component) for c in judge(one(text))]


def test_each_role_keeps_its_devices():
    pool = one(read("logs-cache-spares"))
    assert [(top.name, top.role, top.kind) for top in pool.data] == [("raidz1-0", "data", "raidz1")]
    assert [(top.name, top.role) for top in pool.others] == [
        ("mirror-4", "dedup"),
        ("mirror-1", "special"),
        ("mirror-2", "log"),
        ("nvme-eui.0000000000000008", "cache"),
        ("nvme-eui.0000000000000009", "cache"),
        ("nvme-eui.0000000000000012", "spare"),
        ("nvme-eui.0000000000000013", "spare"),
    ]
    log = pool.others[2]
    assert [leaf.role for leaf in leaves(log)] == ["log", "log"]
    assert leaves(log)[1].was_path == "/dev/disk/by-id/nvme-eui.0000000000000007-part1"
    assert leaves(log)[0].was_path is None
    spare = pool.others[5]
    assert (spare.state, spare.read, spare.note) == ("AVAIL", None, "")
    assert pool.others[6].note == "cannot open"


def test_a_distributed_spare_is_a_leaf_and_suffixes_are_numbers():
    pool = one(read("draid-sequential-resilver"))
    (draid,) = pool.data
    assert (draid.kind, len(draid.children)) == ("draid", 7)
    spare = draid.children[2]
    assert (spare.kind, spare.checksum) == ("spare", round(1.2 * 1024))
    assert [(leaf.name, leaf.kind) for leaf in leaves(spare)] == [("0a-2", "disk"), ("draid2-0-0", "disk")]


SCANS = {
    "three-pools": ("scrub", "cancelled", None, None, None, ""),
    "features-raidz1": ("scrub", "finished", None, None, 0, ""),
    "logs-cache-spares": ("scrub", "paused", 11.15, None, None, ""),
    "draid-sequential-resilver": (
        "resilver",
        "running",
        92.97,
        ((24 + 3) * 60 + 22) * 60 + 35,
        None,
        "draid2:4d:7c:1s-0",
    ),
    "suspended": ("none", "none", None, None, None, ""),
    "suspended-multihost": ("none", "none", None, None, None, ""),
    "replacing": ("resilver", "running", 9.57, 37, None, ""),
    "resilver-just-begun": ("resilver", "running", None, None, None, ""),
    "permanent-errors": ("scrub", "finished", None, None, 2, ""),
    "removed-and-offline": ("resilver", "finished", None, None, 0, ""),
    "raidz-expansion": ("scrub", "running", 9.57, None, None, ""),
    "recorded-online": ("none", "none", None, None, None, ""),
    "recorded-resilver-standing-still": ("resilver", "running", 0.0, None, None, ""),
    "recorded-scrub-paused": ("scrub", "paused", 0.0, None, None, ""),
    "recorded-scrub-stopped": ("scrub", "cancelled", None, None, None, ""),
    "recorded-resilvered": ("resilver", "finished", None, None, 0, ""),
}


@pytest.mark.parametrize("name", SCANS)
def test_scans_are_told_apart(name):
    assert parse_zpool_status(read(name))[0].scan[:6] == SCANS[name]


def test_states_of_a_scan_have_names():
    scan = one(read("draid-sequential-resilver")).scan
    assert (scan.running, scan.paused, scan.finished, scan.cancelled, scan.sequential) == (
        True,
        False,
        False,
        False,
        True,
    )
    assert one(read("draid-sequential-resilver")).scans[0].finished
    assert not NO_SCAN.running and not NO_SCAN.finished


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resilver (mirror-0) canceled on Sun Nov 29 20:10:01 2026", ("resilver", "cancelled", "mirror-0", None)),
        ("resilver canceled on Sun Nov 29 20:10:01 2026", ("resilver", "cancelled", "", None)),
        (
            "resilvered (mirror-0) 1.5G in 00:00:08 with 3 errors on Sun Nov 29 20:10:01 2026",
            ("resilver", "finished", "mirror-0", 3),
        ),
    ],
)
def test_less_usual_scans(text, expected):
    scan = one(
        read("features-raidz1").replace("scrub repaired 0B in 00:04:50 with 0 errors on Fri Feb  3 03:49:52 2023", text)
    ).scan
    assert (scan.kind, scan.state, scan.component, scan.errors) == expected


def test_a_counter_that_is_not_kept_is_none():
    pool = one(
        read("logs-cache-spares").replace(
            "nvme-eui.0000000000000008               ONLINE       0     0     0",
            "nvme-eui.0000000000000008               ONLINE       -     -     0",
        )
    )
    cache = pool.others[3]
    assert (cache.read, cache.write, cache.checksum, cache.has_errors) == (None, None, 0, False)


def test_a_counter_of_many_digits_is_exact():
    text = read("recorded-kernel-names").replace(
        "/dev/nvme1n1p1  ONLINE       0", "/dev/nvme1n1p1  ONLINE       9007199254740993"
    )
    assert leaves(one(text).root)[0].read == 9007199254740993


@pytest.mark.parametrize(
    ("group", "fewest"),
    [("raidz1-0", 2), ("raidz2-0", 3), ("raidz3-0", 4), ("mirror-0", 2), ("draid1:2d:5c:0s-0", 5), ("draid-0", 2)],
)
def test_a_group_has_the_rows_that_its_kind_needs(group, fewest):
    def text(members: int) -> str:
        rows = [f"\t    disk{number}  ONLINE  0  0  0\n" for number in range(members)]
        head = "  pool: tank\n state: ONLINE\nconfig:\n\n\tNAME STATE READ WRITE CKSUM\n"
        head += f"\ttank ONLINE 0 0 0\n\t  {group} ONLINE 0 0 0\n"
        return head + "".join(rows) + "\nerrors: No known data errors\n"

    assert len(leaves(one(text(fewest)).root)) == fewest
    for members in range(fewest):
        with pytest.raises(ZpoolParseError, match=f"at least {fewest} rows"):
            parse_zpool_status(text(members))


@pytest.mark.parametrize("group", ["replacing-0", "spare-0"])
def test_a_pair_of_disks_is_complete(group):
    text = (
        read("recorded-kernel-names")
        .replace("/dev/nvme1n1p1", group)
        .replace("\t    /dev/nvme2n1p1", "\t      /dev/nvme2n1p1")
    )
    with pytest.raises(ZpoolParseError, match="at least 2 rows"):
        parse_zpool_status(text)
    more = "\t      sdx  ONLINE  0  0  0\n\t    /dev/nvme3n1p1"
    assert one(text.replace("\t    /dev/nvme3n1p1", more)).data[0].children[0].kind == group.partition("-")[0]


def test_a_resilver_counts_without_its_paragraph():
    head, __, rest = read("resilver-just-begun").partition("status:")
    text = head + "  scan:" + rest.partition("  scan:")[2]
    assert [(concern.kind, concern.severity) for concern in judge(one(text))] == [("resilvering", "info")]


def test_an_older_zfs_gives_hours_and_minutes():
    text = read("raidz-expansion").replace("no estimated completion time", "2h3m to go")
    assert one(text).scan.to_go_s == 2 * 3600 + 3 * 60


def test_the_errors_and_files_are_kept():
    pool = parse_zpool_status(read("permanent-errors"))[0]
    assert pool.error_files == ("/data/models/weights with a space.bin", "data/scratch:<0x0>")
    assert "weights with a space.bin" in judge(pool)[0].what


def test_paragraphs_are_on_one_line():
    pool = one(read("hostid-mismatch"))
    assert pool.status.endswith("and then was verbatim imported into this system.")
    assert pool.action == (
        "Export this pool on all systems on which it is imported. Then import it to correct the mismatch."
    )
    assert pool.see.endswith("ZFS-8000-EY")


def test_without_a_pool_there_is_none():
    assert parse_zpool_status("no pools available\n") == []


GOOD = read("features-raidz1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "printed nothing"),
        ("\n \n", "printed nothing"),
        ("all pools are healthy\n", "expected `pool:` first"),
        (" state: ONLINE\n" + GOOD, "line 1: expected `pool:` first"),
        (GOOD.replace("state: ONLINE", "state: SPLENDID"), "got 'SPLENDID'"),
        (GOOD.replace("errors: No known data errors", ""), "has no `errors:` line"),
        (GOOD.replace("errors: No known data errors", "errors: No known"), "'errors: No known'"),
        (GOOD + "errors: No known data errors\n\tand more\n", "does not fit behind"),
        (GOOD + "garbage\n", "neither a keyword"),
        (GOOD.replace(" state: ONLINE", " state: ONLINE\n state: ONLINE"), "second `state:`"),
        (GOOD.replace("CKSUM\n", "CKSUM  SLOW\n"), "expected the header"),
        (GOOD.replace("\tNAME        STATE     READ WRITE CKSUM\n", ""), "expected the header"),
        (GOOD.replace("\tdata        ONLINE       0     0     0\n", ""), "the pool's row"),
        (GOOD.replace("\tdata  ", "\tdota  "), "expected the row of pool 'data'"),
        (
            GOOD.replace("\t    nvme2n1 ONLINE       0     0     0", "\t    nvme2n1 ONLINE       0     0"),
            "three error counters",
        ),
        (GOOD.replace("\t    nvme2n1 ONLINE", "\t    nvme2n1 HAPPY"), "expected a device with its state"),
        (GOOD.replace("\t    nvme2n1", "\t   nvme2n1"), "indentation"),
        (GOOD.replace("\t    nvme2n1", "\t        nvme2n1"), "indentation"),
        (GOOD.replace("\t    nvme2n1", "\t      nvme2n1"), "no group has rows below it"),
        (GOOD.replace("\t    nvme2n1", "\tnvme2n1"), "expected one of logs"),
        (GOOD.replace("with 0 errors on Fri Feb  3 03:49:52 2023", "with 0 err"), "no scan that zpool is known"),
        (read("replacing").replace("9.57%", "9.5x%"), "no number before"),
        (read("permanent-errors").split("        /data")[0], "no file is listed"),
        (
            read("draid-sequential-resilver").replace(
                "\t    0a-6               ONLINE       0     0     0  (resilvering)\n", ""
            ),
            "7 rows",
        ),
        (read("logs-cache-spares").replace("\tcache\n", "\tcache\n\tdedup\t\n"), "'cache'"),
        (read("recorded-kernel-names").replace("\n\nerrors", "\n\tspares\n\nerrors"), "'spares'"),
        (read("logs-cache-spares").replace("008               ONLINE       0     0     0", "008"), "with its state"),
        (GOOD.replace("\t    nvme2n1", "      nvme2n1"), "indentation"),
        (GOOD.replace(" state: ONLINE\n", " state: ONLINE\n\tand more\n"), "does not fit behind `state:`"),
        (GOOD.replace("  pool: data", "  pool:").replace("\tdata  ", "\t"), "expected a pool"),
        (GOOD.replace("config:\n", "config: The configuration cannot be determined.\n"), "no configuration"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(text, said):
    with pytest.raises(ZpoolParseError, match="line|printed nothing") as caught:
        parse_zpool_status(text)
    assert said in str(caught.value)


# How OpenZFS 2.1 to 2.4 begin each status paragraph of print_status_reason(), zpool_main.c
PARAGRAPHS = {
    "One or more devices could not be opened.  Sufficient replicas exist for\n\tthe pool": "unavailable_member",
    "One or more devices could not be opened.  There are insufficient\n\treplicas": "faulted",
    "One or more devices could not be used because the label is missing or\n\tinvalid.  Suff": "unavailable_member",
    "One or more devices could not be used because the label is missing \n\tor invalid.  There are": "faulted",
    "One or more devices has experienced an unrecoverable error.  An\n\tattempt was made": "member_errors",
    "One or more devices has been taken offline by the administrator.\n\tSufficient": "offline_member",
    "One or more devices has been removed by the administrator.\n\tSufficient": "removed_member",
    "One or more devices have been removed.\n\tSufficient": "removed_member",
    "One or more devices is currently being resilvered.  The pool will\n\tcontinue": "resilvering",
    "One or more devices have been sequentially resilvered, scrubbing\n\tthe pool is recommended.": "scrub_advised",
    "One or more devices has experienced an error resulting in data\n\tcorruption.": "data_errors",
    "The pool metadata is corrupted and the pool cannot be opened.": "faulted",
    "The pool metadata is incomplete or corrupted and the pool cannot be opened.": "faulted",
    "The pool is formatted using a legacy on-disk format.  The pool can\n\tstill be used": None,
    "The pool has been upgraded to a newer, incompatible on-disk version.\n\tThe pool": "faulted",
    "Some supported and requested features are not enabled on the pool.\n\tThe pool": None,
    "Some supported features are not enabled on the pool. The pool can": None,
    "This pool has a compatibility list specified, but it could not be\n\tread/parsed": None,
    "One or more features are enabled on the pool despite not being\n\trequested by": None,
    "The pool cannot be accessed on this system because it uses the\n\tfollowing feature(s)": "faulted",
    "The pool can only be accessed in read-only mode on this system. It\n\tcannot be": "degraded",
    "One or more devices are faulted in response to persistent errors.\n\tSufficient": "faulted_member",
    "One or more devices are faulted in response to persistent errors.  There are": "faulted",
    "One or more failure domains are faulted. The storage devices may be\n\tintact.": "faulted_member",
    "The pool is suspended because multihost writes failed or were delayed;\n\tanother": "suspended",
    "One or more devices are faulted in response to IO failures.": "suspended",
    "An intent log record could not be read.\n\tWaiting for administrator": "faulted",
    "One or more devices are configured to use a non-native block size.\n\tExpect": "block_size",
    "Mismatch between pool hostid and system hostid on imported pool.\n\tThis pool": "hostid_mismatch",
    "Errata #3 detected.\n\tExisting encrypted datasets": "errata",
}


@pytest.mark.parametrize(("paragraph", "kind"), PARAGRAPHS.items())
def test_a_paragraph_counts_even_where_every_row_is_online(paragraph, kind):
    text = read("unknown-status").replace("The moon is in the wrong phase for this pool.", paragraph)
    assert [concern.kind for concern in judge(one(text))] == ([kind] if kind else [])


CODES = ["14", "2Q", "3C", "4J", "5E", "6X", "72", "8A", "9P", "A5", "EY", "HC", "JQ", "MM", "K4", "ER"]


@pytest.mark.parametrize("code", CODES)
def test_every_message_of_openzfs_is_a_concern(code):
    text = GOOD.split("status:")[0] + f"   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-{code}\n"
    text += "config:" + GOOD.split("config:")[1]
    (concern,) = judge(one(text))
    assert concern.kind != "unknown_status"
    assert concern.severity == ("warn" if code in ("9P", "EY", "ER") else "fail")
    assert [c.kind for c in judge(one(text.replace(f"8000-{code}", "8000-ZZ")))] == ["unknown_status"]


def test_a_concern_says_role_and_remark():
    what = {concern.component: concern.what for concern in judge(one(read("logs-cache-spares")))}
    assert what["14807975228228307538"] == ("UNAVAIL (log device): was /dev/disk/by-id/nvme-eui.0000000000000007-part1")
    assert what["nvme-eui.0000000000000009"] == "UNAVAIL (cache device): cannot open"
    what = {concern.component: concern.what for concern in judge(one(read("removed-and-offline")))}
    assert what["sdb"] == "REMOVED"
    what = {concern.component: concern.what for concern in judge(one(read("suspended")))}
    assert what["sdd"] == "3 read, 169 write and 0 checksum errors"


def test_a_disk_may_be_named_like_a_part_of_a_draid():
    assert leaves(one(read("recorded-kernel-names").replace("/dev/nvme1n1p1", "slot:4c")).root)[0].name == "slot:4c"


def test_concerns_come_in_order_of_severity():
    for name in EXPECTED:
        for pool in parse_zpool_status(read(name)):
            ranks = [(SEVERITIES.index(c.severity), KINDS.index(c.kind)) for c in judge(pool)]
            assert ranks == sorted(ranks)


def test_leaves_of_a_disk_are_the_disk():
    disk = Vdev("sdb", "disk", "ONLINE", 0, 0, 0, "", (), "data")
    assert leaves(disk) == [disk]
