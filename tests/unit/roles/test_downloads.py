# SPDX-License-Identifier: Apache-2.0
"""Which tasks count as downloads, and that plays which download go through the inventory's proxy."""

import ast
from pathlib import Path

import pytest

from tests import role_rules

REPOSITORY = Path(__file__).resolve().parents[3]
LOGIC = REPOSITORY / "plugins" / "module_utils" / "gpufleet"
# What a module imports, itself or through what it imports, when it installs packages or fetches files.
DOWNLOADING_CODE = {"Apt", "ensure_present", "install_together", "update_lists", "download"}


def imported_names(file: Path, seen: set[Path]) -> set[str]:
    """Names that a file of library/ or of the logic imports from the logic, directly or through it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.level == 0 and not node.module.startswith("ansible.module_utils.gpufleet"):
            continue
        names |= {alias.name for alias in node.names}
        folder = file.parents[node.level - 1] if node.level else LOGIC
        other = folder.joinpath(*node.module.removeprefix("ansible.module_utils.gpufleet.").split("."))
        other = other.with_suffix(".py")
        if other.exists() and other not in seen:
            seen.add(other)
            names |= imported_names(other, seen)
    return names


@pytest.mark.parametrize("module", sorted((REPOSITORY / "library").glob("*.py")), ids=lambda file: file.stem)
def test_a_module_that_downloads_is_in_the_list(module: Path) -> None:
    downloads = bool(imported_names(module, set()) & DOWNLOADING_CODE) or '"pull"' in module.read_text()
    assert downloads == (module.stem in role_rules.DOWNLOADING_MODULES)


def test_every_module_of_the_list_exists() -> None:
    own = {name for name in role_rules.DOWNLOADING_MODULES if "." not in name}
    assert own <= {file.stem for file in (REPOSITORY / "library").glob("*.py")}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("apt-get install --yes x", True),
        ("apt update", True),
        ({"argv": ["apt-get", "update"], "chdir": "/"}, True),
        ({"cmd": "wget -O x y"}, True),
        ("docker image pull x", True),
        ("podman pull x", True),
        ("apt-mark hold x", False),
        ("systemctl restart docker", False),
    ],
)
def test_commands_that_download(command: object, expected: bool) -> None:
    assert role_rules.downloads({"ansible.builtin.command": command}) is expected


PLAY = """
- name: Set the clock
  hosts: gpu_nodes
  gather_facts: false
  environment: "{{ proxy_environment | default({}) }}"
  tasks:
    - name: Keep the clock right
      ansible.builtin.import_role: {name: clock, rolespec_validate: false}
    - name: Fetch the list of leap seconds
      ansible.builtin.get_url: {url: x, dest: y}
      throttle: "{{ downloads_at_once | default(0) }}"
"""
TASK = "- name: Install the clock\n  apt_stack: {}\n"


@pytest.mark.parametrize(
    ("text", "replacement", "complaint"),
    [
        ("", "", ""),
        ("environment:", "vars:", "task `Fetch the list of leap seconds`, role clock downloads, and the play's env"),
        ("| default({})", "", "the play's environment is not"),
        ("name: clock, ", "name: '{{ part }}', ", ""),
        ("throttle:", "vars:", "`Fetch the list of leap seconds` downloads, and its throttle is not"),
    ],
)
def test_a_play_that_downloads_keeps_the_inventorys_settings(
    tmp_path: Path, text: str, replacement: str, complaint: str
) -> None:
    tasks, playbook = tmp_path / "roles" / "clock" / "tasks" / "main.yml", tmp_path / "playbooks" / "clock.yml"
    for file, content in ((tasks, TASK), (playbook, PLAY.replace(text, replacement) if text else PLAY)):
        file.parent.mkdir(parents=True)
        file.write_text(content)
    problems = "\n".join(role_rules.playbook_problems(playbook))
    assert complaint in problems if complaint else problems == ""


def test_a_role_that_is_named_at_run_time_may_download(tmp_path: Path) -> None:
    playbook = tmp_path / "playbooks" / "clock.yml"
    playbook.parent.mkdir()
    play = PLAY.split("    - name: Fetch")[0].replace("  environment:", "  vars:")
    playbook.write_text(play.replace("name: clock, ", "name: '{{ part }}', "))
    assert "role {{ part }} downloads, and the play's environment" in "\n".join(role_rules.playbook_problems(playbook))


def test_a_play_whose_role_downloads_nothing_needs_no_proxy(tmp_path: Path) -> None:
    playbook = tmp_path / "playbooks" / "clock.yml"
    playbook.parent.mkdir()
    playbook.write_text(PLAY.split("    - name: Fetch")[0].replace("  environment:", "  vars:"))
    assert list(role_rules.playbook_problems(playbook)) == []
