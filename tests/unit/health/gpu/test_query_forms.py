# SPDX-License-Identifier: Apache-2.0
"""`nvidia-smi -q -x` and `-q` give the same facts, of every driver, and no value is guessed."""

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health.gpu_facts import Absent, GpuProcess, normalized_address
from ansible.module_utils.gpufleet.health.nvidia_smi_query import parse_query_text
from ansible.module_utils.gpufleet.health.probe import ParseError

from .conftest import FIXTURES, manifest

SAMPLES = FIXTURES / "samples"
BUGS = FIXTURES / "bugs"
HEALTHY = "550.163.01-h100-healthy"


def read(name: str) -> Any:
    return parse_query_text((SAMPLES / name).read_text())


def text_of(recordings: Path, folder: str, form: str) -> str:
    return (recordings / folder / form / "stdout").read_text()


def test_both_forms_give_equal_facts(recordings: Path) -> None:
    compared = 0
    for folder in manifest():
        if not (recordings / folder / "q-x").is_dir():
            continue
        xml, text = (text_of(recordings, folder, form) for form in ("q-x", "q"))
        if "<nvidia_smi_log" in xml:
            assert parse_query_text(xml) == parse_query_text(text), folder
            compared += 1
        else:
            assert xml == text, folder  # both print the same error
    assert compared == 155


def test_the_facts_of_one_gpu(recordings: Path) -> None:
    report = parse_query_text(text_of(recordings, "550.163.01-h100-healthy-busy", "q-x"))
    assert (report.driver_version, report.cuda_version, report.driver_branch) == ("550.163.01", "12.4", 550)
    gpu = report.gpus[3]
    assert gpu.component == "GPU 3 (0000:4b:00.0)"
    assert (gpu.name, gpu.device_id, gpu.vbios) == ("NVIDIA H100 80GB HBM3", "2330", "96.00.74.00.09")
    assert (gpu.memory.total, gpu.utilization, gpu.temperature.core, gpu.power.draw) == (81920, 99, 64, 662.0)
    assert (gpu.clock_reasons.idle, gpu.clock_reasons.hw_slowdown) == ("Not Active", "Not Active")
    assert (gpu.fabric.state, gpu.fabric.status, gpu.fabric.clique_id) == ("Completed", "Success", "0")
    assert gpu.retired_pages.pending == Absent("not_applicable", "N/A")
    assert gpu.recovery_action == Absent("not_in_driver", "driver branch 550 does not print it")
    assert isinstance(gpu.processes, tuple) and len(gpu.processes) == 1
    assert gpu.processes[0] == GpuProcess(gpu.processes[0].pid, "M+C+G", gpu.processes[0].name, 71000)


def test_a_section_that_collapses_into_one_row(recordings: Path) -> None:
    for form in ("q-x", "q"):
        report = parse_query_text(text_of(recordings, "550.163.01-h100-gpu5-fallen-off-bus-xid79", form))
        assert report.gpus[5].row_remap.pending == Absent("error", "GPU is lost")
        assert report.gpus[5].row_remap.banks_none == Absent("error", "GPU is lost")
        assert "remapped rows" in {row.row for row in report.gpus[5].unreadable}
        assert not report.gpus[4].unreadable


def test_lines_around_and_between_are_kept(recordings: Path) -> None:
    note = "WARNING: infoROM is corrupted at gpu 0000:4B:00.0"
    xml, text = (text_of(recordings, HEALTHY, form) for form in ("q-x", "q"))
    for output in (
        f"{note}\n{xml}",
        f"{xml}{note}\n",
        xml.replace("\t</gpu>\n", f"\t</gpu>\n{note}\n", 1),
        f"{note}\n{text}",
        f"{text}{note}\n",
        text.replace("\nGPU 00000000:1B", f"\n{note}\nGPU 00000000:1B"),
    ):
        report = parse_query_text(output)
        assert report.notes == (note,) and len(report.gpus) == 8


