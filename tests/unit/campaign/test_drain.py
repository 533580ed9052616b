# SPDX-License-Identifier: Apache-2.0
"""Waiting for jobs, other people's drains, and giving back, against answers of module drain_slurm in a table."""

from collections.abc import Mapping
from typing import Any

import pytest
from ansible.module_utils.gpufleet_controller.campaign_drain import Drain, DrainError, DrainSettings

OURS = "gpufleet:c1"
IDLE = {"states": ["IDLE"], "reason": "", "reason_by": "", "owner": "free", "busy": False, "in_service": True}
DRAINED = {**IDLE, "states": ["IDLE", "DRAIN"], "reason": OURS, "owner": "ours", "in_service": False}
DRAINING = {**DRAINED, "states": ["MIXED", "DRAIN"], "busy": True}
OTHER = {**DRAINED, "reason": "bad fan", "reason_by": "ada@2026-11-30T10:00:00", "owner": "other"}
DOWN = {**IDLE, "states": ["DOWN", "NOT_RESPONDING"], "owner": "other", "in_service": False}
SETTINGS = DrainSettings("slurm", timeout_s=100, poll_s=10, release_timeout_s=30)


class Scheduler:
    """Answers in turn, one for each call; the last one again. The clock moves by sleeping only."""

    def __init__(self, *answers: Mapping[str, Any], acted_on: tuple[str, ...] = ()) -> None:
        self.answers, self.acted_on, self.calls, self.now, self.said = list(answers), acted_on, [], 0.0, []

    def run(self, module: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((module, arguments))
        nodes = dict(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        jobs = [{"id": "7", "user": "ada", "nodes": "n-a"}]
        return {"nodes": nodes, "before": nodes, "unknown": [], "acted_on": list(self.acted_on), "jobs": jobs}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def drain(self, settings: DrainSettings = SETTINGS, nodes: tuple[str, ...] = ("a", "b")) -> Drain:
        names = {node: f"n-{node}" for node in nodes}
        return Drain(settings, names, self.run, self.said.append, lambda: self.now, self.sleep)


def test_jobs_are_waited_for_and_the_order_stays() -> None:
    slurm = Scheduler({"n-a": DRAINING, "n-b": DRAINED}, {"n-a": DRAINING}, {"n-a": DRAINED}, acted_on=("n-a", "n-b"))
    outcome = slurm.drain().drain(["a", "b"], "c1", [OURS])
    assert (outcome.done, outcome.left, outcome.refused) == (["a", "b"], {}, {})
    assert outcome.acted_on == ["a", "b"] and slurm.now == 20
    states = [arguments["state"] for _module, arguments in slurm.calls]
    assert states == ["drained", "present", "present"], "one call drains all"
    assert slurm.calls[0][1]["reason"] == OURS and slurm.calls[0][1]["nodes"] == ["n-a", "n-b"]


def test_a_job_that_does_not_end_is_named_and_left_alone() -> None:
    slurm = Scheduler({"n-a": DRAINING, "n-b": DRAINED})
    outcome = slurm.drain().drain(["a", "b"], "c1", [OURS])
    assert outcome.done == ["b"]
    assert outcome.refused == {"a": "not free within 1 min 40 s: job 7 of ada on n-a"}
    assert slurm.now == pytest.approx(100)
    assert slurm.said and "waiting for jobs to end on a (1 nodes" in slurm.said[0]
    assert {arguments["state"] for _module, arguments in slurm.calls} == {"drained", "present"}


def test_who_takes_a_node_over_keeps_it() -> None:
    slurm = Scheduler({"n-a": DRAINING, "n-b": DRAINING}, {"n-a": OTHER, "n-b": IDLE})
    outcome = slurm.drain().drain(["a", "b"], "c1", [OURS])
    assert outcome.done == [] and outcome.refused == {}
    assert outcome.left["a"] == "Slurm says IDLE+DRAIN (bad fan by ada@2026-11-30T10:00:00)"
    assert outcome.left["b"] == "somebody resumed it while it was being drained"


def test_giving_back_waits_until_it_is_in_service() -> None:
    slurm = Scheduler({"n-a": IDLE, "n-b": DOWN}, {"n-b": DOWN}, {"n-b": IDLE}, acted_on=("n-a", "n-b"))
    outcome = slurm.drain().release(["a", "b"], "c1", [OURS])
    assert outcome.done == ["a", "b"] and outcome.refused == {}
    assert [arguments["state"] for _module, arguments in slurm.calls] == ["released", "present", "present"]


def test_what_is_not_back_in_time_is_told_and_others_are_not_given_back() -> None:
    slurm = Scheduler({"n-a": OTHER, "n-b": DOWN}, {"n-b": DOWN}, acted_on=("n-b",))
    outcome = slurm.drain().release(["a", "b"], "c1", [OURS])
    assert outcome.done == [] and list(outcome.left) == ["a"]
    assert outcome.refused == {"b": "Slurm still says DOWN+NOT_RESPONDING: does slurmd run there?"}
    assert slurm.now == pytest.approx(30, abs=10)


def test_a_node_that_slurm_does_not_know() -> None:
    slurm = Scheduler({})
    slurm.run = lambda module, arguments: {"unknown": ["n-a"], "nodes": {}, "before": {}, "acted_on": []}  # type: ignore[method-assign]
    with pytest.raises(DrainError, match="Slurm does not know n-a") as error:
        slurm.drain().drain(["a"], "c1", [OURS])
    assert "drain_node_name" in error.value.next_step


def test_without_a_provider_nothing_is_called() -> None:
    slurm = Scheduler({})
    drain = slurm.drain(DrainSettings("none", 1, 1, 1))
    assert drain.drain(["a"], "c1", []).done == ["a"] and drain.release(["a"], "c1", []).done == ["a"]
    assert drain.owners(["a"], []) == {} and slurm.calls == []


def test_a_command_is_asked_once_and_answers_for_each() -> None:
    answer = {"refused": {"n-a": "a pod stays"}, "left": {"n-b": "in repair"}}
    calls: list[tuple[str, dict[str, Any]]] = []

    def run(module: str, arguments: dict[str, Any]) -> dict[str, Any]:
        calls.append((module, arguments))
        return answer if arguments["argv"] == ["cordon"] else {"refused": {}, "left": {}}

    settings = DrainSettings("command", 100, 1, 30, ["cordon"], ["uncordon"], {"SITE": "north"})
    drain = Drain(settings, {"a": "n-a", "b": "n-b", "c": "n-c"}, run)
    outcome = drain.drain(["a", "b", "c"], "c1", [])
    assert (outcome.done, outcome.refused, outcome.left) == (["c"], {"a": "a pod stays"}, {"b": "in repair"})
    assert calls == [
        (
            "drain_command",
            {
                "argv": ["cordon"], "nodes": ["n-a", "n-b", "n-c"], "campaign": "c1",
                "environment": {"SITE": "north"}, "timeout_s": 100,
            },
        )
    ]  # fmt: skip
    drain.release(["c"], "c1", [])
    assert calls[1][1]["argv"] == ["uncordon"] and calls[1][1]["timeout_s"] == 30
