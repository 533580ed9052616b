# SPDX-License-Identifier: Apache-2.0
"""The fleet's health in one run: verdicts, exit status by policy, nodes compared, and nobody missing."""

import json
from pathlib import Path
from typing import Any

from .conftest import DEAD, Fleet

HEALTHY = {f"gpu-{number}": "healthy" for number in (1, 2, 3)}


def test_a_healthy_fleet(validate: Any) -> None:
    run = validate(HEALTHY)
    assert run.code == 0, run.output
    assert run.verdicts() == dict.fromkeys(HEALTHY, "ok")
    assert "  ok              3  gpu-[1-3]" in run.summary
    assert "Needs attention" not in run.summary
    host = run.report["hosts"]["gpu-2"]
    assert (host["changed"], host["host_tasks"]) == (0, 1)
    assert run.report["totals"]["verdicts"] == {"ok": 3, "warn": 0, "unknown": 0, "fail": 0}


def test_who_is_sick_unknown_unreachable_or_different_is_named_with_what_to_do(validate: Any, fleet: Fleet) -> None:
    run = validate({**HEALTHY, "gpu-4": "remap", "gpu-5": "remap", "gpu-6": "empty", "gpu-7": "other", "gpu-8": DEAD})
    assert run.code == 4, "a node was unreachable"
    assert run.verdicts() == {
        **dict.fromkeys(HEALTHY, "ok"),
        "gpu-4": "fail",
        "gpu-5": "fail",
        "gpu-6": "unknown",
        "gpu-7": "ok",
        "gpu-8": "unknown",
    }
    assert "  unknown         2  gpu-[6,8]" in run.summary
    assert "  failed: gpu-[4-5] (2 nodes)\n    reason: gpu.row_remap GPU 3" in run.summary
    assert "  failed: gpu-6\n    reason: unknown: " in run.summary
    assert "  unreachable: gpu-8" in run.summary
    different = run.summary.index("differs from the other nodes: kernel arguments is ")
    assert "attention: gpu-7" in run.summary[:different]
    assert "Connection refused" in run.health("gpu-8")["why"]
    (finding,) = [one for one in run.health("gpu-4")["findings"] if one["check"] == "gpu.row_remap"]
    assert finding["action"] and finding["advice"] and finding["evidence"]
    (limit,) = [path for path in Path(run.output.rsplit("--limit @", 1)[1].split()[0]).parent.glob("attention.limit")]
    assert limit.read_text().split() == [f"gpu-{number}" for number in (4, 5, 6, 7, 8)]
    assert all(len(line) <= 250 for line in run.summary.splitlines())


def test_policy_limit_and_check_mode(validate: Any) -> None:
    nodes = {"gpu-1": "healthy", "gpu-2": "remap", "gpu-3": "empty"}
    tolerant = json.dumps({"validate_fail_on": ["fail"]})
    run = validate(nodes, "--limit", "gpu-1,gpu-3", "--check", "-e", tolerant)
    assert run.code == 0, run.output
    assert run.verdicts() == {"gpu-1": "ok", "gpu-3": "unknown"}
    assert run.report["hosts"]["gpu-3"]["outcome"] == "attention"


def test_a_narrowed_run_with_a_reason_to_skip(validate: Any) -> None:
    options = json.dumps({"validate_checks": ["gpu"], "validate_skip": {"gpu.row_remap": "ticket 4711"}})
    run = validate({"gpu-1": "remap"}, "-e", options)
    health = run.health("gpu-1")
    assert not any(one["check"].startswith("pcie") for one in health["findings"])
    assert any("ticket 4711" in str(one) for one in (health["findings"], health["skipped"]))


def test_a_policy_that_names_no_verdict_is_refused(validate: Any) -> None:
    run = validate(HEALTHY, "-e", json.dumps({"validate_fail_on": ["sick"]}))
    assert run.code == 2
    assert "validate_fail_on must be a list of fail, unknown and warn" in run.output
    assert all(host["host_tasks"] <= 1 for host in run.report["hosts"].values())


def test_a_check_that_does_not_exist_fails_before_anything_runs(validate: Any) -> None:
    run = validate({"gpu-1": "healthy"}, "-e", json.dumps({"validate_checks": ["gpu.ec"]}))
    assert run.code == 2
    assert "did you mean 'gpu.ecc'?" in run.output


def test_a_profile_with_an_unknown_check_is_refused_by_preflight(validate: Any) -> None:
    override = {"node_profile_overrides_host": {"skip_checks": {"gpu.ec": "x"}}}
    run = validate({"gpu-1": {**override, "validate_replay_from": "/nonexistent"}})
    assert run.code == 2
    assert "No node was touched" in run.output
    assert "did you mean 'gpu.ecc'?" in run.output


def test_all_nodes_dead(validate: Any) -> None:
    run = validate({"gpu-1": DEAD, "gpu-2": {**DEAD, "ansible_host": "127.0.0.3"}})
    assert run.code == 4, run.output
    assert run.verdicts() == {"gpu-1": "unknown", "gpu-2": "unknown"}


def test_a_capture_of_the_node_is_kept_where_it_says(validate: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept.tar.gz"
    options = json.dumps(
        {"validate_checks": ["pcie.link"], "validate_deadline_s": 10, "validate_capture_to": str(kept)}
    )
    run = validate({"gpu-1": {}}, "-e", options)
    assert run.verdicts()["gpu-1"] in ("fail", "unknown"), "this machine has no such devices"
    assert kept.exists()
