# SPDX-License-Identifier: Apache-2.0
"""drain_slurm: forms of scontrol's output, whose drain it is, one call for all, and answers that say nothing."""

import pytest
from ansible.module_utils.gpufleet.drain_slurm import SlurmAnswerError, parse_nodes

MARK = "gpufleet:20261130T194500Z-driver"
SHOW = "scontrol --oneliner show node *"
# Recorded from Slurm 22.05.8 (tests/integration/drain); fields behind Reason are those of 23.11 and later.
IDLE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=1 CPUTot=1 CPULoad=13.92 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=(null) NodeAddr=127.0.0.1 NodeHostName=slurm Port=17001 "
    "Version=22.05.8 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=1 AllocMem=0 FreeMem=15113 Sockets=1 "
    "Boards=1 State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=all  "
    "BootTime=2026-11-30T19:20:27 SlurmdStartTime=2026-11-30T20:31:21 LastBusyTime=2026-11-30T20:31:21 "
    "CfgTRES=cpu=1,mem=1M,billing=1 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s "
    "ExtSensorsWatts=0 ExtSensorsTemp=n/s"
)


def node(name, state="IDLE", reason="", behind=""):
    line = IDLE.format(name=name).replace("State=IDLE", f"State={state}")
    return line + (f" Reason={reason}" if reason else "") + behind + "\n"


@pytest.mark.parametrize(
    ("state", "reason", "owner", "busy", "in_service"),
    [
        ("IDLE", "", "free", False, True),
        ("MIXED+PLANNED", "", "free", True, True),
        ("IDLE+RESERVED", "", "free", False, True),
        ("IDLE*", "", "free", False, False),
        ("IDLE+NOT_RESPONDING", "", "free", False, False),
        ("IDLE+DRAIN", f"{MARK} [root@2026-11-30T19:45:00]", "ours", False, False),
        ("ALLOCATED+DRAIN", f"{MARK} [root@2026-11-30T19:45:00]", "ours", True, False),
        ("IDLE+COMPLETING+DRAIN", MARK, "ours", True, False),
        ("DRAINING", MARK, "ours", True, False),
        ("DRAINED*", MARK, "ours", False, False),
        # after its reboot: Slurm appends to the reason
        ("DOWN*+DRAIN", f"{MARK} : Not responding [slurm@2026-11-30T19:50:00]", "ours", False, False),
        ("IDLE+DRAIN", "bad fan [ada@2026-11-30T10:00:00]", "other", False, False),
        ("IDLE+DRAIN", "", "other", False, False),
        ("IDLE+DRAIN", f"{MARK}-2 [root@2026-11-30T19:45:00]", "other", False, False),
        ("IDLE+DRAIN", f"not {MARK}", "other", False, False),
        ("DOWN", "Node unexpectedly rebooted [slurm@2026-11-30T10:00:00]", "other", False, False),
        ("DOWN*", MARK, "other", False, False),
        ("IDLE+CLOUD+POWERED_DOWN", "", "other", False, True),
        ("IDLE~", "", "free", False, True),
        ("IDLE+FAIL", "", "other", False, False),
    ],
)
def test_whose_node_it_is(state, reason, owner, busy, in_service):
    found = parse_nodes(node("a", state, reason))["a"].as_dict([MARK])
    assert (found["owner"], found["busy"], found["in_service"]) == (owner, busy, in_service)


@pytest.mark.parametrize("behind", ["", " Comment=none", " ReservationName=x", "   "])
@pytest.mark.parametrize(
    ("text", "reason", "by"),
    [
        ("bad fan [ada@2026-11-30T10:00:00]", "bad fan", "ada@2026-11-30T10:00:00"),
        ("job=7 failed: x [1] [root@2026-11-30T10:00:00]", "job=7 failed: x [1]", "root@2026-11-30T10:00:00"),
        ("no author", "no author", ""),
    ],
)
def test_reasons(text, reason, by, behind):
    found = parse_nodes(node("a", "IDLE+DRAIN", text, behind))["a"]
    assert (found.reason, found.reason_by) == (reason, by)


def test_an_answer_without_a_state_is_none():
    with pytest.raises(SlurmAnswerError, match="nothing of the state of a"):
        parse_nodes("NodeName=a Arch=x86_64\n")


def test_only_what_is_free_is_drained_in_one_call(commands, run_module):
    foreign = node("b", "IDLE+DRAIN", "bad fan [ada@2026-11-30T10:00:00]")
    ours = node("c", "IDLE+DRAIN", f"{MARK} [root@2026-11-30T19:45:00]")
    commands.answer(SHOW, node("a") + foreign + ours + node("d", "MIXED"))
    commands.answer(SHOW, node("a", "IDLE+DRAIN", MARK) + foreign + ours + node("d", "MIXED+DRAIN", MARK))
    commands.answer("scontrol update *")
    commands.answer("squeue *", "12|ada|d\n")
    wanted = {"state": "drained", "nodes": ["a", "b", "c", "d"], "reason": MARK, "marks": [MARK], "jobs": True}
    result = run_module("drain_slurm", **wanted)
    assert result["changed"] and result["acted_on"] == ["a", "d"]
    assert commands.calls("scontrol")[1] == f"scontrol update nodename=a,d state=drain reason={MARK}"
    assert len(commands.calls("scontrol")) == 3
    assert result["nodes"]["d"]["owner"] == "ours" and result["before"]["d"]["owner"] == "free"
    assert result["jobs"] == [{"id": "12", "user": "ada", "nodes": "d"}]
    assert "scancel" not in str(commands.calls("scontrol"))


def test_only_ours_is_given_back(commands, run_module):
    commands.answer(SHOW, node("a", "IDLE+DRAIN", MARK) + node("b", "IDLE+DRAIN", "bad fan") + node("c"))
    commands.answer("scontrol update *")
    result = run_module("drain_slurm", state="released", nodes=["a", "b", "c"], marks=[MARK])
    assert result["acted_on"] == ["a"]
    assert commands.calls("scontrol")[1] == "scontrol update nodename=a state=resume"


def test_check_mode_and_reading_alter_nothing(commands, run_module):
    commands.answer(SHOW, node("a"))
    result = run_module("drain_slurm", check=True, state="drained", nodes=["a"], reason=MARK, marks=[MARK])
    assert result["changed"] and result["acted_on"] == ["a"]
    assert not run_module("drain_slurm", nodes=["a"], marks=[MARK])["changed"]
    assert len(commands.calls("scontrol")) == 2


def test_a_node_that_slurm_does_not_know_is_named(commands, run_module):
    # recorded: Slurm 22.05.8 says it on standard output
    commands.answer(SHOW, node("a") + "Node b not found\n", rc=1)
    result = run_module("drain_slurm", nodes=["a", "b"], marks=[])
    assert result["unknown"] == ["b"] and list(result["nodes"]) == ["a"]


def test_answers_that_say_nothing(commands, run_module, monkeypatch):
    commands.answer(SHOW, rc=1, err="slurm_load_node error: Unable to contact slurm controller (connect failure)\n")
    result = run_module("drain_slurm", nodes=["a"], marks=[])
    assert result["failed"] and "Unable to contact slurm controller" in result["msg"] and result["next_step"]

    result = run_module("drain_slurm", state="drained", nodes=["a"], reason="x", marks=[MARK])
    assert result["failed"] and "one of marks" in result["msg"]

    monkeypatch.setenv("PATH", "/nonexistent")
    result = run_module("drain_slurm", nodes=["a"], marks=[])
    assert "there is no scontrol on this host" in result["msg"] and "drain_host" in result["next_step"]
