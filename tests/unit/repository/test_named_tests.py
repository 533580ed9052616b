# SPDX-License-Identifier: Apache-2.0
"""Tests that a page of the docs names as proof are there."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
# With how many tests its table names at least: fewer, and the expression no longer finds it.
PAGES = {"gpu-stack.md": 30, "containers.md": 15, "monitoring.md": 12}


def named_tests(text: str) -> list[tuple[str, str]]:
    """(file below tests/, name of a function or "") of each mention; `::name` alone is of the file before it."""
    found, file = [], ""
    for path, name in re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)?(?:::(test_\w+))?`", text):
        if path or name:
            file = path or file
            found.append((file, name))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_each_test_that_the_page_names_is_there(page: str) -> None:
    named = named_tests((REPOSITORY / "docs" / page).read_text())
    assert len([name for _file, name in named if name]) > PAGES[page]
    missing = [
        f"{file}::{name}"
        for file, name in named
        if file.startswith(("unit/", "modules/", "integration/"))
        and not ((test := REPOSITORY / "tests" / file).is_file() and (not name or f"def {name}(" in test.read_text()))
    ]
    assert missing == []


def test_a_name_without_a_file_is_of_the_file_before_it() -> None:
    text = "`unit/x/test_a.py::test_one`, `::test_two`, `modules/test_b.py`, `nothing::else`"
    assert named_tests(text) == [
        ("unit/x/test_a.py", "test_one"),
        ("unit/x/test_a.py", "test_two"),
        ("modules/test_b.py", ""),
    ]
