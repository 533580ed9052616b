# SPDX-License-Identifier: Apache-2.0
"""What Ansible ships to a node with each module: what the module imports, and nothing of the controller's."""

import ast
import base64
import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.executor import module_common
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader, module_utils_loader
from ansible.template import Templar

REPOSITORY = Path(__file__).resolve().parents[3]
MODULES = sorted((REPOSITORY / "library").glob("*.py"))
MODULE_UTILS = REPOSITORY / "plugins" / "module_utils"
ON_NODES = MODULE_UTILS / "gpufleet"
NODE_FILES = sorted(ON_NODES.rglob("*.py"))
# Ubuntu 22.04 has 3.10; ansible-core 2.21 itself needs 3.9 on nodes.
OLDEST_PYTHON = (3, 9)
OUR_PACKAGE = "ansible.module_utils.gpufleet"


@pytest.fixture(scope="module", autouse=True)
def plugin_loader() -> None:
    """What ansible-playbook does at its start: collections can be found, and our module_utils."""
    init_plugin_loader([])
    module_utils_loader.add_directory(str(MODULE_UTILS))


def payload(module: Path) -> set[str]:
    """Files of ours in the AnsiballZ archive of a module, as paths below module_utils."""
    built = module_common.modify_module(
        module_name=module.stem,
        module_path=str(module),
        module_args={},
        templar=Templar(DataLoader()),
        task_vars={"ansible_python_interpreter": "/usr/bin/python3"},
    )
    found = re.search(rb"zip_data='([^']+)'", built.b_module_data)
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
