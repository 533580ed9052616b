# SPDX-License-Identifier: Apache-2.0
"""Run the molecule scenarios of one kind, or those that are named, and end with a table of durations.

    python tools/molecule_scenarios.py containers              all scenarios without the lab node, two at a time
    python tools/molecule_scenarios.py lab                     all scenarios on the lab node, one after the other
    python tools/molecule_scenarios.py node_exporter preflight

Each scenario is a molecule process of its own: molecule mixes up the life cycles of scenarios that share state and
scenarios that do not. Each has its own state folder below build/scenarios/ (molecule's default is named after the
checkout's last path component only, so two clones would share one), and its output in build/scenarios/<name>.log.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "build" / "scenarios"
# Starts the lab node for the others; it is no test.
NOT_A_TEST = "default"
KINDS = ("containers", "lab")
# Image, two containers and four runs take about 2 minutes; a lab scenario has the lab stage's 30 minutes at most.
SCENARIO_LIMIT_S = 2400
LOG_LINES_SHOWN = 80
# The suite's site and drift tests have taken the lab node's roles through --check and a second run, on the same node,
# where a task costs seconds; `molecule test -s ROLE` by hand does it again.
STEPS = {"containers": ("test",), "lab": ("converge", "verify")}

running: set[subprocess.Popen[bytes]] = set()


def end_scenarios(signum: int, frame: object) -> None:
    """On SIGTERM: end the scenarios too. Their containers stay; the next run of a scenario begins by removing them."""
    for process in list(running):
        process.terminate()
    sys.exit(128 + signum)


@dataclass(frozen=True)
class Outcome:
    """What became of a scenario."""

    name: str
    seconds: float
    passed: bool
    log: Path


def kind_of(settings: dict[str, Any]) -> str:
    """The kind of a scenario by the content of its molecule.yml: those that share state share the lab node."""
    return "lab" if settings.get("shared_state") else "containers"


def scenarios_by_kind(folder: Path) -> dict[str, list[str]]:
    """Names of the scenarios in a molecule folder, by kind."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for file in sorted(folder.glob("*/molecule.yml")):
        if file.parent.name != NOT_A_TEST:
            found[kind_of(yaml.safe_load(file.read_text()) or {})].append(file.parent.name)
    return found


def run_step(name: str, step: str, environment: dict[str, str], log: BinaryIO) -> bool:
    """Run one step of a scenario; whether it ended well within its limit."""
    process = subprocess.Popen(
        ["molecule", step, "-s", name], cwd=REPOSITORY, env=environment, stdout=log, stderr=subprocess.STDOUT
    )
    running.add(process)
    try:
        return process.wait(timeout=SCENARIO_LIMIT_S) == 0
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        log.write(f"\n{step}: ended after {SCENARIO_LIMIT_S} s\n".encode())
        return False
    finally:
        running.discard(process)


def run_scenario(name: str, steps: Sequence[str]) -> Outcome:
    """Run molecule's steps of one scenario, up to the first that fails, with their output in a log."""
    state = RESULTS / name
    log = RESULTS / f"{name}.log"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    environment = {
        **os.environ,
        # molecule finds ansible by PATH only
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MOLECULE_EPHEMERAL_DIRECTORY": str(state),
        "NO_COLOR": "1",
    }
    print(f"{name}: started, output in {log.relative_to(REPOSITORY)}", flush=True)
    began = time.monotonic()
    with log.open("wb") as file:
        passed = all(run_step(name, step, environment, file) for step in steps)
    seconds = time.monotonic() - began
    print(f"{name}: {'passed' if passed else 'FAILED'} in {seconds:.0f} s", flush=True)
    return Outcome(name, seconds, passed, log)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", help="one of the kinds, or names of scenarios")
    parser.add_argument("--jobs", type=int, default=2, help="container scenarios at the same time (default 2)")
    arguments = parser.parse_args()

    known = scenarios_by_kind(REPOSITORY / "molecule")
    chosen: list[str] = []
    for what in arguments.what:
        chosen += known[what] if what in KINDS else [what]
    unknown = sorted(set(chosen) - {name for names in known.values() for name in names})
    if unknown or not chosen:
        print(f"no such scenario: {', '.join(unknown or arguments.what)}; there are {known}", file=sys.stderr)
        return 2

    signal.signal(signal.SIGTERM, end_scenarios)
    RESULTS.mkdir(parents=True, exist_ok=True)
    # The lab's scenarios share one node.
    on_lab = [name for name in chosen if name in known["lab"]]
    others = [name for name in chosen if name not in on_lab]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = list(pool.map(lambda name: run_scenario(name, STEPS["containers"]), others))
    outcomes += [run_scenario(name, STEPS["lab"]) for name in on_lab]

    for outcome in outcomes:
        if not outcome.passed:
            lines = outcome.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            print(f"\n--- end of {outcome.log.relative_to(REPOSITORY)}", *lines, sep="\n")
    print("\n=== scenarios")
    for outcome in outcomes:
        print(f"{outcome.name:<24} {outcome.seconds:6.0f} s  {'passed' if outcome.passed else 'FAILED'}")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
