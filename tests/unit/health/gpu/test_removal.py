# SPDX-License-Identifier: Apache-2.0
"""Whatever is taken away from the output of nvidia-smi, no check that needed it stays ok, and no other changes."""

import re
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.probe import OUTCOMES, ParseError, ProbeResult

from .conftest import CHECKS, FIXTURES, judge, lspci_of, nvidia_smi_query, of_recording, result

HEALTHY = "550.163.01-h100-healthy"
QUERY = "nvidia_smi.query"
ALL = {check.id for check in CHECKS}

# Which checks read a row, by its path in XML; the rows of GPU 1 are taken away one after the other.
READ_BY = {
    "product_name": {"gpu.sku"},
    "persistence_mode": {"gpu.persistence"},
    "mig_mode/current_mig": {"gpu.mig"},
    "mig_mode/pending_mig": {"gpu.mig"},
    "vbios_version": {"gpu.versions"},
    "inforom_version/img_version": {"gpu.inforom", "gpu.versions"},
    "inforom_version/ecc_object": {"gpu.versions"},
    "gpu_reset_status/reset_required": {"gpu.reset_required"},
    "gpu_reset_status/drain_and_reset_recommended": {"gpu.reset_required"},
    "gsp_firmware_version": {"gpu.versions"},
    "pci/pci_device_id": {"gpu.sku"},
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": {"gpu.pcie_link"},
    "pci/pci_gpu_link_info/link_widths/current_link_width": {"gpu.pcie_link"},
    "pci/replay_counter": {"gpu.pcie_replays"},
    "pci/replay_rollover_counter": {"gpu.pcie_replays"},
    "fb_memory_usage/total": {"gpu.sku"},
    "fb_memory_usage/used": {"gpu.processes"},
    "cc_protected_memory_usage/total": {"gpu.confidential_compute"},
    "compute_mode": {"gpu.compute_mode"},
    "utilization/gpu_util": {"gpu.clocks", "gpu.processes", "gpu.temperature"},
    "ecc_mode/current_ecc": {"gpu.ecc_mode"},
    "ecc_mode/pending_ecc": {"gpu.ecc_mode"},
    "ecc_errors/aggregate/sram_threshold_exceeded": {"gpu.ecc"},
    "temperature/gpu_temp": {"gpu.temperature"},
    "temperature/gpu_temp_tlimit": {"gpu.temperature"},
    "temperature/gpu_temp_slow_tlimit_threshold": {"gpu.temperature"},
    "temperature/memory_temp": {"gpu.temperature"},
    "gpu_power_readings/current_power_limit": {"gpu.power_limit"},
    "gpu_power_readings/default_power_limit": {"gpu.power_limit"},
    "clocks/sm_clock": {"gpu.clocks"},
    **{
        f"applications_clocks/{clock}_clock".replace("applications", word): {"gpu.clocks"}
        for clock in ("graphics", "mem")
        for word in ("applications", "default_applications")
    },
    **{
        f"clocks_event_reasons/clocks_event_reason_{reason}": {"gpu.throttle"}
        for reason in (
            "gpu_idle",
            "applications_clocks_setting",
            "sw_power_cap",
            "hw_slowdown",
            "hw_thermal_slowdown",
            "hw_power_brake_slowdown",
            "sync_boost",
            "sw_thermal_slowdown",
            "display_clocks_setting",
        )
    },
    **{
        f"ecc_errors/volatile/{kind}": {"gpu.ecc"}
        for kind in (
            "sram_correctable",
            "sram_uncorrectable_parity",
            "sram_uncorrectable_secded",
            "dram_correctable",
            "dram_uncorrectable",
        )
    },
    **{
        f"ecc_errors/aggregate/{kind}": {"gpu.ecc"}
        for kind in ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable")
    },
    **{
        f"retired_pages/{row}": {"gpu.retired_pages"}
        for row in (
            "multiple_single_bit_retirement/retired_count",
            "double_bit_retirement/retired_count",
            "pending_blacklist",
        )
    },
    **{
        f"remapped_rows/{row}": {"gpu.row_remap"}
        for row in ("remapped_row_corr", "remapped_row_unc", "remapped_row_pending", "remapped_row_failure")
    },
    **{
        f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{banks}": {"gpu.row_remap"}
        for banks in ("max", "high", "partial", "low", "none")
    },
}


def paths_of_gpu(lines: list[str], number: int) -> dict[int, str]:
    """Line (from 0) of each row of a GPU, with its path of tags."""
    start = [index for index, line in enumerate(lines) if "<gpu id=" in line][number]
    end = next(index for index in range(start, len(lines)) if "</gpu>" in lines[index])
    above: list[str] = []
    found = {}
    for index in range(start + 1, end):
        line = lines[index].strip()
        row = re.fullmatch(r"<(\w+)>.*</\1>", line)
        if row:
            found[index] = "/".join([*above, row.group(1)])
        elif line.startswith("</"):
            above.pop()
        elif opened := re.fullmatch(r"<(\w+)>", line):
            above.append(opened.group(1))
    assert set(READ_BY) <= set(found.values())
    return found


