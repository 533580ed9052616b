# SPDX-License-Identifier: Apache-2.0
"""The profile of a good node: valid, fitting that node, and none for a node that is not good."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpufleet.health.capture import write_capture
from ansible.module_utils.gpufleet.health.health_run import HealthInput, known_names, run_health
from ansible.module_utils.gpufleet.health.probe import ProbeResult
from ansible.module_utils.gpufleet.health.profile_proposal import ProposalError, profile_text, propose_profile
from ansible.module_utils.gpufleet.health.registry import CHECKS, PROBES
from ansible.module_utils.gpufleet.profile_schema import validate

from tests.health_node import healthy_node, nvidia_smi

PROFILES = Path(__file__).resolve().parents[4] / "profiles"


@pytest.fixture(scope="module")
def good() -> Mapping[str, ProbeResult]:
    return healthy_node()


def proposal(folder: Path, results: Mapping[str, ProbeResult]) -> tuple[str, dict[str, Any]]:
    """Path of the capture, and its profile."""
    path = str(folder / "capture")
    write_capture(path, results, PROBES, 1_796_000_000.0)
    return path, propose_profile(path, PROBES, CHECKS)[1]


def test_the_profile_is_valid_and_the_node_fits_it(tmp_path: Path, good: Mapping[str, ProbeResult]) -> None:
    path, profile = proposal(tmp_path, good)
    assert validate(profile, known_names(CHECKS)) == []
    report = run_health(HealthInput(profile, replay_from=path))
    assert report["verdict"] == "ok"
    assert len(profile["required_checks"]) > 20


def test_it_says_what_the_xe9680_is(tmp_path: Path, good: Mapping[str, ProbeResult]) -> None:
    _path, profile = proposal(tmp_path, good)
    shipped = yaml.safe_load((PROFILES / "xe9680-h100.yml").read_text())
    for name in ("gpu", "nvswitch", "hca", "data_disk"):
        for key in ("count", "link", "pair_with"):
            assert profile["devices"][name][key] == shipped["devices"][name][key], (name, key)
    assert profile["platform"]["system"] == shipped["platform"]["system"]
    for key in ("iommu", "acs_redirect"):
        assert profile["platform"][key] == shipped["platform"][key]
    assert profile["platform"]["cpu"]["numa_nodes_per_socket"] == shipped["platform"]["cpu"]["numa_nodes_per_socket"]


def test_it_says_which_driver_and_rdma_stack_run_and_leaves_them_alone(
    tmp_path: Path, good: Mapping[str, ProbeResult]
) -> None:
    _path, profile = proposal(tmp_path, good)
    driver, rdma = profile["packages"]["nvidia_driver"], profile["packages"]["rdma"]
    assert (driver["manage"], driver["version"], driver["kernel_modules"]) == (False, "550.163.01", "open")
    assert (rdma["manage"], rdma["source"], rdma["device_names"]) == (False, "vendor", "kernel")
    assert profile["platform"]["gpu_peer_memory"] == "nvidia_peermem"


def test_it_says_how_the_engine_runs_and_leaves_containers_alone(
    tmp_path: Path, good: Mapping[str, ProbeResult]
) -> None:
    _path, profile = proposal(tmp_path, good)
    shipped = yaml.safe_load((PROFILES / "xe9680-h100.yml").read_text())
    assert profile["platform"]["docker"] == shipped["platform"]["docker"]
    for name in ("docker", "container_toolkit", "dcgm", "dcgm_exporter"):
        assert profile["packages"][name]["manage"] is False
    assert profile["packages"]["dcgm"]["watches"] == sorted(shipped["packages"]["dcgm"]["watches"])


def test_a_node_without_an_engine_has_a_profile(tmp_path: Path, good: Mapping[str, ProbeResult]) -> None:
    gone = {name: result for name, result in good.items() if not name.startswith(("docker.", "containers.", "dcgm"))}
    path, profile = proposal(tmp_path, gone)
    assert validate(profile, known_names(CHECKS)) == []
    assert profile["platform"]["docker"]["storage_driver"] is None and profile["packages"]["dcgm"]["watches"] == []
    assert run_health(HealthInput(profile, replay_from=path))["verdict"] == "ok"


def test_limits_that_no_node_shows_are_those_of_the_shipped_profile(
    tmp_path: Path, good: Mapping[str, ProbeResult]
) -> None:
    _path, profile = proposal(tmp_path, good)
    shipped = yaml.safe_load((PROFILES / "xe9680-h100.yml").read_text())
    shipped["limits"]["kernel_log"]["known_messages"] = []  # of that machine
    assert profile["limits"]["kernel_log"] == shipped["limits"]["kernel_log"]


def test_the_text_is_yaml_with_the_same_data(tmp_path: Path, good: Mapping[str, ProbeResult]) -> None:
    _path, profile = proposal(tmp_path, good)
    text = profile_text(profile, 1_796_000_000.0)
    assert yaml.safe_load(text) == profile
    assert "healthy node on 2026-11-30" in text.splitlines()[0]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("550.163.01-h100-gpu3-remap-failure", "gpu.row_remap GPU 3"),
        ("550.163.01-h100-gpu1-ecc-dram-uncorr-volatile", "gpu.ecc GPU 1"),
        ("550.163.01-h100-gpu3-lost-handle", "GPU is lost"),
    ],
)
def test_a_sick_node_is_refused_with_what_is_wrong(
    tmp_path: Path, good: Mapping[str, ProbeResult], state: str, said: str
) -> None:
    with pytest.raises(ProposalError, match="not known to be good|lacks what a profile must say") as refused:
        proposal(tmp_path, {**good, **nvidia_smi(state)})
    assert said in str(refused.value)


@pytest.mark.parametrize("probe", ["pci.lspci", "platform.machine", "platform.processors", "nvidia_smi.query"])
def test_a_capture_that_lacks_what_a_profile_says_is_refused(
    tmp_path: Path, good: Mapping[str, ProbeResult], probe: str
) -> None:
    with pytest.raises(ProposalError, match=probe.replace(".", r"\.")):
        proposal(tmp_path, {name: result for name, result in good.items() if name != probe})


def test_an_empty_capture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProposalError, match="lacks what a profile must say"):
        proposal(tmp_path, {})


def test_the_node_still_fits_with_the_time_servers_of_the_site(tmp_path: Path, good: Mapping[str, ProbeResult]) -> None:
    """The one thing that a person must add to the proposal, in the form in which inventories give it."""
    path, profile = proposal(tmp_path, good)
    profile["platform"]["clock"]["servers"] = [{"address": "10.0.0.1", "options": "iburst"}, {"address": "10.0.0.2"}]
    assert validate(profile, known_names(CHECKS)) == []
    assert run_health(HealthInput(profile, replay_from=path))["verdict"] == "ok"
