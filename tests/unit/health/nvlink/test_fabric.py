# SPDX-License-Identifier: Apache-2.0
"""Fabric state and health, fabric manager, NVSwitches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.health import fabric_manager
from ansible.module_utils.gpufleet.health.fabric_manager import log_of, parse_log, parse_service, parse_version
from ansible.module_utils.gpufleet.health.probe import ParseError, ProbeResult

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
QUERY = "nvidia_smi.query"
SERVICE, VERSION, LOG = (f"fabric_manager.{name}" for name in ("service", "version", "log"))
LSPCI = "pci.lspci"
HEALTHY = "550.163.01-h100-healthy"
RUNNING = "LoadState=loaded\nActiveState=active\nSubState=running\nResult=success\nExecMainStatus=0\n"
STOPPED = RUNNING.replace("=active", "=inactive").replace("=running", "=dead")
START = (
    "[Nov 29 2026 10:00:00] [INFO] [tid 1800] Fabric Manager version 550.163.01 is running with the following "
    "configuration options\n"
)


def query(results, number, **values):
    """The recording with values of one GPU's fabric block changed, by their tags; None removes the row."""
    blocks = re.split(r"(?=\t<gpu id)", results[QUERY].stdout)
    for tag, value in values.items():
        row = re.compile(rf"\t*<{tag}>[^<]*</{tag}>\n")
        start = blocks[number + 1].index("<fabric>")
        changed = row.sub("" if value is None else f"<{tag}>{value}</{tag}>\n", blocks[number + 1][start:], count=1)
        assert changed != blocks[number + 1][start:]
        blocks[number + 1] = blocks[number + 1][:start] + changed
    return {**results, QUERY: results[QUERY]._replace(stdout="".join(blocks))}


def of_sample(results, text):
    """The recording with the states that a sample of nvidia-smi -q names, for GPU 0, or by number."""
    for number, state, status in re.findall(r"GPU (\d+) fabric: state=(.*?) status=(.*)", text):
        results = query(results, int(number), state=state, status=status)
    for state, status in re.findall(r"State +: (.*)\n +Status +: (.*)", text):
        results = query(results, 0, state=state, status=status)
    return results


def test_completed_is_not_enough(recordings, judge, told, fixture_text):
    text = fixture_text("query/025-insufficient-resources.txt")
    found = judge(of_sample(recordings[HEALTHY], text), "fabric.state")
    assert told(found) == {("fabric.state", "GPU 0 (0000:1a:00.0)"): "fail"}
    assert found[0].observed == "fabric state Completed, status Insufficient Resources"
    assert found[0].action == "reboot"


@pytest.mark.parametrize(
    ("state", "status", "action"),
    [("In Progress", "N/A", "observe"), ("Not Started", "N/A", "restart_service"), ("N/A", "N/A", "restart_service")],
)
def test_a_gpu_that_has_not_joined(recordings, judge, told, state, status, action):
    found = judge(query(recordings[HEALTHY], 4, state=state, status=status), "fabric.state")
    assert told(found) == {("fabric.state", "GPU 4 (0000:8a:00.0)"): "fail"}
    assert found[0].action == action


def test_one_gpu_without_state_beside_others_that_have_joined(recordings, judge, told):
    """Also where the profile says nothing of NVSwitches."""
    results = query(recordings[HEALTHY], 4, state="N/A", status="N/A")
    found = judge(results, "fabric.state", by={"limits": {"gpu": {}}, "devices": {}})
    assert told(found) == {("fabric.state", "GPU 4 (0000:8a:00.0)"): "fail"}


@pytest.mark.parametrize("tag", ["state", "status", "bandwidth", "cliqueId", "clusterUuid"])
def test_a_row_that_is_missing_is_unknown(recordings, judge, told, tag):
    found = judge(query(recordings[HEALTHY], 2, **{tag: None}), "fabric.state", "fabric.health", "fabric.clique")
    check = {"state": "state", "status": "state", "bandwidth": "health"}.get(tag, "clique")
    assert told(found) == {(f"fabric.{check}", "GPU 2 (0000:4a:00.0)"): "unknown"}


