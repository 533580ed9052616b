# SPDX-License-Identifier: Apache-2.0
"""The report for a person: what is wrong first, nothing above 120 columns, nothing of a node that harms a terminal."""

from typing import Any

import pytest
from ansible.module_utils.gpufleet.health import report_text
from ansible.module_utils.gpufleet.health.finding import Evidence, Finding
from ansible.module_utils.gpufleet.health.health_run import report_finding
from ansible.module_utils.gpufleet.health.policy import action, verdict
from ansible.module_utils.gpufleet.health.report_gist import attention, gist
from ansible.module_utils.gpufleet.health.report_text import columns, cut, report_lines


def report(*findings: Finding, **more: Any) -> dict[str, Any]:
    return {
        "verdict": verdict(findings),
        "action": action(findings),
        "findings": [report_finding(finding) for finding in findings],
        "probes": {},
        "elapsed": 12.34,
        "checks": {"judged": 45, "known": 45},
        "profile": "Dell PowerEdge XE9680",
        "node": "gpu-017",
        "when": 1_796_000_000.0,
        "comparison": {},
        "notes": [],
        **more,
    }


def fault(component: str = "GPU 3 (0000:9b:00.0)", **more: Any) -> Finding:
    fields = {
        "observed": "2 uncorrectable errors",
        "expected": "none",
        "action": "reset_gpu",
        "advice": "drain the node and reset the GPU",
        "evidence": (Evidence("nvidia_smi.query", "Volatile\n  DRAM Uncorrectable : 2"),),
        "reference": "NVIDIA GPU Memory Error Management",
        "check": "gpu.ecc",
        **more,
    }
    return Finding(component, "fail", **fields)


OK = Finding("node", "ok", "8 GPUs are there", evidence=(Evidence("pci.lspci"),), check="gpu.count")
SKIPPED = Finding("node", "skipped", "this node has no pool", check="zfs.pool")


def unknown(check: str, component: str = "node") -> Finding:
    said = "probe nvidia_smi.query: nvidia-smi -q -x gave no answer within 60 s"
    return Finding(component, "unknown", said, advice="run the probe by hand", check=check)


def test_the_whole_report() -> None:
    lines = report_lines(
        report(OK, fault(), SKIPPED, unknown("gpu.clocks"), unknown("gpu.power"), notes=["no capture"])
    )
    assert lines == [
        "FAIL: must not train (1 fault, 2 findings without evidence). Next: reset gpu",
        "node gpu-017, 2026-11-30 00:53 UTC, 45 checks, 12.3 s, profile: Dell PowerEdge XE9680",
        "",
        "FAULTS",
        "  gpu.ecc  GPU 3 (0000:9b:00.0)",
        "    found:     2 uncorrectable errors",
        "    expected:  none",
        "    do:        [reset gpu] drain the node and reset the GPU",
        "    evidence:  nvidia_smi.query: Volatile | DRAM Uncorrectable : 2",
        "    source:    NVIDIA GPU Memory Error Management",
        "",
        "NO EVIDENCE",
        "  probe nvidia_smi.query: nvidia-smi -q -x gave no answer within 60 s",
        "    affects:   2 checks: gpu.clocks, gpu.power",
        "    do:        run the probe by hand",
        "",
        "1 check ok, 1 skipped (--all lists them)",
        "Note: no capture",
    ]


def test_a_good_node_has_three_lines() -> None:
    lines = report_lines(report(OK, SKIPPED))
    assert lines[0] == "OK: may train"
    assert lines[2:] == ["", "1 check ok, 1 skipped (--all lists them)"]


def test_all_lists_what_is_ok_and_why_the_rest_was_skipped() -> None:
    text = "\n".join(report_lines(report(OK, SKIPPED), show_all=True))
    assert "gpu.count" in text and "8 GPUs are there" in text
    assert "this node has no pool" in text


def test_the_hardest_action_comes_first_and_faults_before_warnings() -> None:
    warning = fault("pool data", check="zfs.pool", action="replace")._replace(status="warn")
    text = "\n".join(report_lines(report(warning, fault(), fault("GPU 5", action="replace", check="gpu.remap"))))
    assert text.index("gpu.remap") < text.index("gpu.ecc") < text.index("WARNINGS") < text.index("zfs.pool")


