# SPDX-License-Identifier: Apache-2.0
"""The drift test: what a role owns, altered by hand, is found by --check and mended by the next run.

`roles/<role>/owned.yml` lists what the role owns:

    owned:
      # kind: file, directory or link (with path), package, unit, user or other (with name)
      - {kind: file, path: /etc/chrony/chrony.conf, drift: append, reported_by: Write chrony's configuration}
      - {kind: unit, name: chrony.service, drift: stop, reported_by: Start chrony}
      - {kind: package, name: chrony, drift: remove, reported_by: [Install chrony, Start chrony], round: 2}
      - kind: other
        name: the clock
        drift: an hour ahead              # words for the reader
        alter: date -s '+1 hour'          # shell command that alters it
        read: test $(date +%s) -lt ...    # shell command that prints its state; the same output again = mended
        reported_by: Step the clock

drift, how the test alters the object: file `append` (a line), `mode`, `owner`, `remove`; directory `mode`, `owner`,
`remove`; link `retarget`, `remove`; package `remove`, `unhold`; unit `stop`, `disable`, `mask`; user `shell`, `remove`.
An object may be listed several times with different drifts.

reported_by: name of the task (or tasks) that reports the object as changed.
round (default 1): objects whose drift hides another's (a removed package takes its unit with it) go into a later one.

Each round on a converged host: all its objects are altered, then
  1. `--check` lists exactly their tasks as changed, and alters nothing;
  2. the next run reports exactly the same tasks, and every object is again as it was before;
  3. the run after that changes nothing.
Handlers are no objects: they follow from a task that changed, so steps 1 and 2 do not count them; step 3 does.

A role that owns nothing has `owned: []` with a comment that says why.
"""

import json
import shlex
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests import drift_on_node
from tests.playbook import run_playbook

REPOSITORY = Path(__file__).resolve().parents[1]
ROLES = REPOSITORY / "roles"
NODE_PROGRAM = Path(drift_on_node.__file__).read_text()
# A service that was started again needs a moment to be active.
SETTLING_S = 20


class OwnedListError(ValueError):
    """An owned.yml that is not well formed; the message lists all that is wrong."""


class DriftError(AssertionError):
    """A role that does not find or mend what was altered."""


@dataclass(frozen=True)
class OwnedObject:
    """One entry of owned.yml."""

    kind: str
    name: str
    drift: str
    reported_by: tuple[str, ...]
    round: int = 1
    alter: str | None = None
    read: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.drift})"


