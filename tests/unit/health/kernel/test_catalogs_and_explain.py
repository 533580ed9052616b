# SPDX-License-Identifier: Apache-2.0
"""Every entry of the catalogs reads as plain advice, and every topic that is listed can be explained."""

from __future__ import annotations

import re

import pytest
from ansible.module_utils.gpufleet.health.explain import UnknownTopicError, explain
from ansible.module_utils.gpufleet.health.finding import ACTIONS
from ansible.module_utils.gpufleet.health.kernel_checks import CHECKS
from ansible.module_utils.gpufleet.health.sxid_catalog import SXIDS, entry_by_text, sxid_entry
from ansible.module_utils.gpufleet.health.xid_catalog import ALL_GPUS, CAUSES, XIDS, xid_entry

ENTRIES = [*XIDS.values(), xid_entry(177), *SXIDS.values(), sxid_entry(99999)]
# Words of other catalogs that tell a tired person nothing, such as RESTART_BM or WORKFLOW_XID_48.
JARGON = re.compile(r"\b[A-Z]{2,}_[A-Z_0-9]+\b|\bRMA\b|\bDBE\b")


def test_every_number_has_its_entry() -> None:
    assert sorted(XIDS) == list(range(1, 177)) and len(SXIDS) == 420
    assert all(number == entry.number for number, entry in (*XIDS.items(), *SXIDS.items()))


def test_each_entry_is_plain_advice() -> None:
    for entry in ENTRIES:
        for sentence in (entry.meaning, entry.advice, entry.if_it_returns):
            assert len(sentence) > 10 and sentence[0].isupper() and sentence.endswith("."), entry
            assert not JARGON.search(sentence), entry
        assert entry.severity in ("warn", "fail") and entry.action in ACTIONS
        # nothing that only warns may reset, and nothing that forbids training may end in watching
        assert (entry.severity == "fail") == (entry.action not in ("none", "observe")), entry


def test_no_number_alone_asks_for_a_replacement() -> None:
    assert all(entry.action != "replace" for entry in ENTRIES)
    for entry in XIDS.values():
        assert entry.cause in CAUSES and set(entry.gpus) <= set(ALL_GPUS)
        if entry.cause in ("unused", "unpublished"):
            assert (entry.severity, entry.action) == ("warn", "observe")
            assert "person must look" in entry.advice, entry


def test_classes_of_xids() -> None:
    assert {number for number in (13, 31, 43, 45) if XIDS[number].cause != "application"} == set()
    assert {
        number for number in (46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143) if XIDS[number].severity != "fail"
    } == set()
    assert XIDS[144].gpus == ("B100", "GB200") and XIDS[136].gpus == ("H100",) and XIDS[13].gpus == ALL_GPUS
    assert XIDS[135].name == "ROBUST_CHANNEL_CE19_ERROR" and "number 19" in XIDS[135].meaning


def test_classes_of_sxids() -> None:
    kinds = [entry.kind for entry in SXIDS.values()]
    counted = {kind: kinds.count(kind) for kind in set(kinds)}
    # driver 595, LS10 (healthchecks.md, 2.2): 70 fatal, 56 contained, 93 non-fatal, 16 notices
    assert counted == {"fatal": 70, "contained": 56, "non-fatal": 93, "notice": 16, "older": 185}
    assert all(entry.severity == "fail" for entry in SXIDS.values() if entry.kind in ("fatal", "contained"))


def test_a_text_names_its_entry() -> None:
    for entry in SXIDS.values():
        if entry.text:
            assert entry_by_text(entry.number, f"{entry.text} (First)") is entry
    assert entry_by_text(28006, "MC TS crumbstore MCTO").number == 29006
    assert entry_by_text(12028, "").number == 12028 and entry_by_text(99999, "Some error").kind == "unknown"


def test_each_number_is_explained() -> None:
    headings = ("What it means: ", "How bad: ", "Action: ", "First: ", "If it comes back: ", "Source: ")
    for kind, numbers in (("Xid", [*XIDS, 177]), ("SXid", [*SXIDS, 99999])):
        for number in numbers:
            text = explain(f"{kind} {number}", CHECKS)
            assert text.startswith(f"{kind} {number}") and all(len(line) <= 100 for line in text.splitlines()), text
            assert all(f"\n{heading}" in text for heading in headings), text
            assert "\nOn which GPUs: " in text or "\nOn which switches: " in text


def test_spellings_of_a_topic() -> None:
    assert (
        explain("xid 79", CHECKS)
        == explain("Xid79", CHECKS)
        == explain(" XID:  79 ", CHECKS)
        == explain("xid-79", CHECKS)
    )
    text = explain("xid 79", CHECKS)
    assert "no longer answers on PCIe" in text and "reboot the node" in text and "A100, H100, B100, GB200" in text
    assert "must not train" in text


def test_other_topics() -> None:
    assert "egress non-posted PRIV error" in explain("sxid 12028", CHECKS)
    assert "in no table" in explain("sxid 99999", CHECKS)
    assert "Whatever the driver demands" in explain("xid 154", CHECKS)
    text = explain("kernel.xid", CHECKS)
    assert "Source: healthchecks.md" in text and "kernel.journal, kernel.dmesg, kernel.boot" in text


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_each_check_is_explained(check) -> None:
    assert check.documentation.splitlines()[0] in explain(check.id, CHECKS)


@pytest.mark.parametrize(
    ("topic", "hint"),
    [
        ("kernel.xids", "did you mean 'kernel.xid'?"),
        ("xdi 79", "did you mean 'xid 79'?"),
        ("", "Topics are"),
        ("kernel", "is a group of checks"),
    ],
)
def test_an_unknown_topic_names_the_nearest(topic: str, hint: str) -> None:
    with pytest.raises(UnknownTopicError, match=re.escape(hint)):
        explain(topic, CHECKS)
