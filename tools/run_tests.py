# SPDX-License-Identifier: Apache-2.0
"""Run the test suite stage by stage and end with a table of durations.

Every stage runs even when an earlier one failed, so that one run shows all that
is wrong; a step whose preparation failed is reported as not run, which counts as
a failure. The whole output of each step is kept in build/test-logs/.

The controller's tests and the containers run beside the virtual node, one after the
other: an emulated node keeps one core busy, and they take the other. The output of each
stage is printed in one piece at its end.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LOGS = REPOSITORY / "build" / "test-logs"
MACHINE_STATE = REPOSITORY / "build" / "machine-state.json"

LAB_FOLDERS = ("health", "drift", "gpu_stack_lab", "storage", "lab")

# A step that exceeds this is stuck: three times the slowest machine seen.
STEP_LIMIT_S = 3600


@dataclass(frozen=True)
class Step:
    """One command of a stage; `needs` names steps without which it makes no sense."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """Steps that share a time budget (CONTRIBUTING.md, "Time budget")."""

    name: str
    budget_min: int
    says: str
    steps: tuple[Step, ...]
    fast: bool = False
    beside_next: bool = False


@dataclass
class Outcome:
    """What became of a step: seconds, and `passed`, `failed` or `not run`."""

    stage: str
    step: str
    seconds: float
    result: str
    log: Path | None = field(default=None)


def python(*arguments: str) -> tuple[str, ...]:
    """Command line of this interpreter, which is the one of the project's environment."""
    return (sys.executable, *arguments)


def pytest(*arguments: str) -> tuple[str, ...]:
    """Command line of pytest with a reminder of the slowest tests."""
    return python("-m", "pytest", "-q", "--durations=5", *arguments)


def _lab_folder(name: str) -> Step:
    return Step(f"pytest-{name}", pytest("-m", "lab", f"tests/integration/{name}"), ("lab-up",))


def shell_files() -> list[str]:
    """Tracked files that start with a shell's shebang; a template is no shell before it is filled in."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    found = []
    for name in filter(None, names):
        path = REPOSITORY / name
        if path.is_file() and not path.is_symlink() and path.suffix != ".j2":
            with path.open("rb") as file:
                first = file.readline(80)
            if first.startswith(b"#!") and (b"bash" in first or first.rstrip().endswith(b"/sh")):
                found.append(name)
    return found


def stages() -> tuple[Stage, ...]:
    """The suite, in order. CONTRIBUTING.md says where a new test belongs."""
    static = Stage(
        "static",
        8,
        "linters and type checks",
        (
            Step("ruff", ("ruff", "check")),
            Step("ruff-format", ("ruff", "format", "--check")),
            Step("mypy", ("mypy",)),
            Step("shellcheck", ("shellcheck", *shell_files())),
            Step("yamllint", ("yamllint", "--strict", ".")),
            Step("ansible-lint", ("ansible-lint", "--strict")),
        ),
        fast=True,
    )
    unit = Stage(
        "unit",
        8,
        "pure logic, and modules through main()",
        (Step("pytest-unit", pytest("-n", "2", "tests/unit", "tests/modules")),),
        fast=True,
    )
    # By themselves: they measure time.
    benches = Stage(
        "benches",
        3,
        "what a health check costs",
        (
            Step("bench-node-health", ("bench/node_health",)),
            Step("bench-validate", ("bench/validate", "--hosts", "32")),
        ),
        fast=True,
    )
    controller = Stage(
        "controller",
        10,
        "the real ansible-playbook without nodes: preflight, reports, progress, campaigns",
        (Step("pytest-controller", pytest("-n", "2", "-m", "not lab and not container", "tests/integration")),),
        fast=True,
        beside_next=True,
    )
    # By itself: building the image takes both cores.
    image = Stage(
        "image",
        12,
        "the image of the virtual node, if not cached, and its first boot",
        (Step("lab-up", python("-m", "lab", "up")),),
    )
    containers = Stage(
        "containers",
        45,
        "roles in Debian 12 and 13 systemd containers",
        (
            Step("container-images", ("tools/container_images",)),
            Step("molecule-containers", python("tools/molecule_scenarios.py", "containers"), ("container-images",)),
            Step("pytest-container", pytest("-m", "container", "tests/integration"), ("container-images",)),
        ),
        beside_next=True,
    )
    lab = Stage(
        "lab",
        68,
        "the virtual node: boots and plays, what needs no node beside it",
        (
            # In this order: a fresh node to a converged one, what that costs and its health, drift on it, its other
            # kernel, disks, and the other faults; at last another fresh node, whose clock is wrong in another way.
            _lab_folder("site"),
            # Here the node is converged, so that one run is enough.
            Step("bench", ("bench/host_tasks", "--playbook", "site.yml", "--hosts", "32"), ("lab-up",)),
            *(_lab_folder(name) for name in LAB_FOLDERS),
            Step("molecule-lab", python("tools/molecule_scenarios.py", "lab"), ("lab-up",)),
            _lab_folder("clock"),
            Step("lab-down", python("-m", "lab", "down"), ("lab-up",)),
        ),
    )
    return (static, unit, benches, image, controller, containers, lab)


class Screen:
    """Standard output, shared by stages that run beside each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self._lock:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def copy(self, logs: list[Path]) -> None:
        """Whole files in one piece."""
        self.write(b"".join(log.read_bytes() for log in logs))


