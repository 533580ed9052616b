# SPDX-License-Identifier: Apache-2.0
"""Run probes on this node, all at the same time, none past its deadline."""

from __future__ import annotations

import contextlib
import glob
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable

from .probe import Probe, ProbeResult

# Where an ordinary user's PATH does not lead to, but lspci, dmesg and zpool lie.
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# grep prints each line behind the file's name, and tells of each file that it cannot read.
_READ_FILES = ("grep", "-a", "-H", "", "--")
# Exit status 1 of grep: all files were empty.
_READ_FILES_GOOD_RC = (0, 1)
# A command may leave a child behind that keeps its pipes open: after its end they get this long.
_PIPE_PATIENCE_S = 0.5
_TICK_S = 0.1


def run_probes(probes: Iterable[Probe], deadline_s: float | None = None) -> dict[str, ProbeResult]:
    """Results by probe id. deadline_s shortens the deadline of every probe that has a longer one.

    A process in uninterruptible sleep survives SIGKILL: it is left behind, so that a hung driver delays nothing past
    the deadline of the probe that asked it.
    """
    results: dict[str, ProbeResult] = {}
    running: list[_Running] = []
    with selectors.DefaultSelector() as selector:
        try:
            for probe in probes:
                started = _start(probe, deadline_s)
                if isinstance(started, ProbeResult):
                    results[probe.id] = started
                else:
                    running.append(started)
                    started.register(selector)
            while running:
                for key, _events in selector.select(_TICK_S if len(selector.get_map()) else 0):
                    key.data.read(key.fileobj, selector)
                for one in [one for one in running if one.is_over()]:
                    results[one.probe.id] = one.close(selector)
                    running.remove(one)
                if running and not selector.get_map():
                    time.sleep(_TICK_S)
        finally:
            for one in running:
                one.close(selector)
    return results


def _start(probe: Probe, deadline_s: float | None) -> _Running | ProbeResult:
    when, root = time.time(), os.geteuid() == 0
    argv = list(probe.argv)
    if probe.paths:
        files = sorted(name for pattern in probe.paths for name in glob.glob(pattern) if not os.path.isdir(name))
        if not files:
            why = f"no file is there: {' '.join(probe.paths)}"
            return ProbeResult(probe.id, "missing", None, "", "", 0.0, when, root, why)
        argv = [*_READ_FILES, *files]
    environment = dict(os.environ, LC_ALL="C", LANGUAGE="C", TERM="dumb")
    environment["PATH"] = f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}".strip(":")
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environment,
            cwd="/",
        )
    except OSError as error:
        why = f"{argv[0]} is not there" if isinstance(error, FileNotFoundError) else f"{argv[0]}: {error.strerror}"
        return ProbeResult(probe.id, "missing", None, "", "", 0.0, when, root, why)
    limit_s = probe.deadline_s if deadline_s is None else min(probe.deadline_s, deadline_s)
    return _Running(probe, process, when, root, limit_s)


class _Running:
    """A probe whose command runs; collects what it prints."""

    def __init__(self, probe: Probe, process: subprocess.Popen[bytes], when: float, root: bool, limit_s: float) -> None:
        self.probe = probe
        self._process, self._when, self._root = process, when, root
        self._began = time.monotonic()
        self._end = self._began + limit_s
        assert process.stdout is not None and process.stderr is not None
        self._pipes = [process.stdout, process.stderr]
        self._output = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        self._numbers = (process.stdout.fileno(), process.stderr.fileno())
        self._ended: float | None = None
        self._too_much = False

    def register(self, selector: selectors.BaseSelector) -> None:
        for pipe in self._pipes:
            selector.register(pipe, selectors.EVENT_READ, self)

    def read(self, pipe: object, selector: selectors.BaseSelector) -> None:
        number = pipe.fileno()  # type: ignore[attr-defined]
        piece = os.read(number, 1 << 16)
        if not piece:
            selector.unregister(pipe)  # type: ignore[arg-type]
            self._pipes.remove(pipe)  # type: ignore[arg-type]
            pipe.close()  # type: ignore[attr-defined]
            return
        collected = self._output[number]
        collected += piece[: self.probe.max_bytes - len(collected)]
        self._too_much = self._too_much or len(collected) >= self.probe.max_bytes

    def is_over(self) -> bool:
        """Whether it has ended, printed too much, or reached its deadline."""
        if self._process.poll() is not None and self._ended is None:
            self._ended = time.monotonic()
        if self._ended is not None:
            return not self._pipes or time.monotonic() > self._ended + _PIPE_PATIENCE_S
        return self._too_much or time.monotonic() >= self._end

    def close(self, selector: selectors.BaseSelector) -> ProbeResult:
        """Let go of it, by force where it has not ended, and say what came of it."""
        rc = self._process.poll()
        if rc is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.2)
        for pipe in self._pipes:
            selector.unregister(pipe)
            pipe.close()
        good = _READ_FILES_GOOD_RC if self.probe.paths else self.probe.good_rc
        if self._too_much:
            outcome = "truncated"
        elif rc is None:
            outcome = "timeout"
        else:
            outcome = "done" if rc in good else "failed"
        stdout, stderr = (self._output[number].decode("utf-8", "replace") for number in self._numbers)
        seconds = (self._ended or time.monotonic()) - self._began
        return ProbeResult(self.probe.id, outcome, rc, stdout, stderr, seconds, self._when, self._root)
