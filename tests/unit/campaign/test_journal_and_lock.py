# SPDX-License-Identifier: Apache-2.0
"""The journal bears torn lines; what it says of kept nodes and batches; a lock whose holder is gone holds nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet_controller import campaign_journal as steps
from ansible.module_utils.gpufleet_controller.campaign_history import batch_outcomes, fold
from ansible.module_utils.gpufleet_controller.campaign_journal import Journal
from ansible.module_utils.gpufleet_controller.campaign_lock import CampaignHeldError, CampaignLock, process_mark


def record(step: str, campaign: str = "c1", run: str = "r1", **what: Any) -> dict[str, Any]:
    return {"step": step, "campaign": campaign, "run": run, "when": "", "nodes": [], "after": {}, **what}


def test_who_what_why_before_and_after_are_on_the_disk(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", "ada@north pid 7", "run-1")
    journal.append("judged", "c1", "measured", nodes=["a"], before={"a": "1"}, after={"a": "2"}, batch=3)
    [line] = journal.path.read_text().splitlines()
    told = json.loads(line)
    assert told.pop("when").endswith("Z")
    assert told == {
        "step": "judged", "campaign": "c1", "run": "run-1", "who": "ada@north pid 7", "why": "measured",
        "nodes": ["a"], "before": {"a": "1"}, "after": {"a": "2"}, "batch": 3,
    }  # fmt: skip


@pytest.mark.parametrize("torn", ['{"step": "drai', '{"step": 1', "\x00\x00", "[]\n", "\n"])
def test_a_line_that_was_cut_short_costs_only_itself(tmp_path: Path, torn: str) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("planned", "c1", "")
    with journal.path.open("a") as file:
        file.write(torn)
    journal.append("drained", "c1", "")
    records, broken = journal.records()
    assert [one["step"] for one in records] == ["planned", "drained"]
    assert broken == (1 if torn.strip() else 0)


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none").records() == ([], 0)
    assert fold([]).marks() == []


def test_what_campaigns_still_keep() -> None:
    told = [
        record(steps.CAMPAIGN_STARTED, after={"versions": {"driver": ["580.1"]}}),
        record(steps.DRAINING, nodes=["a", "b", "c", "d"], provider="slurm", batch=1),
        record(steps.DRAINED, nodes=["a", "b"], left={"c": "bad fan"}, refused={"d": "busy"}, batch=1),
        record(steps.RELEASED, nodes=["a"], batch=1),
    ]
    history = fold(told)
    assert {node: (kept.campaign, kept.provider) for node, kept in history.kept.items()} == {
        "b": ("c1", "slurm"),
        "d": ("c1", "slurm"),
    }
    assert (history.unfinished, history.target) == ("c1", {"driver": ["580.1"]})
    # an intent counts: the kill may have come after the act
    assert "e" in fold([*told, record(steps.DRAINING, nodes=["e"], provider="command")]).kept
    assert fold([*told, record(steps.PLANNED, let_go=["b", "d"])]).kept == {}
    assert fold([*told, record(steps.CAMPAIGN_COMPLETED)]).unfinished == ""
    later = fold([*told, record(steps.CAMPAIGN_SUPERSEDED), record(steps.CAMPAIGN_STARTED, "c2")])
    assert later.unfinished == "c2" and later.marks() == ["gpufleet:c1", "gpufleet:c2"]


def test_who_is_not_back_has_failed_whatever_became_of_the_run() -> None:
    told = [
        record(steps.BATCH_STARTED, run="r0", nodes=["z"], batch=1),
        record(steps.BATCH_STARTED, nodes=["a", "b", "c", "d"], batch=1),
        record(steps.DRAINED, left={"c": "bad fan"}, refused={"d": "busy"}, batch=1),
    ]
    [outcome] = batch_outcomes(told, "r1")
    assert outcome.failed == ["a", "b", "d"], "the run of another day is no batch of this one"
    told += [record(steps.JUDGED, nodes=["a"], failed={"b": "sick"}, batch=1)]
    told += [record(steps.RELEASED, nodes=["a"], batch=1)]
    [outcome] = batch_outcomes(told, "r1")
    assert outcome.failed == ["b", "d"] and outcome.reasons == {"b": "sick"}
    # a colleague took one over while it was upgraded: his, and no failure of ours
    taken = [*told[:-1], record(steps.RELEASED, nodes=[], left={"a": "bad fan"}, batch=1)]
    [outcome] = batch_outcomes(taken, "r1")
    assert outcome.failed == ["b", "d"] and set(outcome.left) == {"a", "c"}
    assert "a" not in fold([record(steps.DRAINING, nodes=["a"]), *taken]).kept


def test_one_holder_at_a_time_and_none_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    try:
        CampaignLock(path, holder.pid).acquire("upgrade of driver", ["inventory"])
        with pytest.raises(CampaignHeldError) as held:
            CampaignLock(path, os.getpid()).acquire("upgrade of driver", ["inventory"])
        assert f"pid {holder.pid}" in str(held.value) and "It has held the campaign for 0 s" in str(held.value)
        with pytest.raises(CampaignHeldError, match="has ended"):
            CampaignLock(path, holder.pid).check()
    finally:
        holder.kill()
        holder.wait()
    mine = CampaignLock(path, os.getppid())
    mine.acquire("upgrade of driver", ["inventory"])
    mine.acquire("upgrade of driver", ["inventory"])
    mine.check()


def test_a_number_that_another_process_has_now_is_no_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    CampaignLock(path, os.getpid()).acquire("x", [])
    held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, "process": "1"}))
    CampaignLock(path, os.getppid()).acquire("y", [])


@pytest.mark.parametrize("content", ["", "{", '{"owner": {}}', "null"])
def test_a_lock_file_without_sense_locks_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lock.json"
    path.write_text(content)
    CampaignLock(path, os.getppid()).acquire("x", [])
    assert json.loads(path.read_text())["owner"]["pid"] == os.getppid()


def test_of_another_machine_nothing_is_known(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    CampaignLock(path, os.getpid()).acquire("x", [])
    held = json.loads(path.read_text())
    held["owner"]["host"] = "south"
    path.write_text(json.dumps(held))
    with pytest.raises(CampaignHeldError, match="cannot be seen from here; if it is over, remove .*lock.json"):
        CampaignLock(path, os.getppid()).acquire("y", [])


def test_a_process_is_known_by_its_start() -> None:
    assert process_mark(os.getpid()) == process_mark(os.getpid()) != None  # noqa: E711
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert process_mark(ended.pid) is None
