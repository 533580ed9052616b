# SPDX-License-Identifier: Apache-2.0
"""Outputs of other people's machines, and the cases of the bug collection, each with its interpretation."""

import copy
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.nvidia_driver_version import parse_driver_version
from ansible.module_utils.gpufleet.health.nvidia_smi_failures import HandleFailure, handle_failures
from ansible.module_utils.gpufleet.health.nvidia_smi_list import parse_list
from ansible.module_utils.gpufleet.health.nvidia_smi_query import parse_query_text
from ansible.module_utils.gpufleet.health.probe import ParseError

from .conftest import FIXTURES, PROBES, bad, judge, of_recording, result

SAMPLES = FIXTURES / "samples"
BUGS = FIXTURES / "bugs"
HEALTHY = "550.163.01-h100-healthy"


def fitting(base: dict[str, Any], text: str, mig: str | None = "disabled") -> dict[str, Any]:
    """The profile of the machine that a sample comes from."""
    gpus = parse_query_text(text).gpus
    profile = copy.deepcopy(base)
    profile["devices"]["gpu"].update(count=len(gpus), link=None)
    profile["devices"]["gpu"]["match"] = [{"vendor": "10de", "device": str(gpus[0].device_id)}]
    profile["limits"]["gpu"]["memory_mib"] = None
    profile["platform"]["gpu"].update(mig=mig, persistence=None)
    return profile


def findings_of(text: str, profile: dict[str, Any]) -> list[Finding]:
    addresses = [(gpu.address, gpu.device_id) for gpu in parse_query_text(text).gpus]
    lspci = "".join(
        f"{address} 3D controller [0302]: NVIDIA Corporation GPU [10de:{device}] (rev a1)\n\tSubsystem: X\n\n"
        for address, device in addresses
    )
    return judge(
        {"nvidia_smi.query": result("nvidia_smi.query", text), "pci.lspci": result("pci.lspci", lspci)}, profile
    )


def bad_in(name: str, base: dict[str, Any], mig: str | None = "disabled") -> set[tuple[str, str, str, str]]:
    text = (SAMPLES / name).read_text()
    return bad(findings_of(text, fitting(base, text, mig)))


ENABLED = "enabled"


@pytest.mark.parametrize(
    ("name", "mig"),
    [
        ("q_idle_h100_590.txt", "disabled"),
        ("q_h200_590.txt", "disabled"),
        ("q_h100_mig_590.txt", ENABLED),
        ("q_load_h100_mig_590.txt", ENABLED),
        ("q_idle_h200_mig_590.txt", ENABLED),
        ("q_load_h200_mig_590.txt", ENABLED),
        ("q_x_a100_sxm4_mig.xml", ENABLED),
        ("q_v100_azhpc.txt", "disabled"),
    ],
)
def test_a_healthy_machine(xe9680: dict[str, Any], name: str, mig: str) -> None:
    assert bad_in(name, xe9680, mig) == set()


def test_mig_on_a_training_node_fails(xe9680: dict[str, Any]) -> None:
    """Bug 009: MIG is a decision of the policy; utilisation N/A and remapped rows N/A under MIG alarm nobody."""
    assert bad_in("q_load_h100_mig_590.txt", xe9680) == {("gpu.mig", "GPU 0", "fail", "reset_gpu")}
    found = findings_of(
        (SAMPLES / "q_load_h100_mig_590.txt").read_text(),
        fitting(xe9680, (SAMPLES / "q_load_h100_mig_590.txt").read_text()),
    )
    remap = [finding for finding in found if finding.check == "gpu.row_remap"]
    assert [(finding.status, finding.observed) for finding in remap] == [
        ("skipped", "MIG is on: the driver does not show remapped rows then")
    ]


@pytest.mark.parametrize(
    ("value", "status"), [("N/A", "ok"), ("[N/A]", "ok"), ("Disabled", "ok"), ("Enabled", "fail"), ("maybe", "unknown")]
)
def test_values_of_the_mig_mode(recordings: Path, xe9680: dict[str, Any], value: str, status: str) -> None:
    """Bug 010: N/A and Disabled are "not active"; one value for each GPU."""
    results = of_recording(recordings / HEALTHY)
    text = results["nvidia_smi.query"].stdout.replace("_mig>Disabled<", f"_mig>{value}<")
    results["nvidia_smi.query"] = results["nvidia_smi.query"]._replace(stdout=text)
    assert {finding.status for finding in judge(results, xe9680, "gpu.mig")} == {status}


