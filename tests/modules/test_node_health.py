# SPDX-License-Identifier: Apache-2.0
"""node_health: a sick node is no failure, wrong input is, and the summary gets what it needs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpufleet.health.capture import write_capture
from ansible.module_utils.gpufleet.health.registry import CHECKS, PROBES

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def empty(tmp_path: Path) -> str:
    """A capture in which no probe has an answer."""
    path = str(tmp_path / "empty")
    write_capture(path, {}, PROBES, 1_796_000_000.0)
    return path


def profile(**more: Any) -> dict[str, Any]:
    return {**yaml.safe_load((REPOSITORY / "profiles" / "xe9680-h100.yml").read_text()), "skip_checks": {}, **more}


def test_an_empty_capture_is_unknown_and_no_failure(run_module: Any, empty: str) -> None:
    result = run_module("node_health", profile=profile(), replay_from=empty)
    assert not result.get("failed")
    assert (result["changed"], result["verdict"]) == (False, "unknown")
    heavy = {probe.id for probe in PROBES if probe.heavy}
    assert set(result["probes"]) == {probe.id for probe in PROBES} - heavy
    judged = {check.id for check in CHECKS if heavy.isdisjoint(check.needs)}
    assert {finding["check"] for finding in result["findings"]} == judged
    assert result["msg"].startswith("unknown: ")
    assert isinstance(result["elapsed"], float)


def test_the_summary_gets_one_note_for_each_missing_probe(run_module: Any, empty: str) -> None:
    told = run_module("node_health", profile=profile(), replay_from=empty)["gpufleet"]
    assert told["attention"]
    assert all(note["severity"] in ("fail", "warn") and note["next_step"] for note in told["attention"])
    assert len(told["attention"]) <= 2 * len(PROBES)
    health = told["facts"]["health"]
    assert health["verdict"] == "unknown"
    assert health["findings"] and all(item["status"] not in ("ok", "skipped") for item in health["findings"])
    assert health["comparison"] == {"kind": profile()["description"], "values": {}}


def test_wrong_input_fails_before_anything_runs(run_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ansible.module_utils.gpufleet.health.probe_runner.run_probes", lambda *_: pytest.fail("a probe ran")
    )
    wrong = profile(schema=2, required_checks=["gpu.ec"])
    result = run_module("node_health", profile=wrong, checks=["pcie.lnk"], skip={"gpu.ecc": ""})
    assert result["failed"]
    assert "verdict" not in result
    text = "\n".join(result["problems"])
    for piece in ("schema: expected one of 1", "did you mean 'gpu.ecc'", "did you mean 'pcie.link'", "needs a reason"):
        assert piece in text
    assert "nothing was asked" in result["next_step"]
    assert "schema" in result["msg"].splitlines()[0], "the first line of a message is what the summary shows"


def test_a_profile_that_is_empty_is_wrong(run_module: Any, empty: str) -> None:
    assert run_module("node_health", profile={}, replay_from=empty)["failed"]


def test_a_profile_must_be_given(run_module: Any, empty: str) -> None:
    assert "profile" in run_module("node_health", replay_from=empty)["msg"]


def test_narrowed_and_skipped(run_module: Any, empty: str) -> None:
    asked = {"checks": ["gpu.ecc", "pcie"], "skip": {"gpu.ecc": "ticket 1"}}
    result = run_module("node_health", profile=profile(required_checks=[]), replay_from=empty, **asked)
    ids = {item["check"] for item in result["findings"]}
    assert "gpu.ecc" in ids and all(name == "gpu.ecc" or name.startswith("pcie.") for name in ids)
    (skipped,) = [item for item in result["findings"] if item["check"] == "gpu.ecc"]
    assert (skipped["status"], skipped["observed"]) == ("skipped", "skipped: ticket 1")


def test_check_mode_writes_nothing(run_module: Any, tmp_path: Path) -> None:
    files = {"capture_to": str(tmp_path / "kept"), "history": str(tmp_path / "history")}
    result = run_module("node_health", check=True, profile=profile(), checks=["pcie.link"], deadline=1, **files)
    assert result["verdict"]
    assert list(tmp_path.iterdir()) == []


def test_a_capture_of_the_node_is_kept_on_request(run_module: Any, tmp_path: Path) -> None:
    result = run_module(
        "node_health", profile=profile(), checks=["pcie.link"], deadline=5, capture_to=str(tmp_path / "kept")
    )
    assert result["changed"] is False
    meta = json.loads((tmp_path / "kept" / "pci.lspci" / "meta.json").read_text())
    assert meta["outcome"] == result["probes"]["pci.lspci"]["outcome"]
    again = run_module("node_health", profile=profile(), checks=["pcie.link"], replay_from=str(tmp_path / "kept"))
    assert again["findings"] == result["findings"]


def test_what_did_not_work_beside_the_check_is_a_warning(
    run_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    # where a test has loaded the controller's code, Ansible shows warnings there instead of returning them
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.warn", lambda _self, text: warnings.append(text))
    (tmp_path / "history").write_text("{")
    asked = {"profile": profile(), "checks": ["pcie.link"], "deadline": 5}
    run_module("node_health", **asked, history=str(tmp_path / "history"))
    assert "earlier faults are not taken into account" in warnings[0]


def test_a_capture_that_is_none_is_wrong_input(run_module: Any, tmp_path: Path) -> None:
    result = run_module("node_health", profile=profile(), replay_from=str(tmp_path))
    assert result["failed"] and "is no capture" in result["msg"]
