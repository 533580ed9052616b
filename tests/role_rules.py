# SPDX-License-Identifier: Apache-2.0
"""The rules that every role and playbook keeps, each as a function that returns what breaks it, a line each.

tests/unit/roles/ applies them to the repository, and to a role that breaks each one.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.gpufleet_controller.preflight_sharing import OPAQUE, identifiers

from tests import drift

# Where a variable can be read, seen from a role.
READERS = ("tasks", "handlers", "templates", "vars", "defaults")
# Type of a literal default -> types of an option that it may have.
TYPES: dict[type, tuple[str, ...]] = {
    bool: ("bool",),
    int: ("int", "float", "raw"),
    float: ("float", "raw"),
    str: ("str", "path", "raw", "bytes"),
    list: ("list", "raw"),
    dict: ("dict", "raw"),
}
# Variables that Ansible itself sets or reads. All other names that start with ansible_ are injected facts, which
# ansible.cfg switches off.
ANSIBLE_NAMES = frozenset(
    """
    ansible_facts ansible_check_mode ansible_diff_mode ansible_version ansible_play_hosts ansible_play_hosts_all
    ansible_play_batch ansible_play_name ansible_run_tags ansible_skip_tags ansible_limit ansible_forks
    ansible_verbosity
    ansible_loop ansible_loop_var ansible_index_var ansible_role_name ansible_parent_role_names ansible_search_path
    ansible_inventory_sources ansible_config_file ansible_playbook_python ansible_python_interpreter
    ansible_failed_task ansible_failed_result ansible_managed
    ansible_host ansible_port ansible_user ansible_connection ansible_become ansible_become_user ansible_become_method
    ansible_ssh_common_args ansible_ssh_private_key_file ansible_password ansible_ssh_pass ansible_become_password
    ansible_pipelining ansible_timeout
    """.split()  # noqa: SIM905, a list literal would be a page of one name a line
)
# Modules that download packages, tarballs or images. One of library/ that is missing here fails
# tests/unit/roles/test_downloads.py.
DOWNLOADING_MODULES = frozenset(
    """
    apt_stack dcgm_exporter_image held_package node_exporter_binary zfs_packages
    ansible.builtin.apt ansible.builtin.apt_key ansible.builtin.apt_repository ansible.builtin.deb822_repository
    ansible.builtin.package ansible.builtin.pip ansible.builtin.git ansible.builtin.get_url
    community.docker.docker_image community.docker.docker_image_pull community.docker.docker_container
    community.docker.docker_compose_v2 community.docker.docker_compose_v2_pull
    containers.podman.podman_image containers.podman.podman_container
    """.split()  # noqa: SIM905
)
# The same by hand.
COMMANDS = ("ansible.builtin.command", "ansible.builtin.shell", "ansible.builtin.raw", "ansible.builtin.script")
DOWNLOADING_COMMAND = re.compile(r"\bapt(?:-get)? |\bwget |\b(?:docker|podman|nerdctl|ctr|crictl)\b.*\bpull\b")
# Inventory variables that every role and playbook reads the same way (inventories/example, downloads.yml).
THROTTLE = "{{ downloads_at_once | default(0) }}"
PROXY = "{{ proxy_environment | default({}) }}"
# A default that names one of these is another one for each host.
DIFFERENT_FOR_EACH_HOST = frozenset({"inventory_hostname", "inventory_hostname_short", "ansible_host"})
WORD = re.compile(r"\bansible_[a-z0-9_]+\b")
HOSTS = re.compile(r"\b(?:gpu_nodes|localhost|gpufleet_[a-z_]+)\b")


class TaggedLoader(yaml.SafeLoader):
    """Reads Ansible's own YAML tags (!vault, !unsafe) as plain values."""


TaggedLoader.add_multi_constructor("!", lambda loader, suffix, node: getattr(node, "value", None))


def load(file: Path) -> Any:
    """Content of a YAML file; an empty or missing one is None."""
    return yaml.load(file.read_text(), TaggedLoader) if file.exists() else None


def defaults_of(role: Path) -> dict[str, Any]:
    """The role's public variables with their defaults."""
    return load(role / "defaults" / "main.yml") or {}


def tasks_in(content: Any) -> Iterator[dict[str, Any]]:
    """All tasks of a task list, those in blocks too."""
    for task in content or []:
        yield task
        for key in ("block", "rescue", "always"):
            yield from tasks_in(task.get(key))