def three(results: dict[str, ProbeResult], profile: dict[str, Any]) -> tuple[dict[str, ProbeResult], dict[str, Any]]:
    """The node with its first three GPUs only: hundreds of outputs are judged, and three have a majority."""
    text = re.sub(r"(attached_gpus>|Attached GPUs +: )8", r"\g<1>3", results[QUERY].stdout)
    begins = [found.start() for found in re.finditer(r'(?m)^(?:\t<gpu id="|GPU 0)', text)]
    ends = [found.end() for found in re.finditer("</gpu>\n", text)]
    text = text[: ends[2]] + "</nvidia_smi_log>\n" if ends else text[: begins[3]]
    device = {**profile["devices"]["gpu"], "count": 3}
    smaller = {**results, QUERY: results[QUERY]._replace(stdout=text)}
    smaller["nvidia_smi.list"] = smaller["nvidia_smi.list"]._replace(
        stdout="".join(results["nvidia_smi.list"].stdout.splitlines(keepends=True)[:3])
    )
    smaller["pci.lspci"] = result("pci.lspci", lspci_of(text))
    return smaller, {**profile, "devices": {**profile["devices"], "gpu": device}}


def of_text(results: dict[str, ProbeResult], text: str) -> dict[str, ProbeResult]:
    return {**results, QUERY: results[QUERY]._replace(stdout=text)}


def statuses(findings: list[Finding]) -> dict[str, set[tuple[str, str, str]]]:
    said: dict[str, set[tuple[str, str, str]]] = {}
    for finding in findings:
        said.setdefault(finding.check, set()).add((finding.component, finding.status, finding.observed))
    return said


def not_well(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if finding.status not in ("ok", "skipped")}


def test_every_row_that_a_check_reads(recordings: Path, xe9680: dict[str, Any]) -> None:
    results, xe9680 = three(of_recording(recordings / HEALTHY), xe9680)
    lines = results[QUERY].stdout.splitlines(keepends=True)
    before = statuses(judge(results, xe9680))
    for index, path in paths_of_gpu(lines, 1).items():
        findings = judge(of_text(results, "".join(lines[:index] + lines[index + 1 :])), xe9680)
        after = statuses(findings)
        changed = {check for check in ALL if after[check] != before[check]}
        assert changed == READ_BY.get(path, set()), path
        assert not_well(findings) == changed, path
        for finding in findings:
            if finding.check in changed and finding.status != "skipped":
                assert finding.component == "GPU 1 (0000:1b:00.0)" and QUERY in finding.observed, finding


def test_garbled_values(recordings: Path, xe9680: dict[str, Any]) -> None:
    results, xe9680 = three(of_recording(recordings / HEALTHY), xe9680)
    lines = results[QUERY].stdout.splitlines(keepends=True)
    for index, path in paths_of_gpu(lines, 1).items():
        line = re.sub(r">[^<]*<", ">\x01?!7z&amp;<", lines[index])
        findings = judge(of_text(results, "".join([*lines[:index], line, *lines[index + 1 :]])), xe9680)
        assert not [finding for finding in findings if "the check itself failed" in finding.observed], path
        assert READ_BY.get(path, set()) <= not_well(findings), path


BLANK = "9223372036854775794"  # NVML's mark for no value (NVIDIA/gpu-monitoring-tools#152)
VERSIONS = ("vbios_version", "gsp_firmware_version", "inforom_version")


@pytest.mark.parametrize("word", ["GPU is lost", "[Unknown Error]", "ERR!", "[GPU requires reset]", BLANK])
def test_an_error_in_place_of_a_value(recordings: Path, xe9680: dict[str, Any], word: str) -> None:
    results, xe9680 = three(of_recording(recordings / HEALTHY), xe9680)
    lines = results[QUERY].stdout.splitlines(keepends=True)
    for index, path in paths_of_gpu(lines, 1).items():
        is_any_text = word == BLANK and path.startswith((*VERSIONS, "product_name"))
        if path in READ_BY and not is_any_text:
            line = re.sub(r">[^<]*<", f">{word}<", lines[index])
            findings = judge(of_text(results, "".join([*lines[:index], line, *lines[index + 1 :]])), xe9680)
            assert READ_BY[path] | {"gpu.lost"} <= not_well(findings), path


