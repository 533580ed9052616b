# SPDX-License-Identifier: Apache-2.0
"""Start the real ansible-playbook with small plays and inventories, piped or on a terminal.

No node is needed: connections are local, go to a closed port of the loopback address, or go
through a stand-in for the ssh program.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyte
import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

# Nothing listens on the port "discard" of the loopback address: connections are refused at once.
DEAD = "ansible_connection=ssh ansible_host=127.0.0.1 ansible_port=9"
ALIVE = "ansible_connection=local"

# Makes standard input the controlling terminal, as a login does, so that Ctrl-C arrives as a signal.
_WITH_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


@dataclass
class Result:
    """What a run of ansible-playbook left: its exit code, its output and its report."""

    rc: int
    out: str
    folder: Path | None

    @property
    def report(self) -> dict[str, Any]:
        """The report.json of this run."""
        assert self.folder is not None, f"no report was written:\n{self.out}"
        return json.loads((self.folder / "report.json").read_text(encoding="utf-8"))

    @property
    def summary(self) -> list[str]:
        """The lines from the summary on."""
        lines = self.out.splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("Summary of ")]
        assert starts, f"no summary was printed:\n{self.out}"
        return lines[starts[-1] :]

    def outcomes(self) -> dict[str, str]:
        """Outcome of each node."""
        return {name: host["outcome"] for name, host in self.report["hosts"].items()}


@dataclass
class TerminalResult(Result):
    """A run on a terminal: also what the terminal showed, over time."""

    raw: bytes = b""
    screen: list[str] = field(default_factory=list)  # everything that stays, scrolled lines included
    seen: list[list[str]] = field(default_factory=list)  # the visible lines after each piece of output
    draws: list[float] = field(default_factory=list)  # when the live lines were drawn
    cursor_hidden: bool = False


class Site:
    """A folder with an inventory and playbooks of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports = folder / "reports"
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "GPUFLEET_"))}
        for name in ("NO_COLOR", "CI", "COLUMNS", "LINES"):
            self.env.pop(name, None)
        self.env.update(
            ANSIBLE_CONFIG=str(REPOSITORY / "ansible.cfg"),
            GPUFLEET_REPORTS_DIR=str(self.reports),
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            TERM="xterm-256color",
            PYTHONUNBUFFERED="1",
        )

    def inventory(self, **groups: str) -> None:
        """Write the inventory: group name = its lines."""
        text = "".join(f"[{name}]\n{textwrap.dedent(lines)}\n" for name, lines in groups.items())
        self.write("inventory", text + "[all:vars]\nansible_python_interpreter=/usr/bin/python3\n")

    def write(self, name: str, text: str) -> Path:
        """Write a file of the site."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def command(self, playbook: str, *args: str) -> list[str]:
        """The command line."""
        return [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "inventory", playbook, *args]

    def start(self, playbook: str, *args: str, **env: str) -> subprocess.Popen[str]:
        """Start a run and return at once."""
        return subprocess.Popen(
            self.command(playbook, *args),
            cwd=self.folder,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, playbook: str, *args: str, **env: str) -> Result:
        """Run with the output piped, errors and warnings into the same pipe."""
        before = self._folders()
        process = self.start(playbook, *args, **env)
        out, _ = process.communicate(timeout=240)
        return Result(process.returncode, out, self._new_folder(before))

    def run_on_terminal(
        self,
        playbook: str,
        *args: str,
        columns: int = 100,
        rows: int = 40,
        act: Callable[[str, int], None] | None = None,
        **env: str,
    ) -> TerminalResult:
        """Run on a pseudo terminal and follow its screen.

        ``act(text on screen, file descriptor of the terminal)`` is called after each piece of output.
        """
        before = self._folders()
        terminal, other_end = pty.openpty()
        resize(terminal, columns, rows)
        process = subprocess.Popen(
            [sys.executable, "-c", _WITH_TERMINAL, *self.command(playbook, *args)],
            cwd=self.folder,
            env={**self.env, **env},
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
            start_new_session=True,
        )
        os.close(other_end)
        screen = pyte.HistoryScreen(columns, rows, history=5000, ratio=0.5)
        stream = pyte.ByteStream(screen)
        raw = b""
        draws: list[float] = []
        seen: list[list[str]] = []
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 1)[0]:
                continue
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # EIO: the other side is closed
                break
            if not piece:
                break
            raw += piece
            draws += [time.monotonic()] * piece.count(b"\x1b[?25l")
            stream.feed(piece)
            visible = [line.rstrip() for line in screen.display]
            if not seen or seen[-1] != visible:
                seen.append(visible)
            if act is not None:
                act("\n".join(visible), terminal)
        else:
            process.kill()
        rc = process.wait()
        os.close(terminal)
        history = ["".join(line[x].data for x in range(columns)).rstrip() for line in screen.history.top]
        lines = history + [line.rstrip() for line in screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return TerminalResult(
            rc,
            "\n".join(lines),
            self._new_folder(before),
            raw,
            lines,
            seen,
            draws,
            screen.cursor.hidden,
        )

    def _folders(self) -> set[Path]:
        return {path for path in self.reports.glob("*") if not path.name.startswith(".")}

    def _new_folder(self, before: set[Path]) -> Path | None:
        new = self._folders() - before
        assert len(new) <= 1, f"more than one report for one run: {new}"
        return new.pop() if new else None


def resize(terminal: int, columns: int, rows: int) -> None:
    """Give the terminal a size."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An empty site."""
    return Site(tmp_path)
