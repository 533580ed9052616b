# SPDX-License-Identifier: Apache-2.0
"""Properties: the same value in two spellings is no difference, and a size that is none is refused."""

from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.zfs_properties import (
    Difference,
    Property,
    differences,
    parse_properties,
)
from ansible.module_utils.gpufleet.zfs_property_value import canonical

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "zfs" / "properties"

TEXT = (
    "tank\trecordsize\t1048576\tlocal\n"
    "tank\tquota\t0\tdefault\n"
    "tank/scratch\trecordsize\t1048576\tinherited from tank\n"
    "tank/scratch\torg.example:note\ta\tb\tlocal\n"
    "tank/scratch\torigin\t-\t-\n"
)


def test_properties_of_several_datasets():
    assert parse_properties(TEXT) == {
        "tank": {"recordsize": Property("1048576", "local"), "quota": Property("0", "default")},
        "tank/scratch": {
            "recordsize": Property("1048576", "inherited from tank"),
            "org.example:note": Property("a\tb", "local"),
            "origin": Property("-", "-"),
        },
    }
    assert parse_properties("") == {}


def test_recorded_properties():
    pool = parse_properties((RECORDED / "recorded-zpool-get.txt").read_text())["tank"]
    assert (pool["ashift"], pool["guid"]) == (Property("12", "local"), Property("10130241835593261247", "-"))
    dataset = parse_properties((RECORDED / "recorded-zfs-get.txt").read_text())["tank"]
    wanted = {"recordsize": "128K", "quota": "none", "filesystem_limit": "none", "acltype": "noacl", "atime": "off"}
    assert differences(wanted, dataset) == {}
    assert differences({"xattr": "sa"}, dataset, (2, 1)) == {"xattr": Difference("dir", "sa")}


@pytest.mark.parametrize(
    "line",
    [
        "tank\trecordsize\t1048576",
        "tank recordsize 1048576 local",
        "cannot open 'tank'",
        "tank\tquota\t0\tdef",
        "\tquota\t0\tlocal",
        "tank\t\t0\tlocal",
        "",
    ],
)
def test_a_line_that_does_not_fit_is_refused(line):
    with pytest.raises(ValueError, match="line 2: "):
        parse_properties(f"tank\tquota\t0\tdefault\n{line}\n")


@pytest.mark.parametrize("end", range(1, len(TEXT)))
def test_a_text_that_was_cut_shows_fewer_properties_or_is_refused(end):
    whole = parse_properties(TEXT)
    try:
        found = parse_properties(TEXT[:end])
    except ValueError:
        return
    for name, properties in found.items():
        for key, value in properties.items():
            # the name of a dataset that a value is inherited from has no end mark
            assert whole[name][key].value == value.value
            assert whole[name][key].source.startswith(value.source)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("recordsize", "1M", "1048576"),
        ("recordsize", 1048576, "1048576"),
        ("recordsize", "128k", "131072"),
        ("recordsize", "128KiB", "131072"),
        ("recordsize", "16MB", "16777216"),
        ("recordsize", "512B", "512"),
        ("volblocksize", "16K", "16384"),
        ("quota", "none", "0"),
        ("quota", "0", "0"),
        ("quota", "2T", str(2 * 1024**4)),
        ("quota", "1.5G", str(3 * 1024**3 // 2)),
        ("quota", "0.3K", "307"),
        ("quota", "1.G", str(1024**3)),
        ("refquota", "100G", str(100 * 1024**3)),
        ("reservation", "none", "0"),
        ("refreservation", "auto", "auto"),
        ("refreservation", "1G", str(1024**3)),
        ("userquota@anna", "none", "0"),
        ("groupquota@1000", "1G", str(1024**3)),
        ("userobjquota@anna", "1000", "1000"),
        ("special_small_blocks", "64K", "65536"),
        ("volsize", "-", "-"),
        ("compression", "lz4", "lz4"),
        ("compression", "zstd-3", "zstd-3"),
        ("compression", "gzip-6", "gzip"),
        ("acltype", "posixacl", "posix"),
        ("filesystem_limit", "none", "18446744073709551615"),
        ("snapshot_limit", "100", "100"),
        ("atime", "off", "off"),
        ("mountpoint", "none", "none"),
        ("comment", "1M", "1M"),
        ("ashift", 12, "12"),
    ],
)
def test_values_as_get_spells_them(name, value, expected):
    assert canonical(name, value) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quota", "much"),
        ("quota", "auto"),
        ("quota", ""),
        ("quota", "-1"),
        ("quota", "1 G"),
        ("quota", "1X"),
        ("quota", "1GG"),
        ("quota", "1BB"),
        ("quota", "1BiB"),
        ("quota", "0x10"),
        ("quota", "16E"),
        ("recordsize", "none"),
        ("recordsize", "0"),
        ("recordsize", "256"),
        ("recordsize", "32M"),
        ("recordsize", "100K"),
        ("recordsize", "1.5M"),
        ("volblocksize", "12K"),
        ("atime", True),
        ("quota", False),
    ],
)
def test_what_is_no_value_is_refused(name, value):
    with pytest.raises(ValueError, match=name):
        canonical(name, value)


@pytest.mark.parametrize(
    ("version", "wanted", "printed", "same"),
    [
        ((2, 1), "sa", "sa", True),
        ((2, 1), "sa", "on", False),
        ((2, 1), "dir", "on", True),
        ((2, 3), "sa", "on", True),
        ((2, 3), "on", "sa", True),
        ((2, 3), "dir", "on", False),
        ((2, 4), "on", "sa", True),
        (None, "sa", "on", False),
        (None, "sa", "sa", True),
    ],
)
def test_what_xattr_on_means_depends_on_the_version(version, wanted, printed, same):
    assert (canonical("xattr", wanted, version) == canonical("xattr", printed, version)) is same


def test_the_version_changes_nothing_else():
    assert canonical("atime", "on", (2, 1)) == "on"
    assert canonical("xattr", "off", (2, 1)) == "off"


def test_only_what_differs_is_to_be_set():
    actual = parse_properties(TEXT)["tank"]
    assert differences({"recordsize": "1M", "quota": "none"}, actual) == {}
    assert differences({"quota": "1G", "recordsize": "128K", "newer": "on"}, actual) == {
        "quota": Difference("0", str(1024**3)),
        "recordsize": Difference("1048576", "131072"),
        "newer": Difference(None, "on"),
    }
    assert list(differences({"quota": "1G", "recordsize": "128K"}, actual)) == ["quota", "recordsize"]
