# SPDX-License-Identifier: Apache-2.0
"""Order of versions, against dpkg's own rules (deb-version(7))."""

import shutil
import subprocess

import pytest
from ansible.module_utils.gpufleet.apt_stack_versions import by_age, compare

# older, newer
PAIRS = [
    ("580.95.05-1", "580.105.08-1"),
    ("580.105.08-1", "580.105.08-2"),
    ("580.105.08-0ubuntu1", "580.105.08-1"),
    ("1.0~rc1", "1.0"),
    ("1.0", "1.0+b1"),
    ("1.0", "1.0a"),
    ("1.0a", "1.0+"),
    ("2.0", "1:1.0"),
    ("44.0-2", "2507mlnx58-1.2507097"),
    ("3.1.0-091513", "3.2.1-044413"),
    ("25.07.OFED.25.07.0.9.7.1-1", "25.10.OFED.25.10.1.7.1.1-1"),
    ("1.0-1~bpo12+1", "1.0-1"),
    ("2.36-9+deb12u7", "2.36-9+deb12u10"),
]


@pytest.mark.parametrize(("older", "newer"), PAIRS)
def test_order(older: str, newer: str) -> None:
    assert (compare(older, newer), compare(newer, older), compare(newer, newer)) == (-1, 1, 0)
    assert max([older, newer], key=by_age) == newer


@pytest.mark.parametrize(("first", "second"), [("1.0", "1.00"), ("0:1.0-1", "1.0-1"), ("1.0-0", "1.0")])
def test_equal_in_other_words(first: str, second: str) -> None:
    assert compare(first, second) == 0


@pytest.mark.skipif(not shutil.which("dpkg"), reason="only Debian has dpkg")
def test_dpkg_agrees() -> None:
    texts = sorted({text for pair in PAIRS for text in pair})
    for first in texts:
        for second in texts:
            less = subprocess.run(["dpkg", "--compare-versions", first, "lt", second], check=False).returncode == 0
            assert less == (compare(first, second) < 0), (first, second)