@pytest.mark.parametrize("tag", ["bandwidth", "cliqueId"])
def test_a_row_that_no_gpu_has_is_unknown_where_the_driver_prints_it(recordings, judge, tag):
    text = re.sub(rf"\t*<{tag}>[^<]*</{tag}>\n", "", recordings[HEALTHY][QUERY].stdout)
    results = {**recordings[HEALTHY], QUERY: recordings[HEALTHY][QUERY]._replace(stdout=text)}
    found = judge(results, "fabric.health" if tag == "bandwidth" else "fabric.clique")
    assert {(finding.component, finding.status) for finding in found} == {("node", "unknown")}


@pytest.mark.parametrize(
    ("rows", "status", "action"),
    [
        ({"route_unhealthy": "True"}, "fail", "reboot"),
        ({"route_recovery_in_progress": "True"}, "fail", "observe"),
        ({"access_timeout_recovery": "True"}, "fail", "observe"),
        ({"incorrect_configuration": "Insufficient Nvlinks"}, "fail", "inspect"),
        ({"summary": "Unhealthy"}, "fail", "reboot"),
        ({"summary": "Limited Capacity"}, "warn", "observe"),
        ({"bandwidth": "Degraded"}, "warn", "reset_gpu"),
        ({"bandwidth": "F\ufffdll"}, "unknown", "none"),
        ({"bandwidth": "N/A"}, "unknown", "none"),
    ],
)
def test_health_rows_of_newer_drivers(recordings, judge, told, rows, status, action):
    healthy = {
        "summary": "Healthy",
        "bandwidth": "Full",
        "route_recovery_in_progress": "False",
        "route_unhealthy": "False",
        "access_timeout_recovery": "False",
        "incorrect_configuration": "None",
    }
    text = recordings[HEALTHY][QUERY].stdout
    block = "".join(f"<{tag}>{value}</{tag}>\n" for tag, value in healthy.items())
    text = re.sub(r"<health>\s*<bandwidth>Full</bandwidth>\s*</health>", f"<health>{block}</health>", text)
    results = {**recordings[HEALTHY], QUERY: recordings[HEALTHY][QUERY]._replace(stdout=text)}
    (finding,) = judge(results, "fabric.health")
    assert finding.status == "ok" and "Incorrect Configuration" in finding.observed
    found = judge(query(results, 6, **rows), "fabric.health")
    assert told(found) == {("fabric.health", "GPU 6 (0000:ca:00.0)"): status}
    assert found[0].action == action


def test_multi_node_nvlink_needs_a_cluster(recordings, judge, told):
    by = {"limits": {"gpu": {}}, "devices": {}}
    healthy = recordings["550.163.01-gb200-healthy"]
    assert told(judge(healthy, "fabric.clique", by=by)) == {}
    found = judge(query(healthy, 0, clusterUuid="00000000-0000-0000-0000-000000000000"), "fabric.clique", by=by)
    assert {finding.status for finding in found} == {"fail"}


def test_the_service_must_run_although_the_gpus_have_joined(recordings, judge, told, results_of, fixture_text):
    """Bug 027: the service is dead, and one GPU has a status of Unknown Error. Each is a fault of its own."""
    text = fixture_text("query/027-service-inactive-but-state-ok.txt")
    assert "fabric_manager_active=false" in text
    results = of_sample(recordings[HEALTHY], text)
    results.update(results_of({SERVICE: STOPPED}))
    assert told(judge(results, "fabric.state", "fabric.manager")) == {
        ("fabric.state", "GPU 2 (0000:4a:00.0)"): "fail",
        ("fabric.manager", "node"): "fail",
    }


@pytest.mark.parametrize(
    ("text", "status", "action"),
    [
        (RUNNING, "ok", "none"),
        (RUNNING.replace("ActiveState=active", "ActiveState=failed"), "fail", "restart_service"),
        (RUNNING.replace("=running", "=exited"), "fail", "restart_service"),
        (RUNNING.replace("ActiveState=active", "ActiveState=activating"), "fail", "observe"),
        (
            "LoadState=not-found\nActiveState=inactive\nSubState=dead\nResult=success\nExecMainStatus=0\n",
            "fail",
            "none",
        ),
        ("LoadState=masked\nActiveState=inactive\nSubState=dead\nResult=success\nExecMainStatus=0\n", "fail", "none"),
        ("", "unknown", "none"),
        ("ActiveState=active\n", "unknown", "none"),
        (RUNNING.replace("ActiveState=active", "ActiveState="), "unknown", "none"),
    ],
)
def test_states_of_the_service(judge, results_of, text, status, action):
    (finding,) = judge(results_of({SERVICE: text}), "fabric.manager")
    assert (finding.status, finding.action) == (status, action)
    assert finding.status == "ok" or finding.advice