def test_mig_devices_are_no_gpus_and_their_rows_are_not_the_gpus() -> None:
    report = read("q_load_h100_mig_590.txt")
    gpu = report.gpus[0]
    assert len(report.gpus) == 1 and gpu.mig_devices == 4
    assert (gpu.memory.total, gpu.memory.used) == (81559, 11125)
    assert gpu.utilization == Absent("not_applicable", "N/A")
    assert isinstance(gpu.processes, tuple) and [process.pid for process in gpu.processes][:2] == [21180, 21181]
    xml = read("q_x_a100_sxm4_mig.xml").gpus[0]
    assert (xml.mig_devices, xml.memory.total, xml.processes) == (2, 40960, ())
    assert xml.ecc.volatile.dram_uncorrectable == Absent("not_applicable", "N/A")
    # the tag of this row is broken into two lines by hand
    assert xml.clock_reasons.applications_clocks_setting == "Not Active"


def test_old_and_new_drivers() -> None:
    old = read("q_v100_azhpc.txt")
    assert len(old.gpus) == 8 and old.gpus[0].ecc.volatile.sram_uncorrectable == 0
    assert old.gpus[0].clock_reasons.idle == "Active"
    assert old.gpus[0].fabric.state == Absent("not_in_driver", "driver branch 460 does not print it")
    new = read("q_idle_h100_590.txt").gpus[0]
    assert (new.recovery_action, new.ecc.unrepairable_memory) == ("None", "No")
    assert (new.temperature.margin, new.temperature.slowdown_margin) == (46, -2)
    assert new.clocks.applications_graphics == Absent("not_applicable", "Requested functionality has been deprecated")
    assert new.reset_required == Absent("not_in_driver", "driver branch 590 does not print it")
    a10 = read("q_a10_pending_yes.txt").gpus[0]
    assert (a10.temperature.slowdown, a10.row_remap.pending, a10.row_remap.uncorrectable) == (98, "Yes", 4)


def test_ecc_that_a_gpu_has_not_is_not_ecc_that_is_off() -> None:
    assert read("q_x_rtx4090_drv535.xml").gpus[0].ecc.current == "Disabled"
    xml = (SAMPLES / "q_x_rtx4090_drv535.xml").read_text()
    gpu = parse_query_text(xml.replace("<current_ecc>Disabled", "<current_ecc>N/A")).gpus[0]
    assert gpu.ecc.current == Absent("not_applicable", "N/A")


def test_a_gpu_before_ampere_counts_by_bits(recordings: Path) -> None:
    """Layout of a V100 as in nvidia-smi(1), driver 460: single and double bit, with a total."""
    text = text_of(recordings, "525.147.05-h100-healthy", "q")
    rows = "            SRAM Correctable              : 0\n            SRAM Uncorrectable            : 0\n"
    rows += "            DRAM Correctable              : 0\n            DRAM Uncorrectable            : 0\n"
    bits = "            Single Bit\n                Device Memory             : 3\n                Total     : 3\n"
    bits += "            Double Bit\n                Device Memory             : 1\n                Total     : 1\n"
    assert rows in text
    volatile = parse_query_text(text.replace(rows, bits)).gpus[0].ecc.volatile
    assert (volatile.single_bit, volatile.double_bit) == (3, 1)
    assert isinstance(volatile.dram_uncorrectable, Absent)


