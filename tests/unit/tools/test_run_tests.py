# SPDX-License-Identifier: Apache-2.0
"""The runner of the suite: what needs a failed step is not run, and stages side by side do not mix their output."""

import signal
import sys
import time
from pathlib import Path

import pytest

from tools import run_tests
from tools.run_tests import Stage, Step, Suite


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)
    return tmp_path


def step(name: str, script: str, *needs: str) -> Step:
    return Step(name, ("sh", "-c", script), needs)


def results(*stages: Stage) -> dict[str, str]:
    return {outcome.step: outcome.result for outcome in Suite().run(stages)}


def test_what_needs_a_failed_step_is_not_run_and_the_rest_is() -> None:
    first = Stage("first", 1, "", (step("bad", "exit 3"), step("after", "true", "bad"), step("other", "true")))
    second = Stage("second", 1, "", (step("later", "true", "bad"), step("last", "true")))
    assert results(first, second) == {
        "bad": "failed (3)",
        "after": "not run (needs bad)",
        "other": "passed",
        "later": "not run (needs bad)",
        "last": "passed",
    }


def test_stages_beside_each_other_run_at_once_and_the_first_prints_in_one_piece(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    beside = Stage("beside", 1, "", (step("a", "echo a1; sleep 1; echo a2"), step("b", "echo b1")), beside_next=True)
    second = Stage("second", 1, "", (step("c", "echo c1"),), beside_next=True)
    main = Stage("main", 1, "", tuple(step(f"m{number}", f"echo m{number}; sleep 0.7") for number in range(3)))
    began = time.monotonic()
    names = list(results(beside, second, main, Stage("end", 1, "", (step("e", "echo e1"),))))
    assert names == ["a", "b", "c", "m0", "m1", "m2", "e"], "in the order of the stages"
    assert time.monotonic() - began < 3.1
    lines = [line for line in capfdbinary.readouterr().out.decode().splitlines() if line and not line.startswith("---")]
    first = lines.index("a1")
    assert lines[first : first + 3] == ["a1", "a2", "b1"] and first < lines.index("c1")
    assert lines[-1] == "e1" and len(lines) == 8


def test_a_stage_that_is_alone_at_the_end_prints_as_it_goes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert results(Stage("only", 1, "", (step("a", "echo a1"),), beside_next=True)) == {"a": "passed"}
    assert b"a1" in capfdbinary.readouterr().out


def test_an_interrupt_ends_both_and_nothing_is_begun_after_it(logs: Path) -> None:
    later = logs / "later"
    beside = Stage("beside", 1, "", (step("a", "exec sleep 60"), step("b", f"touch {later}")), beside_next=True)
    main = Stage("main", 1, "", (step("m", "exec sleep 60"),))

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            Suite().run((beside, main))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 20 and not later.exists()


def test_every_need_is_a_step() -> None:
    steps = [one for stage in run_tests.stages() for one in stage.steps]
    names = {one.name for one in steps}
    assert all(need in names for one in steps for need in one.needs) and len(names) == len(steps)
    assert sys.executable in {one.command[0] for one in steps}


def test_each_folder_with_tests_for_the_node_is_a_step_of_the_lab_stage() -> None:
    root = run_tests.REPOSITORY / "tests" / "integration"
    folders = {file.parent.name for file in root.rglob("test_*.py") if "pytest.mark.lab" in file.read_text()}
    stage = next(stage for stage in run_tests.stages() if stage.name == "lab")
    steps = {step.name for step in stage.steps if step.name.startswith("pytest-")}
    assert folders and steps == {f"pytest-{folder}" for folder in folders}
