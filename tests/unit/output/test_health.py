# SPDX-License-Identifier: Apache-2.0
"""The verdicts of a health check in the report and in the summary."""

from typing import Any

from ansible.module_utils.gpufleet_controller.failure_reason import describe
from ansible.module_utils.gpufleet_controller.run_report import PlayRecord, RunReport
from ansible.module_utils.gpufleet_controller.run_summary import summary_lines


def report(*nodes: str) -> RunReport:
    """A run whose only task judges all nodes."""
    made = RunReport("validate.yml", ["inv"], {}, "2.21.5", check=False)
    made.expect(nodes)
    made.plays.append(PlayRecord("Judge", list(nodes), 1, started=True, begun=set(nodes), done=set(nodes)))
    made.judged.update(nodes)
    return made


def judged(made: RunReport, node: str, verdict: str, driver: str = "550", *notes: dict[str, str]) -> None:
    """One node's result; fail and unknown fail the task, as playbooks/validate.yml has it."""
    bad = verdict in ("fail", "unknown")
    health = {"verdict": verdict, "comparison": {"kind": "h100", "values": {"NVIDIA driver": driver}}}
    told = {"attention": list(notes), "facts": {"health": health}}
    record = made.nodes[node]
    made.add_result(record, node, "t", counters=["failed"] if bad else ["ok"], task="Judge", role="", path="p:1")
    made.add_note(record, told)
    if bad:
        result: dict[str, Any] = {"msg": f"{verdict}: the gist", "gpufleet": told}
        record.failures.append(
            describe(result, kind="failed", task="Judge", role="", path="p:1", tasks_before=0, failed_item=None)
        )


def note(reason: str, severity: str = "fail") -> dict[str, str]:
    return {"reason": reason, "next_step": "mend it", "severity": severity}


def text(made: RunReport) -> str:
    return "\n".join(line.text for line in summary_lines(made, 120))


def test_the_summary_shows_verdicts_and_groups_nodes_by_finding() -> None:
    made = report(*(f"gpu-{number:03d}" for number in range(1, 512)))
    for number, name in enumerate(made.nodes):
        if number < 40:
            judged(made, name, "fail", "550", note("gpu.driver: 535; expected 550"), note("gpu.hot: 90 C", "warn"))
        elif number < 43:
            judged(made, name, "warn", "550", note("gpu.hot: 90 C", "warn"))
        else:
            judged(made, name, "ok")
    made.finish()
    lines = [line.text for line in summary_lines(made, 120)]
    health = lines[lines.index("Health:") :]
    assert health[1:4] == [
        "  ok            468  gpu-[044-511]",
        "  warn            3  gpu-[041-043]",
        "  fail           40  gpu-[001-040]",
    ]
    assert "  failed: gpu-[001-040] (40 nodes)" in lines
    assert "    reason: gpu.driver: 535; expected 550" in lines
    assert "  attention: gpu-[001-043] (43 nodes)" in lines
    assert "the gist" not in "\n".join(lines), "the findings tell more than the message of the failed task"
    assert len(lines) < 25
    assert made.to_dict()["totals"]["verdicts"] == {"ok": 468, "warn": 3, "unknown": 0, "fail": 40}


def test_a_node_that_gave_no_verdict_is_unknown() -> None:
    made = report("a", "b")
    judged(made, "a", "ok")
    unreachable = describe(
        {"msg": "Failed to connect to the host via ssh: Connection refused"},
        kind="unreachable",
        task="Judge",
        role="",
        path="p:1",
        tasks_before=0,
    )
    made.nodes["b"].failures.append(unreachable)
    made.finish()
    health = made.to_dict()["hosts"]["b"]["facts"]["health"]
    assert health["verdict"] == "unknown"
    assert "Connection refused" in health["why"]
    assert "  unknown         1  b" in text(made)


def test_a_task_that_ended_without_a_verdict_leaves_an_unknown_node() -> None:
    made = report("a")
    made.add_result(made.nodes["a"], "a", "t", counters=["ok"], task="Judge", role="", path="p:1")
    made.finish()
    assert made.nodes["a"].facts["health"] == {"verdict": "unknown", "why": "the health check gave no answer"}


def test_nodes_that_differ_from_the_majority_need_attention() -> None:
    made = report("a", "b", "c", "d")
    for name in "abc":
        judged(made, name, "ok")
    judged(made, "d", "ok", "535")
    made.finish()
    assert made.in_need() == ["d"]
    assert "    reason: differs from the other nodes: NVIDIA driver is 535; 3 of 4 nodes have 550" in text(made)


def test_a_failure_with_warnings_only_is_told_as_a_failure() -> None:
    made = report("a")
    judged(made, "a", "fail", "550", note("gpu.hot: 90 C", "warn"))
    made.finish()
    assert "  failed: a" in text(made)
    assert made.nodes["a"].needs() == [{**note("gpu.hot: 90 C", "warn"), "kind": "failed"}]


def test_a_run_that_judges_nobody_says_nothing_of_health() -> None:
    made = RunReport("site.yml", ["inv"], {}, "2.21.5", check=False)
    made.expect(["a"])
    made.finish()
    assert "Health" not in text(made)
    assert "verdicts" not in made.to_dict()["totals"]
