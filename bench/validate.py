# SPDX-License-Identifier: Apache-2.0
"""What playbooks/validate.yml costs over a fleet, against the same play that only pings.

    bench/validate                     64 hosts
    bench/validate --hosts 511         the reference fleet

Every host is this machine (local connection) and judges the same realistic capture, so that both plays do all that a
controller does: template, fork, build the module, send it, run it, and take its result. The network is missing, and
the hosts' own time is this machine's. A third run shows what of it the controller pays: the same module is sent, and
gives the same result, but without importing or judging anything. Ends with 1 above a limit of bench/budget.yml, with 2
when a run did not do what it should.

Memory is the proportional set size (smaps_rollup) of ansible-playbook and all its forks, so that shared pages count
once, at the worst of the moments looked at, five times a second.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ansible.module_utils
import yaml
from ansible import constants as C
from ansible.executor import module_common
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader, module_utils_loader
from ansible.template import Templar

from bench.host_tasks import BUDGET, REPOSITORY, BenchError

MODULE_UTILS = REPOSITORY / "plugins" / "module_utils"
if str(MODULE_UTILS) not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(MODULE_UTILS))
PLAYBOOK = REPOSITORY / "playbooks" / "validate.yml"
PROFILE = "xe9680-h100"
INTERPRETER = "/usr/bin/python3"
LOOK_EVERY_S = 0.2
# Issue 4: what counts as a realistic kernel log
KERNEL_LINES, KERNEL_FORMS = 20_000, 1_000


@dataclass(frozen=True)
class Usage:
    """One run of ansible-playbook: seconds, CPU seconds with all children, and bytes of memory at its worst."""

    elapsed_s: float
    cpu_s: float
    memory: int
    report: Mapping[str, Any]


@functools.cache
def _loader() -> DataLoader:
    """What ansible-playbook does at its start: collections can be found, and our module_utils."""
    init_plugin_loader([])
    module_utils_loader.add_directory(str(MODULE_UTILS))
    return DataLoader()


def module_payload(module: Path) -> bytes:
    """What Ansible sends to a node for a module without arguments."""
    built = module_common.modify_module(
        module_name=module.stem,
        module_path=str(module),
        module_args={},
        templar=Templar(_loader()),
        module_compression=C.DEFAULT_MODULE_COMPRESSION,
        task_vars={"ansible_python_interpreter": INTERPRETER},
    )
    return bytes(built.b_module_data)


def transferred_bytes(module: Path) -> int:
    """How many bytes of a module cross the network: ssh compresses them (ansible.cfg), with zlib at level 6."""
    return len(zlib.compress(module_payload(module), 6))


def ping_instead(plays: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same plays, with ping in place of the health check."""
    made = []
    for play in plays:
        if "ansible.builtin.import_playbook" in play:
            where = str(PLAYBOOK.parent / play["ansible.builtin.import_playbook"])
            made.append({**play, "ansible.builtin.import_playbook": where})
            continue
        tasks = []
        for task in play["tasks"]:
            if "node_health" in task:
                task = {"name": "Ping", "ansible.builtin.ping": {}}
            tasks.append(task)
        made.append({**play, "tasks": tasks})
    return made


def inventory(hosts: int, capture: Path) -> dict[str, Any]:
    """This machine, many times."""
    nodes = {f"node-{number:03d}": None for number in range(1, hosts + 1)}
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": INTERPRETER,
        "node_profile": PROFILE,
        "node_profile_overrides_fleet": {
            "platform": {"clock": {"servers": [{"address": "10.0.0.1"}]}},
            # what the recorded node has instead (tests/health_node.py)
            "limits": {"gpu": {"memory_mib": 81920}},
            "firmware": {"gpu_vbios": {"version": None}},
        },
        "preflight_allow_local_connection": True,
        "validate_replay_from": str(capture),
        # what the capture shows is not measured here
        "validate_fail_on": [],
    }
    return {"gpu_nodes": {"hosts": nodes, "vars": variables}}


