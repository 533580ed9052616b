# SPDX-License-Identifier: Apache-2.0
"""Xids and SXids: what a line says stands above its number, causes above consequences, repeats above single faults."""

from __future__ import annotations

import pytest
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.kernel_log_addresses import any_address, pci_address
from ansible.module_utils.gpufleet.health.xid_lines import (
    fallen_address,
    link_error,
    link_registers,
    parse_sxid,
    parse_xid,
    recovery_action,
    unit_of,
)

from tests.unit.health.kernel.kernel_node import judge_log, profile, troubles

GPU = "NVRM: Xid (PCI:0000:9b:00): "


def log(*lines: tuple[float, str]) -> str:
    return "".join(f"[{time:12.6f}] {text}\n" for time, text in lines)


def judged(*lines: tuple[float, str]) -> Finding:
    """The only finding of kernel.xid."""
    (found,) = judge_log(log(*lines), "kernel.xid")
    return found


@pytest.mark.parametrize(
    "text",
    ["0000:9b:00", "0000:9B:00.0", "00000000:9B:00.0", "0000:9b:0.0", "9b:00.0", "0000:9b:00.0"],
)
def test_every_spelling_of_an_address_is_one(text: str) -> None:
    assert pci_address(text) == "0000:9b:00.0"
    assert pci_address("PCI") is None and pci_address("0000000B:00:00.0") == "000b:00:00.0"


