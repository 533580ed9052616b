# SPDX-License-Identifier: Apache-2.0
"""Campaigns over a fleet of files: where they stop, what stays out of service, and how the next run goes on."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from .conftest import NEW, OLD, REPOSITORY, Fleet

SIX = {"rack_1": ["gpu-1", "gpu-2", "gpu-3"], "rack_2": ["gpu-4", "gpu-5", "gpu-6"]}
WITHOUT_PREFLIGHT = ("--skip-tags", "always")


def mark(fleet: Fleet) -> str:
    """Reason that this fleet's campaign gives."""
    return "gpufleet:" + fleet.records()[0]["campaign"]


def test_a_sick_canary_stops_the_campaign_and_the_next_run_goes_on(fleet: Fleet) -> None:
    fleet.put("gpu-1", fault="sick")
    run = fleet.run()
    assert run.code == 2, run.output
    assert "  Campaign 2" in run.output and "canary        1  gpu-1" in run.output, "the plan is printed first"
    assert fleet.touched() == ["gpu-1"]
    assert fleet.drained() == {"gpu-1": mark(fleet)}
    assert run.outcomes() == {"gpu-1": "failed", "gpu-2": "not_run", "gpu-3": "not_run", "gpu-4": "not_run"}
    for words in (
        "gpu.ecc GPU 3: 2 uncorrected errors",
        f"its upgrade failed, so it stays out of service (drained as {mark(fleet)})",
        "stopped after batch 1 of 2: 1 of 1 nodes failed, 0 may (upgrade_max_failed): gpu-1",
        "these nodes stay out of service, and no node of a later batch was touched",
        "run the same command again",
    ):
        assert words in run.summary, words

    # Nothing was mended: the same node is the canary again, and is judged again without another upgrade.
    run = fleet.run(*WITHOUT_PREFLIGHT)
    assert run.code == 2 and "begun by an earlier run, come first" in run.output
    assert fleet.touched() == ["gpu-1"] and fleet.node("gpu-1")["upgrades"] == 1

    fleet.mend("gpu-1")
    run = fleet.run(*WITHOUT_PREFLIGHT)
    assert run.code == 0, run.output
    assert fleet.upgraded() == fleet.names and fleet.drained() == {}
    assert all(fleet.node(name)["upgrades"] == fleet.node(name)["reboots"] == 1 for name in fleet.names)
    assert fleet.steps().count("campaign_started") == 1, "it was the same campaign all the time"
    assert fleet.steps()[-1] == "campaign_completed" and "is done" in run.output

    # All of it again: measured, nothing to do, nothing written.
    before = fleet.records()
    run = fleet.run(*WITHOUT_PREFLIGHT)
    assert run.code == 0 and "Nothing to do: driver" in run.output
    assert fleet.records() == before and run.report["totals"]["changed"] == 0


def test_a_batch_that_fails_in_part_gives_back_who_is_well(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, SIX)
    for name, fault in (("gpu-2", "role"), ("gpu-4", "lost")):
        fleet.put(name, fault=fault)
    run = fleet.run(*WITHOUT_PREFLIGHT)
    assert run.code == 2, run.output
    # Canary gpu-1; the batch takes two of rack 1 and one of rack 2, as the caps say.
    assert fleet.upgraded() == ["gpu-1", "gpu-3"]
    assert set(fleet.drained()) == {"gpu-2", "gpu-4"}
    assert not {"gpu-5", "gpu-6"} & set(fleet.touched())
    assert "stopped after batch 2 of 3: 2 of 3 nodes failed, 0 may (upgrade_max_failed): gpu-[2,4]" in run.summary
    assert "dkms cannot build nvidia-open" in run.summary and "did not come back" in run.summary
    assert run.outcomes()["gpu-3"] == "changed" and run.outcomes()["gpu-5"] == "not_run"
    stopped = [record for record in fleet.records() if record["step"] == "batch_ended"][-1]
    assert stopped["nodes"] == ["gpu-3"] and stopped["failed"] == ["gpu-2", "gpu-4"]

    # As many may fail as the operator says; the run still ends with an error, and they stay out.
    run = fleet.run(*WITHOUT_PREFLIGHT, "-e", '{"upgrade_max_failed": 2, "upgrade_canary": 0}')
    assert run.code == 2, run.output
    assert fleet.upgraded() == ["gpu-1", "gpu-3", "gpu-5", "gpu-6"]
    assert set(fleet.drained()) == {"gpu-2", "gpu-4"}