def test_one_gpu_is_slowed_down(xe9680: dict[str, Any]) -> None:
    found = bad_in("q_8xh100_535_183_one_hw_slowdown.txt", xe9680)
    assert ("gpu.throttle", "GPU 2", "fail", "inspect") in found
    assert {component for _check, component, _status, _action in found} == {"GPU 2"}


def test_output_of_eight_gpus_with_one_block_is_no_evidence(xe9680: dict[str, Any]) -> None:
    """FAIL in the MANIFEST; it is `unknown` here, since a cut output says nothing about any GPU, good or bad. Its
    source also spoiled the slowdown rows ("Invalid HW Slowdown"); without that the missing GPUs are what is refused."""
    text = (SAMPLES / "q_8xh100_535_183_truncated.txt").read_text()
    with pytest.raises(ParseError, match="'invalid hw slowdown' has a value"):
        parse_query_text(text)
    with pytest.raises(ParseError, match="Attached GPUs is 8, but 1 are described: the output was cut"):
        parse_query_text(text.replace("Invalid ", ""))
    found = judge({"nvidia_smi.query": result("nvidia_smi.query", text)}, xe9680)
    assert {finding.status for finding in found} == {"unknown"}


def test_a_row_that_no_gpu_has_readable_is_the_drivers_fault(xe9680: dict[str, Any]) -> None:
    """FAIL of "one GPU" in the MANIFEST; but all eight show it in one row (Addressing Mode) that says nothing about
    health, on GPUs at work: a quirk of the driver, to look at. On one GPU alone it is a fault."""
    text = (SAMPLES / "q_8x4090_unknown_error_fields.txt").read_text()
    profile = fitting(xe9680, text)
    assert ("gpu.lost", "node", "warn", "observe") in bad(findings_of(text, profile))
    one = text.replace("Addressing Mode                       : Unknown Error", "Addressing Mode : None", 7)
    assert ("gpu.lost", "GPU 7", "fail", "reboot") in bad(findings_of(one, profile))


def test_gpus_without_a_fabric_that_are_in_use(xe9680: dict[str, Any]) -> None:
    """PASS in the MANIFEST. ECC is off there and three kinds of processes share the node: with a profile that wants
    neither, what is left are processes on GPUs that were idle in that second."""
    text = (SAMPLES / "q_8x4090_ok.txt").read_text()
    profile = fitting(xe9680, text)
    profile["platform"]["gpu"]["ecc"] = "disabled"
    found = bad(findings_of(text, profile))
    assert {(check, status) for check, _component, status, _action in found} == {
        ("gpu.ecc", "unknown"),
        ("gpu.processes", "warn"),
    }


def test_a_pending_row_remap_of_an_a10(xe9680: dict[str, Any]) -> None:
    assert bad_in("q_a10_pending_yes.txt", xe9680) == {("gpu.row_remap", "GPU 0", "fail", "reset_gpu")}


def test_a_pending_row_remap_alone(xe9680: dict[str, Any]) -> None:
    """The rows of leptonai/gpud#80, put in place of those of an A10."""
    text = (SAMPLES / "q_a10_pending_yes.txt").read_text()
    start, end = text.index("    Remapped Rows\n"), text.index("        Bank Remap Availability")
    text = text[:start] + (SAMPLES / "remapped_rows_pending.txt").read_text() + text[end:]
    assert ("gpu.row_remap", "GPU 0", "fail", "reset_gpu") in bad(findings_of(text, fitting(xe9680, text)))


def test_a_broken_device_id_is_not_taken_for_a_model(xe9680: dict[str, Any]) -> None:
    """The sample of an A10G has 000000DE, which is no device of NVIDIA's: unknown, not another model."""
    found = bad_in("q_x_a10g.xml", xe9680)
    assert {("gpu.lost", "GPU 0", "unknown", "none"), ("gpu.sku", "GPU 0", "unknown", "none")} <= found


def test_a_card_without_ecc_at_all(xe9680: dict[str, Any]) -> None:
    text = (SAMPLES / "q_x_rtx4090_drv535.xml").read_text().replace("_ecc>Disabled<", "_ecc>N/A<")
    found = findings_of(text, fitting(xe9680, text))
    ecc = {finding.check: finding.status for finding in found if finding.check.startswith("gpu.ecc")}
    assert ecc == {"gpu.ecc_mode": "skipped", "gpu.ecc": "skipped"}


