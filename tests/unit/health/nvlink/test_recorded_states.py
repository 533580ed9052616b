# SPDX-License-Identifier: Apache-2.0
"""Every recorded state of nvidia-smi, as its manifest (shared/samples/nvidia-smi) wants it judged."""

from __future__ import annotations

import pytest

IDS = ("nvlink.links", "nvlink.speed", "nvlink.errors", "fabric.state", "fabric.health", "fabric.clique")
GPU = {
    0: "GPU 0 (0000:1a:00.0)",
    2: "GPU 2 (0000:4a:00.0)",
    5: "GPU 5 (0000:8b:00.0)",
    6: "GPU 6 (0000:ca:00.0)",
    7: "GPU 7 (0000:cb:00.0)",
}
WITHOUT_ANSWER = {(check, "node"): "unknown" for check in IDS}
LINK_DOWN = {("nvlink.links", GPU[5]): "fail"}
# What each state must give beside ok and skipped; a state that is not here must give nothing.
STATES = {
    "gpu5-nvlink-1-down": LINK_DOWN,
    "gpu5-nvlink-last-down": LINK_DOWN,
    "gpu5-nvlink-all-down": LINK_DOWN,
    "multi-fault": LINK_DOWN,
    "all-nvlink-all-down": {("nvlink.links", "node"): "fail"},
    "all-nvlink-switch0-down": {("nvlink.links", "node"): "fail"},
    "all-nvlink-half-speed": {("nvlink.speed", "node"): "warn"},
    "gpu6-nvlink-errors-1": {("nvlink.errors", GPU[6]): "warn"},
    "gpu6-nvlink-errors-all-links": {("nvlink.errors", GPU[6]): "fail"},
    "all-fabric-not-started": {("fabric.state", "node"): "fail"},
    "gpu7-fabric-status-error": {("fabric.state", GPU[7]): "fail"},
    "gpu7-fabric-degraded-bandwidth": {("fabric.health", GPU[7]): "warn"},
    "gpu7-fabric-clique-mismatch": {("fabric.clique", GPU[7]): "fail"},
    # the drivers recorded show nothing of it: that is said, see test_a_driver_without_health_rows_is_named
    "gpu7-fabric-route-unhealthy": {},
    "gpu0-lost-midquery": {(check, GPU[0]): "unknown" for check in ("fabric.state", "fabric.health", "fabric.clique")},
    "gpu2-unknown-fields": {(check, GPU[2]): "unknown" for check in ("fabric.state", "fabric.health", "fabric.clique")},
    "gpu5-fallen-off-bus-xid79": {
        (check, GPU[5]): "unknown" for check in ("fabric.state", "fabric.health", "fabric.clique")
    },
    "all-gpus-lost": {(check, "node"): "unknown" for check in ("fabric.state", "fabric.health", "fabric.clique")},
    "gpu3-lost-handle": WITHOUT_ANSWER,
    "gpu3-unknown-handle": WITHOUT_ANSWER,
    "gpu0-unknown-handle": WITHOUT_ANSWER,
    "no-nvml-library": WITHOUT_ANSWER,
    "no-kernel-driver": WITHOUT_ANSWER,
    "init-version-mismatch": WITHOUT_ANSWER,
    "init-no-permission": WITHOUT_ANSWER,
    "init-unknown-error": WITHOUT_ANSWER,
    "init-gpu-lost": WITHOUT_ANSWER,
}
# Rows that a driver does not print: the check says skipped, and the fault cannot be seen.
INVISIBLE = {
    "525": ("fabric.health", "fabric.clique"),
    "535": ("fabric.health", "fabric.clique"),
}


def test_every_h100_state_is_judged_as_its_manifest_says(recordings, judge, told):
    seen = set()
    for name, results in recordings.items():
        version, _, state = name.partition("-h100-")
        if not state or len(results) < 4:  # the Xid states were recorded without these commands
            continue
        expected = STATES.get(state, {})
        if expected is not WITHOUT_ANSWER:
            hidden = INVISIBLE.get(version[:3], ())
            expected = {key: status for key, status in expected.items() if key[0] not in hidden}
        assert told(judge(results, *IDS)) == expected, name
        seen.add(state)
    # so that a state misspelt here is noticed
    assert set(STATES) - seen <= {"no-kernel-driver"}


@pytest.mark.parametrize("sku", ["a100", "b200", "gb200", "l40s"])
def test_other_gpus_are_healthy_by_their_models(recordings, judge, told, sku):
    names = [name for name in recordings if f"-{sku}-" in name]
    assert names
    for name in names:
        found = judge(recordings[name], *IDS, by={"limits": {"gpu": {}, "nvlink": None}, "devices": {}})
        assert told(found) == {}, name
        links = next(finding for finding in found if finding.check == "nvlink.links")
        assert links.status == ("ok" if sku == "a100" else "skipped"), (name, links)


