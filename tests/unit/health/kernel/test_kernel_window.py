# SPDX-License-Identifier: Apache-2.0
"""Two sources as one log of the running boot: nothing twice, nothing old, and no "nothing found" without evidence."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health.kernel_checks import CHECKS
from ansible.module_utils.gpufleet.health.kernel_log_window import parse_boot
from ansible.module_utils.gpufleet.health.probe import ParseError, ProbeResult

from tests.unit.health.kernel.kernel_node import (
    FIRST,
    UPTIME_S,
    WHEN,
    XID,
    boot,
    done,
    judge,
    judge_log,
    node,
    profile,
    troubles,
)

LOST = XID + "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
LATER = "[  200.000000] usb 1-1: new device\n"
TAIL = "[15000.000000] usb 1-1: new device\n"  # rotated: the beginning is lost
IDS = [check.id for check in CHECKS]


def statuses(results: dict[str, ProbeResult], check: str = "kernel") -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in judge(results, check):
        found.setdefault(one.check, set()).add(one.status)
    return found


def test_a_healthy_node_passes_every_check_with_evidence() -> None:
    found = judge(node(FIRST + LATER))
    assert {one.check: one.status for one in found} == dict.fromkeys(IDS, "ok")
    assert all(one.evidence and "since the boot at 2026-05-28" in one.observed for one in found)


def test_a_source_that_reaches_back_is_enough() -> None:
    assert not troubles(judge(node(FIRST + LATER, TAIL)))
    assert not troubles(judge(node(TAIL, FIRST + LATER)))


def test_neither_reaches_back() -> None:
    found = judge(node(TAIL, TAIL))
    assert {one.status for one in found} == {"unknown"} and len(found) == len(CHECKS)
    assert all("log window incomplete: kernel.journal from 2026-05-28 " in one.observed for one in found)


def test_faults_count_although_the_window_is_incomplete() -> None:
    late = TAIL + "[16000.000000] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=a, GPU has fallen off the bus.\n"
    assert [one[2] for one in troubles(judge(node(late), "kernel.xid"))] == ["fail", "unknown"]


def test_each_source_alone_shows_the_fault() -> None:
    for results in (
        node(FIRST + LOST, FIRST + LATER),
        node(FIRST + LATER, FIRST + LOST),
        node(FIRST + LATER, TAIL + LOST),
    ):
        assert troubles(judge(results, "kernel.xid")) == [("kernel.xid", "GPU 0000:9b:00.0", "fail", "reboot")]


def test_an_event_in_both_sources_is_counted_once() -> None:
    (found,) = judge(node(FIRST + LOST), "kernel.xid")
    assert "once, 2026-05-28" in found.observed


def test_what_one_source_lost_is_taken_from_the_other() -> None:
    old = "[ 9000.000000] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
    (found, gap) = judge(node(TAIL.replace("15000", " 8000") + old, TAIL + old.replace(" 9000", "16000")), "kernel.xid")
    assert "2 times" in found.observed and gap.status == "unknown"


@pytest.mark.parametrize("probe", ["kernel.journal", "kernel.dmesg", "kernel.boot"])
@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "missing", "stdout": "", "why": "is not there"},
        {
            "outcome": "failed",
            "rc": 1,
            "stdout": "",
            "stderr": "dmesg: read kernel buffer failed: Operation not permitted",
        },
        {"outcome": "timeout", "rc": None, "stdout": ""},
        {"stdout": ""},
        {"stdout": "\n\n"},
        {"stdout": "Unable to determine the device handle for GPU0000:9B:00.0: GPU is lost.\n"},
        {"stdout": "total 0\ndrwxr-xr-x 2 root root 40 Sep 21 13:33 a\n"},
    ],
    ids=["missing", "failed", "timeout", "empty", "blank", "a tool's error", "another tool"],
)
def test_no_check_passes_without_its_probes(probe: str, change: dict[str, Any]) -> None:
    results = node(FIRST + LATER)
    results[probe] = results[probe]._replace(**change)
    for check, found in statuses(results).items():
        assert found == {"unknown"}, check
    assert all(probe in one.observed for one in judge(results))


@pytest.mark.parametrize("probe", ["kernel.journal", "kernel.dmesg"])
@pytest.mark.parametrize("outcome", ["truncated", "timeout"])
def test_a_log_that_was_cut_still_shows_its_faults(probe: str, outcome: str) -> None:
    results = node(FIRST + LOST + LATER, FIRST + LATER)
    results["kernel.dmesg"] = done("kernel.dmesg", FIRST + LOST + LATER)
    results[probe] = results[probe]._replace(outcome=outcome)
    found = judge(results, "kernel.xid")
    assert [one.status for one in found] == ["fail", "unknown"] and probe in found[1].observed
    assert statuses(results, "kernel.oom") == {"kernel.oom": {"unknown"}}


def test_a_last_record_without_an_end_is_a_cut() -> None:
    results = node(FIRST + LATER)
    results["kernel.dmesg"] = done("kernel.dmesg", (FIRST + LATER)[:-3])
    assert {one.status for one in judge(results)} == {"unknown"}


def test_without_root_it_is_said() -> None:
    results = node(FIRST + LATER)
    for probe in ("kernel.journal", "kernel.dmesg"):
        results[probe] = results[probe]._replace(outcome="failed", rc=1, stdout="", stderr="not permitted", root=False)
    (found,) = judge(results, "kernel.xid")
    assert found.status == "unknown" and "without root" in found.observed
    assert "kernel.journal" in found.observed and "kernel.dmesg" in found.observed


def test_the_log_of_another_boot_is_refused() -> None:
    results = node(FIRST + LOST + "[90000.000000] a\n", FIRST + LATER, uptime_s=300.0)
    found = judge(results, "kernel.xid")
    assert [one.status for one in found] == ["unknown"] and "another boot" in found[0].observed


def test_a_fault_before_a_clearing_reboot_is_gone() -> None:
    assert not troubles(judge(node(FIRST + LOST + FIRST + LATER)))
    # by date, where the form has no clock of the boot
    began = datetime.fromtimestamp(WHEN - UPTIME_S, timezone.utc)  # noqa: UP017
    day = f"{began:%Y-%m-%d}"
    assert began.hour > 2, "the test writes times of one day"
    earlier = f"{day}T01:00:00+00:00 n1 kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
    later = f"{day}T23:00:00+00:00 n1 kernel: Linux version 6.5.0 (x)\n"
    assert not troubles(judge(node(FIRST + LATER + earlier + later, FIRST + LATER), "kernel.xid"))
    assert not troubles(judge(node(FIRST + LATER + earlier, FIRST + LATER), "kernel.xid"))


def test_a_local_time_counts_unless_it_is_days_before_the_boot() -> None:
    line = "[{:%a %b %d %H:%M:%S %Y}] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
    began = WHEN - UPTIME_S
    for seconds, expected in ((600, ["fail"]), (-8 * 3600, ["fail"]), (-2 * 86400, [])):
        moment = datetime.fromtimestamp(began + seconds, timezone.utc)  # noqa: UP017
        found = troubles(judge(node(FIRST + LATER, FIRST + line.format(moment)), "kernel.xid"))
        assert [one[2] for one in found] == expected, seconds


def test_old_warnings_end_and_old_faults_do_not() -> None:
    text = f"{FIRST}{XID}31, pid=1, name=a, Ch 1\n[500000.000000] later\n"
    assert not troubles(judge_log(text, "kernel.xid"))
    (found,) = judge_log(text, "kernel.xid")
    assert "no Xid that still counts (1 are too old" in found.observed
    assert [one[2] for one in troubles(judge_log(text, "kernel.xid", profile(max_age_h=None)))] == ["warn"]
    assert [one[2] for one in troubles(judge_log(text.replace("31,", "48,"), "kernel.xid"))] == ["fail"]


def test_a_burst_of_800_000_lines_gives_one_short_finding() -> None:
    # bug 036, made shorter: 29 texts, again and again
    lines = [
        f"[{100 + number * 0.001:12.6f}] NVRM: Xid (PCI:0000:9b:00): 95, pid={number % 29}, Uncontained. RST: Yes\n"
        for number in range(5000)
    ]
    found = judge(node(FIRST + "".join(lines)), "kernel.xid")
    assert len(found) == 1 and "5000 times" in found[0].observed and len(found[0].observed) < 400
    assert len(found[0].evidence) <= 2


def test_boot_facts() -> None:
    facts = parse_boot(boot(UPTIME_S))
    assert facts.uptime_s == UPTIME_S and facts.began == WHEN - UPTIME_S
    text = boot().stdout
    lines = text.splitlines(keepends=True)
    for broken in (lines[0], lines[1], text.replace("0b1c", "0b1"), text.replace("20000.00", "up"), text[:-1], "x"):
        with pytest.raises(ParseError):
            parse_boot(boot()._replace(stdout=broken))
