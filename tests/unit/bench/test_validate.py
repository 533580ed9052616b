# SPDX-License-Identifier: Apache-2.0
"""What bench/validate compares, and when it complains."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.host_tasks import BUDGET, REPOSITORY, BenchError
from bench.validate import PLAYBOOK, answering_at_once, inventory, judged, memory_of, over_budget, ping_instead


def plays() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.safe_load(PLAYBOOK.read_text())
    return loaded


def test_the_play_to_compare_with_is_the_same_but_for_the_health_check(tmp_path: Any) -> None:
    pinging = ping_instead(plays())
    assert len(pinging) == len(plays())
    before, after = plays()[-1]["tasks"], pinging[-1]["tasks"]
    assert [task for task in after if "ansible.builtin.ping" in task] == [{"name": "Ping", "ansible.builtin.ping": {}}]
    assert len(before) == len(after)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
    assert pinging[0]["ansible.builtin.import_playbook"].startswith("/"), "it lies in another folder"


def test_the_module_that_answers_at_once_has_all_that_the_real_one_imports(tmp_path: Path) -> None:
    real = (REPOSITORY / "library" / "node_health.py").read_text()
    fake = (answering_at_once({"verdict": "ok"}, tmp_path) / "node_health.py").read_text()
    added = [line for line in fake.splitlines() if line not in real.splitlines()]
    assert len(added) == 1
    assert "'verdict': 'ok'" in added[0]
    assert [line for line in fake.splitlines() if line not in added] == real.splitlines()
    assert fake.index(added[0]) < fake.index("from ansible.module_utils.gpufleet")


def test_as_many_hosts_as_asked_for(tmp_path: Any) -> None:
    assert len(inventory(511, tmp_path)["gpu_nodes"]["hosts"]) == 511


@pytest.mark.parametrize("name", ["times_ping", "controller_times_ping", "payload_kb", "controller_gb"])
def test_each_limit_is_watched(name: str) -> None:
    budget = yaml.safe_load(BUDGET.read_text())["validate"]
    assert over_budget(budget, budget) == []
    assert over_budget({**budget, name: budget[name] * 1.01}, budget)[0].startswith(f"{name}: ")


def test_hosts_that_judge_one_capture_differently_are_no_measurement() -> None:
    assert judged({"totals": {"verdicts": {"ok": 3, "fail": 0}}}) == {"ok": 3}
    with pytest.raises(BenchError, match="differently"):
        judged({"totals": {"verdicts": {"ok": 3, "fail": 1}}})


def test_memory_counts_the_playbook_and_not_what_it_starts() -> None:
    line = (
        "import subprocess, sys; print(1, flush=True); subprocess.run([sys.executable, '-c', 'x = bytes(50_000_000); "
    )
    line += "print(2, flush=True); input()'])"
    process = subprocess.Popen(
        [sys.executable, "-c", line, "ansible-playbook"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
        assert 1_000_000 < memory_of(process.pid) < 40_000_000
    finally:
        process.communicate(b"\n", timeout=30)