def test_nodes_that_are_lost_on_the_way(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, SIX)
    fleet.put("gpu-1", fault="unreachable")
    fleet.put("gpu-2", fault="vanishes")
    fleet.put("gpu-3", fault="stuck")
    run = fleet.run(*WITHOUT_PREFLIGHT)
    # gpu-1 was never reached, so it is no part of it; the canary gpu-2 is lost after its roles, and nobody is left.
    assert run.code == 4, run.output
    assert "not measured, left out" in run.output
    assert fleet.touched() == ["gpu-2"] and set(fleet.drained()) == {"gpu-2"}
    assert run.outcomes()["gpu-1"] == run.outcomes()["gpu-2"] == "unreachable"
    assert run.outcomes()["gpu-3"] == "not_run"

    for name in ("gpu-1", "gpu-2"):
        fleet.mend(name)
    run = fleet.run(*WITHOUT_PREFLIGHT)
    # A node whose packages did not change, though no task failed, is found by measuring it again.
    assert run.code == 2, run.output
    assert f"not what the profile wants: installed: {OLD}" in run.summary
    assert "gpu-3" not in fleet.upgraded() and "gpu-3" in fleet.drained()


def test_check_mode_plans_and_touches_nothing(fleet: Fleet) -> None:
    run = fleet.run("--check")
    assert run.code == 0, run.output
    assert f"driver {OLD} -> {NEW}" in run.output and "batch 2       3  gpu-[2-4]" in run.output
    assert run.report["hosts"]["gpu-3"]["outcome"] == "changed", "the roles say what they would do"
    assert fleet.touched() == [] and fleet.drained() == {}
    assert not (fleet.folder / "state").exists()
    assert all(call[0] == "show" for call in fleet.scontrol_calls())

    run = fleet.run("--check", "--tags", "upgrade_plan")
    assert run.code == 0 and "batch 2       3  gpu-[2-4]" in run.output
    assert {host["host_tasks"] for host in run.report["hosts"].values()} == {1}


def test_one_campaign_at_a_time_wherever_the_reports_go(fleet: Fleet) -> None:
    fleet.slurm({**{name: {} for name in fleet.names}, "gpu-1": {"base": "ALLOCATED"}})
    first = fleet.start(*WITHOUT_PREFLIGHT)
    try:
        deadline = time.monotonic() + 120
        while not (list((fleet.folder / "state").glob("*/journal.jsonl")) and "draining" in fleet.steps()):
            assert time.monotonic() < deadline and first.poll() is None, "the first run did not begin to drain"
            time.sleep(0.1)
        second = fleet.run(*WITHOUT_PREFLIGHT, GPUFLEET_REPORTS_DIR=str(fleet.folder / "other-reports"))
        assert second.code == 2
        assert f"pid {first.pid}" in second.output and "upgrade of driver" in second.output
        assert "It has held the campaign for" in second.output
        assert fleet.steps().count("planned") == 1
    finally:
        first.kill()
        first.communicate()
    # The lock of a run that was killed holds nobody up, and the worker that outlived it does not go on.
    fleet.slurm({**{name: {} for name in fleet.names}, "gpu-1": {"drain": True, "reason": mark(fleet)}})
    run = fleet.run(*WITHOUT_PREFLIGHT)
    assert run.code == 0, run.output
    assert fleet.upgraded() == fleet.names and fleet.drained() == {}


