# SPDX-License-Identifier: Apache-2.0
"""What Ansible ships to a node with each module: what the module imports, and nothing of the controller's."""

import ast
import base64
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.gpufleet.health.capture import write_capture
from ansible.module_utils.gpufleet.health.registry import PROBES

from bench.validate import module_payload, transferred_bytes
from tests.health_node import healthy_node, profile
from tools import build_node_health

REPOSITORY = Path(__file__).resolve().parents[3]
MODULES = sorted((REPOSITORY / "library").glob("*.py"))
MODULE_UTILS = REPOSITORY / "plugins" / "module_utils"
ON_NODES = MODULE_UTILS / "gpufleet"
NODE_FILES = sorted(ON_NODES.rglob("*.py"))
# Ubuntu 22.04 has 3.10; ansible-core 2.21 itself needs 3.9 on nodes.
OLDEST_PYTHON = (3, 9)
OUR_PACKAGE = "ansible.module_utils.gpufleet"


def payload(module: Path) -> set[str]:
    """Files of ours in the AnsiballZ archive of a module, as paths below module_utils."""
    found = re.search(rb"zip_data='([^']+)'", module_payload(module))
    assert found, "no archive in the built module"
    names = zipfile.ZipFile(io.BytesIO(base64.b64decode(found[1]))).namelist()
    prefix = "ansible/module_utils/"
    return {name.removeprefix(prefix) for name in names if name.startswith(f"{prefix}gpufleet")}


def imported(file: Path, package: str) -> Iterator[str]:
    """Full names of what a file imports; `package` is the one that relative imports start from."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def reached(file: Path, package: str = "") -> set[Path]:
    """Files of module_utils/gpufleet that a file imports, directly or through others, their packages included."""
    found: set[Path] = set()
    waiting = [(file, package)]
    while waiting:
        current, package = waiting.pop()
        for name in imported(current, package):
            if not f"{name}.".startswith(f"{OUR_PACKAGE}."):
                continue
            path = MODULE_UTILS.joinpath(*name.split(".")[2:])
            for target in (path / "__init__.py", path.with_suffix(".py")):
                if target.exists() and target not in found:
                    found.add(target)
                    inner = name if target.name == "__init__.py" else name.rpartition(".")[0]
                    waiting.append((target, inner))
                    # importing a module imports the packages above it
                    found |= {
                        parent / "__init__.py"
                        for parent in target.parents
                        if parent.is_relative_to(ON_NODES) and (parent / "__init__.py").exists()
                    }
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda file: file.stem)
def test_a_module_ships_what_it_imports_and_nothing_else(module: Path) -> None:
    expected = {str(file.relative_to(MODULE_UTILS)) for file in reached(module)}
    assert payload(module) == expected


def test_there_are_modules_that_ship_our_code() -> None:
    """The test above would say nothing if no module imported anything."""
    assert any(reached(module) for module in MODULES)


def test_a_file_reached_by_importlib_only_would_be_missed(tmp_path: Path) -> None:
    """Why all imports are written out: Ansible ships only what it sees imported."""
    module = tmp_path / "hidden_import.py"
    module.write_text(
        "import importlib\nfrom ansible.module_utils.basic import AnsibleModule\n"
        f"importlib.import_module('{OUR_PACKAGE}.profile_schema')\n"
    )
    assert payload(module) == set()


def runs_on_nodes_problems(file: Path, package: str) -> Iterator[str]:
    """What a file that runs on nodes must not do."""
    for name in imported(file, package):
        if name.startswith("ansible.module_utils.gpufleet_controller"):
            yield "imports the controller's code"
        if name.split(".")[0] == "importlib":
            yield "imports importlib, whose imports Ansible does not see"
        if package and name.startswith("ansible.module_utils.gpufleet") and "from ." not in file.read_text():
            yield "imports its own package by its full name; relative imports also work elsewhere"
    try:
        ast.parse(file.read_text(), feature_version=OLDEST_PYTHON)
    except SyntaxError as error:
        yield f"is no Python {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]}: {error}"


@pytest.mark.parametrize("file", [*MODULES, *NODE_FILES], ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_runs_on_nodes_stands_alone(file: Path) -> None:
    parts = file.relative_to(MODULE_UTILS).parent.parts if file.is_relative_to(MODULE_UTILS) else ()
    package = ".".join(["ansible.module_utils", *parts]) if parts else ""
    assert list(runs_on_nodes_problems(file, package)) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("from ansible.module_utils.gpufleet_controller.profile_merge import merge\n", "controller's code"),
        ("import importlib.util\n", "importlib"),
        ("match 1:\n    case 1:\n        pass\n", "is no Python 3.9"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "module.py"
    file.write_text(text)
    assert complaint in "\n".join(runs_on_nodes_problems(file, ""))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-alone command, built."""
    output = tmp_path_factory.mktemp("program") / "node-health"
    build_node_health.build(output)
    return output


