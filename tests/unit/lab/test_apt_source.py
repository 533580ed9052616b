# SPDX-License-Identifier: Apache-2.0
"""The mirror comes from the machine's apt sources, in both of apt's formats, or from a variable."""

from pathlib import Path

import pytest

from lab.apt_source import AptMirrors, find_mirrors
from lab.errors import LabError

DEB822 = """\
Types: deb
# a comment
URIs: http://mirror.invalid/debian/
Suites: trixie trixie-updates
Components: main

Types: deb
URIs: http://mirror.invalid/security
Suites: trixie-security
Components: main
"""
ONE_LINE = """\
# deb http://old.invalid/debian trixie main
deb-src http://source.invalid/debian trixie main
deb [arch=amd64 signed-by=/x.gpg] http://mirror.invalid/debian trixie main contrib
deb http://mirror.invalid/security trixie-security main
"""


def machine(root: Path, name: str, text: str, distribution: str = "debian") -> Path:
    directory = root / "etc/apt/sources.list.d"
    directory.mkdir(parents=True)
    (root / "etc/os-release").write_text(f'ID={distribution}\nVERSION_CODENAME="trixie"\n')
    (directory / "a-vendor.list").write_text("deb http://vendor.invalid/apt vendor-trixie main\n")
    (directory / name).write_text(text)
    return root


@pytest.mark.parametrize(("name", "text"), [("debian.sources", DEB822), ("debian.list", ONE_LINE)])
def test_the_machines_own_mirror(tmp_path: Path, name: str, text: str) -> None:
    expected = AptMirrors("http://mirror.invalid/debian", "http://mirror.invalid/security")
    assert find_mirrors({}, machine(tmp_path, name, text)) == expected


def test_the_variable_wins_and_the_security_archive_lies_beside(tmp_path: Path) -> None:
    found = find_mirrors({"GPUFLEET_APT_MIRROR": "http://mine.invalid/debian/"}, machine(tmp_path, "x.list", ""))
    assert found == AptMirrors("http://mine.invalid/debian", "http://mine.invalid/debian-security")


def test_a_machine_of_another_distribution_needs_the_variable(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="set GPUFLEET_APT_MIRROR"):
        find_mirrors({}, machine(tmp_path, "ubuntu.list", ONE_LINE, "ubuntu"))


def test_the_guest_gets_updates_and_security_too() -> None:
    lines = AptMirrors("http://m.invalid/debian", "http://s.invalid/sec").sources_list().splitlines()
    assert [line.split()[2] for line in lines] == ["bookworm", "bookworm-updates", "bookworm-security"]
    assert all(line.endswith("main contrib non-free non-free-firmware") for line in lines)
