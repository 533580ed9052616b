# SPDX-License-Identifier: Apache-2.0
"""build/node-health as a node runs it: the system's Python, nothing else installed, from anywhere."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.health.capture import write_capture
from ansible.module_utils.gpufleet.health.registry import CHECKS, PROBES

from tests.health_node import healthy_node, nvidia_smi
from tools import build_node_health

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the XE9680's profile in it, in a folder with nothing beside it."""
    output = tmp_path_factory.mktemp("program") / "node-health"
    profile = REPOSITORY / "profiles" / "xe9680-h100.yml"
    done = subprocess.run(
        [sys.executable, REPOSITORY / "tools" / "build_node_health.py", "--profile", profile, "--output", output],
        check=True,
        capture_output=True,
        text=True,
    )
    assert str(output) in done.stdout
    return output


def call(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it without site packages and without the user's environment."""
    return subprocess.run(
        ["/usr/bin/python3", "-I", "-S", program, *arguments],
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_empty_capture_is_unknown_and_ends_with_3(program: Path, tmp_path: Path) -> None:
    write_capture(str(tmp_path / "empty.tar.gz"), {}, PROBES, 1_796_000_000.0)
    done = call(program, "replay", str(tmp_path / "empty.tar.gz"))
    assert done.returncode == 3
    assert done.stdout.startswith("UNKNOWN: ")
    assert done.stderr == ""


def test_a_sick_node_ends_with_2_and_names_the_part(program: Path, tmp_path: Path) -> None:
    sick = {**healthy_node(), **nvidia_smi("550.163.01-h100-gpu3-remap-failure")}
    write_capture(str(tmp_path / "sick"), sick, PROBES, 1_796_000_000.0)
    done = call(program, "replay", str(tmp_path / "sick"))
    assert done.returncode == 2
    assert "gpu.row_remap  GPU 3" in done.stdout
    assert all(len(line) <= 120 for line in done.stdout.splitlines())


def test_this_machine_is_asked_and_no_probe_costs_the_verdict(program: Path) -> None:
    done = call(program, "run", "--json", "--deadline", "20")
    report = json.loads(done.stdout)
    assert done.returncode in (2, 3)
    # The others run only where they are named.
    heavy = {probe.id for probe in PROBES if probe.heavy}
    assert report["checks"]["judged"] == len([check for check in CHECKS if heavy.isdisjoint(check.needs)])
    assert set(report["probes"]) <= {probe.id for probe in PROBES}
    assert not any("the check itself failed" in finding["observed"] for finding in report["findings"])


def test_the_other_sub_commands(program: Path, tmp_path: Path) -> None:
    assert call(program, "explain", "xid", "79").returncode == 0
    assert len(call(program, "checks").stdout.splitlines()) == len(CHECKS)
    assert len(call(program, "probes").stdout.splitlines()) == len(PROBES)
    assert call(program, "capture", str(tmp_path / "kept"), "--deadline", "5").returncode == 0
    assert call(program, "history", "show", "--history", str(tmp_path / "none")).returncode == 0
    write_capture(str(tmp_path / "good"), healthy_node(), PROBES, 1_796_000_000.0)
    proposed = call(program, "propose-profile", str(tmp_path / "good"), "--json")
    assert proposed.returncode == 0, proposed.stderr
    (tmp_path / "profile.json").write_text(proposed.stdout)
    assert call(program, "replay", str(tmp_path / "good"), "--profile", str(tmp_path / "profile.json")).returncode == 0


def test_usage(program: Path) -> None:
    assert call(program).returncode == 64
    assert call(program, "--help").returncode == 0
    assert call(program, "run", "--profile", "/nonexistent").returncode == 64


def test_a_reader_that_goes_away(program: Path) -> None:
    line = f"/usr/bin/python3 -I -S {program} probes | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr and len(done.stdout.splitlines()) == 1


def test_without_a_profile_it_is_built_by_name(tmp_path: Path) -> None:
    build_node_health.build(tmp_path / "plain")
    done = call(tmp_path / "plain", "run")
    assert done.returncode == 64
    assert "propose-profile" in done.stderr