def cuts(length: int) -> list[int]:
    """200 lines spread over the output, and all of the last 30."""
    return sorted({*range(0, length, max(1, length // 200)), *range(max(0, length - 30), length)})


@pytest.mark.parametrize("driver", ["525.147.05", "550.163.01"])
def test_xml_cut_anywhere_is_no_evidence(recordings: Path, driver: str) -> None:
    text = (recordings / f"{driver}-h100-healthy" / "q-x" / "stdout").read_text()
    lines = text.splitlines(keepends=True)
    for cut in cuts(len(lines)):
        with pytest.raises(ParseError):
            nvidia_smi_query.parse_query_text("".join(lines[:cut]))
    for cut in range(0, len(text.rstrip()), 997):
        with pytest.raises(ParseError):
            nvidia_smi_query.parse_query_text(text[:cut])


@pytest.mark.parametrize("driver", ["525.147.05", "550.163.01"])
def test_text_cut_anywhere_leaves_nothing_wrong_ok(recordings: Path, xe9680: dict[str, Any], driver: str) -> None:
    results, xe9680 = three(of_recording(recordings / f"{driver}-h100-healthy", "q"), xe9680)
    lines = results[QUERY].stdout.splitlines(keepends=True)
    well = {(one.check, one.observed) for one in judge(results, xe9680) if one.status == "ok"}
    last_row = max(index for index, line in enumerate(lines) if "Processes" in line)
    for cut in cuts(len(lines)):
        findings = judge(of_text(results, "".join(lines[:cut])), xe9680)
        assert {(one.check, one.observed) for one in findings if one.status == "ok"} <= well
        # the rows behind the list of processes are read by nobody
        assert bool(not_well(findings)) == (cut <= last_row), cut
        assert not [one for one in findings if "the check itself failed" in one.observed]


@pytest.mark.parametrize("form", ["q-x", "q"])
def test_a_line_less_never_passes_for_more(recordings: Path, xe9680: dict[str, Any], form: str) -> None:
    """Headings and tags included: the parser refuses the output, or the rows below are missing for their GPU."""
    results, xe9680 = three(of_recording(recordings / HEALTHY, form), xe9680)
    lines = results[QUERY].stdout.splitlines(keepends=True)
    well = {(one.check, one.observed) for one in judge(results, xe9680) if one.status == "ok"}
    start = next(index for index, line in enumerate(lines) if "0000:1B:00.0" in line)
    for index in [*range(12), *range(start, start + 290)]:
        findings = judge(of_text(results, "".join(lines[:index] + lines[index + 1 :])), xe9680)
        assert {(one.check, one.observed) for one in findings if one.status == "ok"} <= well, lines[index]
        assert not [one for one in findings if "the check itself failed" in one.observed]


OTHER_OUTPUT = [
    "",
    "\n",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
    "Unable to determine the device handle for GPU3: 0000:9B:00.0: Unknown Error\n",
    "bash: nvidia-smi: command not found\n",
    "<html><body>504 Gateway Time-out</body></html>",
    '<?xml version="1.0" ?>\n<nvidia_smi_log></nvidia_smi_log>\n',
    "==============NVSMI LOG==============\n",
    "==============NVSMI LOG==============\n\nAttached GPUs : 0\n",
    "==============NVSMI LOG==============\n\nAttached GPUs : 8\n",
    (FIXTURES / "samples" / "table_h100_590.txt").read_text(),
    (FIXTURES / "samples" / "dmon_load_h100_590.txt").read_text(),
    (FIXTURES / "samples" / "remapped_rows_pending.txt").read_text(),
]


@pytest.mark.parametrize("text", OTHER_OUTPUT)
def test_other_output_is_no_evidence(recordings: Path, xe9680: dict[str, Any], text: str) -> None:
    results = of_recording(recordings / HEALTHY)
    findings = judge(of_text(results, text), xe9680)
    assert not [finding for finding in findings if finding.status == "ok"]
    assert not_well(findings) == ALL
    assert not [finding for finding in findings if "the check itself failed" in finding.observed]


@pytest.mark.parametrize("outcome", [outcome for outcome in OUTCOMES if outcome != "done"])
@pytest.mark.parametrize("probe", [QUERY, "nvidia_smi.list", "pci.lspci", "nvidia.driver_version"])
def test_a_probe_that_brought_nothing(recordings: Path, xe9680: dict[str, Any], probe: str, outcome: str) -> None:
    results = of_recording(recordings / HEALTHY)
    results["nvidia.driver_version"] = result("nvidia.driver_version", "NVRM version: Kernel Module  550.163.01  Tue\n")
    before = statuses(judge(results, xe9680))
    assert not not_well(judge(results, xe9680))
    results[probe] = result(probe, "", None, outcome)._replace(why="no such program", seconds=60)
    findings = judge(results, xe9680)
    after = statuses(findings)
    for check in CHECKS:
        if probe in check.needs:
            mine = [finding for finding in findings if finding.check == check.id]
            assert not [finding for finding in mine if finding.status in ("ok", "skipped")], check.id
            assert any(probe in finding.observed for finding in mine), check.id
        elif probe not in check.also:
            assert after[check.id] == before[check.id]