def test_retired_pages(xe9680: dict[str, Any]) -> None:
    """Output of -q -d PAGE_RETIREMENT; all other checks have nothing to go by and say so."""
    for name, expected in (
        ("page_retirement_ok.txt", set()),
        (
            "page_retirement_bad.txt",
            {
                ("gpu.retired_pages", "GPU 0", "fail", "replace"),
                ("gpu.retired_pages", "GPU 1", "fail", "replace"),
                ("gpu.retired_pages", "GPU 3", "fail", "reset_gpu"),
                ("gpu.retired_pages", "GPU 5", "fail", "replace"),
                ("gpu.retired_pages", "GPU 7", "fail", "replace"),
            },
        ),
    ):
        found = bad_in(name, xe9680)
        assert {finding for finding in found if finding[0] == "gpu.retired_pages"} == expected
        assert ("gpu.ecc", "node", "unknown", "none") in found


def test_the_inforom_warning_around_the_output(recordings: Path, xe9680: dict[str, Any]) -> None:
    """The sample has it below the summary table, which we never call; nvidia-smi prints it around every output."""
    warning = (SAMPLES / "inforom_corrupt.txt").read_text().strip().splitlines()[-1]
    assert warning == "WARNING: infoROM is corrupted at gpu 0008:00:00.0"
    results = of_recording(recordings / HEALTHY)
    query = results["nvidia_smi.query"]
    for text in (query.stdout + warning, warning + "\n" + query.stdout):
        found = judge({**results, "nvidia_smi.query": query._replace(stdout=text)}, xe9680, "gpu.inforom")
        assert bad(found) == {("gpu.inforom", "GPU 0008:00:00.0", "fail", "reset_gpu")}
    text = query.stdout + warning.replace("0008:00", "0000:4B")
    found = judge({**results, "nvidia_smi.query": query._replace(stdout=text)}, xe9680)
    assert bad(found) == {("gpu.inforom", "GPU 3", "fail", "reset_gpu")}


# Forms of nvidia-smi that no probe asks for. What they would tell comes from -q -x: the cells of 001 and 002 are rows
# there (test_query_forms: no number is guessed), the processes of 016 are a list of their own, the names of 012 are
# both read (recordings of 525 and 535), the counters of 013 need a driver of 570 and are not judged.
OTHER_FORMS = (
    "samples/table_550.txt",
    "samples/table_h100_590.txt",
    "samples/table_h100_mig_590.txt",
    "samples/dmon_load_h100_590.txt",
    "samples/inforom_corrupt.txt",
    "samples/remapped_rows_pending.txt",
    "bugs/001-nvsmi-csv-unknown-error.txt",
    "bugs/002-nvsmi-table-err-power.txt",
    "bugs/009-nvsmi-mig-table.txt",
    "bugs/010-nvsmi-mig-mode-values.txt",
    "bugs/011-dcgm-blank-value-as-number.txt",
    "bugs/012-nvsmi-throttle-renamed-event.txt",
    "bugs/013-nvsmi-unit-in-header.txt",
    "bugs/015-nvsmi-610-banner-banner.txt",
    "bugs/015-nvsmi-610-banner-version.txt",
    "bugs/016-nvsmi-pmon-columns-560.txt",
    "bugs/017-nvsmi-remap-rows-na.txt",
)


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_forms_that_no_probe_asks_for_are_refused(name: str) -> None:
    with pytest.raises(ParseError, match="line 1 is not the beginning of nvidia-smi -q"):
        parse_query_text((FIXTURES / name).read_text())
    commands = [probe.argv for probe in PROBES if probe.argv and probe.argv[0] == "nvidia-smi"]
    assert commands == [("nvidia-smi", "-q", "-x"), ("nvidia-smi", "-L")]


def test_an_error_in_place_of_power_is_looked_at_again(recordings: Path, xe9680: dict[str, Any]) -> None:
    """Bug 002: "ERR!" for watts came back with the next sample. It is neither 0 W nor a dead GPU."""
    results = of_recording(recordings / HEALTHY)
    query = results["nvidia_smi.query"]
    text = query.stdout.replace("_power_draw>95.00 W<", "_power_draw>ERR!<", 2)
    found = judge({**results, "nvidia_smi.query": query._replace(stdout=text)}, xe9680)
    assert bad(found) == {("gpu.lost", "GPU 0", "warn", "observe")}


