# SPDX-License-Identifier: Apache-2.0
"""Nothing in the repository names this machine's folders, or a host that serves packages."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
# Written in pieces, so that this file does not name them. A mirror comes from the machine's apt sources or a variable;
# pip and npm have their own settings.
PACKAGE_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("deb", "debian", "org"),
        ("ftp", "debian", "org"),
        ("security", "debian", "org"),
        ("snapshot", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("security", "ubuntu", "com"),
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("galaxy", "ansible", "com"),
        ("docker", "io"),
        ("quay", "io"),
    )
)
# One of them is also the name of Debian's package of Docker: it counts as a host before a path and behind a scheme or a
# dot.
ALSO_A_PACKAGE = "docker.io"


def pattern_of(host: str) -> str:
    """Finds a host where it stands alone, and a part of a longer one."""
    if host == ALSO_A_PACKAGE:
        return rf"(?<=//){re.escape(host)}|(?<=\.){re.escape(host)}|(?<![a-z0-9-]){re.escape(host)}(?=[/:][a-z0-9])"
    return rf"(?<![a-z0-9-]){re.escape(host)}(?![a-z0-9-])"


HOST = re.compile("|".join(map(pattern_of, PACKAGE_HOSTS)))
# Folders of a person, or this checkout; /root and /tmp alone are also folders of nodes.
PLACES = re.compile(r"(?<![\w.])/home/[\w.-]+|" + re.escape(str(REPOSITORY)))
# What tools record, not what we write.
RECORDED = ("tests/fixtures/",)


def tracked_files() -> list[Path]:
    """Files that are or may be committed."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return [REPOSITORY / name for name in listing if not name.startswith(RECORDED)]


def problems(text: str) -> Iterator[str]:
    """Hosts and places that a text names, each with its line."""
    for number, line in enumerate(text.splitlines(), start=1):
        for pattern in (HOST, PLACES):
            yield from (f"line {number} names {found[0]}" for found in pattern.finditer(line))


def test_no_file_names_a_place_or_a_package_host() -> None:
    found = []
    for file in tracked_files():
        if file.is_file() and not file.is_symlink() and file != Path(__file__):
            text = file.read_text(errors="replace")
            found += [f"{file.relative_to(REPOSITORY)}: {problem}" for problem in problems(text)]
    assert found == []


@pytest.mark.parametrize("host", PACKAGE_HOSTS)
def test_a_package_host_is_found(host: str) -> None:
    assert list(problems(f"x\nurl: https://{host}/simple")) == [f"line 2 names {host}"]
    assert list(problems(f"x\nfrom {host}/library/image")) == [f"line 2 names {host}"]
    assert list(problems(f"x\nhttp://index.{host}")) == [f"line 2 names {host}"]


@pytest.mark.parametrize("place", ["/home/somebody", str(REPOSITORY)])
def test_a_place_is_found(place: str) -> None:
    assert len(list(problems(f"path: {place}"))) >= 1


@pytest.mark.parametrize("text", ["/root/.ssh", "github.com", "https://example.org/home/x", "packages: [docker.io]"])
def test_other_text_is_let_through(text: str) -> None:
    assert list(problems(text)) == []