def test_the_spelling_of_driver_610(recordings: Path) -> None:
    """Bug 015: the old names get a note, the new ones stand below them."""
    lines = (BUGS / "015-nvsmi-610-banner-q.txt").read_text()
    text = text_of(recordings, HEALTHY, "q")
    old = "Driver Version                            : 550.163.01\nCUDA Version                              : 12.4\n"
    assert old in text
    report = parse_query_text(text.replace(old, lines))
    assert (report.driver_version, report.cuda_version, report.driver_branch) == ("610.57.04", "13.3", 610)
    only_old = "".join(lines.splitlines(keepends=True)[:2])
    report = parse_query_text(text.replace(old, only_old))
    assert (report.driver_version, report.cuda_version) == ("610.57.04", "13.3")
    deprecated = 'Driver Version : Deprecated, see "KMD version" instead\n'
    report = parse_query_text(text.replace(old, deprecated))
    assert report.driver_version == Absent("error", 'Deprecated, see "KMD version" instead')
    assert report.cuda_version == Absent("missing", "row not printed")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("81920 GiB", "'81920 GiB' is no number of MiB"),
        ("81920", "'81920' is no number of MiB"),
        ("9223372036854775794 MiB", "9223372036854775794 MiB is the mark for no value"),
        ("[Unknown Error]", "[Unknown Error]"),
        ("ERR!", "ERR!"),
        ("", "nothing is printed"),
    ],
)
def test_no_number_is_guessed(recordings: Path, value: str, reason: str) -> None:
    """Bugs 001, 002, 011 and 013: one value is unusable, with its reason, and all others stay."""
    healthy = text_of(recordings, HEALTHY, "q-x")
    report = parse_query_text(healthy.replace("<total>81920 MiB</total>", f"<total>{value}</total>", 1))
    assert report.gpus[0].memory.total == Absent("error", reason)
    assert (report.gpus[0].memory.used, report.gpus[1].memory.total) == (0, 81920)
    assert [(row.row, row.text) for row in report.gpus[0].unreadable] == [("FB Memory Usage > Total", reason)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("<attached_gpus>8", "<attached_gpus>9"), "Attached GPUs is 9, but 8 are described"),
        (lambda text: text.replace("\t<attached_gpus>8</attached_gpus>\n", ""), "Attached GPUs is no number: ''"),
        (lambda text: text.replace('id="00000000:1B:00.0"', 'id="N/A"'), "has no PCI address"),
        (lambda text: text.replace("00000000:1B:00.0", "00000000:1A:00.0"), "two GPUs have the same PCI address"),
        (lambda text: text.replace("<serial>", "<uuid>x</uuid><serial>", 1), "has two rows uuid"),
        (lambda text: text.replace("<nvidia_smi_log>", '<!ENTITY a "b"><nvidia_smi_log>'), "declares entities"),
        (lambda text: text.replace("</ecc_mode>", "", 1), "line 286: mismatched tag$"),
    ],
)
def test_xml_that_is_refused(recordings: Path, change: Any, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_query_text(change(text_of(recordings, HEALTHY, "q-x")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("        Volatile\n", "", 1), "a heading above this line is missing: 'SRAM Corr"),
        (lambda text: text.replace("        Aggregate\n", "", 1), "a second 'SRAM Correctable'"),
        (lambda text: text.replace("GPU 00000000:1A:00.0\n", "", 1), r"line 9: expected a line GPU <address> first"),
        (lambda text: text.replace("    MIG Mode\n", "", 1), "'addressing mode' has a value"),
        (lambda text: text.replace("    Serial Number", "   Serial Number", 1), "this line does not fit"),
        (lambda text: text.replace("    Serial Number", "Serial Number", 1), "this line does not fit"),
        (lambda text: text[: text.index("        Current")], "it was cut|nothing stands below|Attached GPUs is 8"),
        (lambda text: text.replace("GPU 00000000:1B:00.0", "GPU 1B:00.0", 1), "no PCI address"),
    ],
)
def test_text_that_is_refused(recordings: Path, change: Any, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_query_text(change(text_of(recordings, HEALTHY, "q")))


def test_a_process_may_have_any_name(recordings: Path) -> None:
    xml = text_of(recordings, "550.163.01-h100-gpu6-leftover-process", "q-x")
    gpu = parse_query_text(xml.replace("/opt/job/train", "\x1b[31m a : b")).gpus[6]
    assert isinstance(gpu.processes, tuple) and gpu.processes[0].name == "?[31m a : b"
    text = text_of(recordings, "550.163.01-h100-gpu6-leftover-process", "q")
    gpu = parse_query_text(text.replace("/opt/job/train", "a : b : c")).gpus[6]
    assert isinstance(gpu.processes, tuple) and gpu.processes[0].name == "a : b : c"


def test_addresses() -> None:
    assert normalized_address("00000000:9B:00.0") == "0000:9b:00.0"
    assert normalized_address("0008:00:00.0") == "0008:00:00.0"
    assert normalized_address("00010000:00:00.0") == "10000:00:00.0"
    assert normalized_address("9B:00.0") is None