def test_a_name_that_cannot_be_read_is_a_broken_gpu(recordings: Path, xe9680: dict[str, Any]) -> None:
    """Bug 007: eight GPUs are attached, but a text row of one reads Unknown Error. The lines are an excerpt, which by
    itself is refused."""
    sample = (BUGS / "007-nvsmi-q-brand-unknown-error.txt").read_text()
    with pytest.raises(ParseError, match="Attached GPUs is 8, but 1 are described"):
        parse_query_text(sample)
    assert "Product Brand                         : Unknown Error" in sample
    results = of_recording(recordings / HEALTHY)
    query = results["nvidia_smi.query"]
    for tag in ("product_brand>NVIDIA<", "product_name>NVIDIA H100 80GB HBM3<"):
        text = query.stdout.replace(tag, tag.partition(">")[0] + ">Unknown Error<", 1)
        found = judge({**results, "nvidia_smi.query": query._replace(stdout=text)}, xe9680)
        assert ("gpu.lost", "GPU 0", "fail", "reboot") in bad(found)


@pytest.mark.parametrize(
    ("text", "rc", "expected"),
    [
        ((BUGS / "004-nvsmi-no-driver-rc9.txt").read_text(), 9, ("fail", "reboot")),
        ("No devices were found\n", 6, ("fail", "power_cycle")),
        ("No devices were found\n", 0, ("fail", "power_cycle")),
        ("Failed to initialize NVML: Driver Not Loaded\n", 9, ("fail", "reboot")),
        ("Failed to initialize NVML: Driver/library version\n mismatch\n", 255, ("fail", "reboot")),
        ("Segmentation fault\n", 139, ("unknown", "none")),
    ],
)
def test_four_ways_of_no_answer(xe9680: dict[str, Any], text: str, rc: int, expected: tuple[str, str]) -> None:
    """Bug 004: program missing, driver not reachable, no devices, devices are four outcomes."""
    found = judge({"nvidia_smi.query": result("nvidia_smi.query", text, rc)}, xe9680, "gpu.driver")
    assert [(finding.status, finding.action) for finding in found] == [expected]
    missing = result("nvidia_smi.query", "", None, "missing")._replace(why="there is no program nvidia-smi")
    found = judge({"nvidia_smi.query": missing}, xe9680, "gpu.driver")
    assert found[0].status == "unknown" and "there is no program nvidia-smi" in found[0].observed


def test_the_message_about_a_lost_gpu_may_be_wrapped(xe9680: dict[str, Any]) -> None:
    """Bug 006: older drivers name the address, and a terminal broke the sentence."""
    text = (BUGS / "006-nvsmi-gpu-is-lost-wrapped.txt").read_text()
    assert handle_failures(text) == (HandleFailure(None, "0000:03:00.0", "GPU is lost"),)
    found = judge({"nvidia_smi.query": result("nvidia_smi.query", text, 15)}, xe9680, "gpu.lost")
    assert [(finding.component, finding.status, finding.action) for finding in found] == [
        ("GPU 0000:03:00.0", "fail", "reboot")
    ]
    assert "parse" not in found[0].observed and "reboot" in found[0].advice


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Unable to determine the device handle for GPU3: Unknown Error", HandleFailure(3, None, "Unknown Error")),
        (
            "Unable to determine the device handle for GPU3: 0000:9B:00.0: Unknown Error\n",
            HandleFailure(3, "0000:9b:00.0", "Unknown Error"),
        ),
        (
            "Unable to determine the device handle for gpu 0000:9B:00.0: GPU is lost.  Reboot the system\n",
            HandleFailure(None, "0000:9b:00.0", "GPU is lost"),
        ),
        (
            "Unable to determine the device handle for GPU 00000000:9B:00.0: GPU requires reset\n",
            HandleFailure(None, "0000:9b:00.0", "GPU requires reset"),
        ),
    ],
)
def test_spellings_of_a_gpu_that_cannot_be_opened(text: str, expected: HandleFailure) -> None:
    assert handle_failures(text) == (expected,)


