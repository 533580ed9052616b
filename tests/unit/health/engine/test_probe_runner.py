# SPDX-License-Identifier: Apache-2.0
"""Probes run together, and one that hangs, floods or leaves a child behind delays nothing past its own deadline."""

import os
import sys
import time
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.health.probe import Probe, ProbeResult
from ansible.module_utils.gpufleet.health.probe_runner import run_probes


def command(name: str, *argv: str, deadline_s: float = 20, max_bytes: int = 1 << 20) -> Probe:
    return Probe(name, lambda result: result.stdout, argv=argv, deadline_s=deadline_s, max_bytes=max_bytes)


def run(*probes: Probe, deadline_s: float | None = None) -> tuple[dict[str, ProbeResult], float]:
    began = time.monotonic()
    results = run_probes(probes, deadline_s)
    return results, time.monotonic() - began


def test_an_answer_and_its_exit_status() -> None:
    results, _seconds = run(
        command("good", "sh", "-c", "echo out; echo err >&2"), command("bad", "sh", "-c", "exit 15")
    )
    good, bad = results["good"], results["bad"]
    assert (good.outcome, good.rc, good.stdout, good.stderr) == ("done", 0, "out\n", "err\n")
    assert (bad.outcome, bad.rc) == ("failed", 15)
    assert good.root == (os.geteuid() == 0) and abs(good.when - time.time()) < 60


def test_a_program_that_is_not_there() -> None:
    results, _seconds = run(command("none", "no-such-program"))
    assert results["none"].outcome == "missing"
    assert "no-such-program is not there" in results["none"].says()


def test_one_that_hangs_ends_at_its_own_deadline() -> None:
    results, seconds = run(
        command("hangs", "sleep", "60", deadline_s=1), command("slow", "sh", "-c", "sleep 0.5; echo late")
    )
    assert results["hangs"].outcome == "timeout" and results["slow"].stdout == "late\n"
    assert 0.9 < seconds < 1 * 1.25 + 1


def test_a_deadline_for_all_shortens_each() -> None:
    results, seconds = run(command("hangs", "sleep", "60"), deadline_s=0.3)
    assert results["hangs"].outcome == "timeout" and seconds < 5
    assert "no answer within 0 s" in results["hangs"].says()


def test_probes_run_at_the_same_time() -> None:
    _results, seconds = run(*(command(f"p{number}", "sleep", "1") for number in range(10)))
    assert seconds < 5


def test_a_child_that_keeps_the_pipe_open_is_not_waited_for() -> None:
    results, seconds = run(command("daemon", "sh", "-c", "echo done; sleep 30 &"))
    assert (results["daemon"].outcome, results["daemon"].stdout) == ("done", "done\n")
    assert seconds < 5


def test_one_that_closes_its_output_and_hangs_is_a_timeout() -> None:
    results, seconds = run(command("mute", "sh", "-c", "exec >&- 2>&-; sleep 30", deadline_s=1))
    assert results["mute"].outcome == "timeout" and seconds < 5


def test_a_flood_is_cut_and_said_to_be() -> None:
    results, seconds = run(command("flood", "yes", max_bytes=100_000))
    assert results["flood"].outcome == "truncated" and len(results["flood"].stdout) == 100_000
    assert seconds < 10


def test_large_output_on_both_pipes_does_not_block() -> None:
    script = "import sys; sys.stderr.write('e' * 300000); sys.stdout.write('o' * 300000)"
    results, _seconds = run(command("both", sys.executable, "-c", script))
    assert (len(results["both"].stdout), len(results["both"].stderr)) == (300_000, 300_000)


def test_files_are_read_behind_their_names(tmp_path: Path) -> None:
    (tmp_path / "gpu0").write_text("x16\n")
    (tmp_path / "gpu1").write_bytes(b"\xffx8\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "folder").mkdir()
    results, _seconds = run(Probe("files", lambda result: result, paths=(f"{tmp_path}/*",)))
    assert results["files"].outcome == "done"
    assert results["files"].stdout.splitlines() == [f"{tmp_path}/gpu0:x16", f"{tmp_path}/gpu1:�x8"]


def test_no_file_is_missing_and_an_unreadable_one_is_no_answer(tmp_path: Path) -> None:
    results, _seconds = run(Probe("none", lambda result: result, paths=(f"{tmp_path}/*",)))
    assert results["none"].outcome == "missing" and str(tmp_path) in results["none"].says()
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    results, _seconds = run(Probe("gone", lambda result: result, paths=(f"{tmp_path}/*",)))
    # glob does not list a broken link by pattern "*"? it does, and grep says that it cannot read it
    assert results["gone"].outcome == "failed" and "nowhere" not in results["gone"].stdout


def test_the_environment_is_that_of_the_c_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    results, _seconds = run(command("env", "sh", "-c", "echo $LC_ALL $PATH"))
    assert results["env"].stdout.startswith("C ") and "/usr/sbin" in results["env"].stdout


def test_an_interrupt_leaves_no_process_behind(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    class Interrupt(Exception):
        pass

    def probes() -> list[Probe]:
        return [command("hangs", "sh", "-c", f"echo $$ > {pid_file}; exec sleep 60")]

    import signal

    def stop(_number: int, _frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        with pytest.raises(Interrupt):
            run_probes(probes())
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
