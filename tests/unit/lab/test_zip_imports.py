# SPDX-License-Identifier: Apache-2.0
"""The lab guest's store of compiled zip imports: what it hands out is always what compiling would give."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lab.image import GUEST

SOURCE = "def where():\n    return where.__code__.co_filename\n\ndef answer():\n    return 1\n"
# Count the compilations, then import the module from the zip file and say what it is.
PROGRAM = """
import sys, zipimport
compiled = []
real = zipimport._compile_source
zipimport._compile_source = lambda *arguments: compiled.append(arguments) or real(*arguments)
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import gpufleet_lab_zip_imports
gpufleet_lab_zip_imports.STORE = sys.argv[3]
import sent
print(len(compiled), sent.answer(), sent.where())
"""


class Node:
    """One store, and processes that import a module from a zip file of their own."""

    def __init__(self, work: Path) -> None:
        self.work, self.store, self.runs = work, work / "cache" / "zip-imports", 0

    def runs_module(self, source: str = SOURCE) -> tuple[int, int]:
        """(how many sources were compiled, what the module answers); asserts that its code knows its own zip file."""
        self.runs += 1
        archive = self.work / f"payload-{self.runs}.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("sent.py", source)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(archive), str(GUEST), str(self.store)],
            capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        compiled, answer, where = done.stdout.split()
        assert where == f"{archive}/sent.py"
        return int(compiled), int(answer)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_second_process_compiles_nothing(node: Node) -> None:
    assert node.runs_module() == (1, 1)
    assert node.runs_module() == (0, 1)
    assert node.store.stat().st_mode & 0o777 == 0o700


def test_a_source_that_differs_in_one_character_is_compiled(node: Node) -> None:
    node.runs_module()
    assert node.runs_module(SOURCE.replace("return 1", "return 2")) == (1, 2)


@pytest.mark.parametrize("damage", ["empty", "cut off", "zeros at the end", "another's content"])
def test_a_damaged_entry_is_compiled_again_and_mended(node: Node, damage: str) -> None:
    node.runs_module()
    (entry,) = node.store.iterdir()
    data = entry.read_bytes()
    entry.write_bytes(
        {
            "empty": b"",
            "cut off": data[:-20],
            "zeros at the end": data[:-20] + bytes(20),
            "another's content": data[:8] + bytes(reversed(data[8:])),
        }[damage]
    )
    assert node.runs_module() == (1, 1)
    assert node.runs_module() == (0, 1)


def test_where_nothing_can_be_stored_everything_is_compiled(node: Node) -> None:
    node.store.parent.write_text("a file where a directory should be")
    # Python itself compiles a module twice: once to learn its path.
    assert node.runs_module() == (2, 1)
    assert node.runs_module() == (2, 1)


def test_no_half_written_file_is_left(node: Node) -> None:
    node.runs_module()
    assert len(list(node.store.iterdir())) == 1