def test_fields_of_a_line() -> None:
    xid = parse_xid("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, name=python3, Contained: CE (0x9). RST: No")
    assert xid == ("0000:01:00.0", "GPU-I:05", 94, "7194", "python3", "Contained: CE (0x9). RST: No")
    unknown = parse_xid("NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert unknown[2:] == (79, "", "", "GPU has fallen off the bus.")
    assert parse_xid("NVRM: Xid (0000:01:00): 31, Ch 2").number == 31  # drivers before 2013 wrote no PCI:
    assert parse_xid("NVRM: Xid (PCI:0000:01").number is None


def test_a_line_that_ends_anywhere_keeps_what_it_has() -> None:
    line = "NVRM: Xid (PCI:0000:c5:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004)"
    errors = [link_error(parse_xid(line[:end])) for end in range(len(line) + 1)]
    whole = errors[-1]
    assert whole == ("RLW_SRC_TRACK", False, 17, (0x04084507, 4)) and errors[10] is None
    assert all(error is None or not error.fatal for error in errors)


def test_a_cut_line_is_shown_to_a_person() -> None:
    found = judged((100, "NVRM: Xid (PCI:0000:9b:00"))
    assert found.status == "warn" and "cut off" in found.observed


def test_numbers_of_newer_drivers_are_shown_to_a_person() -> None:
    for number in (177, 500):
        found = judged((100, f"{GPU}{number}, pid=1, name=a, something new"))
        assert (found.status, found.action) == ("warn", "observe") and "person must look" in found.advice


@pytest.mark.parametrize(
    ("words", "status", "action"),
    [
        ("None", "ok", "none"),
        ("GPU Reset Required", "fail", "reset_gpu"),
        ("PF FLR", "fail", "reset_gpu"),
        ("Node Reboot Required", "fail", "reboot"),
        ("Drain P2P", "fail", "reset_gpu"),
        ("Drain and Reset", "fail", "reset_gpu"),
        ("Something New", "warn", "observe"),
    ],
)
def test_the_drivers_verdict_counts_by_its_words(words: str, status: str, action: str) -> None:
    line = (100.0, f"{GPU}154, GPU recovery action changed from 0x0 (None) to 0x1 ({words})")
    for given in (profile(), profile(max_age_h=None)):
        (found,) = judge_log(log(line), "kernel.xid", given)
        assert (found.status, found.action) == (status, action)


def test_the_newest_verdict_counts() -> None:
    first = (100.0, f"{GPU}154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    second = (
        200.0,
        f"{GPU}154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x1 (GPU Reset Required)",
    )
    assert judged(first, second).action == "reset_gpu" and judged(second, (300.0, first[1])).action == "reboot"
    unreadable = (400.0, f"{GPU}154, GPU recovery action")
    found = judged(first, unreadable)
    assert found.action == "reboot" and "cannot be read" in found.observed


def test_a_verdict_hardens_the_cause() -> None:
    found = judged(
        (100, f"{GPU}119, pid=1, name=a, Timeout after 6s of waiting for RPC response from GPU4 GSP!"),
        (101, f"{GPU}154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
    )
    assert (found.status, found.action) == ("fail", "reboot")
    assert "Xid 119" in found.observed and "Node Reboot Required" in found.observed and len(found.evidence) == 2


def test_fatal_wins_over_nonfatal_on_one_gpu() -> None:
    found = judged(
        (100, f"{GPU}145, RLW_REMAP Nonfatal XC1 i0 Link 10 (0x4)"),
        (101, f"{GPU}145, RLW_REMAP Fatal XC1 i0 Link 11 (0x4)"),
    )
    assert found.status == "fail" and "link 11" in found.observed and "link 10" not in found.observed


@pytest.mark.parametrize(
    ("registers", "status", "words"),
    [
        ("0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "fail", "register 1 bit 16: fault of the link hardware"),
        ("0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0", "fail", "register 3 bit 16"),
        ("0x0, 0x0, 0x0, 0x40000, 0x0, 0x0, 0x0", "fail", "the fabric needs a reset"),
        ("0x200000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "fail", "weak signal"),
        ("0x100000, 0x0, 0x0, 0x10000, 0x0, 0x0, 0x0", "warn", "a consequence of an error elsewhere"),
        ("0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0", "warn", "went over a limit"),
        ("0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "fail", "no register is set"),
        ("0x0, 0xffff, 0x0, 0x0, 0x0, 0x0, 0x0", "fail", "no register is set"),  # register 2 holds no error bits
        ("0x4, 0x0, 0x0, 0x0", "fail", "meaning not published"),  # cut
    ],
)
def test_registers_of_an_nvlink_error(registers: str, status: str, words: str) -> None:
    found = judged((100, f"{GPU}74, pid=1, name=a, NVLink: fatal error detected on link 6({registers})"))
    assert found.status == status and words in found.observed and "link 6" in found.observed


def test_registers_of_a_line_that_was_cut() -> None:
    line = "NVRM: Xid (PCI:0000:9b:00): 74, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000"
    read = link_registers(parse_xid(line))
    assert read is not None and read.link == 14 and len(read.meanings) == 1


@pytest.mark.parametrize("number", [94, 95])
def test_memory_errors_say_whether_a_reset_is_needed(number: int) -> None:
    assert judged((100, f"{GPU}{number}, pid=1, Contained: SM (0x1). RST: Yes, D-RST: No")).status == "fail"
    without = judged((100, f"{GPU}{number}, pid=1, Contained: SM (0x1). RST: No, D-RST: No"))
    assert without.status == ("warn" if number == 94 else "fail")


def test_only_a_bank_without_spare_rows_asks_for_a_new_gpu() -> None:
    full = judged(
        (100, f"{GPU}64, pid=1, name=a, Row Remapper Error: (0x2ee) - All reserved rows for bank are remapped")
    )
    other = judged((100, f"{GPU}64, pid=1, name=a, Row Remapper Error: cannot write InfoROM"))
    assert (full.action, other.action) == ("replace", "reset_gpu")


def sm(gpc: int, tpc: int, sm_number: int = 0) -> str:
    where = f"(GPC {gpc}, TPC {tpc}, SM {sm_number})"
    return f"{GPU}13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on {where}"


def mmu(pid: int, client: str) -> str:
    return (
        f"{GPU}31, pid={pid}, name=a, Ch 8, intr 0. MMU Fault: ENGINE GRAPHICS {client} faulted @ 0x7. Fault is of type"
    )


def test_one_job_on_one_unit_is_the_programs_fault() -> None:
    found = judged((100, sm(2, 1)), (101, sm(2, 1, 1)), (110, sm(2, 1)))
    assert (found.status, found.action) == ("warn", "observe")


def test_several_jobs_on_one_unit_are_the_hardwares() -> None:
    found = judged((100, sm(2, 1)), (1000, sm(2, 1, 1)))
    assert (found.status, found.action) == (
        "warn",
        "inspect",
    ) and "2 jobs within 24 h failed on GPC 2, TPC 1" in found.observed
    assert judged((100, sm(2, 1)), (1000, sm(2, 2))).action == "observe", "another unit"
    assert judged((100, sm(2, 1)), (100 + 25 * 3600, sm(2, 1))).action == "observe", "a day later"


def test_jobs_that_hit_many_units_do_not_point_to_one() -> None:
    broad = [(start + unit, sm(unit, 1)) for start in (100, 1000, 2000) for unit in range(6)]
    assert judged(*broad).action == "observe"


def test_a_unit_of_the_memory_management() -> None:
    found = judged((100, mmu(11, "GPCCLIENT_T1_8")), (1000, mmu(12, "GPCCLIENT_T1_8")))
    assert found.action == "inspect" and "ENGINE GRAPHICS GPCCLIENT_T1_8" in found.observed
    assert judged((100, mmu(11, "GPCCLIENT_T1_8")), (1000, mmu(11, "GPCCLIENT_T1_8"))).action == "observe", (
        "one process"
    )
    assert judged((100, mmu(11, "GPCCLIENT_T1_8")), (1000, mmu(12, "GPCCLIENT_T2_1"))).action == "observe"
    untimed = "".join(mmu(pid, "GPCCLIENT_T1_8") + "\n" for pid in (11, 12))
    (found,) = judge_log(untimed, "kernel.xid")
    assert found.action == "inspect", "told by process where there are no times"


def test_the_profile_says_how_many_jobs() -> None:
    rule = {"jobs": 3, "within_h": 24, "max_units_per_job": 2, "job_gap_s": 180}
    (found,) = judge_log(log((100, sm(2, 1)), (1000, sm(2, 1))), "kernel.xid", profile(repeated_fault=rule))
    assert found.action == "observe"


def test_stopped_channels_follow_what_came_before() -> None:
    stopped = f"{GPU}45, pid=9, name=a, Ch 0000000a"
    found = judged((100, f"{GPU}48, pid=1"), (101, stopped))
    assert found.status == "fail" and "1 channel stopped as a consequence (Xid 45)" in found.observed
    alone = judged((100, stopped))
    assert (alone.status, alone.action) == ("warn", "observe") and "without another Xid" in alone.observed
    apart = judged((100, f"{GPU}48, pid=1"), (9000, stopped))
    assert "without another Xid" in apart.observed
    assert "without another Xid" in judged((100, stopped), (500, f"{GPU}31, pid=1")).observed, (
        "what came later is no cause"
    )


@pytest.mark.parametrize(
    ("count", "hung_at", "status"), [(3, 292, "fail"), (2, 292, "warn"), (3, 9000, "warn"), (3, 50, "warn")]
)
def test_a_burst_and_a_hung_task(count: int, hung_at: float, status: str) -> None:
    stopped = [(100.0 + number, f"{GPU}45, pid=9, name=a, Ch 0000000{number}") for number in range(count)]
    hung = (float(hung_at), "INFO: task cache_mgr_event:6209 blocked for more than 120 seconds.")
    found = [one for one in judge_log(log(*sorted([*stopped, hung])), "kernel.xid")]
    assert [(one.status, one.action) for one in found] == [(status, "reboot" if status == "fail" else "observe")]


def test_a_lost_gpu_in_other_words() -> None:
    for text in (
        "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus",
        "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at PCI:0000:b3:00: GPU-11111111-aaaa-bbbb-cccc-000000000004 has fallen off the bus",
    ):
        assert (fallen_address(text) or any_address(text)) == "0000:b3:00.0"
        (found,) = judge_log(log((100, text)), "kernel.gpu_bus")
        assert (found.component, found.status, found.action) == ("GPU 0000:b3:00.0", "fail", "reboot")


def test_a_gpu_that_cannot_be_initialised() -> None:
    text = "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x65:1860)"
    assert troubles(judge_log(log((100, text)))) == [("kernel.gpu_bus", "GPU 0000:1b:00.0", "fail", "reboot")]


def test_units_and_recovery_actions_are_read_or_none() -> None:
    assert unit_of(parse_xid(f"{GPU}13, Graphics Exception: ESR 0x546f30=0x124000e")) == ""
    assert recovery_action(parse_xid(f"{GPU}154, GPU recovery action changed from 0x0 None) to 0x2 (Node")) is None


SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): "


def switch(*lines: tuple[float, str]) -> Finding:
    (found,) = judge_log(log(*lines), "kernel.sxid")
    return found


def test_the_text_wins_over_the_number() -> None:
    found = switch((5000, f"{SWITCH}28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)"))
    assert "its text is that of SXid 29006" in found.observed and found.status == "warn"
    own = switch((5000, f"{SWITCH}12028, Non-fatal, Link 61 egress non-posted PRIV error (First)"))
    assert "its text" not in own.observed


def test_the_word_wins_over_the_catalog() -> None:
    assert switch((5000, f"{SWITCH}12028, Fatal, Link 61 egress non-posted PRIV error")).action == "reset_gpu"
    assert switch((5000, f"{SWITCH}20034, Non-fatal, Link 61 LTSSM Fault Up")).status == "warn"
    assert switch((5000, f"{SWITCH}99999, Fatal, Link 2 new")).status == "fail"
    unknown = switch((5000, f"{SWITCH}99999, Non-fatal, Link 2 new"))
    assert unknown.status == "warn" and "no table" in unknown.observed and "person must look" in unknown.advice


def test_details_repeat_their_event() -> None:
    found = switch(
        (5000, f"{SWITCH}20034, Fatal, Link 48 LTSSM Fault Up"),
        (5001, f"{SWITCH}20034, Severity 1 Engine instance 48 Sub-engine instance 00"),
        (5002, f"{SWITCH}20034, Data {{0x10000000, 0x10000000}}"),
    )
    assert found.observed.count("SXid") == 1 and "once" in found.observed and "link 48" in found.observed


@pytest.mark.parametrize(("time", "status"), [(38.0, "ok"), (5000.0, "warn"), (9001.0, "ok")])
def test_links_come_up_while_the_driver_loads(time: float, status: str) -> None:
    loaded = (9000.0, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.195.03  Release Build")
    lines = sorted([(time, f"{SWITCH}22013, Non-fatal, Link 44 Minion Link DLREQ interrupt"), loaded])
    assert switch(*lines).status == status


def test_lines_of_a_switch_that_were_cut() -> None:
    line = f"{SWITCH}20034, Fatal, Link 48 LTSSM Fault Up"
    for end in range(line.index("SXid") + 4, len(line)):
        found = [one for one in judge_log(f"[  700.000000] {line[:end]}\n", "kernel.sxid")]
        assert [one.status for one in found] in (["warn"], ["fail"]), line[:end]
    assert parse_sxid(line).link == 48 and parse_sxid(line).fatal


def test_one_finding_for_each_switch_with_a_bounded_text() -> None:
    lines = [(700.0 + number, f"{SWITCH}{11000 + number}, Fatal, Link {number} x") for number in range(40)]
    found = switch(*lines)
    assert found.status == "fail" and "and 34 more kinds of SXid" in found.observed


def test_the_hardest_action_of_all_faults_of_a_gpu() -> None:
    found = judged((100, sm(2, 1)), (1000, sm(2, 1)), (1001, f"{GPU}48, pid=1"))
    assert (found.status, found.action) == ("fail", "inspect")
    assert found.observed.startswith("Xid 48") and "GPC 2, TPC 1" in found.observed


def test_many_kinds_on_one_gpu_give_a_bounded_text() -> None:
    numbers = (8, 11, 25, 32, 46, 48, 62, 69, 79, 109)
    found = judged(*((100.0 + number, f"{GPU}{number}, pid=1, name=a, x") for number in numbers))
    assert found.observed.startswith("Xid 79") and "and 4 more kinds of Xid" in found.observed
    assert found.observed.count("Xid") == 7 and len(found.evidence) == 6


def test_one_fatal_line_among_others_decides() -> None:
    found = switch(
        (5000, f"{SWITCH}20009, Non-fatal, Link 04 RX Short Error Rate"),
        (5001, f"{SWITCH}20009, Fatal, Link 05 RX Short Error Rate"),
    )
    assert found.status == "fail" and "link 5, once" in found.observed
