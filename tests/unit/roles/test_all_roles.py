# SPDX-License-Identifier: Apache-2.0
"""The rules over all roles and playbooks hold in this repository, and each is seen to fail where it is broken."""

from pathlib import Path

import pytest

from tests import role_rules

REPOSITORY = Path(__file__).resolve().parents[3]
ROLES = sorted(path for path in (REPOSITORY / "roles").iterdir() if path.is_dir())
PLAYBOOKS = sorted([*(REPOSITORY / "playbooks").glob("*.yml"), REPOSITORY / "site.yml"])

GOOD = {
    "defaults/main.yml": "clock_servers: []\nclock_limit: 1.5\nclock_pin: '{{ profile.packages.clock }}'\n",
    "meta/argument_specs.yml": """
argument_specs:
  main:
    options:
      clock_servers: {type: list, elements: str, default: [], description: Servers.}
      clock_limit: {type: float, default: 1.5, description: Limit.}
      clock_pin: {type: str, description: Version.}
""",
    "tasks/main.yml": """
- name: Write the configuration
  ansible.builtin.template: {src: x.j2, dest: /etc/x, mode: '0644'}
  register: __clock_file
  when: clock_limit > 1 and ansible_facts['distribution'] == 'Debian' and not ansible_check_mode
  tags: [clock, clock_configure]
- name: Install the clock
  apt_stack: {name: clock, packages: [{name: chrony}]}
  throttle: "{{ downloads_at_once | default(0) }}"
""",
    "templates/x.j2": "{{ clock_servers }} {{ clock_pin }} {{ __clock_path }}\n",
    "vars/main.yml": "__clock_path: /x\n",
    "owned.yml": "owned: [{kind: file, path: /etc/x, drift: append, reported_by: Write the configuration}]\n",
    "README.md": "Variables clock_servers, clock_limit and clock_pin; tags clock and clock_configure.\n",
    "../../molecule/clock/molecule.yml": "---\n",
    "../../molecule/clock/verify.yml": "- {name: Verify, hosts: gpu_nodes, tasks: [{ansible.builtin.ping: }]}\n",
}

# rule, file, text to replace, replacement (None: the file is removed), what is said
FAULTS = [
    ("specification_equals_defaults", "meta/argument_specs.yml", None, "", "is missing"),
    ("specification_equals_defaults", "defaults/main.yml", "clock_limit", "clock_bound", "clock_bound has a default"),
    ("specification_equals_defaults", "defaults/main.yml", "clock_limit: 1.5\n", "", "clock_limit is specified, but"),
    ("specification_equals_defaults", "defaults/main.yml", "1.5", "2.5", "with the default 1.5, but has 2.5"),
    ("specification_equals_defaults", "defaults/main.yml", "1.5", "'1.5'", "specified as float"),
    ("specification_equals_defaults", "meta/argument_specs.yml", "type: str,", "type: str, default: x,", "expression"),
    ("specification_equals_defaults", "meta/argument_specs.yml", ", description: Limit.", "", "no description"),
    ("specification_equals_defaults", "meta/argument_specs.yml", "type: float, ", "", "clock_limit has no type"),
    ("has_a_scenario", "../../molecule/clock/molecule.yml", None, "", "molecule.yml is missing"),
    ("has_a_scenario", "../../molecule/clock/verify.yml", None, "", "verifies nothing"),
    ("has_a_scenario", "../../molecule/clock/verify.yml", "[{ansible.builtin.ping: }]", "[]", "verifies nothing"),
    ("lists_what_it_owns", "owned.yml", None, "", "owned.yml is missing"),
    ("lists_what_it_owns", "owned.yml", "append", "paint", "drift `paint`"),
    ("lists_what_it_owns", "owned.yml", "Write the", "Wrote the", "which is no task of the role"),
    ("is_described", "README.md", None, "", "README.md is missing"),
    ("is_described", "README.md", "clock_limit", "", "does not name the variable clock_limit"),
    ("is_described", "README.md", "clock_configure", "", "does not name the tag clock_configure"),
    ("reads_its_variables", "templates/x.j2", "{{ clock_pin }}", "", "nothing reads clock_pin"),
    (
        "uses_no_injected_facts",
        "tasks/main.yml",
        "ansible_facts['distribution']",
        "ansible_distribution",
        ":5: ansible_",
    ),
    ("uses_no_injected_facts", "templates/x.j2", "clock_pin", "ansible_hostname", "x.j2:1: ansible_hostname"),
    ("names_its_variables", "vars/main.yml", "__clock_path", "clock_path", "clock_path must start with __clock_"),
    ("names_its_variables", "tasks/main.yml", "__clock_file", "result", "result must start with __clock_"),
    ("names_its_variables", "defaults/main.yml", "clock_pin", "pin", "defaults: pin must start with clock_"),
    ("limits_downloads", "tasks/main.yml", "  throttle:", "  # throttle:", "`Install the clock` downloads, and its"),
    ("limits_downloads", "tasks/main.yml", "{{ downloads_at_once | default(0) }}", "20", "throttle is '20'; must be"),
    ("limits_downloads", "tasks/main.yml", "ansible.builtin.template:", "ansible.builtin.get_url:", "throttle is None"),
    (
        "is_judged_once_for_a_fleet",
        "defaults/main.yml",
        "profile.packages.clock",
        "inventory_hostname",
        "clock_pin reads inventory_hostname",
    ),
    (
        "is_judged_once_for_a_fleet",
        "defaults/main.yml",
        "profile.packages.clock",
        "query(clock_limit)",
        "clock_pin reads query",
    ),
]