def test_no_fabric_manager_is_wanted_without_nvswitches(judge, results_of, profile):
    profile["devices"]["nvswitch"]["count"] = 0
    ids = ("fabric.manager", "fabric.manager_version", "fabric.manager_log", "nvlink.nvswitches")
    assert [finding.status for finding in judge({}, *ids, by=profile)] == ["skipped"] * 4
    # a profile that is silent: lspci says whether there are some
    silent = {"devices": {}, "limits": {"gpu": {}}}
    a10 = (FIXTURES / "pci" / "a10-nn.lspci.txt").read_text()
    assert [finding.status for finding in judge(results_of({LSPCI: a10}), *ids, by=silent)] == ["skipped"] * 4
    a100 = (FIXTURES / "pci" / "a100-azure-nn.lspci.txt").read_text()
    assert [finding.status for finding in judge(results_of({LSPCI: a100}), *ids, by=silent)] == [
        "skipped",
        "unknown",
        "unknown",
        "unknown",
    ]
    assert [finding.status for finding in judge({}, "fabric.manager", by=silent)] == ["unknown"]


def test_the_version_must_be_the_drivers_to_the_last_digit(recordings, judge, results_of):
    results = {**recordings[HEALTHY], **results_of({VERSION: "\n\tFabric Manager version is : 550.163.01\n\n"})}
    assert [finding.status for finding in judge(results, "fabric.manager_version")] == ["ok"]
    results.update(results_of({VERSION: "Fabric Manager version is : 550.163.02\n"}))
    (finding,) = judge(results, "fabric.manager_version")
    assert (finding.status, finding.observed) == ("fail", "fabric manager 550.163.02, driver 550.163.01")
    results.update(results_of({VERSION: "Failed to initialize NVML\n"}))
    assert [finding.status for finding in judge(results, "fabric.manager_version")] == ["unknown"]
    without = re.sub(r"<driver_version>.*</driver_version>", "", results[QUERY].stdout)
    results.update(results_of({VERSION: "Fabric Manager version is : 550.163.01\n", QUERY: without}))
    assert [finding.status for finding in judge(results, "fabric.manager_version")] == ["unknown"]


def logged(judge, results_of, text):
    return judge(results_of({LOG: text}), "fabric.manager_log")


def test_non_fatal_12028_and_multicast_messages_only_warn(judge, results_of, fixture_text):
    (finding,) = logged(judge, results_of, fixture_text("fabric-manager/multicast-and-12028.log"))
    assert (finding.component, finding.status, finding.action) == ("NVSwitch 0000:86:00.0", "warn", "observe")
    assert "12028 on port 61" in finding.observed


def test_each_kind_of_error(judge, results_of, fixture_text):
    found = logged(judge, results_of, fixture_text("fabric-manager/fatal-nonfatal-multicast-topology.log"))
    assert [(finding.component, finding.status, finding.action) for finding in found] == [
        ("NVSwitch 0000:86:00.0", "fail", "reset_gpu"),
        ("NVSwitch 0000:86:00.0", "warn", "observe"),
        ("node", "warn", "restart_service"),
        ("node", "fail", "reboot"),
    ]
    assert "20034 on port 33" in found[0].observed


def test_nothing_to_do_fails_on_an_hgx_board_only(judge, results_of, fixture_text, profile):
    text = fixture_text("fabric-manager/nothing-to-do.log")
    (finding,) = logged(judge, results_of, text)
    assert finding.status == "fail" and "shows it no NVSwitch" in finding.observed
    profile["devices"]["nvswitch"]["count"] = 0
    (finding,) = judge(results_of({LOG: text}), "fabric.manager_log", by=profile)
    assert finding.status == "skipped"


