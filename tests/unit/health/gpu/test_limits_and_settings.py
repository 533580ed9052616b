# SPDX-License-Identifier: Apache-2.0
"""Limits and wishes are data: the profile's value counts, else that of the GPU model; where there is none, none."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.gpu_models import COMMON, MODELS, expected_of
from ansible.module_utils.gpufleet.health.nvidia_smi_query import parse_query_text
from ansible.module_utils.gpufleet.health.probe import ProbeResult
from ansible.module_utils.gpufleet.profile_schema_gpu import LIMITS_GPU

from .conftest import CHECKS, REPOSITORY, bad, judge, of_recording, result

HEALTHY = "550.163.01-h100-healthy"
BUSY = "550.163.01-h100-healthy-busy"
QUERY = "nvidia_smi.query"

Change = Callable[[str], str]


def on_gpu(number: int, tag: str, value: str, times: int = 1) -> Change:
    """Another value in the rows of one GPU; the tag's first occurrences."""

    def change(text: str) -> str:
        parts = re.split(r"(?=\t<gpu id=)", text)
        part = re.sub(rf"<{tag}>[^<]*<", f"<{tag}>{value}<", parts[number + 1], count=times)
        assert part != parts[number + 1]
        return "".join([*parts[: number + 1], part, *parts[number + 2 :]])

    return change


def changed(results: dict[str, ProbeResult], *changes: Change) -> dict[str, ProbeResult]:
    text = results[QUERY].stdout
    for change in changes:
        text = change(text)
    return {**results, QUERY: results[QUERY]._replace(stdout=text)}


