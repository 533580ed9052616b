# SPDX-License-Identifier: Apache-2.0
"""What one health check costs the node: CPU and memory of its own, and how long it takes beside slow and hung tools.

    bench/node_health

The command node-health judges a capture, and runs on stand-ins for nvidia-smi, lspci and all other tools, which print
what a healthy XE9680 printed (tests/health_node.py) with a kernel log of 20,000 lines in 1,000 forms. Children are not
counted. bench/budget.yml has the limits.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import ansible.module_utils
import yaml

from bench.host_tasks import BUDGET, REPOSITORY
from bench.validate import KERNEL_FORMS, KERNEL_LINES, over_budget, realistic_capture
from tools import build_node_health

_OWN = str(REPOSITORY / "plugins" / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)

# Runs the program in this process, then says what this process alone has used. VmHWM (kB) begins anew with a program;
# ru_maxrss would hold the size of the process that started it.
MEASURE = """
import json, resource, runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    status = end.code
used = resource.getrusage(resource.RUSAGE_SELF)
with open("/proc/self/status") as file:
    peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
print(json.dumps([status, used.ru_utime + used.ru_stime, peak / 1024]), file=sys.stderr)
"""
# Judges one capture again and again in one process, and prints the CPU seconds of each time.
WARM = """
import io, json, sys, time
sys.path.insert(0, sys.argv[1])
from gpufleet.health.command_line import main
spent = []
for _ in range(6):
    before = time.process_time()
    main(sys.argv[2:], out=io.StringIO())
    spent.append(time.process_time() - before)
print(json.dumps(spent))
"""
SLOW_S = 3.0
HUNG_DEADLINE_S = 6.0
RUN_LIMIT_S = 300


class Usage(NamedTuple):
    """status: exit status of node-health. cpu_s: user and system time of its own process. memory_mb: largest resident
    size in MiB. wall_s: from start to end."""

    status: int
    cpu_s: float
    memory_mb: float
    wall_s: float


def measure(program: Path, arguments: list[str], path: str | None = None) -> Usage:
    """One run of the program."""
    environment = dict(os.environ, PATH=f"{path}:{os.environ['PATH']}") if path else None
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(program), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        check=True,
    )
    wall_s = time.monotonic() - began
    status, cpu_s, memory_mb = json.loads(done.stderr.splitlines()[-1])
    return Usage(status, cpu_s, memory_mb, wall_s)


def measure_warm(program: Path, arguments: list[str]) -> float:
    """CPU seconds of a replay where Python runs already: the least of five, after one that loads the modules."""
    done = subprocess.run(
        [sys.executable, "-c", WARM, str(program), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        check=True,
    )
    spent: list[float] = json.loads(done.stdout)
    return min(spent[1:])


def write_tools(folder: Path, capture: Path, delays: Mapping[str, float]) -> None:
    """Stand-ins for every tool that a probe calls. delays: seconds by name of a tool before it answers."""
    from ansible.module_utils.gpufleet.health.registry import PROBES

    cases: dict[str, list[str]] = {}
    for probe in PROBES:
        if probe.argv:
            said = shlex.quote(str(capture / probe.id / "stdout"))
            pattern = shlex.quote(" ".join(probe.argv[1:]))
            cases.setdefault(probe.argv[0], []).append(f"{pattern}) exec /bin/cat {said} ;;")
    folder.mkdir()
    for tool, lines in cases.items():
        wait = f"/bin/sleep {delays[tool]:g}\n" if tool in delays else ""
        body = "\n".join(["#!/bin/sh", f'{wait}case "$*" in', *lines, "esac", "exit 1"])
        (folder / tool).write_text(body + "\n")
        (folder / tool).chmod(0o755)


def figures(work: Path) -> dict[str, float]:
    """The figures that bench/budget.yml limits, after a table of all of them."""
    from tests.health_node import profile

    program, profile_file = work / "node-health", work / "profile.json"
    build_node_health.build(program)
    profile_file.write_text(json.dumps(profile()))
    capture = realistic_capture(work / "capture")
    size_kb = sum(file.stat().st_size for file in capture.rglob("*") if file.is_file()) / 1000
    print(
        f"node-health: {program.stat().st_size / 1000:.0f} kB; capture: {size_kb:.0f} kB, "
        f"{KERNEL_LINES} kernel lines of {KERNEL_FORMS} forms in each of two sources"
    )
    write_tools(work / "tools", capture, {})
    write_tools(work / "slow", capture, {"lspci": SLOW_S})
    write_tools(work / "hung", capture, {"zpool": RUN_LIMIT_S})
    common = ["--profile", str(profile_file)]
    runs = {
        "replay": measure(program, ["replay", *common, str(capture)]),
        "run, tools answer at once": measure(program, ["run", *common], str(work / "tools")),
        f"run, lspci takes {SLOW_S:g} s": measure(program, ["run", *common], str(work / "slow")),
        f"run, zpool hangs, deadline {HUNG_DEADLINE_S:g} s": measure(
            program, ["run", *common, "--deadline", f"{HUNG_DEADLINE_S:g}"], str(work / "hung")
        ),
    }
    print(f"  {'':<36} {'exit':>4} {'own CPU s':>9} {'wall s':>7} {'memory MB':>9}")
    for name, usage in runs.items():
        print(f"  {name:<36} {usage.status:>4} {usage.cpu_s:>9.2f} {usage.wall_s:>7.2f} {usage.memory_mb:>9.0f}")
    warm_s = measure_warm(program, ["replay", *common, str(capture)])
    print(f"  {'replay, in a process that runs already':<41} {warm_s:>9.2f}")
    cold, at_once, slow, hung = runs.values()
    return {
        "replay_cold_cpu_s": round(cold.cpu_s, 2),
        "replay_warm_cpu_s": round(warm_s, 2),
        "run_cpu_s": round(at_once.cpu_s, 2),
        "memory_mb": round(max(usage.memory_mb for usage in runs.values()), 1),
        # what it takes beyond 1.25 times the slowest tool
        "wall_beyond_slowest_s": round(max(slow.wall_s - 1.25 * SLOW_S, hung.wall_s - 1.25 * HUNG_DEADLINE_S), 2),
    }


def main() -> int:
    """Command line."""
    work = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    try:
        found = figures(work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    exceeded = over_budget(found, yaml.safe_load(BUDGET.read_text())["node_health"])
    for line in exceeded:
        print(f"OVER BUDGET: {line}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