def test_a_version_that_the_driver_does_not_take(judge, results_of, fixture_text):
    (finding,) = logged(judge, results_of, fixture_text("fabric-manager/100-version-mismatch.txt"))
    assert finding.status == "fail" and "another version" in finding.observed


def test_only_the_current_start_counts(judge, results_of, fixture_text):
    before = fixture_text("fabric-manager/fatal-nonfatal-multicast-topology.log")
    (finding,) = logged(judge, results_of, before + START)
    assert (finding.status, finding.observed) == (
        "ok",
        "no fault in 1 lines since its last start, the last of Nov 29 2026 10:00:00",
    )
    assert len(logged(judge, results_of, START + before)) == 4


def test_an_error_that_no_rule_knows_is_shown(judge, results_of):
    line = "[Nov 29 2026 10:01:00] [ERROR] [tid 1801] something new happened\n"
    (finding,) = logged(judge, results_of, START + line + line)
    assert (finding.status, finding.action) == ("warn", "observe")
    assert "2 times" in finding.observed and "something new" in finding.evidence[0].excerpt


@pytest.mark.parametrize("text", ["", "\n", "GPU 0: NVIDIA H100\n", "Failed to initialize NVML: Unknown Error\n"])
def test_a_log_without_its_lines_is_no_evidence(judge, results_of, text):
    (finding,) = logged(judge, results_of, text)
    assert finding.status == "unknown" and LOG in finding.observed
    with pytest.raises(ParseError):
        log_of(text)


def test_a_log_that_is_not_there(judge):
    absent = f"tail: cannot open '{fabric_manager.LOG}' for reading: No such file or directory\n"
    result = ProbeResult(LOG, "failed", 1, "", absent, 0.1, 0.0, True)
    assert parse_log(result) is None
    assert [finding.status for finding in judge({LOG: result}, "fabric.manager_log")] == ["skipped"]
    denied = result._replace(stderr=absent.replace("No such file or directory", "Permission denied"))
    assert [finding.status for finding in judge({LOG: denied}, "fabric.manager_log")] == ["unknown"]


def test_what_systemctl_and_the_binary_print_otherwise_is_refused():
    with pytest.raises(ParseError, match="LoadState"):
        parse_service(ProbeResult(SERVICE, "done", 0, "Failed to connect to bus: Host is down\n", "", 0, 0, True))
    with pytest.raises(ParseError, match="Fabric Manager version"):
        parse_version(ProbeResult(VERSION, "done", 0, "", "", 0, 0, True))


def test_nvswitches_are_counted_by_pci(judge, results_of, profile):
    text = (FIXTURES / "pci" / "xe9680-h100.lspci.txt").read_text()
    (finding,) = judge(results_of({LSPCI: text}), "nvlink.nvswitches")
    assert (finding.status, finding.observed) == ("ok", "4 NVSwitches answer")
    blocks = text.split("\n\n")
    gone = "\n\n".join(block for block in blocks if not block.startswith("0000:85:00.0"))
    (finding,) = judge(results_of({LSPCI: gone}), "nvlink.nvswitches")
    assert (finding.status, finding.observed, finding.action) == ("fail", "3 NVSwitches", "power_cycle")
    silent = text.replace("[10de:22a3] (rev a1)", "[10de:22a3] (rev ff)", 1)
    (finding,) = judge(results_of({LSPCI: silent}), "nvlink.nvswitches")
    assert (finding.component, finding.status) == ("NVSwitch 0000:83:00.0", "fail")
    profile["devices"]["nvswitch"]["count"] = 2
    (finding,) = judge(results_of({LSPCI: text}), "nvlink.nvswitches", by=profile)
    assert finding.status == "warn"
    assert [finding.status for finding in judge({}, "nvlink.nvswitches")] == ["unknown"]


def test_an_a100_machine_has_six(judge, results_of):
    text = (FIXTURES / "pci" / "a100-azure-nn.lspci.txt").read_text()
    by = {"devices": {"nvswitch": {"match": [{"vendor": "10de", "device": "1af1"}], "count": 6}}}
    (finding,) = judge(results_of({LSPCI: text}), "nvlink.nvswitches", by=by)
    assert (finding.status, finding.observed) == ("ok", "6 NVSwitches answer")
