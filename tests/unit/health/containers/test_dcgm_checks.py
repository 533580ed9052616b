# SPDX-License-Identifier: Apache-2.0
"""DCGM and its exporter: both generations of JSON, a host engine that hangs, watches, incidents, missing metrics."""

import re
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health import dcgm_checks, dcgm_diag_check, dcgm_exporter_check
from ansible.module_utils.gpufleet.health.probe import ParseError, ProbeResult

from tests.health_node import result
from tests.health_node_containers import counted as output
from tests.health_node_containers import fixture, scrape
from tests.unit.health.containers.container_case import Change, both, part, put, run, troubles

ENGINE, HEALTH, DIAG, SCRAPE = "dcgm.host_engine", "dcgm.health", "dcgm.diag", "dcgm_exporter.scrape"
Trouble = tuple[str, str, str, str]
GPU = {3: "GPU 3 (0000:5d:00.0)", 5: "GPU 5 (0000:bb:00.0)", 1: "GPU 1 (0000:3b:00.0)", 2: "GPU 2 (0000:4c:00.0)"}
NO_ENGINE = fixture("dcgm/no-host-engine.txt") + "exit status 226\n"
STOPPED = "LoadState=loaded\nActiveState=inactive\nResult=success\n"


def recorded(name: str) -> Change:
    """Another recording in place of the whole output."""
    return lambda _text: fixture(f"dcgm/{name}")


def without(word: str) -> Change:
    return lambda text: "".join(line for line in text.splitlines(True) if word not in line)