def test_n_a_in_remapped_rows_is_no_zero(recordings: Path, xe9680: dict[str, Any]) -> None:
    """Bug 017: on an H100 N/A is odd; on a GPU that retires pages it is nothing to judge."""
    results = of_recording(recordings / HEALTHY)
    query = results["nvidia_smi.query"]
    start, end = query.stdout.index("\t\t<remapped_rows>"), query.stdout.index("\t\t<temperature>")
    text = query.stdout[:start] + "\t\t<remapped_rows>N/A</remapped_rows>\n" + query.stdout[end:]
    results["nvidia_smi.query"] = query._replace(stdout=text)
    assert bad(judge(results, xe9680, "gpu.row_remap")) == {("gpu.row_remap", "GPU 0", "warn", "observe")}
    old = {**results, "nvidia_smi.query": query._replace(stdout=text.replace("233010DE", "1DB510DE"))}
    found = judge(old, xe9680, "gpu.row_remap")
    assert bad(found) == set() and "this GPU does not replace rows" in str(found)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("None", set()),
        ("Reset", {("gpu.recovery_action", "GPU 0", "fail", "reset_gpu")}),
        ("Reboot", {("gpu.recovery_action", "GPU 0", "fail", "reboot")}),
        ("Node Reboot Required", {("gpu.recovery_action", "GPU 0", "fail", "reboot")}),
        ("Drain P2P", {("gpu.recovery_action", "GPU 0", "fail", "reset_gpu")}),
        ("Drain and Reset", {("gpu.recovery_action", "GPU 0", "warn", "reset_gpu")}),
        ("Recover IMEX domain", {("gpu.recovery_action", "GPU 0", "fail", "restart_service")}),
        ("Polish the fans", {("gpu.recovery_action", "GPU 0", "unknown", "none")}),
    ],
)
def test_the_drivers_own_recovery_action(xe9680: dict[str, Any], said: str, expected: set[Any]) -> None:
    """Words of nvmlDeviceGpuRecoveryAction_t; new ones are for a person to look up."""
    text = (SAMPLES / "q_idle_h100_590.txt").read_text()
    row = "GPU Recovery Action                                : None"
    assert row in text
    text = text.replace(row, row.replace("None", said))
    assert bad(findings_of(text, fitting(xe9680, text))) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("Unrepairable Memory", "replace"),
        ("SRAM Threshold Exceeded", "replace"),
        ("Channel Repair Pending", "reset_gpu"),
        ("TPC Repair Pending", "reset_gpu"),
    ],
)
def test_repairs_of_newer_drivers(xe9680: dict[str, Any], row: str, expected: str) -> None:
    text = (SAMPLES / "q_idle_h100_590.txt").read_text()
    lines = [line.replace(": No", ": Yes") if row in line else line for line in text.splitlines()]
    text = "\n".join(lines) + "\n"
    assert bad(findings_of(text, fitting(xe9680, text))) == {("gpu.ecc", "GPU 0", "fail", expected)}


def test_the_list_of_gpus() -> None:
    line = "GPU {0}: NVIDIA H100 80GB HBM3 (UUID: GPU-01000100-0000-0000-0000-00000000000{0})\n"
    whole = "".join(line.format(number) for number in range(4))
    listed = parse_list(result("nvidia_smi.list", whole))
    assert [gpu.number for gpu in listed.gpus] == [0, 1, 2, 3] and not listed.failures
    mig = line.format(0) + "  MIG 3g.40gb     Device  0: (UUID: MIG-0a1b)\n" + line.format(1)
    assert [gpu.number for gpu in parse_list(result("nvidia_smi.list", mig)).gpus] == [0, 1]
    for text, message in (
        ("", "names no GPU: 'nothing'"),
        ("No devices found.\n", "No devices found"),
        (whole.replace(line.format(2), ""), "a line is missing"),
        (whole[:-20], "no line of a GPU"),
        ("bash: nvidia-smi: command not found\n", "names no GPU"),
    ):
        with pytest.raises(ParseError, match=message):
            parse_list(result("nvidia_smi.list", text))


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024", "535.183.01"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build  (dvs-builder)",
            "550.163.01",
        ),
    ],
)
def test_the_version_of_the_kernel_module(line: str, version: str) -> None:
    gcc = "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)"
    path = "/proc/driver/nvidia/version:"
    for text in (f"{line}\n{gcc}\n", f"{path}{line}\n{path}{gcc}\n"):
        assert parse_driver_version(result("nvidia.driver_version", text)).version == version
    with pytest.raises(ParseError, match="has no line"):
        parse_driver_version(result("nvidia.driver_version", gcc))


def test_a_kernel_module_of_another_version(recordings: Path, xe9680: dict[str, Any]) -> None:
    results = of_recording(recordings / HEALTHY)
    module = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n"
    results["nvidia.driver_version"] = result("nvidia.driver_version", module)
    assert bad(judge(results, xe9680)) == {("gpu.driver", "node", "fail", "reboot")}