def test_a100_has_twelve_links_and_no_fabric_state(recordings, judge):
    found = judge(recordings["550.163.01-a100-healthy"], *IDS, by={"limits": {"gpu": {}}, "devices": {}})
    by_check = {finding.check: finding for finding in found}
    assert by_check["nvlink.links"].observed == "8 GPUs: 12 active NVLinks each"
    assert by_check["fabric.state"].status == "skipped"
    assert "550.163.01" in by_check["fabric.state"].observed


def test_an_a100_board_with_nvswitches_has_no_fabric_state_either(recordings, judge):
    by = {"limits": {"gpu": {}}, "devices": {"nvswitch": {"match": [{"device": "1af1"}], "count": 6}}}
    assert [finding.status for finding in judge(recordings["535.261.03-a100-healthy"], "fabric.state", by=by)] == [
        "skipped"
    ]


@pytest.mark.parametrize("driver", ["535.261.03", "550.163.01"])
def test_b200_without_nvlink_on_an_hgx_board_must_not_train(recordings, judge, driver):
    """The manifest: healthy for a card, critical for HGX B200. Links that are not printed at all are no evidence."""
    by = {
        "limits": {"gpu": {"nvlink_links": 18, "nvlink_link_gbytes_per_s": 53.125}, "nvlink": None},
        "devices": {"nvswitch": {"match": [{"device": "2901"}], "count": 2}},
    }
    found = judge(recordings[f"{driver}-b200-healthy-nonvlink"], *IDS, by=by)
    status = {finding.check: finding.status for finding in found}
    assert status["fabric.state"] == "fail"
    assert {status[check] for check in ("nvlink.links", "nvlink.speed", "nvlink.errors")} == {"unknown"}


def test_a_healthy_node_names_what_was_seen(recordings, judge):
    found = judge(recordings["550.163.01-h100-healthy"], *IDS)
    assert [(finding.check, finding.status, finding.observed) for finding in found] == [
        ("nvlink.links", "ok", "8 GPUs: 18 active NVLinks each"),
        ("nvlink.speed", "ok", "144 NVLinks of 8 GPUs at 26.562 GB/s each"),
        ("nvlink.errors", "ok", "144 NVLinks of 8 GPUs: no errors since the driver was loaded"),
        ("fabric.state", "ok", "8 GPUs: fabric state Completed, status Success"),
        ("fabric.health", "ok", "8 GPUs find the fabric healthy (driver 550.163.01: Bandwidth)"),
        ("fabric.clique", "ok", "8 GPUs in clique 0 of cluster 00000000-0000-0000-0000-000000000001"),
    ]
    assert all(finding.evidence for finding in found)


def test_a_driver_without_health_rows_is_named(recordings, judge):
    found = judge(recordings["535.261.03-h100-gpu7-fabric-route-unhealthy"], "fabric.health", "fabric.clique")
    assert [finding.status for finding in found] == ["skipped", "skipped"]
    assert all("535.261.03" in finding.observed for finding in found)


def test_findings_tell_what_to_do(recordings, judge):
    expected = {
        "gpu5-nvlink-1-down": ("17 of 18 NVLinks active; link 7 inactive", "reset_gpu", "Link 7: <inactive>"),
        "gpu5-nvlink-all-down": ("all links are inactive", "reset_gpu", "all links are inActive"),
        "all-nvlink-switch0-down": ("link 0, 4, 8, 12, 16 down on all 8 GPUs", "reboot", "Link 0: <inactive>"),
        "gpu6-nvlink-errors-1": ("link 0: Replay Errors 1", "observe", "Link 0: Replay Errors: 1"),
        "gpu6-nvlink-errors-all-links": ("and 16 more links", "reset_gpu", "Link 0: CRC Errors: 9002"),
        "all-fabric-not-started": ("Not Started", "restart_service", "Not Started"),
        "gpu7-fabric-clique-mismatch": ("clique 1", "reboot", "CliqueId 1"),
    }
    for state, (observed, action, line) in expected.items():
        (finding,) = (
            f for f in judge(recordings[f"550.163.01-h100-{state}"], *IDS) if f.status not in ("ok", "skipped")
        )
        assert observed in finding.observed
        assert finding.action == action
        assert line in finding.evidence[0].excerpt
        assert finding.advice and finding.expected and finding.reference


def test_a_profile_without_gpus_has_nothing_to_judge(recordings, judge):
    found = judge(recordings["550.163.01-h100-healthy"], *IDS, by={"limits": {"gpu": None}})
    assert {finding.status for finding in found} == {"skipped"}