@pytest.fixture
def role(tmp_path: Path) -> Path:
    """A role that keeps all rules."""
    folder = tmp_path / "roles" / "clock"
    folder.mkdir(parents=True)
    for name, text in GOOD.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.mark.parametrize("rule", role_rules.ROLE_RULES)
@pytest.mark.parametrize("role_folder", ROLES, ids=lambda folder: folder.name)
def test_every_role_keeps_the_rules(role_folder: Path, rule: str) -> None:
    assert list(role_rules.ROLE_RULES[rule](role_folder)) == []


@pytest.mark.parametrize("rule", role_rules.ROLE_RULES)
def test_a_good_role_breaks_no_rule(role: Path, rule: str) -> None:
    assert list(role_rules.ROLE_RULES[rule](role)) == []


@pytest.mark.parametrize(("rule", "name", "text", "replacement", "complaint"), FAULTS)
def test_a_fault_is_named(role: Path, rule: str, name: str, text: str | None, replacement: str, complaint: str) -> None:
    file = role / name
    if text is None:
        file.unlink()
    else:
        assert text in file.read_text()
        file.write_text(file.read_text().replace(text, replacement))
    assert complaint in "\n".join(role_rules.ROLE_RULES[rule](role))


def test_every_rule_is_seen_to_fail() -> None:
    assert {fault[0] for fault in FAULTS} == set(role_rules.ROLE_RULES)


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda file: file.name)
def test_every_playbook_keeps_the_rules(playbook: Path) -> None:
    assert list(role_rules.playbook_problems(playbook)) == []


GOOD_PLAY = """
- name: Set the clock
  hosts: gpu_nodes
  gather_facts: false
  tasks:
    - name: Keep the clock right
      ansible.builtin.import_role: {name: clock, rolespec_validate: false}
"""


@pytest.mark.parametrize(
    ("text", "replacement", "complaint"),
    [
        ("", "", ""),
        ("hosts: gpu_nodes", "hosts: all", "hosts are all"),
        ("hosts: gpu_nodes", "hosts: gpu_nodes,all", "hosts are gpu_nodes,all"),
        ("hosts: gpu_nodes", "hosts: racks", "hosts are racks"),
        ("gather_facts: false", "gather_facts: true", "gather_facts must be false"),
        ("  gather_facts: false\n", "", "gather_facts must be false"),
        (", rolespec_validate: false", "", "role clock must be called with rolespec_validate"),
        ("right\n", "right\n      when: ansible_hostname == 'x'\n", "ansible_hostname is an injected fact"),
    ],
)
def test_a_fault_of_a_play_is_named(tmp_path: Path, text: str, replacement: str, complaint: str) -> None:
    file = tmp_path / "clock.yml"
    file.write_text(GOOD_PLAY.replace(text, replacement) if text else GOOD_PLAY)
    problems = "\n".join(role_rules.playbook_problems(file))
    assert complaint in problems if complaint else problems == ""