class Suite:
    """Runs stages and knows the processes that run, so that an interrupt ends them."""

    def __init__(self) -> None:
        self._screen = Screen()
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._broken: set[str] = set()
        self._ended = False

    def run(self, chosen: Sequence[Stage]) -> list[Outcome]:
        """What became of each step, in the order of the stages."""
        outcomes: dict[str, list[Outcome]] = {}
        beside: list[Stage] = []
        thread: threading.Thread | None = None
        try:
            for position, stage in enumerate(chosen):
                if stage.beside_next and position + 1 < len(chosen):
                    beside.append(stage)
                    continue
                if beside:
                    thread = threading.Thread(target=self._run_beside, args=(beside, outcomes))
                    thread.start()
                outcomes[stage.name] = self._run_stage(stage, quiet=False)
                if thread:
                    thread.join()
                beside, thread = [], None
        except BaseException:
            self._ended = True
            for process in list(self._running):
                process.terminate()
            if thread:
                thread.join(timeout=60)
            raise
        return [outcome for stage in chosen for outcome in outcomes[stage.name]]

    def _run_beside(self, stages: Sequence[Stage], outcomes: dict[str, list[Outcome]]) -> None:
        for stage in stages:
            outcomes[stage.name] = self._run_stage(stage, quiet=True)
            self._screen.copy([outcome.log for outcome in outcomes[stage.name] if outcome.log])

    def _run_stage(self, stage: Stage, quiet: bool) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for step in stage.steps:
            missing = [need for need in step.needs if need in self._broken]
            if self._ended:
                outcome = Outcome(stage.name, step.name, 0.0, "not run (interrupted)")
            elif missing:
                outcome = Outcome(stage.name, step.name, 0.0, f"not run (needs {', '.join(missing)})")
            else:
                outcome = self._run_step(stage, step, quiet)
            if outcome.result != "passed":
                self._broken.add(step.name)
            outcomes.append(outcome)
        return outcomes

    def _run_step(self, stage: Stage, step: Step, quiet: bool) -> Outcome:
        """Run one step, its output in its log and, unless quiet, on the screen as it comes."""
        log = LOGS / f"{stage.name}-{step.name}.log"
        began = time.monotonic()
        with log.open("wb") as file:

            def put(data: bytes) -> None:
                file.write(data)
                if not quiet:
                    self._screen.write(data)

            put(f"\n--- {stage.name} / {step.name}: {shlex.join(step.command)[:160]}\n".encode())
            process = subprocess.Popen(
                step.command, cwd=REPOSITORY, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            self._running.add(process)
            assert process.stdout is not None
            watchdog = threading.Timer(STEP_LIMIT_S, process.kill)
            watchdog.start()
            try:
                with process.stdout:
                    # In pieces as they come, not in lines: pytest's dots are the only sign of life for minutes.
                    while piece := os.read(process.stdout.fileno(), 65536):
                        put(piece)
                code = process.wait()
            except BaseException:
                process.terminate()
                process.wait(timeout=60)
                raise
            finally:
                watchdog.cancel()
                self._running.discard(process)
        seconds = time.monotonic() - began
        return Outcome(stage.name, step.name, seconds, "passed" if code == 0 else f"failed ({code})", log)


def print_table(chosen: tuple[Stage, ...], outcomes: list[Outcome], total: float) -> None:
    """The closing table: each step with its time, each stage against its budget."""
    print("\n=== durations")
    for stage in chosen:
        mine = [outcome for outcome in outcomes if outcome.stage == stage.name]
        spent = sum(outcome.seconds for outcome in mine)
        over = "  OVER BUDGET" if spent > stage.budget_min * 60 else ""
        print(f"{stage.name:<12} {spent / 60:6.1f} min of {stage.budget_min}{over}")
        for outcome in mine:
            print(f"    {outcome.step:<22} {outcome.seconds:7.0f} s  {outcome.result}")
    print(f"{'all':<12} {total / 60:6.1f} min")
    failed = [outcome for outcome in outcomes if outcome.result != "passed"]
    for outcome in failed:
        where = f", see {outcome.log.relative_to(REPOSITORY)}" if outcome.log else ""
        print(f"FAILED: {outcome.stage} / {outcome.step}: {outcome.result}{where}")
    print(f"{len(outcomes) - len(failed)} passed, {len(failed)} failed")


def parse_arguments(names: list[str]) -> argparse.Namespace:
    """Command line; --only takes stage names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="leave out containers and the virtual node")
    parser.add_argument("--only", nargs="+", choices=names, metavar="STAGE", help=f"of: {', '.join(names)}")
    return parser.parse_args()


def main() -> int:
    """Run the chosen stages between two records of the machine's state."""
    everything = stages()
    arguments = parse_arguments([stage.name for stage in everything])
    if arguments.only:
        chosen = tuple(stage for stage in everything if stage.name in arguments.only)
    else:
        chosen = tuple(stage for stage in everything if stage.fast or not arguments.fast)
    # Static checks touch nothing, so they need no proof of it.
    watched = {stage.name for stage in chosen} != {"static"}
    LOGS.mkdir(parents=True, exist_ok=True)
    print("This run does, in order:")
    for stage in chosen:
        print(f"  {stage.name:<12} {stage.says} (at most {stage.budget_min} min on 2 cores)")
    if watched:
        print("  and proves that clock, kernel modules and sysctls of this machine are as before.", flush=True)
    began = time.monotonic()
    record = Step("record", python("-m", "tests.machine_state", "record", str(MACHINE_STATE)))
    compare = Step("compare", python("-m", "tests.machine_state", "compare", str(MACHINE_STATE)), ("record",))
    machine = {name: Stage(name, 1, "", (step,)) for name, step in (("before", record), ("after", compare))}
    plan = (machine["before"], *chosen, machine["after"]) if watched else chosen
    outcomes = Suite().run(plan)
    print_table(plan, outcomes, time.monotonic() - began)
    return 0 if all(outcome.result == "passed" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