def test_jobs_that_do_not_end_in_time(fleet: Fleet) -> None:
    fleet.slurm({**{name: {} for name in fleet.names}, "gpu-3": {"base": "MIXED"}})
    run = fleet.run(*WITHOUT_PREFLIGHT, "-e", '{"drain_timeout": 2}')
    assert run.code == 2, run.output
    assert fleet.upgraded() == ["gpu-1", "gpu-2", "gpu-4"], "the others of the batch were free"
    assert fleet.drained() == {"gpu-3": mark(fleet)}, "it stays drained, so that the next run finds it free"
    assert "could not be freed: not free within 2 s: job 4711 of alice on gpu-3" in run.summary
    assert run.outcomes()["gpu-3"] == "failed"
    assert not [call for call in fleet.scontrol_calls() if call[0] == "cancel"]


def test_a_command_of_the_operators_and_two_parts(fleet: Fleet) -> None:
    log = fleet.folder / "calls"
    script = fleet.folder / "hook"
    script.write_text(
        f'#!/bin/sh\necho "$1 $GPUFLEET_NODES $GPUFLEET_REASON $SITE" >> {log}\n'
        'test "$1" = cordon && case " $GPUFLEET_NODES " in *" gpu-2 "*) echo left gpu-2 in repair;; esac\n'
        'test "$1" = cordon && case " $GPUFLEET_NODES " in *" gpu-3 "*) echo refused gpu-3 a pod stays;; esac\nexit 0\n'
    )
    script.chmod(0o755)
    fleet.variables.update(
        drain_provider="command",
        drain_host=None,
        drain_command=[str(script), "cordon"],
        drain_release_command=[str(script), "uncordon"],
        drain_environment={"SITE": "north"},
        upgrade_parts=["docker", "driver"],
    )
    fleet.variables["node_profile_overrides_fleet"]["packages"]["docker"] = {"version": "28.3.3"}
    run = fleet.run()
    assert run.code == 2, run.output
    assert "docker none -> 28.3.3" in run.output and f"driver {OLD} -> {NEW}" in run.output
    assert fleet.node("gpu-4")["installed"] == {"nvidia-open": f"{NEW}-1", "docker-ce": "28.3.3-1"}
    assert fleet.node("gpu-4")["reboots"] == 1, "one reboot for all parts"
    assert fleet.upgraded() == ["gpu-1", "gpu-4"]
    assert log.read_text().splitlines() == [
        f"cordon gpu-1 {mark(fleet)} north",
        f"uncordon gpu-1 {mark(fleet)} north",
        f"cordon gpu-2 gpu-3 gpu-4 {mark(fleet)} north",
        f"uncordon gpu-4 {mark(fleet)} north",
    ]
    assert "somebody else keeps it from jobs: in repair" in run.summary
    assert "could not be freed: a pod stays" in run.summary
    assert run.outcomes() == {"gpu-1": "changed", "gpu-2": "attention", "gpu-3": "failed", "gpu-4": "changed"}


def test_without_a_drain_the_journal_knows_who_was_begun(fleet: Fleet) -> None:
    fleet.variables.update(drain_provider="none", drain_host=None)
    names = ["campaign_started", "planned", "batch_started", "draining", "drained", "roles_ran"]
    killed = fleet.run_killed_after(len(names), *WITHOUT_PREFLIGHT)
    assert killed.code != 0 and fleet.steps() == names
    # Right by its packages and its driver, but never judged: only the journal tells that.
    fleet.put("gpu-1", installed={"nvidia-open": f"{NEW}-1"}, loaded=NEW)
    run = fleet.run(*WITHOUT_PREFLIGHT)
    assert run.code == 0, run.output
    assert "begun by an earlier run, come first             1  gpu-1" in run.output
    assert fleet.upgraded() == fleet.names


