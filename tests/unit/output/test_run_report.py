# SPDX-License-Identifier: Apache-2.0
"""How a run is judged, and how its summary looks."""

import pytest
from ansible.module_utils.gpufleet_controller.failure_reason import Failure
from ansible.module_utils.gpufleet_controller.run_report import NodeRecord, PlayRecord, RunReport
from ansible.module_utils.gpufleet_controller.run_summary import summary_lines


def _report(*nodes: str) -> RunReport:
    report = RunReport("site.yml", ["inv"], {}, "2.21.5", check=False)
    report.expect(nodes)
    return report


def _ran(report: RunReport, node: str, *counters: str, role: str = "") -> NodeRecord:
    record = report.nodes[node]
    report.add_result(record, node, "t", counters=counters or ("ok",), task="Do", role=role, path="p:1")
    return record


def _failure(kind: str, reason: str = "broken") -> Failure:
    return Failure(kind, reason, "mend it", reason, "Do", "r", "p:1")


def test_outcomes() -> None:
    report = _report("a", "b", "c", "d", "e", "f", "g")
    for node in "abcdef":
        _ran(report, node)
    _ran(report, "b", "ok", "changed")
    report.add_note(report.nodes["c"], {"attention": [{"reason": "x", "next_step": "y", "severity": "warn"}]})
    for node, kind in (("d", "failed"), ("e", "unreachable"), ("f", "timed_out")):
        report.nodes[node].failures.append(_failure(kind))
    report.finish()
    assert [report.nodes[node].outcome for node in "abcdefg"] == [
        "ok",
        "changed",
        "attention",
        "failed",
        "unreachable",
        "timed_out",
        "not_run",
    ]
    assert report.in_need() == list("cdefg")
    assert "no task ran" in report.nodes["g"].not_run


def test_a_run_once_task_stands_for_the_nodes_of_its_own_play_only() -> None:
    report = _report()
    report.expect(["a", "b"])
    both, rest = ["a", "b"], ["b"]
    report.plays.append(PlayRecord("Preflight", both, 1, started=True, done=set(both), covered=set(both)))
    report.plays.append(PlayRecord("Platform", rest, 1, started=True, done=set(rest)))
    report.finish()
    assert report.nodes["a"].outcome == "ok"
    assert "no task ran" in report.nodes["b"].not_run, "the play after it had nothing for this node"


def test_loop_items_count_instead_of_their_task() -> None:
    report = _report("a")
    for label in ("x", None, "z"):
        report.add_item("a", "t", changed_item=label)
    record = _ran(report, "a", "ok", "changed", role="r")
    assert record.host_tasks == 3
    assert [entry["item"] for entry in record.changed_tasks] == ["x", "z"]
    # the same task again, this time (another batch, a handler) without items
    _ran(report, "a", "skipped", role="r")
    assert dict(record.host_tasks_by_role) == {"r": 4}


def test_nodes_that_did_not_get_their_turn() -> None:
    report = _report("a", "b", "c")
    report.plays = [
        PlayRecord("One", ["a", "b"], 2, started=True, begun={"a"}, done={"a"}),
        PlayRecord("Two", ["a", "c"], 0),
    ]
    _ran(report, "a")
    report.finish()
    assert report.nodes["a"].not_run == "roll-out stopped; play 'Two' did not run on this node"
    assert report.nodes["b"].not_run == "roll-out stopped before this node (play 'One')"
    assert report.nodes["c"].not_run == "roll-out stopped before this node (play 'Two' did not start)"


def test_stopped_because_of_others() -> None:
    report = _report("a", "b")
    report.plays = [PlayRecord("One", ["a", "b"], 1, started=True, begun={"a", "b"}, done={"a", "b"})]
    _ran(report, "a")
    _ran(report, "b")
    report.stop(["b", "unknown"], "others failed")
    report.finish()
    assert (report.nodes["a"].outcome, report.nodes["b"].outcome) == ("ok", "not_run")