@dataclass
class Target:
    """Where the role runs: options and environment for ansible-playbook, and each host's own shell command prefix."""

    inventory: str
    shells: Mapping[str, Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)

    def on_node(self, host: str, action: str, objects: Sequence[OwnedObject]) -> list[dict[str, Any]]:
        """Alter or read the objects on a host; returns the state of each."""
        entries = json.dumps([asdict(entry) for entry in objects])
        command = f"python3 - {action} {shlex.quote(entries)}"
        done = subprocess.run(
            [*self.shells[host], command], input=NODE_PROGRAM, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise DriftError(f"{host}: cannot {action} what the role owns: {done.stderr.strip()}")
        states: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return states


def load_owned(role: Path) -> list[OwnedObject]:
    """The objects that a role owns.

    Raises:
        OwnedListError: names every entry that is not as this module's docstring says.
    """
    file = role / "owned.yml"
    content = yaml.safe_load(file.read_text())
    if not isinstance(content, dict) or set(content) != {"owned"} or not isinstance(content["owned"], list):
        raise OwnedListError(f"{file}: must have the one key `owned` with a list")
    objects, wrong = [], []
    for number, entry in enumerate(content["owned"], start=1):
        problems = problems_of(entry)
        if problems:
            wrong += [f"{file}, entry {number}: {problem}" for problem in problems]
            continue
        tasks = entry.pop("reported_by")
        name = entry.pop(name_key(entry["kind"]))
        objects.append(
            OwnedObject(name=name, reported_by=(tasks,) if isinstance(tasks, str) else tuple(tasks), **entry)
        )
    if wrong:
        raise OwnedListError("\n".join(wrong))
    return objects


def name_key(kind: str) -> str:
    """The key under which owned.yml names an object of this kind."""
    return "path" if kind in ("file", "directory", "link") else "name"


def problems_of(entry: Any) -> list[str]:
    """What is wrong with one entry of owned.yml, in words."""
    if not isinstance(entry, dict):
        return ["must be a mapping"]
    other = entry.get("kind") == "other"
    required = {"kind", name_key(entry.get("kind", "")), "drift", "reported_by"} | (
        {"alter", "read"} if other else set()
    )
    problems = [f"`{key}` is missing" for key in sorted(required - set(entry))]
    problems += [f"`{key}` is unknown" for key in sorted(set(entry) - required - {"round"})]
    if problems:
        return problems
    if not other:
        ways = sorted(drift_on_node.ALTER.get(entry["kind"], ()))
        if not ways:
            return [f"kind `{entry['kind']}` is none of {', '.join(sorted(drift_on_node.ALTER))}, other"]
        if entry["drift"] not in ways:
            problems.append(f"drift `{entry['drift']}` of a {entry['kind']} is none of {', '.join(ways)}")
    names = entry["reported_by"]
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        problems.append("`reported_by` must be the name of a task, or a list of names")
    if not isinstance(entry.get("round", 1), int):
        problems.append("`round` must be a whole number")
    return problems


def changed_tasks(host_report: Mapping[str, Any]) -> set[str]:
    """Names of the tasks, handlers left out, that a report lists as changed for a host."""
    return {
        task["task"].removeprefix(f"{task['role']} : ")
        for task in host_report["changed_tasks"]
        if "/handlers/" not in (task.get("path") or "")
    }


def run_role(role: str, target: Target, work: Path, *, check: bool = False) -> dict[str, dict[str, Any]]:
    """Apply a role to the hosts of a target with the real ansible-playbook; returns the report of each host.

    Raises:
        DriftError: ansible-playbook failed, or left no report.
    """
    play = {
        "name": f"Apply {role}",
        "hosts": "gpu_nodes",
        "gather_facts": False,
        "tasks": [
            {
                "name": f"Apply {role}",
                "ansible.builtin.import_role": {"name": role, "rolespec_validate": False},
            }
        ],
    }
    playbook = work / f"{role}.yml"
    playbook.write_text(json.dumps([play]))
    options = ["--diff", "-i", target.inventory, "--limit", ",".join(target.shells), *(["--check"] if check else [])]
    environment = {**target.environment, "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}
    done = run_playbook(str(playbook), work / f"reports-{time.monotonic_ns()}", *options, environment=environment)
    if done.code:
        raise DriftError(f"{role} with {shlex.join(options)} ended with {done.code}:\n{done.output[-6000:]}")
    if not done.report:
        raise DriftError("the run left no report: does the callback gpufleet_report run?")
    hosts: dict[str, dict[str, Any]] = done.report["hosts"]
    missing = set(target.shells) - set(hosts)
    if missing:
        raise DriftError(f"the report has nothing on {', '.join(sorted(missing))}")
    return hosts


def expect_tasks(step: str, host: str, expected: set[str], found: set[str]) -> list[str]:
    """Lines on the tasks that a run reported too many or too few."""
    return [f"{host}, {step}: `{task}` did not report a change" for task in sorted(expected - found)] + [
        f"{host}, {step}: `{task}` reported a change although nothing of it was altered"
        for task in sorted(found - expected)
    ]


def check_round(role: str, objects: Sequence[OwnedObject], target: Target, work: Path) -> list[str]:
    """One round of the drift test on a converged target; returns what is wrong, a line each."""
    expected = {task for entry in objects for task in entry.reported_by}
    before = {host: target.on_node(host, "read", objects) for host in target.shells}
    altered = {host: target.on_node(host, "alter", objects) for host in target.shells}

    wrong: list[str] = []
    report = run_role(role, target, work, check=True)
    for host in target.shells:
        wrong += expect_tasks("--check", host, expected, changed_tasks(report[host]))
        wrong += describe_differences(
            "--check altered", host, objects, altered[host], target.on_node(host, "read", objects)
        )

    report = run_role(role, target, work)
    for host in target.shells:
        wrong += expect_tasks("mending run", host, expected, changed_tasks(report[host]))
        deadline = time.monotonic() + SETTLING_S
        now = target.on_node(host, "read", objects)
        while now != before[host] and time.monotonic() < deadline:
            time.sleep(1)
            now = target.on_node(host, "read", objects)
        wrong += describe_differences("mending run did not mend", host, objects, before[host], now)

    report = run_role(role, target, work)
    wrong += [
        f"{host}, run after mending: changed={report[host]['changed']}: "
        + ", ".join(task["task"] for task in report[host]["changed_tasks"])
        for host in target.shells
        if report[host]["changed"]
    ]
    return wrong


def describe_differences(
    what: str,
    host: str,
    objects: Iterable[OwnedObject],
    expected: Iterable[Mapping[str, Any]],
    found: Iterable[Mapping[str, Any]],
) -> list[str]:
    """A line for each object whose state is not the expected one."""
    return [
        f"{host}: {what} {entry}: expected {was}, found {now}"
        for entry, was, now in zip(objects, expected, found, strict=True)
        if was != now
    ]


def assert_drift_is_found_and_mended(role: str, target: Target, work: Path) -> None:
    """The whole drift test of one role on hosts where it has been applied.

    Raises:
        DriftError: lists, for every round, what was not found, not mended, or reported without cause.
    """
    objects = load_owned(ROLES / role)
    if not objects:
        raise DriftError(f"{role} owns nothing: there is nothing to test")
    wrong: list[str] = []
    for number in sorted({entry.round for entry in objects}):
        wrong += [
            f"round {number}: {line}"
            for line in check_round(role, [entry for entry in objects if entry.round == number], target, work)
        ]
    if wrong:
        raise DriftError(f"drift test of {role}:\n" + "\n".join(wrong))
