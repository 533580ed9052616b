# SPDX-License-Identifier: Apache-2.0
"""dcgm_plan: packages by the node's driver and what is installed; what is refused before anything is touched."""

from typing import Any

import pytest

from tests.modules.conftest import Commands, RunModule, load_module

QUERY = "dpkg-query --show --showformat=${Package}|${db:Status-Abbrev}|${Version}* *"
WATCHES = ["pcie", "memory"]


@pytest.fixture
def plan(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module on a node with two GPUs and no DCGM; its driver is what a test says."""
    module = load_module("dcgm_plan")
    monkeypatch.setattr(module, "read_os_release", lambda: {"ID": "debian", "VERSION_ID": "12"})
    monkeypatch.setattr(module, "gpus_on_bus", lambda: ["0000:19:00.0", "0000:3b:00.0"])
    commands.answer(QUERY, rc=1)
    return module


def driver(plan: Any, monkeypatch: pytest.MonkeyPatch, major: "int | None") -> None:
    source = "driver 580.105.08" if major else "the node has no driver"
    monkeypatch.setattr(plan, "driver_cuda_major", lambda _branch: plan_major(major, source))


def plan_major(major: "int | None", source: str) -> Any:
    from ansible.module_utils.gpufleet.dcgm_packages import CudaMajor

    return CudaMajor(major, source, None)


@pytest.mark.parametrize("check", [False, True])
def test_the_plan_follows_the_driver(
    plan: Any, run_module: RunModule, monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    driver(plan, monkeypatch, 13)
    result = run_module(plan, check=check, version="4.5.3", watches=WATCHES, driver_branch="580")
    assert not result.get("failed") and result["changed"] is False, result
    assert result["cuda_major"] == 13 and len(result["gpus"]) == 2 and "gpufleet" not in result
    assert {"name": "datacenter-gpu-manager-4-cuda13", "upstream": "4.5.3"} in result["apt"]["packages"]
    assert result["set_watches"] == "dcgmi health --set pm"


def test_dcgm_3_is_refused_first_and_goes_by_request(
    plan: Any, run_module: RunModule, monkeypatch: pytest.MonkeyPatch, commands: Commands
) -> None:
    driver(plan, monkeypatch, None)
    commands.table.clear()
    commands.answer(QUERY, "datacenter-gpu-manager|hi |1:3.3.9\ndatacenter-gpu-manager-config|rc |1:3.3.9\n")
    for check in (False, True):
        result = run_module(plan, check=check)
        assert result["failed"] and "datacenter-gpu-manager 1:3.3.9" in result["msg"], result
        assert "dcgm_replace_older_release" in result["next_step"]
    driver(plan, monkeypatch, 13)
    result = run_module(plan, replace_older_release=True)
    assert "datacenter-gpu-manager" in result["apt"]["may_remove"], result


def test_without_a_driver_the_profile_has_to_say_the_cuda_and_check_mode_waits_for_it(
    plan: Any, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(plan, monkeypatch, None)
    warnings: list[str] = []
    # where a test has loaded the controller's code, Ansible shows warnings there instead of returning them
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.warn", lambda _self, text: warnings.append(text))
    result = run_module(plan)
    assert result["failed"] and "cannot be told" in result["msg"] and "cuda_major" in result["next_step"]
    result = run_module(plan, check=True)
    assert not result.get("failed") and result["apt"] is None, result
    assert len(warnings) == 1 and "installs the driver first" in warnings[0]
    assert run_module(plan, cuda_major=12)["cuda_major"] == 12


def test_binaries_for_a_newer_cuda_than_the_drivers_are_refused(
    plan: Any, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(plan, monkeypatch, 12)
    for check in (False, True):
        result = run_module(plan, check=check, cuda_major=13)
        assert result["failed"] and "cannot run with it. Nothing was changed" in result["msg"]


def test_binaries_for_an_older_cuda_need_attention(
    plan: Any, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(plan, monkeypatch, 13)
    (line,) = run_module(plan, cuda_major=12)["gpufleet"]["attention"]
    assert line["severity"] == "warn" and "DCGM#254" in line["reason"]


def test_a_downgrade_needs_the_version_of_the_profile_and_another_system_is_refused(
    plan: Any, run_module: RunModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(plan, monkeypatch, 13)
    result = run_module(plan, version="4.5.3", downgrade_to="4.4.2")
    assert result["failed"] and "4.4.2" in result["msg"] and "dcgm_downgrade_to" in result["next_step"]
    assert run_module(plan, version="4.4.2", downgrade_to="4.4.2")["apt"]["downgrade"]
    result = run_module(plan, supported_os=["debian 13"])
    assert result["failed"] and "debian 12 is not supported" in result["msg"]


def test_a_broken_dpkg_is_no_empty_node(plan: Any, run_module: RunModule, commands: Commands) -> None:
    commands.table.clear()
    commands.answer(QUERY, rc=2, err="dpkg-query: error: parsing file '/var/lib/dpkg/status'")
    result = run_module(plan)
    assert result["failed"] and "parsing file" in result["msg"] and "/var/lib/dpkg" in result["next_step"]