ENGINE_TROUBLE = ("dcgm.host_engine", "node", "warn", "restart_service")
FAULTS: dict[str, tuple[dict[str, Change], dict[str, Any], list[Trouble], str]] = {
    "the host engine is stopped": (
        {ENGINE: both(part("unit", STOPPED), part("version", "exit status 226\n"),
                      part("gpus", NO_ENGINE)),
         HEALTH: both(part("watches", NO_ENGINE), part("health", NO_ENGINE))},
        {},
        [ENGINE_TROUBLE, ("dcgm.watches", "node", "unknown", "none"), ("dcgm.health", "node", "unknown", "none")],
        "nvidia-dcgm.service is inactive: Error: unable to establish a connection",
    ),
    "the host engine is hung": (
        {ENGINE: part("gpus", "exit status 124\n"), HEALTH: both(part("watches", "exit status 124\n"),
                                                                 part("health", "exit status 124\n"))},
        {},
        [("dcgm.host_engine", "node", "fail", "restart_service"), ("dcgm.watches", "node", "unknown", "none"),
         ("dcgm.health", "node", "unknown", "none")],
        "nvidia-dcgm.service is active: no answer within 20 s",
    ),
    "the host engine hangs at once": (
        {ENGINE: part("version", "Local build info:\nVersion : 4.2.3\nexit status 124\n")},
        {},
        [("dcgm.host_engine", "node", "fail", "restart_service")],
        "no answer within 20 s",
    ),
    "DCGM is not installed": (
        {ENGINE: part("version", "timeout: failed to run command 'dcgmi': No such file or directory\n"
                                 "exit status 127\n")},
        {},
        [ENGINE_TROUBLE],
        "dcgmi is not installed",
    ),
    "bug 090: client and host engine of two versions, both of the older release": (
        {ENGINE: part("version", fixture("dcgm/version-3.3.1-engine-3.3.0.txt") + "exit status 0\n")},
        {},
        [ENGINE_TROUBLE, ("dcgm.host_engine", "node", "warn", "none")],
        "the host engine is 3.3.0, its client 3.3.1",
    ),
    "another version than profiled": (
        {},
        {"packages.dcgm.version": "4.4.0"},
        [("dcgm.host_engine", "node", "warn", "none"), ("dcgm.holds", "node", "warn", "none")],
        "version 4.2.3",
    ),
    "the host engine was started before a GPU was there": (
        {ENGINE: both(put("8 GPUs found", "7 GPUs found"), without("00000000:DB"), without("| 7  "))},
        {},
        [ENGINE_TROUBLE],
        "it has 7 GPUs",
    ),
    "a list of GPUs that is not whole": (
        {ENGINE: without("00000000:DB")},
        {},
        [("dcgm.host_engine", "node", "unknown", "none")],
        "dcgmi discovery lists 7 GPUs and says 8 GPUs found",
    ),
    "the watches were lost with a restart": (
        {HEALTH: both(part("watches", put('"On"', '"Off"')),
                      part("health", fixture("dcgm/health-not-watched.txt") + "exit status 255\n"))},
        {},
        [("dcgm.watches", "node", "warn", "none"), ("dcgm.health", "node", "unknown", "none")],
        "it watches nothing",
    ),
    "more is watched than profiled": (
        {},
        {"packages.dcgm.watches": ["pcie", "memory"]},
        [("dcgm.watches", "node", "warn", "none")],
        "it watches inforom, memory, nvlink, pcie, thermal",
    ),
    "incidents, each with its GPU": (
        {HEALTH: part("health", fixture("dcgm/health-incidents.json") + "exit status 0\n")},
        {},
        [("dcgm.health", GPU[3], "fail", "reset_gpu"), ("dcgm.health", GPU[3], "warn", "observe"),
         ("dcgm.health", GPU[5], "fail", "inspect"), ("dcgm.health", "Switch 0", "warn", "observe")],
        "Memory system: Detected 2 volatile double-bit ECC error(s) in GPU 3. Drain the GPU and reset it or reboot",
    ),
    "bad health, and nothing that says why": (
        {HEALTH: put('"Healthy"', '"Warning"')},
        {},
        [("dcgm.health", "node", "warn", "observe")],
        "overall health Warning, without an incident",
    ),
    "DCGM 4: a GPU fails, and a skipped test is no pass": (
        {DIAG: recorded("diag-4-fail-and-skip.json")},
        {},
        [("dcgm.diag", GPU[1], "fail", "inspect")],
        "test software: Fail, Persistence mode for GPU 1 is disabled.",
    ),
    "DCGM 4: a test that passed with a warning": (
        {DIAG: recorded("diag-4-pass-with-warning.json")},
        {},
        [("dcgm.diag", GPU[2], "warn", "observe")],
        "test memory: Pass, Error using CUDA API cuMemAlloc",
    ),
    "DCGM 4: all tests were skipped": (
        {DIAG: recorded("diag-4-all-skipped.json")},
        {},
        [("dcgm.diag", "node", "unknown", "none")],
        "no test passed or failed: all were skipped",
    ),
    "DCGM 4: it did not run": (
        {DIAG: recorded("diag-4-did-not-run.json")},
        {},
        [("dcgm.diag", "node", "unknown", "none")],
        "dcgmi diag did not run: Error: requested tests were not found: memory_bandwidth",
    ),
    "bug 088: no test in it": (
        {DIAG: recorded("diag-4-no-test.json")},
        {},
        [("dcgm.diag", "node", "unknown", "none")],
        "dcgmi diag names no test that ran",
    ),
    "a JSON of neither generation": (
        {DIAG: put('"DCGM Diagnostic"', '"DCGM 9 Diagnostic"')},
        {},
        [("dcgm.diag", "node", "unknown", "none")],
        "dcgmi diag did not run",
    ),
    "a GPU was not tested": (
        {DIAG: lambda text: re.sub(r'"entity_id" : 7(,\s+"status")', r'"entity_id" : 6\1', text)},
        {},
        [("dcgm.diag", "node", "unknown", "none")],
        "7 GPUs of 8 were tested",
    ),
    "DCGM 2: a test fails and one warns": (
        {DIAG: recorded("diag-2-fail-and-warn.json")},
        {},
        [("dcgm.diag", "node", "fail", "inspect"), ("dcgm.diag", "node", "warn", "observe")],
        "test Persistence Mode: Fail, without a reason",
    ),
    "DCGM 2: a warning alone": (
        {DIAG: recorded("diag-2-warn.json")},
        {},
        [("dcgm.diag", "node", "warn", "observe")],
        "test Persistence Mode: Warn",
    ),
    "DCGM 3: results by GPU, warnings in three forms": (
        {DIAG: recorded("diag-3-gpu-results.json")},
        {},
        [("dcgm.diag", "node", "fail", "inspect"), ("dcgm.diag", "node", "fail", "inspect"),
         ("dcgm.diag", GPU[1], "fail", "inspect")],
        "test Inforom: Fail, A corrupt InfoROM has been detected in GPU 6.",
    ),
    "nobody listens": (
        {SCRAPE: part("answer", "127.0.0.1: connect: Connection refused\n"
                                "127.0.0.1: line 1: /dev/tcp/127.0.0.1/9400: Connection refused\n")},
        {},
        [("dcgm_exporter", "node", "warn", "restart_service")],
        "nobody listens on :9400: Connection refused",
    ),
    "it answers with nothing": (
        {SCRAPE: part("answer", "HTTP/1.0 200 OK\n")},
        {},
        [("dcgm_exporter", "node", "warn", "restart_service")],
        ":9400 answers without a sample of a GPU",
    ),
    "a GPU is not in it": (
        {SCRAPE: part("answer", scrape(7))},
        {},
        [("dcgm_exporter", "node", "warn", "restart_service")],
        ":9400 lacks Xids (7 of 8 GPUs), row remapping (7 of 8 GPUs)",
    ),
    "the default list of metrics: NVLink errors and reasons for low clocks are missing": (
        {SCRAPE: both(without("NVLINK"), without("CLOCKS_EVENT"))},
        {},
        [("dcgm_exporter", "node", "warn", "restart_service")],
        ":9400 lacks NVLink errors (0 of 8 GPUs), reasons for low clocks (0 of 8 GPUs)",
    ),
    "bug 011: DCGM's word for no value": (
        {SCRAPE: lambda text: re.sub(r"(XID_ERRORS.*) 0\n", r"\1 9223372036854775794\n", text)},
        {},
        [("dcgm_exporter", "node", "warn", "restart_service")],
        ":9400 lacks Xids (0 of 8 GPUs)",
    ),
    "the host engine was started anew behind it": (
        {SCRAPE: part("started", "21000000\n86000000\n")},
        {},
        [("dcgm_exporter", "node", "warn", "restart_service")],
        "the host engine was started after it",
    ),
    "another version of the exporter": (
        {},
        {"packages.dcgm_exporter.version": "4.4.0"},
        [("dcgm_exporter", "node", "warn", "restart_service"), ("dcgm_exporter.holds", "node", "warn", "none")],
        "version 4.1.1-1",
    ),
    "the exporter fails inside": (
        {SCRAPE: part("answer", "HTTP/1.0 500 Internal Server Error\n")},
        {},
        [("dcgm_exporter", "node", "unknown", "none")],
        ":9400 answered 'HTTP/1.0 500 Internal Server Error', expected HTTP status 200",
    ),
    "the exporter hangs": (
        {SCRAPE: part("answer", "")},
        {},
        [("dcgm_exporter", "node", "unknown", "none")],
        ":9400 answered 'nothing within 20 s'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found_and_nothing_else(case: tuple[dict[str, Change], dict[str, Any], list[Trouble], str]) -> None:
    changes, wanted, expected, words = case
    findings = run(changes, wanted)
    assert sorted(troubles(findings)) == sorted(expected)
    first = next(one for one in findings if one.status not in ("ok", "skipped") and one.check == expected[0][0])
    assert words in first.observed, first.observed
    assert first.advice or first.status == "unknown"
    assert len(first.observed) < 300 and "\n" not in first.observed


OTHERWISE_RIGHT: dict[str, tuple[dict[str, Change], dict[str, Any]]] = {
    "DCGM 2: every test passes": ({DIAG: recorded("diag-2-pass.json")}, {}),
    "nothing is watched, as the profile says": (
        {HEALTH: both(part("watches", put('"On"', '"Off"')),
                      part("health", fixture("dcgm/health-not-watched.txt") + "exit status 255\n"))},
        {"packages.dcgm.watches": []},
    ),
    "DCGM 4.6 says which GPUs it found": ({ENGINE: put("8 GPUs found.", "8 GPUs found (Active).")}, {}),
    "throttle reasons, as older releases have them": (
        {SCRAPE: put("CLOCKS_EVENT_REASONS", "CLOCK_THROTTLE_REASONS")},
        {},
    ),
    "an exporter in a container has no unit and no package": (
        {SCRAPE: both(part("started", "0\n17000000\n"), part("version", ""))},
        {"packages.dcgm_exporter.run_as": "container"},
    ),
    "the profiled version of the exporter": (
        {"apt.holds": put("end of", "/etc/apt/preferences.d/gpufleet-dcgm-exporter:Pin: version 4.1.1*\nend of")},
        {"packages.dcgm_exporter.version": "4.1.1"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERWISE_RIGHT.values(), ids=OTHERWISE_RIGHT)
def test_what_is_right_in_another_way_passes(case: tuple[dict[str, Change], dict[str, Any]]) -> None:
    assert troubles(run(*case)) == []


def test_a_skipped_test_is_told_of() -> None:
    findings = run({DIAG: recorded("diag-4-fail-and-skip.json")}, checks=["dcgm.diag"])
    skipped = [one for one in findings if one.status == "skipped"]
    assert len(skipped) == 8 and "test memory: Skip" in skipped[0].observed
    assert "ok" not in {one.status for one in findings}


def test_what_dcgm_cannot_name_is_named_by_its_number() -> None:
    incidents = part("health", fixture("dcgm/health-incidents.json") + "exit status 0\n")
    found = run({HEALTH: incidents, ENGINE: part("gpus", "exit status 124\n")}, checks=["dcgm.health"])
    assert {one.component for one in found if "GPU" in one.component} == {"GPU 3 of DCGM", "GPU 5 of DCGM"}


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (dcgm_checks.parse_host_engine, output(unit="", version="exit status 0\n", gpus="exit status 0\n")),
        (dcgm_checks.parse_health, output(watches="{}\nexit status 0\n", health="{}\nexit status 0\n")),
        (dcgm_checks.parse_health, output(watches="exit status 1\n", health="exit status 0\n")),
        (dcgm_diag_check.parse_diag, "[]"),
        (dcgm_diag_check.parse_diag, '{"DCGM Diagnostic": []}'),
        (dcgm_diag_check.parse_diag, '{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "x"}]}]}}'),
        (dcgm_diag_check.parse_diag, fixture("dcgm/diag-4-pass.json").replace('"Pass"', '"Passed"')),
        (dcgm_exporter_check.parse_exporter, output(started="", version="", asked=":9400\n", answer="")),
        (
            dcgm_exporter_check.parse_exporter,
            output(started="1\n2\n", version="", asked=":9400\n", answer="HTTP/1.0 200 OK\nDCGM_FI_DEV_XID_ERRORS 0\n"),
        ),
    ],
)
def test_what_is_odd_is_refused(parse: Any, text: str) -> None:
    with pytest.raises(ParseError):
        parse(ProbeResult("x", "done", 0, text, "", 0.1, 0.0, True))


@pytest.mark.parametrize("name", ["health-healthy.json", "health-incidents.json"])
@pytest.mark.parametrize("value", ["Internal error", ""])
def test_a_state_that_dcgm_cannot_tell_is_unknown(name: str, value: str) -> None:
    text = fixture(f"dcgm/{name}").replace('"value" : "Healthy"', f'"value" : "{value}"')
    text = text.replace('"value" : "Warning"', f'"value" : "{value}"')
    answer = output(watches=fixture("dcgm/health-watches.txt") + "exit status 0\n", health=text + "exit status 0\n")
    with pytest.raises(ParseError, match="no state of health"):
        dcgm_checks.parse_health(result(HEALTH, answer))


def test_each_recording_is_judged() -> None:
    used = Path(__file__).read_text() + Path(__file__).with_name("test_container_checks.py").read_text()
    used += (Path(__file__).parents[3] / "health_node_containers.py").read_text()
    for area in ("docker", "dcgm", "containers"):
        for file in (Path(__file__).parents[3] / "fixtures" / area).iterdir():
            assert file.name in used, f"nothing reads {file}"