def test_parts_with_the_same_fault_are_one_entry() -> None:
    found = [fault(f"GPU {number} (0000:{number}b:00.0)") for number in range(8)]
    lines = report_lines(report(*found))
    assert lines[0] == "FAIL: must not train (8 faults). Next: reset gpu"
    assert lines[4] == "  gpu.ecc  GPU 0, GPU 1, GPU 2, GPU 3, GPU 4, GPU 5, GPU 6, GPU 7"
    assert sum("found:" in line for line in lines) == 1


def test_a_narrowed_run_and_a_capture_say_so() -> None:
    about = report_lines(report(OK, checks={"judged": 3, "known": 45}, node=None))[1]
    assert "only 3 of 45 checks" in about
    assert about.startswith("a capture, ")


LONG = "word " * 200
HOSTILE = "\x1b[31mred\x1b[0m\x07 \u202ereversed\r\nline\u2028two \x9b1m"


@pytest.mark.parametrize("text", [LONG, "x" * 700, HOSTILE, "漢字" * 200, "", "a-b-" * 100])
def test_every_line_fits_and_is_harmless(text: str) -> None:
    found = [
        fault(text, observed=text, expected=text, advice=text, evidence=(Evidence("p", text),), reference=text),
        unknown(text, text)._replace(observed=text, advice=text),
        OK._replace(observed=text),
    ]
    for show_all in (False, True):
        for line in report_lines(report(*found, notes=[text], profile=text, node=text), show_all):
            assert columns(line) <= 120, line
            assert line.isprintable(), repr(line)


def test_three_hundred_faults_stay_readable() -> None:
    found = [fault(f"GPU {number}", observed=f"{number} errors", check=f"gpu.{number % 3}") for number in range(300)]
    lines = report_lines(report(*found))
    assert len(lines) < report_text.MAX_ENTRIES * 7
    assert "gpu.0 86, gpu.1 87, gpu.2 87" in "\n".join(lines)


def test_a_cut_keeps_both_ends() -> None:
    text = cut("what happened " + "x" * 200 + " and where", 60)
    assert text.startswith("what happened") and text.endswith("and where") and " ... " in text
    assert columns(text) <= 60


def test_the_gist_is_the_worst_finding() -> None:
    assert gist(report(OK, fault(), unknown("gpu.power"))) == (
        "fail: gpu.ecc GPU 3 (0000:9b:00.0): 2 uncorrectable errors; expected none (and 1 more)"
    )
    assert gist(report(OK)) == "ok: 1 check ok"
    assert gist(report(SKIPPED)) == "unknown: nothing was judged (1 check skipped)"
    assert gist(report()) == "unknown: nothing was judged (no check skipped)"


def test_attention_groups_what_is_one_trouble() -> None:
    found = [OK, SKIPPED, *(fault(f"GPU {number}") for number in range(8)), unknown("gpu.a"), unknown("gpu.b", "GPU 1")]
    notes = attention(report(*found))
    assert [note["severity"] for note in notes] == ["fail", "fail"]
    assert notes[0]["reason"].startswith("gpu.ecc GPU 0, GPU 1, ")
    assert notes[0]["next_step"] == "[reset gpu] drain the node and reset the GPU"
    assert notes[1]["reason"].splitlines() == [
        "unknown: probe nvidia_smi.query: nvidia-smi -q -x gave no answer within 60 s",
        "affects 2 checks: gpu.a, gpu.b (GPU 1)",
    ]


def test_a_warning_is_no_failure_and_a_good_node_needs_nobody() -> None:
    assert attention(report(fault()._replace(status="warn")))[0]["severity"] == "warn"
    assert attention(report(OK, SKIPPED)) == []


def test_a_node_without_answers_is_one_note() -> None:
    found = [unknown(f"gpu.{number}")._replace(observed=f"probe p{number}: no answer") for number in range(20)]
    (note,) = attention(report(*found))
    assert note["reason"].splitlines()[0] == (
        "unknown: 20 checks cannot be judged for 20 reasons, the first: probe p0: no answer"
    )
    assert "gpu.19" in note["reason"]
