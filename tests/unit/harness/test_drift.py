# SPDX-License-Identifier: Apache-2.0
"""The drift harness itself: a role that does not find, does not mend or reports too much is caught."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import drift, drift_on_node

FILE = drift.OwnedObject("file", "/etc/x", "append", ("Write x",))
UNIT = drift.OwnedObject("unit", "x.service", "stop", ("Start x",))
OBJECTS = [FILE, UNIT]


class Host(drift.Target):
    """A host in memory: the state of each object is its name's entry, `good` or something else."""

    def __init__(self) -> None:
        super().__init__(inventory="-", shells={"node": ()})
        self.state = {entry.name: "good" for entry in OBJECTS}

    def on_node(self, host: str, action: str, objects: Sequence[drift.OwnedObject]) -> list[dict[str, Any]]:
        if action == "alter":
            self.state.update({entry.name: "bad" for entry in objects})
        return [{"state": self.state[entry.name]} for entry in objects]


Behaviour = Callable[[Host, bool], set[str]]


def finds(host: Host) -> set[str]:
    return {entry.reported_by[0] for entry in OBJECTS if host.state[entry.name] != "good"}


def mends(host: Host, check: bool) -> set[str]:
    """A role as it should be."""
    tasks = finds(host)
    if not check:
        host.state = dict.fromkeys(host.state, "good")
    return tasks


def overlooks_the_unit(host: Host, check: bool) -> set[str]:
    return mends(host, check) - {"Start x"}


def reports_too_much(host: Host, check: bool) -> set[str]:
    return mends(host, check) | {"Always changed"}


def does_not_mend(host: Host, check: bool) -> set[str]:
    return finds(host)


def acts_in_check_mode(host: Host, check: bool) -> set[str]:
    return mends(host, False)


def run_round(monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour) -> list[str]:
    def run_role(
        role: str, target: drift.Target, work: Path, *, check: bool = False
    ) -> Mapping[str, Mapping[str, Any]]:
        tasks = behaviour(target, check)  # type: ignore[arg-type]
        entries = [{"task": f"x : {task}", "role": "x", "path": "roles/x/tasks/main.yml"} for task in sorted(tasks)]
        handler = {"task": "x : Restart x", "role": "x", "path": "/r/roles/x/handlers/main.yml:2"}
        return {"node": {"changed": len(entries), "changed_tasks": entries + ([handler] if entries else [])}}

    monkeypatch.setattr(drift, "run_role", run_role)
    monkeypatch.setattr(drift, "SETTLING_S", 0)
    return drift.check_round("x", OBJECTS, Host(), Path())


def test_a_role_that_finds_and_mends_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_round(monkeypatch, mends) == []


@pytest.mark.parametrize(
    ("behaviour", "complaint"),
    [
        (overlooks_the_unit, "--check: `Start x` did not report a change"),
        (reports_too_much, "mending run: `Always changed` reported a change although nothing of it was altered"),
        (reports_too_much, "run after mending: changed=1"),
        (does_not_mend, "mending run did not mend file /etc/x (append)"),
        (acts_in_check_mode, "--check altered unit x.service (stop)"),
    ],
)
def test_a_role_with_a_fault_fails(monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, complaint: str) -> None:
    assert complaint in "\n".join(run_round(monkeypatch, behaviour))


def write_owned(folder: Path, text: str) -> Path:
    (folder / "owned.yml").write_text(text)
    return folder


def test_a_list_is_read(tmp_path: Path) -> None:
    role = write_owned(
        tmp_path,
        "owned:\n"
        "  - {kind: file, path: /etc/x, drift: append, reported_by: Write x}\n"
        "  - {kind: package, name: x, drift: remove, reported_by: [Install x, Start x], round: 2}\n"
        "  - {kind: other, name: clock, drift: ahead, alter: a, read: r, reported_by: Step}\n",
    )
    assert drift.load_owned(role) == [
        FILE,
        drift.OwnedObject("package", "x", "remove", ("Install x", "Start x"), round=2),
        drift.OwnedObject("other", "clock", "ahead", ("Step",), alter="a", read="r"),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("owned: {}\n", "must have the one key `owned` with a list"),
        ("files: []\n", "must have the one key `owned` with a list"),
        ("owned: [x]\n", "entry 1: must be a mapping"),
        ("owned: [{kind: file, path: /x, drift: append}]\n", "`reported_by` is missing"),
        ("owned: [{kind: file, name: /x, drift: append, reported_by: t}]\n", "`path` is missing"),
        ("owned: [{kind: pool, name: x, drift: append, reported_by: t}]\n", "kind `pool` is none of"),
        ("owned: [{kind: unit, name: x, drift: append, reported_by: t}]\n", "drift `append` of a unit is none of"),
        ("owned: [{kind: unit, name: x, drift: stop, reported_by: []}]\n", "`reported_by` must be"),
        ("owned: [{kind: unit, name: x, drift: stop, reported_by: t, round: one}]\n", "`round` must be"),
    ],
)
def test_a_bad_list_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(drift.OwnedListError, match=complaint.replace("[", r"\[")):
        drift.load_owned(write_owned(tmp_path, text))


@pytest.mark.parametrize("way", ["append", "mode", "owner", "remove"])
def test_a_file_on_this_machine_is_altered(tmp_path: Path, way: str) -> None:
    file = tmp_path / "file"
    file.write_text("x\n")
    entry = {"kind": "file", "name": str(file), "drift": way}
    before = drift_on_node.read(entry)
    drift_on_node.alter(entry)
    assert drift_on_node.read(entry) != before


def test_an_alteration_without_effect_is_an_error(tmp_path: Path) -> None:
    entry = {"kind": "other", "name": "x", "drift": "nothing", "alter": "true", "read": "echo same"}
    with pytest.raises(SystemExit, match="left it as it was"):
        drift_on_node.alter(entry)
