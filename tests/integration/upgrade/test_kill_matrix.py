# SPDX-License-Identifier: Apache-2.0
"""A campaign that is killed right after any of its journal's records, and run again, ends as if nothing had been."""

import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .conftest import Fleet

RACKS = {"rack_1": ["gpu-1", "gpu-2"], "rack_2": ["gpu-3", "gpu-4"]}
# gpu-4 was drained by a colleague, who has not said when it will be back.
FOREIGN = {"gpu-4": {"drain": True, "reason": "bad fan"}}
# Preflight writes no record, and costs two seconds a run.
WITHOUT_PREFLIGHT = ("--skip-tags", "always")


def make(folder: Path) -> Fleet:
    fleet = Fleet(folder, RACKS)
    fleet.slurm({name: FOREIGN.get(name, {}) for name in fleet.names})
    return fleet


def complaints(fleet: Fleet, where: str) -> Iterator[str]:
    """What is not as after a campaign that nobody disturbed."""
    if fleet.upgraded() != ["gpu-1", "gpu-2", "gpu-3"]:
        yield f"{where}: upgraded are {fleet.upgraded()}"
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        node = fleet.node(name)
        if (node["upgrades"], node["reboots"], node["requests"]) != (1, 1, []):
            yield f"{where}: {name} was upgraded or rebooted more or less than once: {node}"
    if fleet.drained() != {"gpu-4": "bad fan"}:
        yield f"{where}: drained are {fleet.drained()}"
    touched = [call for call in fleet.scontrol_calls() if call[0] == "update" and "gpu-4" in call[1]]
    if touched or fleet.touched().count("gpu-4"):
        yield f"{where}: somebody else's node was touched: {touched}"
    if fleet.steps()[-1] != "campaign_completed" or fleet.steps().count("campaign_started") != 1:
        yield f"{where}: the journal ends with {fleet.steps()}"


def killed_and_resumed(folder: Path, records: int, number: signal.Signals) -> list[str]:
    """Run it, kill it after this many records, run it again; returns what is wrong then."""
    where = f"{number.name} after record {records}"
    fleet = make(folder)
    killed = fleet.run_killed_after(records, *WITHOUT_PREFLIGHT, number=number)
    wrong = [] if killed.code else [f"{where}: the run was not killed"]
    # What outlives a killed run must not go on with the campaign.
    if len(fleet.steps()) != records:
        wrong.append(f"{where}: {fleet.steps()[records:]} were written by a run that was dead")
    again = fleet.run(*WITHOUT_PREFLIGHT)
    if again.code != 0:
        wrong.append(f"{where}: the second run ended with {again.code}:\n{again.output}")
    wrong += complaints(fleet, f"{where} ({fleet.steps()[records - 1]})")
    shutil.rmtree(folder)
    return wrong


def test_killed_after_any_record_and_run_again(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole")
    run = whole.run(*WITHOUT_PREFLIGHT)
    assert run.code == 0, run.output
    assert list(complaints(whole, "undisturbed")) == []
    steps = whole.steps()
    assert steps.count("batch_started") == 2, "a canary and another batch"

    # After the last record there is nothing left to kill.
    cases = [(number, signal.SIGKILL) for number in range(1, len(steps))]
    cases.append((steps.index("drained") + 1, signal.SIGTERM))
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda case: killed_and_resumed(tmp_path / f"{case[0]}-{case[1].name}", *case), cases)
        wrong = [line for lines in found for line in lines]
    assert wrong == []