def test_limits_other_targets_and_other_providers(fleet: Fleet) -> None:
    fleet.put("gpu-1", fault="sick")
    assert fleet.run(*WITHOUT_PREFLIGHT).code == 2
    # The rest of the fleet does not wait for the sick node; it stays out, and the plan says so.
    run = fleet.run(*WITHOUT_PREFLIGHT, "--limit", "gpu-2,gpu-3")
    assert run.code == 0, run.output
    assert fleet.upgraded() == ["gpu-1", "gpu-2", "gpu-3"]
    assert "kept by a campaign, but outside this run        1  gpu-1" in run.output
    assert set(fleet.drained()) == {"gpu-1"} and "campaign_completed" not in fleet.steps()

    # What Slurm drained must not be left to another provider.
    run = fleet.run(*WITHOUT_PREFLIGHT, "-e", '{"drain_provider": "none"}')
    assert run.code == 2
    assert "gpu-1: taken out of service by slurm, and drain_provider is none now" in run.output

    # Another version in the profile is another campaign; it knows the drain of the first one as ours.
    fleet.mend("gpu-1")
    packages: Any = fleet.variables["node_profile_overrides_fleet"]["packages"]
    packages["nvidia_driver"]["version"] = "580.126.09"
    run = fleet.run(*WITHOUT_PREFLIGHT)
    assert run.code == 0, run.output
    assert "campaign_superseded" in fleet.steps() and fleet.steps()[-1] == "campaign_completed"
    assert {fleet.node(name)["loaded"] for name in fleet.names} == {"580.126.09"} and fleet.drained() == {}


# Variable, a value that is refused, what is said.
BAD: list[tuple[str, Any, str]] = [
    ("upgrade_parts", ["drivers"], "drivers"),
    ("upgrade_batch_groups", "row_*", "in none or in several groups that match upgrade_batch_groups"),
    ("upgrade_group_size", 0, "at least 1"),
    ("upgrade_batch_size", 0, "at least 1"),
    ("drain_provider", "slrm", "slrm"),
    ("drain_host", None, "drain_host does not say where scontrol is"),
    ("drain_host", "logn-1", "drain_host is no host of the inventory"),
    ("drain_host", "both", "drain_host is one of the nodes"),
    ("reboot_allowed", False, "reboot_allowed is false"),
    (
        "node_profile_overrides_fleet",
        {"platform": {"clock": {"servers": [{"address": "10.0.0.1"}]}}},
        "the profile does not manage it or names no version",
    ),
]


def test_bad_input_is_refused_before_anything_is_touched(fleet: Fleet) -> None:
    """One host for each mistake, and one in two of the groups; preflight alone."""
    hosts: dict[str, Any] = {f"bad-{number}": {name: value} for number, (name, value, _words) in enumerate(BAD)}
    fleet.variables.update(upgrade_batch_groups="rack_*")
    fleet.racks = {"rack_1": {"hosts": {**hosts, "both": {}}}, "rack_2": {"hosts": {"both": {}}}}
    command = fleet.command()
    command[command.index("playbooks/upgrade.yml")] = "playbooks/preflight.yml"
    done = subprocess.run(
        command, cwd=REPOSITORY, env=fleet.environment(), capture_output=True, text=True, timeout=120, check=False
    )
    [report] = (fleet.folder / "reports").glob("*/report.json")
    told = json.loads(report.read_text())["controller"]["failures"][0]["message"]
    assert done.returncode == 2, told
    for name, _value, words in BAD:
        assert words in told, (name, told)
    assert "both" in told.split("in none or in several groups")[0].rsplit("variables of the role", 1)[1]


def test_nothing_to_upgrade_is_named(fleet: Fleet) -> None:
    run = fleet.run(*WITHOUT_PREFLIGHT, "-e", '{"upgrade_parts": []}')
    assert run.code == 2
    assert "upgrade_parts names nothing to upgrade" in run.output
    assert not (fleet.folder / "state").exists()


def test_a_torn_journal_is_gone_on_from(fleet: Fleet) -> None:
    killed = fleet.run_killed_after(5, *WITHOUT_PREFLIGHT)
    assert killed.code != 0 and fleet.steps()[-1] == "drained"
    with fleet.journal.open("a") as file:
        file.write('{"when": "2026')  # a record that a power cut left unfinished
    run = fleet.run(*WITHOUT_PREFLIGHT)
    assert run.code == 0, run.output
    assert fleet.upgraded() == fleet.names and fleet.drained() == {}