def tasks_of(role: Path, *folders: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """All tasks of a role with their file."""
    for folder in folders or ("tasks", "handlers"):
        for file in sorted((role / folder).glob("**/*.yml")):
            for task in tasks_in(load(file)):
                yield file, task


def is_template(value: Any) -> bool:
    """True for a default that is an expression."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def specification_equals_defaults(role: Path) -> Iterator[str]:
    """meta/argument_specs.yml has the keys of defaults/main.yml, with the same literal default and a type that fits."""
    content = load(role / "meta" / "argument_specs.yml")
    if content is None:
        yield "meta/argument_specs.yml is missing"
        return
    options: dict[str, Any] = {}
    for entry_point in content["argument_specs"].values():
        options |= entry_point.get("options") or {}
    defaults = defaults_of(role)
    for name in sorted(defaults.keys() - options.keys()):
        yield f"{name} has a default, but is not specified"
    for name in sorted(options.keys() - defaults.keys()):
        yield f"{name} is specified, but has no default"
    for name in sorted(options.keys() & defaults.keys()):
        option, value = options[name], defaults[name]
        if "type" not in option:
            yield f"{name} has no type"
        if not option.get("description"):
            yield f"{name} has no description"
        if is_template(value):
            if "default" in option:
                yield f"{name} defaults to an expression, so its specification must not repeat a default"
            continue
        if value is not None and option.get("type") not in TYPES[type(value)]:
            yield f"{name} is specified as {option.get('type')}, but its default is {value!r}"
        if option.get("default") != value:
            yield f"{name} is specified with the default {option.get('default')!r}, but has {value!r}"


def has_a_scenario(role: Path) -> Iterator[str]:
    """molecule/<role>/ has a scenario, and a verify.yml with tasks."""
    scenario = role.parents[1] / "molecule" / role.name
    if not (scenario / "molecule.yml").exists():
        yield f"molecule/{role.name}/molecule.yml is missing"
    plays = load(scenario / "verify.yml")
    if not plays or not any(play.get("tasks") for play in plays):
        yield f"molecule/{role.name}/verify.yml is missing or verifies nothing"


def lists_what_it_owns(role: Path) -> Iterator[str]:
    """owned.yml is well formed, and what it says reports a change is a task of the role."""
    if not (role / "owned.yml").exists():
        yield "owned.yml is missing"
        return
    try:
        objects = drift.load_owned(role)
    except drift.OwnedListError as error:
        yield str(error)
        return
    names = {task.get("name") for _, task in tasks_of(role, "tasks")}
    for entry in objects:
        for task in entry.reported_by:
            if task not in names:
                yield f"owned.yml: {entry} is reported by `{task}`, which is no task of the role"


def is_described(role: Path) -> Iterator[str]:
    """README.md names every public variable and every tag."""
    readme = role / "README.md"
    if not readme.exists():
        yield "README.md is missing"
        return
    words = set(re.findall(r"[A-Za-z0-9_]+", readme.read_text()))
    for name in sorted(defaults_of(role).keys() - words):
        yield f"README.md does not name the variable {name}"
    for tag in sorted(tags_of(role) - words):
        yield f"README.md does not name the tag {tag}"


def tags_of(role: Path) -> set[str]:
    """Tags that the role's tasks carry, without Ansible's own `always` and `never`."""
    found: set[str] = set()
    for _, task in tasks_of(role):
        tags = task.get("tags") or []
        found |= set([tags] if isinstance(tags, str) else tags)
    return found - {"always", "never"}


def reads_its_variables(role: Path) -> Iterator[str]:
    """Every default is read by the role, a playbook or a controller plugin."""
    root = role.parents[1]
    files = [file for folder in READERS for file in (role / folder).glob("**/*") if file.is_file()]
    for folder in ("playbooks", "plugins"):
        files += [file for file in (root / folder).glob("**/*") if file.suffix in (".yml", ".py")]
    # in defaults/main.yml the definition itself is no reader
    text = "\n".join(re.sub(r"(?m)^[a-z_0-9]+:", "", file.read_text(errors="replace")) for file in files)
    words = set(re.findall(r"[A-Za-z0-9_]+", text))
    for name in sorted(defaults_of(role).keys() - words):
        yield f"nothing reads {name}"


def uses_no_injected_facts(role: Path) -> Iterator[str]:
    """Facts are read as ansible_facts['x'] only."""
    for folder in READERS:
        for file in sorted((role / folder).glob("**/*")):
            if file.is_file():
                yield from injected_facts(file, role)


def injected_facts(file: Path, root: Path) -> Iterator[str]:
    """Names in a file that only fact injection would define."""
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        for name in WORD.findall(line.split(" #")[0]):
            if name not in ANSIBLE_NAMES:
                yield f"{file.relative_to(root)}:{number}: {name} is an injected fact; write ansible_facts['...']"


def names_its_variables(role: Path) -> Iterator[str]:
    """Public variables are <role>_x, all others __<role>_x."""
    public, private = f"{role.name}_", f"__{role.name}_"
    for name in defaults_of(role):
        if not name.startswith(public):
            yield f"defaults: {name} must start with {public}"
    for file in sorted((role / "vars").glob("*.yml")):
        for name in load(file) or {}:
            if not name.startswith(private):
                yield f"{file.name} in vars: {name} must start with {private}"
    for file, task in tasks_of(role):
        names = set(task.get("vars") or {})
        names |= {task["register"]} if isinstance(task.get("register"), str) else set(task.get("register") or {})
        names |= set(task.get("ansible.builtin.set_fact") or {}) - {"cacheable"}
        names |= {(task.get("loop_control") or {}).get("loop_var", private)}
        for name in sorted(names):
            if not name.startswith(private):
                yield f"{file.relative_to(role)}: {name} must start with {private}"


def downloads(task: dict[str, Any]) -> bool:
    """Whether a task downloads packages, tarballs or images."""
    if not DOWNLOADING_MODULES.isdisjoint(task):
        return True
    return any(command in task and DOWNLOADING_COMMAND.search(words_of(task[command])) for command in COMMANDS)


def words_of(arguments: Any) -> str:
    """The arguments of a command as one line, in whichever form a task has them."""
    if isinstance(arguments, dict):
        return " ".join(words_of(value) for value in arguments.values())
    return " ".join(map(str, arguments)) if isinstance(arguments, list) else str(arguments)


def limits_downloads(role: Path) -> Iterator[str]:
    """A task that downloads does so on as many nodes at once as the inventory allows."""
    for file, task in tasks_of(role):
        if downloads(task) and task.get("throttle") != THROTTLE:
            yield (
                f"{file.relative_to(role)}: `{task.get('name')}` downloads, and its throttle is "
                f"{task.get('throttle')!r}; must be {THROTTLE!r}"
            )


def is_judged_once_for_a_fleet(role: Path) -> Iterator[str]:
    """Preflight evaluates what hosts have in common once; over 511 nodes, 12 s became 190 by one default."""
    for name, value in defaults_of(role).items():
        found = identifiers(str(value)) if is_template(value) else frozenset()
        for word in sorted(found & (OPAQUE | DIFFERENT_FOR_EACH_HOST)):
            yield f"defaults/main.yml: {name} reads {word}, so that preflight has to judge each host by itself"


ROLE_RULES: dict[str, Callable[[Path], Iterator[str]]] = {
    rule.__name__: rule
    for rule in (
        specification_equals_defaults,
        has_a_scenario,
        lists_what_it_owns,
        is_described,
        reads_its_variables,
        uses_no_injected_facts,
        names_its_variables,
        limits_downloads,
        is_judged_once_for_a_fleet,
    )
}


def plays_in(file: Path) -> Iterator[dict[str, Any]]:
    """The plays of a playbook, without its imports."""
    for play in load(file) or []:
        if "hosts" in play:
            yield play


def roles_in(play: dict[str, Any]) -> Iterator[str]:
    """Names of the roles that a play calls."""
    for role in play.get("roles") or []:
        yield role if isinstance(role, str) else role.get("role") or role.get("name")
    for task in tasks_in_play(play):
        for action in ("import_role", "include_role"):
            if f"ansible.builtin.{action}" in task:
                yield task[f"ansible.builtin.{action}"]["name"]


def tasks_in_play(play: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All tasks that stand in a play itself."""
    for section in ("pre_tasks", "tasks", "post_tasks", "handlers"):
        yield from tasks_in(play.get(section))


def download_problems(play: dict[str, Any], roles: Path) -> Iterator[str]:
    """A play that downloads, by itself or by a role below `roles`, does so through the inventory's proxy."""
    downloading = []
    for task in tasks_in_play(play):
        if downloads(task):
            downloading.append(f"task `{task.get('name')}`")
            if task.get("throttle") != THROTTLE:
                yield f"`{task.get('name')}` downloads, and its throttle is not {THROTTLE!r}"
    for name in roles_in(play):
        # One that is named only at run time may be any.
        if is_template(name) or any(downloads(task) for _, task in tasks_of(roles / name)):
            downloading.append(f"role {name}")
    if downloading and play.get("environment") != PROXY:
        yield f"{', '.join(downloading)} downloads, and the play's environment is not {PROXY!r}"


def playbook_problems(file: Path) -> Iterator[str]:
    """Plays are for gpu_nodes, a group made from them, or localhost; gather nothing; call roles without validation.

    Those that download do so as the inventory says. Roles are looked for beside the playbook's folder.
    """
    for play in plays_in(file):
        where = f"{file.name}, play `{play.get('name')}`"
        hosts = str(play["hosts"])
        if not HOSTS.search(hosts) or re.search(r"\ball\b|\*", hosts):
            yield f"{where}: hosts are {hosts}; must be gpu_nodes, gpufleet_<group> or localhost"
        if play.get("gather_facts") is not False:
            yield f"{where}: gather_facts must be false; a play that needs facts calls setup with a subset"
        for role in play.get("roles") or []:
            if not isinstance(role, dict) or role.get("rolespec_validate") is not False:
                yield f"{where}: role {role} must be called with rolespec_validate: false"
        for task in tasks_in_play(play):
            for action in ("import_role", "include_role"):
                arguments = task.get(f"ansible.builtin.{action}")
                if arguments and arguments.get("rolespec_validate") is not False:
                    yield f"{where}: role {arguments.get('name')} must be called with rolespec_validate: false"
        for problem in download_problems(play, file.parents[1] / "roles"):
            yield f"{where}: {problem}"
    yield from injected_facts(file, file.parent)