def test_the_program_holds_the_tree(program: Path) -> None:
    with zipfile.ZipFile(program) as zipped:
        contents = {name: zipped.read(name) for name in zipped.namelist()}
    assert contents.pop("__main__.py")
    compiled = {name for name in contents if name.endswith(".pyc")}
    assert {name.removesuffix("c") for name in compiled} == set(contents) - compiled
    for name in compiled:
        del contents[name]
    assert contents == {str(file.relative_to(MODULE_UTILS)): file.read_bytes() for file in NODE_FILES}


def test_the_module_ships_no_file_that_the_program_lacks(program: Path) -> None:
    with zipfile.ZipFile(program) as zipped:
        assert payload(REPOSITORY / "library" / "node_health.py") <= set(zipped.namelist())


def test_the_same_tree_gives_the_same_bytes(program: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tree" / "gpufleet"
    for file in reversed(NODE_FILES):
        target = copy / file.relative_to(ON_NODES)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
        os.utime(target, (1, 1))
    (copy / "health" / "__pycache__").mkdir()
    (copy / "health" / "__pycache__" / "left.cpython-312.pyc").write_bytes(b"x")
    again = tmp_path / "node-health"
    build_node_health.build(again, tree=copy)
    assert again.read_bytes() == program.read_bytes()
    assert program.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert program.stat().st_mode & 0o777 == 0o755


def test_every_file_of_the_health_check_is_used() -> None:
    """A table of checks that the registry does not import would be in the tree and judge nothing."""
    entries = (REPOSITORY / "library" / "node_health.py", ON_NODES / "health" / "command_line.py")
    used = set(reached(entries[0])) | reached(entries[1], f"{OUR_PACKAGE}.health") | {entries[1]}
    unused = [file.name for file in (ON_NODES / "health").glob("*.py") if file not in used]
    assert unused == []


def test_the_module_stays_small_enough_to_send_to_every_node() -> None:
    limit_kb = yaml.safe_load((REPOSITORY / "bench" / "budget.yml").read_text())["validate"]["payload_kb"]
    assert transferred_bytes(REPOSITORY / "library" / "node_health.py") <= limit_kb * 1000
    assert "Compression=yes" in (REPOSITORY / "ansible.cfg").read_text()


# zipimport compiles twice; what it compiles is counted, and only our package's own file may be among it.
COUNT = """
import sys, zipimport
compiled, original = [], zipimport._compile_source
zipimport._compile_source = lambda path, source: (compiled.append(path), original(path, source))[1]
sys.path.insert(0, sys.argv[1])
from gpufleet.health import policy
print(sorted({name.rpartition("gpufleet")[2] for name in compiled}), policy.__file__.rpartition("gpufleet")[2])
from gpufleet.health import nothing
"""


def test_modules_of_the_archive_are_compiled_once(program: Path) -> None:
    command = ["/usr/bin/python3", "-I", "-S", "-c", COUNT, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "['/__init__.py'] /health/policy.py\n", done.stderr
    assert "ImportError: cannot import name 'nothing' from 'gpufleet.health'" in done.stderr


def test_the_python_that_built_the_program_reads_each_compiled_form_once(program: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1])\nfrom gpufleet.health import policy\nprint(policy.__loader__)"
    command = [sys.executable, "-I", "-S", "-c", code, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "_Archive" in done.stdout, done.stdout + done.stderr


# Only a fault, an old capture, a run on the node itself or another sub-command needs these.
SPARED = ("xid_lines", "xid_faults", "xid_catalog", "sxid_faults", "sxid_catalog", "nvidia_smi_query_text", "explain",
          "probe_runner", "fault_history", "profile_proposal", "capture_anonymous")  # fmt: skip
SPARED_LIBRARIES = ("subprocess", "tarfile", "tempfile", "difflib", "traceback", "textwrap")


def test_a_healthy_node_pays_for_no_code_that_only_others_need(program: Path, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(profile()))
    write_capture(str(tmp_path / "capture"), healthy_node(), PROBES, 1_796_000_000.0)
    arguments = ["replay", "--profile", str(tmp_path / "profile.json"), str(tmp_path / "capture")]
    command = ["/usr/bin/python3", "-I", "-S", "-X", "importtime", str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "gpufleet.health.kernel_xid_checks" in names
    assert names.isdisjoint({*(f"gpufleet.health.{name}" for name in SPARED), *SPARED_LIBRARIES})