def test_interrupted() -> None:
    report = _report("a", "b", "c")
    report.plays = [
        PlayRecord("One", ["a", "b"], 2, started=True, begun={"a"}),
        PlayRecord("Two", ["c"], 0),
    ]
    report.finish(interrupted="Ctrl-C", current_task="Install")
    assert report.nodes["a"].not_run == "the run was ended in 'Install' before this node was done: Ctrl-C"
    assert report.nodes["b"].not_run == "the run was ended before this node's turn: Ctrl-C"
    assert report.nodes["c"].not_run == "the run was ended before play 'Two': Ctrl-C"
    assert report.to_dict()["interrupted"] is True


@pytest.mark.parametrize("told", [None, "text", 5, [], {"attention": None}, {"facts": 3}])
def test_malformed_notes_do_no_harm(told: object) -> None:
    report = _report("a")
    report.add_note(report.nodes["a"], told)
    assert report.nodes["a"].attention == []


def test_notes_are_kept_once_and_cleaned() -> None:
    report = _report("a")
    hot = {"reason": "\x1b[1mhot", "next_step": "cool", "severity": "loud"}
    note = {"attention": [hot, "words"], "facts": {"t": 90}}
    report.add_note(report.nodes["a"], note)
    report.add_note(report.nodes["a"], note)
    record = report.nodes["a"]
    assert [entry["reason"] for entry in record.attention] == ["hot", "words"]
    assert record.attention[0]["severity"] == "warn"
    assert record.facts == {"t": 90}


def _text(report: RunReport, width: int = 120) -> list[str]:
    return [line.text for line in summary_lines(report, width)]


def test_a_task_on_the_controller_tells_of_nodes() -> None:
    report = _report("a", "b")
    note = {"attention": [{"reason": "drained by somebody else", "next_step": "ask", "severity": "warn"}]}
    told = {"on_controller": True, "nodes": {"a": note, "c": {"facts": {"x": 1}}}}
    report.add_note(report.controller, told)
    assert report.controller.attention == []
    assert [line["reason"] for line in report.nodes["a"].attention] == ["drained by somebody else"]
    assert report.nodes["b"].attention == [] and report.nodes["c"].facts == {"x": 1}
    # a node speaks for itself alone
    report.add_note(report.nodes["a"], {"nodes": {"b": note}})
    assert report.nodes["b"].attention == []


def test_summary_groups_equal_reasons() -> None:
    nodes = [f"gpu-{n:03d}" for n in range(1, 512)]
    report = _report(*nodes)
    for node in nodes:
        _ran(report, node)
    for node in nodes[:300]:
        report.nodes[node].failures.append(_failure("unreachable", f"ssh: connect to host {node} port 22: refused"))
    report.finish()
    lines = _text(report)
    assert len(lines) < 12
    assert "  unreachable: gpu-[001-300] (300 nodes)" in lines
    assert "    reason: ssh: connect to host <node> port 22: refused [r : Do]" in lines
    assert "  ok            211  changed=0 failed=0 unreachable=0  gpu-[301-511]" in lines


def test_summary_stays_on_one_screen_with_511_reasons() -> None:
    nodes = [f"gpu-{n:03d}" for n in range(1, 512)]
    report = _report(*nodes)
    for number, node in enumerate(nodes):
        _ran(report, node, "ok", "changed")
        report.nodes[node].failures.append(_failure("failed", f"trouble {number}\nline 2\nline 3"))
        report.nodes[node].changed_tasks.append({"task": f"T{number}", "role": "", "path": ""})
    report.finish()
    lines = _text(report)
    assert len(lines) <= 60
    assert "and 501 more reasons on gpu-[011-511]: see report.json" in lines[-1]


def test_summary_shows_a_controller_failure_in_full() -> None:
    report = _report("a")
    message = "\n".join(f"line {number}" for number in range(40))
    report.controller.failures.append(Failure("failed", "line 0", "do that", message, "Check", "preflight", "p"))
    report.finish()
    lines = _text(report)
    assert "Failed on this machine, in 'preflight : Check':" in lines
    assert "  line 39" in lines
    assert "  next: do that" in lines


def test_summary_always_tells_changed() -> None:
    report = _report("a")
    _ran(report, "a")
    report.finish()
    assert "  all             1  changed=0 failed=0 unreachable=0" in _text(report)
    assert not [line for line in _text(report) if line.startswith("changed")], "molecule would trip over such a line"