def memory_of(root: int) -> int:
    """Proportional set size in bytes of ansible-playbook and its forks; what these start is the hosts' own."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        waiting += parents.get(process, [])
        with contextlib.suppress(OSError):
            if b"ansible-playbook" not in Path(f"/proc/{process}/cmdline").read_bytes():
                continue
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def answering_at_once(result: Mapping[str, Any], work: Path) -> Path:
    """A folder with a node_health that Ansible sends with all that the real one imports, but that only gives `result`.

    What the nodes do themselves is left out by it. Raises BenchError where the module has no place to put that.
    """
    source = (REPOSITORY / "library" / "node_health.py").read_text()
    first_import = "from ansible.module_utils.gpufleet"
    if first_import not in source:
        raise BenchError(f"library/node_health.py has no line that begins with {first_import!r}")
    tasks = [task for play in yaml.safe_load(PLAYBOOK.read_text()) for task in play.get("tasks", ())]
    given = next(task["node_health"] for task in tasks if "node_health" in task)
    arguments = {name: {"type": "raw"} for name in given}
    answer = f"AnsibleModule({arguments!r}).exit_json(**{dict(result)!r})\n"
    folder = Path(tempfile.mkdtemp(prefix="library-", dir=work))
    (folder / "node_health.py").write_text(source.replace(first_import, answer + first_import, 1))
    return folder


def result_for(capture: Path) -> dict[str, Any]:
    """What the module returns for a capture."""
    from ansible.module_utils.testing import patch_module_args

    from tests.health_node import profile
    from tests.modules.conftest import load_module

    said = io.StringIO()
    arguments = patch_module_args({"profile": profile(), "replay_from": str(capture)})
    with arguments, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        load_module("node_health").main()
    result: dict[str, Any] = json.loads(said.getvalue())
    return result


def run(playbook: Path, inventory_file: Path, work: Path, library: Path | None = None) -> Usage:
    """Run a playbook and measure it. Raises BenchError where it did not succeed on every host."""
    reports = Path(tempfile.mkdtemp(prefix="reports-", dir=work))
    log = work / f"{reports.name}.log"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    peak = [0]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [Path(sys.executable).parent / "ansible-playbook", "-i", inventory_file, playbook],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
                # as ansible.cfg says for ssh
                "ANSIBLE_PIPELINING": "1",
                "GPUFLEET_REPORTS_DIR": str(reports),
                **({"ANSIBLE_LIBRARY": f"{library}:{REPOSITORY / 'library'}"} if library else {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(LOOK_EVERY_S):
                peak[0] = max(peak[0], memory_of(process.pid))

        watch = threading.Thread(target=look)
        watch.start()
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            ended.set()
            watch.join()
    elapsed = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = list(reports.glob("*/report.json"))
    if code != 0 or len(found) != 1:
        raise BenchError(f"ansible-playbook ended with {code}:\n{log.read_text(errors='replace')[-3000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Usage(elapsed, cpu, peak[0], json.loads(found[0].read_text()))


def over_budget(figures: Mapping[str, float], budget: Mapping[str, float]) -> list[str]:
    """A line for each limit that is exceeded."""
    return [f"{name}: {figures[name]:g}, {limit:g} allowed" for name, limit in budget.items() if figures[name] > limit]


def judged(report: Mapping[str, Any]) -> dict[str, int]:
    """How many hosts have which verdict. Raises BenchError where they differ, since all judge one capture."""
    counts: dict[str, int] = {name: count for name, count in report["totals"]["verdicts"].items() if count}
    if len(counts) != 1:
        raise BenchError(f"the hosts judge one capture differently: {counts}")
    return counts


def measure(hosts: int, capture: Path, work: Path) -> dict[str, float]:
    """The figures that bench/budget.yml limits, after a table of all of them."""
    inventory_file = work / "inventory.json"
    inventory_file.write_text(json.dumps(inventory(hosts, capture)))
    plays = yaml.safe_load(PLAYBOOK.read_text())
    ping_playbook = work / "ping.yml"
    ping_playbook.write_text(yaml.safe_dump(ping_instead(plays)))
    sizes = [(file.stat().st_size, file) for file in sorted(capture.rglob("*")) if file.is_file()]
    print(f"capture: {len(sizes)} files, {sum(size for size, _file in sizes) / 1000:.0f} kB", flush=True)
    usages = {"ping": run(ping_playbook, inventory_file, work), "validate": run(PLAYBOOK, inventory_file, work)}
    usages["at once"] = run(PLAYBOOK, inventory_file, work, answering_at_once(result_for(capture), work))
    verdicts = judged(usages["validate"].report)
    if judged(usages["at once"].report) != verdicts:
        raise BenchError("the module that answers at once gives another verdict: its figures say nothing")
    print(f"{hosts} hosts, verdicts: {verdicts}")
    report_kb = len(json.dumps(usages["validate"].report)) / 1000
    print(f"  {'':<10} {'seconds':>9} {'CPU s':>9} {'CPU s/host':>11} {'memory MB':>10}")
    for name, usage in usages.items():
        print(
            f"  {name:<10} {usage.elapsed_s:>9.1f} {usage.cpu_s:>9.1f} {usage.cpu_s / hosts:>11.3f} "
            f"{usage.memory / 1e6:>10.0f}"
        )
    figures = {
        "times_ping": round(usages["validate"].elapsed_s / usages["ping"].elapsed_s, 2),
        "controller_times_ping": round(usages["at once"].elapsed_s / usages["ping"].elapsed_s, 2),
        "payload_kb": round(transferred_bytes(REPOSITORY / "library" / "node_health.py") / 1000, 1),
        "controller_gb": round(usages["validate"].memory / 1e9, 2),
    }
    print(
        f"  validate takes {figures['times_ping']:g} times as long as ping, "
        f"{figures['controller_times_ping']:g} times without what the nodes do themselves"
    )
    print(f"  sent to each host: {figures['payload_kb']:g} kB; report.json: {report_kb:.0f} kB")
    return figures


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=64, help="how many hosts (default 64)")
    parser.add_argument("--capture", type=Path, help="another capture than the realistic one of the tests")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    try:
        capture = arguments.capture or realistic_capture(work / "capture")
        figures = measure(arguments.hosts, capture.resolve(), work)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(work, ignore_errors=True)
    exceeded = over_budget(figures, yaml.safe_load(BUDGET.read_text())["validate"])
    for line in exceeded:
        print(f"OVER BUDGET: {line}")
    return 1 if exceeded else 0


def realistic_capture(path: Path) -> Path:
    """A healthy XE9680 as recorded, with a kernel log of 20,000 lines in 1,000 forms, written to a folder."""
    from ansible.module_utils.gpufleet.health.capture import write_capture
    from ansible.module_utils.gpufleet.health.registry import PROBES

    from tests.health_node import healthy_node

    write_capture(str(path), healthy_node(lines=KERNEL_LINES, forms=KERNEL_FORMS), PROBES, 1_796_000_000.0)
    return path


if __name__ == "__main__":
    sys.exit(main())
