# SPDX-License-Identifier: Apache-2.0
"""One health check from its inputs to the report."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health.capture import read_capture
from ansible.module_utils.gpufleet.health.fault_history import read_history, write_history
from ansible.module_utils.gpufleet.health.health_run import HealthInput, InputError, run_health

from .conftest import CHECKS, HEALTHY, PROBES, SICK, profile


def judge(**asked: Any) -> dict[str, Any]:
    return run_health(HealthInput(**{"profile": profile(), **asked}), PROBES, CHECKS)


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {finding["check"]: finding["status"] for finding in report["findings"]}


def test_a_healthy_capture(capture: Any) -> None:
    report = judge(replay_from=capture(HEALTHY))
    assert (report["verdict"], report["action"]) == ("ok", "none")
    assert statuses(report) == {"fan.speed": "ok", "fan.count": "ok", "door": "skipped"}
    assert report["findings"][0] == {
        "check": "fan.speed",
        "component": "node",
        "status": "ok",
        "observed": "all fans turn",
    }
    assert report["probes"]["fans"] == {"outcome": "done", "seconds": 0.1}
    assert report["probes"]["door"]["says"] == "is not in the capture"
    assert report["checks"] == {"judged": 3, "known": 3}
    assert (report["node"], report["when"]) == (None, 1_796_000_000.0)
    assert json.loads(json.dumps(report)) == report


def test_a_sick_capture_says_all_that_a_person_needs(capture: Any) -> None:
    report = judge(replay_from=capture(SICK))
    assert (report["verdict"], report["action"]) == ("fail", "reseat")
    assert report["findings"][0] == {
        "check": "fan.speed",
        "component": "fan FAN2",
        "status": "fail",
        "observed": "40 rpm",
        "expected": "at least 1000 rpm",
        "action": "reseat",
        "advice": "pull the fan and push it in again",
        "evidence": [{"probe": "fans", "excerpt": "FAN2 40"}],
        "reference": "made up",
    }


def test_no_evidence_is_unknown(capture: Any) -> None:
    report = judge(replay_from=capture(None))
    assert report["verdict"] == "unknown"
    assert "probe fans" in report["findings"][0]["observed"]


def test_a_run_that_asks_the_node() -> None:
    report = judge()
    assert report["verdict"] == "unknown"
    assert report["probes"]["fans"]["outcome"] == "failed"
    assert "cat /nonexistent/fans" in report["probes"]["fans"]["says"]
    assert report["node"]


def test_narrowed_to_a_prefix_only_its_probes_run() -> None:
    report = judge(names=("fan",))
    assert set(report["probes"]) == {"fans"}
    assert report["checks"] == {"judged": 2, "known": 3}


def test_skipped_by_argument_and_by_profile(capture: Any) -> None:
    sick = capture(SICK)
    report = judge(
        replay_from=sick,
        skip={"fan.speed@fan FAN2": "ticket 1"},
        profile=profile(skip_checks={"fan.count": "no third bay", "door": None}),
    )
    assert report["verdict"] == "fail", "FAN3 is not skipped"
    observed = [finding["observed"] for finding in report["findings"]]
    assert observed[0] == "skipped: ticket 1 (fail: 40 rpm)"
    assert observed[2:] == ["skipped: no third bay", "nobody says whether it should be"]


def test_a_required_check_that_was_skipped_is_unknown(capture: Any) -> None:
    report = judge(replay_from=capture(HEALTHY), profile=profile(required_checks=["door"]))
    assert statuses(report)["door"] == report["verdict"] == "unknown"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"names": ("fan.sped",)}, "checks: no check is named 'fan.sped'; did you mean 'fan.speed'?"),
    ({"names": ("fa",)}, "checks: no check is named 'fa'"),
    ({"skip": {"dor": "x"}}, "skip: no check is named 'dor'; did you mean 'door'?"),
    ({"skip": {"door": " "}}, "skip: door needs a reason"),
    ({"deadline_s": 0}, "deadline: must be more than 0 seconds"),
    ({"deadline_s": float("nan")}, "deadline: must be more than 0 seconds"),
    ({"replay_from": "x", "history": "y"}, "history makes no sense with replay_from"),
    ({"replay_from": "/nonexistent"}, "/nonexistent is not there"),
    ({"capture_to": "/tmp"}, "capture_to: /tmp is there already"),
    ({"profile": {}}, "profile: schema: expected one of 1, found nothing"),
    ({"profile": profile(required_checks=["fan.sped"])}, "profile: required_checks[0]: "),
    ({"profile": profile(skip_checks={"fan.sped": "x"})}, "did you mean 'fan.speed'?"),
]


@pytest.mark.parametrize(("asked", "problem"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_input_is_refused_before_anything_runs(
    asked: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ansible.module_utils.gpufleet.health.probe_runner.run_probes", lambda *_: pytest.fail("a probe ran")
    )
    with pytest.raises(InputError) as refused:
        judge(**asked)
    assert any(problem in one for one in refused.value.problems), refused.value.problems


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InputError) as refused:
        judge(names=("x", "y"), skip={"z": "", "door": ""}, deadline_s=-1)
    assert len(refused.value.problems) == 6


def test_a_run_keeps_a_capture_that_gives_the_same_verdict(tmp_path: Path) -> None:
    to = str(tmp_path / "kept")
    report = judge(capture_to=to)
    assert set(read_capture(to).results) == {"fans", "door"}
    assert judge(replay_from=to)["findings"] == report["findings"]


def test_a_capture_that_cannot_be_written_costs_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = judge(capture_to=str(tmp_path / "file" / "kept"))
    assert report["verdict"] == "unknown"
    assert "no capture was written" in report["notes"][0]


def test_read_only_writes_nothing(tmp_path: Path) -> None:
    judge(capture_to=str(tmp_path / "kept"), history=str(tmp_path / "history"), read_only=True)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def sick_node(tmp_path: Path) -> Any:
    """The tables of a node whose fans are slow."""
    (tmp_path / "fans").write_text(SICK)
    return (PROBES[0]._replace(argv=("cat", str(tmp_path / "fans"))), PROBES[1])


def test_a_fault_of_an_earlier_boot_asks_for_more(tmp_path: Path, sick_node: Any) -> None:
    history = str(tmp_path / "history")

    def run() -> dict[str, Any]:
        return run_health(HealthInput(profile(), history=history), sick_node, CHECKS)

    assert run()["action"] == "reseat"
    entries = read_history(history)
    assert {entry.component for entry in entries} == {"fan FAN2", "fan FAN3"}
    write_history(history, [entry._replace(boot_id="an earlier one") for entry in entries])
    assert run()["action"] == "inspect"
    assert {entry.action for entry in read_history(history)} == {"reseat"}, "the step itself is not climbed from again"


def test_a_history_that_is_none_is_told_and_left(tmp_path: Path, sick_node: Any) -> None:
    history = tmp_path / "history"
    history.write_text("{")
    report = run_health(HealthInput(profile(), history=str(history)), sick_node, CHECKS)
    assert report["verdict"] == "fail"
    assert "earlier faults are not taken into account" in report["notes"][0]
    assert history.read_text() == "{"


def test_a_heavy_probe_runs_only_for_a_check_that_is_named(tmp_path: Path) -> None:
    probes = (PROBES[0]._replace(heavy=True), PROBES[1])
    assert set(statuses(run_health(HealthInput(profile()), probes, CHECKS))) == {"door"}
    assert set(statuses(run_health(HealthInput(profile(), ("fan.speed",)), probes, CHECKS))) == {"fan.speed"}
    required = profile(required_checks=["fan.count"])
    assert set(statuses(run_health(HealthInput(required), probes, CHECKS))) == {"fan.count", "door"}


def test_a_capture_is_judged_by_a_heavy_probe_only_where_it_has_its_answer(capture: Any) -> None:
    probes = (PROBES[0]._replace(heavy=True), PROBES[1])

    def judged(fans: str | None, *names: str) -> set[str]:
        replayed = HealthInput(profile(), names, replay_from=capture(fans, name=f"{fans is None}-{len(names)}"))
        return set(statuses(run_health(replayed, probes, CHECKS)))

    assert judged(None) == {"door"}
    assert judged(HEALTHY) == {"fan.speed", "fan.count", "door"}
    assert judged(None, "fan.speed") == {"fan.speed"}