def with_keys(profile: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """keys: platform.gpu or limits.gpu by their names."""
    new = copy.deepcopy(profile)
    for key, value in keys.items():
        section = new["limits"]["gpu"] if key in LIMITS_GPU["keys"] else new["platform"]["gpu"]
        assert key in section
        section[key] = value
    return new


def without_component(findings: list[Finding]) -> set[tuple[str, str, str]]:
    return {(check, status, action) for check, _component, status, action in bad(findings)}


def test_every_limit_has_a_default_or_says_that_it_has_none() -> None:
    keys = set(LIMITS_GPU["keys"])
    known = set(COMMON).union(*(model.limits for model in MODELS.values()))
    assert known == keys
    assert all(key["nullable"] for key in LIMITS_GPU["keys"].values())


def test_profile_then_model_then_common(recordings: Path, xe9680: dict[str, Any]) -> None:
    gpu = parse_query_text((recordings / HEALTHY / "q-x" / "stdout").read_text()).gpus[0]
    assert expected_of(with_keys(xe9680, memory_mib=7), gpu, "memory_mib") == 7
    assert expected_of(with_keys(xe9680, memory_mib=None), gpu, "memory_mib") == 81559
    assert expected_of(xe9680, gpu, "pcie_replays") == COMMON["pcie_replays"]
    assert expected_of(xe9680, gpu._replace(device_id="ffff"), "temperature_c") is None


def test_a_node_without_gpus_is_not_judged() -> None:
    lab = yaml.safe_load((REPOSITORY / "profiles" / "lab.yml").read_text())
    found = judge({}, lab)
    assert {finding.check for finding in found} == {check.id for check in CHECKS}
    assert {finding.status for finding in found} == {"skipped"}


def test_an_empty_capture_is_unknown(xe9680: dict[str, Any]) -> None:
    assert {finding.status for finding in judge({}, xe9680)} == {"unknown"}


@pytest.mark.parametrize(
    ("changes", "keys", "expected"),
    [
        # ECC: corrected errors count only beyond the limit
        ([on_gpu(0, "sram_correctable", "10000000")], {}, None),
        ([on_gpu(0, "sram_correctable", "10000001")], {}, ("gpu.ecc", "warn", "observe")),
        ([on_gpu(0, "dram_correctable", "20000001")], {}, ("gpu.ecc", "warn", "observe")),
        ([on_gpu(0, "dram_correctable", "6")], {"correctable_dram_errors": 5}, ("gpu.ecc", "warn", "observe")),
        ([on_gpu(0, "sram_uncorrectable_parity", "1")], {}, ("gpu.ecc", "fail", "reset_gpu")),
        # remapped rows
        ([on_gpu(0, "remapped_row_unc", "511")], {}, None),
        ([on_gpu(0, "remapped_row_unc", "512")], {}, ("gpu.row_remap", "fail", "replace")),
        (
            [on_gpu(0, "remapped_row_unc", "9")],
            {"uncorrectable_remapped_rows": 9},
            ("gpu.row_remap", "fail", "replace"),
        ),
        ([on_gpu(0, "row_remapper_histogram_low", "1 bank(s)")], {}, ("gpu.row_remap", "warn", "observe")),
        ([on_gpu(0, "row_remapper_histogram_none", "1 bank(s)")], {}, ("gpu.row_remap", "warn", "observe")),
        ([on_gpu(0, "row_remapper_histogram_partial", "3 bank(s)")], {}, None),
        # temperature: margin, absolute limits, neighbours
        ([on_gpu(0, "gpu_temp_tlimit", "5 C")], {}, None),
        ([on_gpu(0, "gpu_temp_tlimit", "4 C")], {}, ("gpu.temperature", "warn", "inspect")),
        ([on_gpu(0, "gpu_temp_tlimit", "0 C")], {}, ("gpu.temperature", "fail", "inspect")),
        ([on_gpu(0, "memory_temp", "94 C")], {}, None),
        ([on_gpu(0, "memory_temp", "95 C")], {}, ("gpu.temperature", "warn", "inspect")),
        ([on_gpu(0, "gpu_temp", "49 C")], {}, None),
        ([on_gpu(0, "gpu_temp", "50 C")], {}, ("gpu.temperature", "warn", "inspect")),
        ([on_gpu(0, "gpu_temp", "50 C")], {"temperature_above_peers_c": 20}, None),
        ([on_gpu(0, "gpu_temp", "50 C"), on_gpu(0, "gpu_util", "99 %")], {}, ("gpu.clocks", "warn", "reset_gpu")),
        ([], {"temperature_c": 34}, ("gpu.temperature", "warn", "inspect")),
        # settings
        ([], {"ecc": "disabled"}, ("gpu.ecc_mode", "fail", "reset_gpu")),
        ([], {"mig": "enabled"}, ("gpu.mig", "fail", "reset_gpu")),
        ([], {"persistence": "disabled"}, ("gpu.persistence", "warn", "restart_service")),
        ([], {"compute_mode": "Prohibited"}, ("gpu.compute_mode", "warn", "observe")),
        ([], {"confidential_compute": "enabled"}, ("gpu.confidential_compute", "warn", "reboot")),
        ([], {"power_limit_w": 500}, ("gpu.power_limit", "warn", "observe")),
        ([], {"power_limit_w": 700}, None),
        ([on_gpu(0, "current_power_limit", "699.50 W")], {}, ("gpu.power_limit", "warn", "observe")),
        ([on_gpu(0, "total", "1024 MiB", 3)], {}, ("gpu.confidential_compute", "warn", "reboot")),
        # link
        ([on_gpu(0, "replay_counter", "1000")], {}, None),
        ([on_gpu(0, "replay_counter", "1001")], {}, ("gpu.pcie_replays", "warn", "observe")),
        ([on_gpu(0, "replay_rollover_counter", "1")], {}, ("gpu.pcie_replays", "warn", "observe")),
        ([on_gpu(0, "current_link_gen", "1"), on_gpu(0, "performance_state", "P8")], {}, None),
        ([on_gpu(0, "current_link_gen", "1")], {}, ("gpu.pcie_link", "warn", "observe")),
        # processes
        ([on_gpu(0, "used", "500 MiB")], {}, None),
        ([on_gpu(0, "used", "501 MiB")], {}, ("gpu.processes", "warn", "reset_gpu")),
        ([on_gpu(0, "used", "16 MiB")], {"idle_memory_mib": 15}, ("gpu.processes", "warn", "reset_gpu")),
        # reasons for low clocks
        ([on_gpu(0, "clocks_event_reason_hw_thermal_slowdown", "Active")], {}, ("gpu.throttle", "fail", "inspect")),
        ([on_gpu(0, "clocks_event_reason_sw_thermal_slowdown", "Active")], {}, ("gpu.throttle", "warn", "inspect")),
        # clocks that somebody set
        ([on_gpu(0, "graphics_clock", "900 MHz", 2)], {}, ("gpu.clocks", "warn", "observe")),
        # versions
        ([on_gpu(0, "vbios_version", "96.00.74.00.01")], {}, ("gpu.versions", "warn", "observe")),
        ([on_gpu(0, "img_version", "G520.0200.00.05")], {}, ("gpu.versions", "warn", "observe")),
        ([on_gpu(0, "gsp_firmware_version", "535.183.01")], {}, ("gpu.versions", "warn", "observe")),
    ],
)
def test_a_value_and_its_limit(
    recordings: Path,
    xe9680: dict[str, Any],
    changes: list[Change],
    keys: dict[str, Any],
    expected: tuple[str, str, str] | None,
) -> None:
    results = changed(of_recording(recordings / HEALTHY), *changes)
    found = {
        (check, status, action) for check, _component, status, action in bad(judge(results, with_keys(xe9680, **keys)))
    }
    if expected is None:
        assert found == set()
    else:
        assert expected in found
        assert not {
            one for one in found if one[0] not in (expected[0], "gpu.processes", "gpu.ecc", "gpu.sku", "gpu.versions")
        }


@pytest.mark.parametrize(
    ("changes", "keys", "expected"),
    [
        ([on_gpu(0, "sm_clock", "799 MHz")], {}, ("gpu.clocks", "warn", "reset_gpu")),
        ([on_gpu(0, "sm_clock", "800 MHz")], {}, None),
        ([on_gpu(0, "sm_clock", "1500 MHz")], {"busy_sm_clock_mhz": 1600}, ("gpu.clocks", "warn", "reset_gpu")),
        ([on_gpu(0, "sm_clock", "345 MHz"), on_gpu(0, "gpu_util", "49 %")], {"busy_utilization_percent": 50}, None),
        ([on_gpu(0, "current_link_gen", "4")], {}, ("gpu.pcie_link", "fail", "reseat")),
        ([on_gpu(0, "clocks_event_reason_sw_power_cap", "Active")], {}, None),
        ([on_gpu(0, "gpu_temp", "80 C")], {}, ("gpu.temperature", "warn", "inspect")),
    ],
)
def test_a_value_under_load(
    recordings: Path,
    xe9680: dict[str, Any],
    changes: list[Change],
    keys: dict[str, Any],
    expected: tuple[str, str, str] | None,
) -> None:
    results = changed(of_recording(recordings / BUSY), *changes)
    found = {
        (check, status, action) for check, _component, status, action in bad(judge(results, with_keys(xe9680, **keys)))
    }
    assert found == (set() if expected is None else {expected})


def test_versions_of_the_profile(recordings: Path, xe9680: dict[str, Any]) -> None:
    results = of_recording(recordings / HEALTHY)
    profile = copy.deepcopy(xe9680)
    profile["packages"]["nvidia_driver"]["version"] = "550.163.01"
    profile["firmware"]["gpu_vbios"]["version"] = "96.00.74.00.09"
    profile["firmware"]["gpu_inforom"]["version"] = "H100.0200.00.04"
    found = judge(results, profile, "gpu.versions")
    assert bad(found) == set()
    assert "driver 550.163.01, CUDA 12.4, VBIOS 96.00.74.00.09" in found[0].observed
    profile["packages"]["nvidia_driver"]["version"] = "535.183.01"
    assert bad(judge(results, profile, "gpu.versions")) == {("gpu.versions", "node", "warn", "reboot")}
    profile["packages"]["nvidia_driver"]["version"] = None
    profile["firmware"]["gpu_vbios"]["version"] = "96.00.99.00.01"
    found = judge(results, profile, "gpu.versions")
    assert bad(found) == {("gpu.versions", "node", "warn", "observe")}
    assert (found[0].observed, found[0].expected) == (
        "all 8 GPUs: VBIOS Version 96.00.74.00.09",
        "96.00.99.00.01 (firmware.gpu_vbios)",
    )


def test_versions_without_a_majority(recordings: Path, xe9680: dict[str, Any]) -> None:
    results = changed(
        of_recording(recordings / HEALTHY), *(on_gpu(number, "vbios_version", "96.1") for number in (0, 2, 4, 6))
    )
    found = [finding for finding in judge(results, xe9680, "gpu.versions") if finding.status == "warn"]
    assert [finding.component for finding in found] == ["node"]
    assert "GPU 0: 96.1; GPU 1: 96.00.74.00.09" in found[0].observed


LSPCI = "pci.lspci"


def functions(results: dict[str, ProbeResult]) -> list[str]:
    return [block + "\n\n" for block in results[LSPCI].stdout.split("\n\n") if block]


def counted(results: dict[str, ProbeResult], blocks: list[str], profile: dict[str, Any]) -> list[Any]:
    return judge({**results, LSPCI: result(LSPCI, "".join(blocks))}, profile, "gpu.count")


def test_a_gpu_that_is_on_pci_only(recordings: Path, xe9680: dict[str, Any]) -> None:
    """The driver dropped it: nvidia-smi shows seven, the bus eight."""
    results = of_recording(recordings / HEALTHY)
    query = results[QUERY].stdout
    seven = re.sub(r'(?s)\t<gpu id="00000000:4B:00\.0">.*?</gpu>\n', "", query).replace(">8</att", ">7</att")
    found = counted({**results, QUERY: result(QUERY, seven)}, functions(results), xe9680)
    assert bad(found) == {("gpu.count", "node", "fail", "reboot")}
    assert found[0].observed == "7 answer to nvidia-smi, 8 are on PCI, unknown to nvidia-smi: 0000:4b:00.0"


def test_a_gpu_that_is_not_on_pci_either(recordings: Path, xe9680: dict[str, Any]) -> None:
    results = of_recording(recordings / HEALTHY)
    query = results[QUERY].stdout
    seven = re.sub(r'(?s)\t<gpu id="00000000:4B:00\.0">.*?</gpu>\n', "", query).replace(">8</att", ">7</att")
    blocks = [block for block in functions(results) if "4b:00.0" not in block]
    found = counted({**results, QUERY: result(QUERY, seven)}, blocks, xe9680)
    assert bad(found) == {("gpu.count", "node", "fail", "power_cycle")}


def test_a_gpu_that_no_longer_answers_on_the_bus(recordings: Path, xe9680: dict[str, Any]) -> None:
    """Bug 070: lspci shows rev ff for a function whose configuration space reads as ones only."""
    results = of_recording(recordings / HEALTHY)
    blocks = [
        block.splitlines()[0].replace("(rev a1)", "(rev ff)") + "\n\t!!! Unknown header type 7f\n\n"
        if "4b:00.0" in block
        else block
        for block in functions(results)
    ]
    found = counted(results, blocks, xe9680)
    assert ("gpu.count", "GPU 3", "fail", "power_cycle") in bad(found)


def test_numbers_that_agree_with_each_other_but_not_with_the_profile(recordings: Path, xe9680: dict[str, Any]) -> None:
    results = of_recording(recordings / HEALTHY)
    profile = copy.deepcopy(xe9680)
    profile["devices"]["gpu"]["count"] = 4
    assert bad(judge(results, profile, "gpu.count")) == {("gpu.count", "node", "fail", "reboot")}
    del profile["devices"]["gpu"]
    assert [finding.status for finding in judge(results, profile, "gpu.count")] == ["skipped"]


def test_numbers_without_lspci_or_ids(recordings: Path, xe9680: dict[str, Any]) -> None:
    results = of_recording(recordings / HEALTHY)
    plain = [re.sub(r" \[[0-9a-f]{4}(:[0-9a-f]{4})?\]", "", block) for block in functions(results)]
    found = counted(results, plain, xe9680)
    assert bad(found) == {("gpu.count", "node", "unknown", "none")}
    assert "without -nn" in found[0].observed
