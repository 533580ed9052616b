# SPDX-License-Identifier: Apache-2.0
"""The virtual node for tests marked `lab`: fixture `lab_node`, one for the whole session.

It uses the lab of GPUFLEET_LAB_DIR (default: the repository's own), starts it where
it does not run, and leaves it running. A test leaves the node as it found it.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# Seconds. A first image build and boot; a boot; one command. Machines vary threefold.
UP_LIMIT_S, BOOT_LIMIT_S, RUN_LIMIT_S = 2700, 900, 300


def run_lab(
    *arguments: str, environment: Mapping[str, str] | None = None, check: bool = True, limit_s: float = UP_LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Run `python -m lab ...` as an operator does."""
    done = subprocess.run(
        [sys.executable, "-m", "lab", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert not check or done.returncode == 0, f"lab {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done


class LabNode:
    """One node of a running lab. `environment` names the lab where it is not the session's."""

    def __init__(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._environment = environment
        self._starts_before = 0

    def lab(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `python -m lab ...` on this node's lab."""
        return run_lab(*arguments, environment=self._environment, check=check)

    def status(self) -> dict[str, Any]:
        """The node's entry of `lab status --json`."""
        entry: dict[str, Any] = json.loads(self.lab("status", "--json").stdout)["nodes"][self.name]
        return entry

    def run(self, command: str, check: bool = True, limit_s: float = RUN_LIMIT_S) -> str:
        """Run a shell command on the node as root and return what it printed on stdout."""
        self._starts_before = int(self.status()["starts"])
        done = run_lab("ssh", self.name, command, environment=self._environment, check=False, limit_s=limit_s)
        assert not check or done.returncode == 0, f"{command} on {self.name}: {done.stdout}{done.stderr}"
        return done.stdout

    def fault(self, kind: str, what: str) -> None:
        """`lab fault`; those that boot the node return when ssh answers."""
        self.lab("fault", self.name, kind, what)

    def reset(self, clock: str | None = None) -> None:
        """Fresh disks, booted, ssh answers. The hardware clock keeps what it has, unless told: "-3y"."""
        self.lab("reset", self.name, *([f"--clock={clock}"] if clock else []))

    def boot_id(self) -> str:
        """The kernel's id of this boot."""
        return self.run("cat /proc/sys/kernel/random/boot_id").strip()

    def years_ahead(self) -> float:
        """How many years the node's clock is ahead of this machine's."""
        return (float(self.run("date +%s")) - time.time()) / (365.25 * 86400)

    def wait_for_new_boot(self) -> None:
        """Wait until the node has been started anew since the last `run`, and answers ssh."""
        before = self._starts_before
        deadline = time.monotonic() + BOOT_LIMIT_S
        while not (self.status()["starts"] > before and self.answers()):
            assert time.monotonic() < deadline, f"{self.name} did not boot again: {self.status()}"
            time.sleep(1)

    def answers(self) -> bool:
        """Whether a fresh ssh login works now (over no connection kept open)."""
        config = json.loads(self.lab("status", "--json").stdout)["ssh_config"]
        options = ["-F", config, "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ControlPath=none"]
        try:
            done = subprocess.run(
                ["ssh", *options, self.name, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def wait_until(self, command: str, limit_s: float = 120) -> None:
        """Repeat a shell command on the node until it exits 0."""
        deadline = time.monotonic() + limit_s
        while run_lab("ssh", self.name, command, environment=self._environment, check=False).returncode != 0:
            assert time.monotonic() < deadline, f"{self.name}: still false after {limit_s:.0f} s: {command}"
            time.sleep(1)


# In the order in which they are started; what a client of the socket would start is stopped with it.
ENGINE_UNITS = ("containerd.service", "docker.socket", "docker.service")


@contextmanager
def engine_stopped(node: LabNode) -> Iterator[None]:
    """The container engine stopped and kept from starting, boots included, so that the pool that its data root lies on
    can be exported or destroyed. A node without an engine is left alone. No container may run."""
    listed = node.run(f"systemctl list-unit-files --no-legend {' '.join(ENGINE_UNITS)}", check=False).split()
    units = [unit for unit in ENGINE_UNITS if unit in listed]
    if units:
        backwards = " ".join(reversed(units))
        node.run(f"systemctl stop {backwards}; systemctl mask --quiet {backwards}; sync")
    try:
        yield
    finally:
        if units:
            forwards = " ".join(units)
            node.run(f"systemctl unmask --quiet {forwards}; systemctl start {forwards}; sync")


@pytest.fixture(scope="session")
def lab_node() -> LabNode:
    """The session's lab node, running."""
    run_lab("up")
    nodes = json.loads(run_lab("status", "--json").stdout)["nodes"]
    return LabNode(next(iter(nodes)))
