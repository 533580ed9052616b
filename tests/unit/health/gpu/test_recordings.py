# SPDX-License-Identifier: Apache-2.0
"""Every recorded state of nvidia-smi comes to the conclusion of its MANIFEST, and to no other.

The table says what the checks that read `nvidia-smi -q` conclude. A state whose fault shows only in `nvlink -s`,
`nvlink -e`, in the fabric block or in the kernel log is empty here and has its row in the tests of those checks.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health.finding import Finding

from .conftest import CHECKS, bad, judge, manifest, of_recording, profile_of

Bad = tuple[str, str, str, str]
NOTHING: set[Bad] = set()
FABRIC_OR_NVLINK = NOTHING
NO_FINDING = NOTHING  # "OK" or "INFO" in the MANIFEST: nothing that anybody must look at

# By state, with the drivers it holds for where they differ.
EXPECTED: dict[str, set[Bad]] = {
    "h100-healthy": NOTHING,
    "h100-healthy-busy": NOTHING,
    "h100-healthy-realvalues": NOTHING,
    "a100-healthy": NOTHING,
    "b200-healthy": NOTHING,
    "b200-healthy-nonvlink": FABRIC_OR_NVLINK,
    "gb200-healthy": NOTHING,
    "l40s-healthy": NOTHING,
    "h100-gpus-4": {("gpu.count", "node", "fail", "power_cycle")},
    "h100-gpu2-unknown-fields": {
        ("gpu.lost", "GPU 2", "fail", "reboot"),
        ("gpu.ecc", "GPU 2", "unknown", "none"),
        ("gpu.row_remap", "GPU 2", "unknown", "none"),
        ("gpu.sku", "GPU 2", "unknown", "none"),
        ("gpu.clocks", "GPU 2", "unknown", "none"),
        ("gpu.temperature", "GPU 2", "unknown", "none"),
        ("gpu.processes", "GPU 2", "unknown", "none"),
    },
    "h100-gpu5-fallen-off-bus-xid79": {
        ("gpu.lost", "GPU 5", "fail", "reboot"),
        ("gpu.ecc", "GPU 5", "unknown", "none"),
        ("gpu.row_remap", "GPU 5", "unknown", "none"),
        ("gpu.sku", "GPU 5", "unknown", "none"),
        ("gpu.clocks", "GPU 5", "unknown", "none"),
        ("gpu.temperature", "GPU 5", "unknown", "none"),
        ("gpu.processes", "GPU 5", "unknown", "none"),
    },
    "h100-gpu0-lost-midquery": {
        ("gpu.lost", "GPU 0", "fail", "reboot"),
        ("gpu.ecc", "GPU 0", "unknown", "none"),
        ("gpu.row_remap", "GPU 0", "unknown", "none"),
        ("gpu.clocks", "GPU 0", "unknown", "none"),
        ("gpu.temperature", "GPU 0", "unknown", "none"),
    },
    "h100-all-gpus-lost": {
        ("gpu.lost", "node", "fail", "reboot"),
        ("gpu.ecc", "node", "unknown", "none"),
        ("gpu.row_remap", "node", "unknown", "none"),
        ("gpu.sku", "node", "unknown", "none"),
        ("gpu.clocks", "node", "unknown", "none"),
        ("gpu.temperature", "node", "unknown", "none"),
        ("gpu.processes", "node", "unknown", "none"),
    },
    "h100-gpu1-ecc-dram-uncorr-volatile": {("gpu.ecc", "GPU 1", "fail", "reset_gpu")},
    # 525 has no row for the reset, the mock of 555 answers N/A there
    "h100-gpu1-ecc-dram-uncorr-with-remap-pending@525,555": {
        ("gpu.ecc", "GPU 1", "fail", "reset_gpu"),
        ("gpu.row_remap", "GPU 1", "fail", "reset_gpu"),
    },
    "h100-gpu1-ecc-dram-uncorr-with-remap-pending@535,550": {
        ("gpu.ecc", "GPU 1", "fail", "reset_gpu"),
        ("gpu.row_remap", "GPU 1", "fail", "reset_gpu"),
        ("gpu.reset_required", "GPU 1", "fail", "reset_gpu"),
    },
    "h100-gpu1-ecc-dram-uncorr-aggregate-only": {("gpu.ecc", "GPU 1", "warn", "observe")},
    "h100-gpu6-ecc-dram-corr": NO_FINDING,
    "h100-gpu4-ecc-uncorrectable-injector": {
        ("gpu.ecc", "GPU 4", "fail", "reset_gpu"),
        ("gpu.row_remap", "GPU 4", "fail", "replace"),
    },
    "h100-gpu2-sram-uncorr-secded": {("gpu.ecc", "GPU 2", "fail", "reset_gpu")},
    # 525 does not print the flag: the errors alone do not tell that the GPU is at its end
    "h100-gpu2-sram-threshold-exceeded@525": {("gpu.ecc", "GPU 2", "fail", "reset_gpu")},
    "h100-gpu2-sram-threshold-exceeded": {
        ("gpu.ecc", "GPU 2", "fail", "reset_gpu"),
        ("gpu.ecc", "GPU 2", "fail", "replace"),
    },
    # INFO in the MANIFEST; as with DRAM somebody should know of it
    "h100-gpu2-sram-aggregate-only": {("gpu.ecc", "GPU 2", "warn", "observe")},
    "h100-gpu2-sram-corr": NO_FINDING,
    # without ECC nothing is counted, so there is no evidence about errors either
    "h100-gpu0-ecc-disabled": {
        ("gpu.ecc_mode", "GPU 0", "fail", "reset_gpu"),
        ("gpu.ecc", "GPU 0", "unknown", "none"),
    },
    "h100-gpu0-ecc-pending-off": {("gpu.ecc_mode", "GPU 0", "warn", "observe")},
    "h100-gpu0-ecc-pending-on": {
        ("gpu.ecc_mode", "GPU 0", "fail", "reset_gpu"),
        ("gpu.ecc", "GPU 0", "unknown", "none"),
    },
    "h100-gpu3-remap-failure": {("gpu.row_remap", "GPU 3", "fail", "replace")},
    "h100-gpu3-remap-uncorr-done": NO_FINDING,
    "h100-gpu3-remap-corr-done": NO_FINDING,
    "h100-gpu3-remap-bank-exhausting": {("gpu.row_remap", "GPU 3", "warn", "observe")},
    "h100-gpu7-reset-required": {("gpu.reset_required", "GPU 7", "fail", "reset_gpu")},
    "h100-gpu7-drain-and-reset": {("gpu.reset_required", "GPU 7", "warn", "reset_gpu")},
    "h100-gpu4-throttle-hw-slowdown": {("gpu.throttle", "GPU 4", "fail", "inspect")},
    "h100-gpu4-throttle-hw-power-brake-slowdown": {("gpu.throttle", "GPU 4", "fail", "inspect")},
    "h100-all-throttle-hw-power-brake": {("gpu.throttle", "node", "fail", "inspect")},
    "h100-gpu4-throttle-sync-boost": NO_FINDING,
    "h100-gpu4-throttle-display-clocks-setting": NO_FINDING,
    "h100-gpu4-throttle-applications-clocks-setting": {("gpu.throttle", "GPU 4", "warn", "observe")},
    "h100-gpu4-throttle-sw-power-cap-idle": {("gpu.throttle", "GPU 4", "warn", "observe")},
    "h100-gpu4-hot-no-throttle": {("gpu.temperature", "GPU 4", "warn", "inspect")},
    "h100-all-power-limit-500": {("gpu.power_limit", "node", "warn", "observe")},
    "h100-gpu5-nvlink-1-down": FABRIC_OR_NVLINK,
    "h100-gpu5-nvlink-last-down": FABRIC_OR_NVLINK,
    "h100-gpu5-nvlink-all-down": FABRIC_OR_NVLINK,
    "h100-all-nvlink-all-down": FABRIC_OR_NVLINK,
    "h100-all-nvlink-switch0-down": FABRIC_OR_NVLINK,
    "h100-all-nvlink-half-speed": FABRIC_OR_NVLINK,
    "h100-gpu6-nvlink-errors-all-links": FABRIC_OR_NVLINK,
    "h100-gpu6-nvlink-errors-1": FABRIC_OR_NVLINK,
    "h100-all-fabric-not-started": FABRIC_OR_NVLINK,
    "h100-gpu7-fabric-status-error": FABRIC_OR_NVLINK,
    "h100-gpu7-fabric-degraded-bandwidth": FABRIC_OR_NVLINK,
    "h100-gpu7-fabric-route-unhealthy": FABRIC_OR_NVLINK,
    "h100-gpu7-fabric-clique-mismatch": FABRIC_OR_NVLINK,
    "h100-gpu2-mig-pending": {("gpu.mig", "GPU 2", "warn", "observe")},
    # idle, but in P0, where an H100 keeps generation 5: somebody should look again under load
    "h100-gpu1-pcie-gen3": {("gpu.pcie_link", "GPU 1", "warn", "observe")},
    "h100-gpu1-pcie-x8": {("gpu.pcie_link", "GPU 1", "fail", "reseat")},
    "h100-gpu1-pcie-replays": {("gpu.pcie_replays", "GPU 1", "warn", "observe")},
    "h100-all-persistence-off": {("gpu.persistence", "node", "warn", "restart_service")},
    "h100-gpu0-compute-exclusive": {("gpu.compute_mode", "GPU 0", "warn", "observe")},
    "h100-gpu6-inforom-missing": {("gpu.inforom", "GPU 6", "warn", "reset_gpu")},
    # the recording has the other device id on GPU 7 as well (the MANIFEST speaks of GPU 6 only); lspci, made from the
    # same ids, then lists six GPUs of the profile
    "h100-gpu6-wrong-sku": {
        ("gpu.sku", "GPU 6", "fail", "inspect"),
        ("gpu.sku", "GPU 7", "fail", "inspect"),
        ("gpu.count", "node", "fail", "inspect"),
    },
    "h100-gpu6-less-memory": {("gpu.sku", "GPU 6", "fail", "inspect")},
    "h100-gpu6-leaked-memory": {("gpu.processes", "GPU 6", "warn", "reset_gpu")},
    "h100-gpu6-leftover-process": {("gpu.processes", "GPU 6", "warn", "observe")},
    # it claims 100 % at 345 MHz: both are odd
    "h100-gpu6-stuck-util": {
        ("gpu.processes", "GPU 6", "warn", "reset_gpu"),
        ("gpu.clocks", "GPU 6", "warn", "reset_gpu"),
    },
    "h100-gpu6-pstate-p8": NO_FINDING,
    "h100-multi-fault@525": {
        ("gpu.ecc", "GPU 3", "fail", "reset_gpu"),
        ("gpu.pcie_link", "GPU 6", "fail", "reseat"),
        ("gpu.persistence", "GPU 0", "warn", "restart_service"),
        ("gpu.row_remap", "GPU 1", "fail", "reset_gpu"),
    },
    "h100-multi-fault": {
        ("gpu.ecc", "GPU 3", "fail", "replace"),
        ("gpu.ecc", "GPU 3", "fail", "reset_gpu"),
        ("gpu.pcie_link", "GPU 6", "fail", "reseat"),
        ("gpu.persistence", "GPU 0", "warn", "restart_service"),
        ("gpu.row_remap", "GPU 1", "fail", "reset_gpu"),
    },
}
# Nothing at all comes from the driver: status and action of gpu.driver, all else unknown.
NO_DRIVER = {
    "h100-no-nvml-library": ("fail", "inspect"),
    "h100-init-version-mismatch": ("fail", "reboot"),
    "h100-init-gpu-lost": ("fail", "reboot"),
    "h100-init-unknown-error": ("fail", "reboot"),
    "h100-init-no-permission": ("unknown", "none"),
}
# One GPU cannot be opened, so that nvidia-smi -q says nothing about the others.
CLOSED = {"h100-gpu3-lost-handle": 3, "h100-gpu3-unknown-handle": 3, "h100-gpu0-unknown-handle": 0}
# Only the events of NVML were recorded, nvidia-smi shows no Xid: cases of the kernel log.
ONLY_EVENTS = re.compile(r"h100-gpu4-xid\d+")

DEVICES = {"a100": ("20b0", 40960, 16), "b200": ("2340", 196608, 64), "gb200": ("2341", 196608, 64)}
DEVICES["l40s"] = ("26b5", 49152, 16)


def split(folder: str) -> tuple[str, str]:
    """Branch of the driver and state of a recording."""
    driver, _dash, state = folder.partition("-")
    return driver.partition(".")[0], state


def fitting(profile: dict[str, Any], state: str) -> dict[str, Any]:
    kind = state.partition("-")[0]
    if kind in DEVICES:
        return profile_of(profile, *DEVICES[kind])
    return profile_of(profile, "2330", 81559 if state.endswith("realvalues") else 81920)


def expected(folder: str) -> set[Bad] | None:
    branch, state = split(folder)
    for key, findings in EXPECTED.items():
        name, _at, branches = key.partition("@")
        if name == state and (not branches or branch in branches.split(",")):
            return findings
    return None


FOLDERS = sorted(manifest())
JUDGED = [folder for folder in FOLDERS if expected(folder) is not None]


def test_every_recording_is_in_a_table() -> None:
    states = {split(folder)[1] for folder in FOLDERS}
    elsewhere = {state for state in states if ONLY_EVENTS.fullmatch(state)}
    assert {key.partition("@")[0] for key in EXPECTED} | set(NO_DRIVER) | set(CLOSED) | elsewhere == states
    assert len(FOLDERS) == 193


@pytest.mark.parametrize("folder", JUDGED)
@pytest.mark.parametrize("form", ["q-x", "q"])
def test_the_conclusion_of_a_state(recordings: Path, xe9680: dict[str, Any], folder: str, form: str) -> None:
    findings = judge(of_recording(recordings / folder, form), fitting(xe9680, split(folder)[1]))
    assert bad(findings) == expected(folder)
    complete(findings)
    assert {finding.check for finding in findings} == {check.id for check in CHECKS}


def complete(findings: list[Finding]) -> None:
    """A finding that somebody must act on says everything that is needed for it."""
    for finding in findings:
        if finding.status in ("warn", "fail"):
            assert finding.observed and finding.advice and finding.evidence and finding.reference, finding
            assert any(evidence.excerpt for evidence in finding.evidence), finding
        elif finding.status == "unknown":
            assert finding.observed and finding.advice and finding.evidence, finding


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if split(folder)[1] in NO_DRIVER])
def test_no_driver(recordings: Path, xe9680: dict[str, Any], folder: str) -> None:
    findings = judge(of_recording(recordings / folder), xe9680)
    status, action = NO_DRIVER[split(folder)[1]]
    assert {finding for finding in bad(findings) if finding[0] == "gpu.driver"} == {
        ("gpu.driver", "node", status, action)
    }
    assert all(finding.status == "unknown" for finding in findings if finding.check != "gpu.driver")
    complete(findings)


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if split(folder)[1] in CLOSED])
def test_a_gpu_that_cannot_be_opened(recordings: Path, xe9680: dict[str, Any], folder: str) -> None:
    findings = judge(of_recording(recordings / folder), xe9680)
    number = CLOSED[split(folder)[1]]
    lost = {finding.component: (finding.status, finding.action) for finding in findings if finding.check == "gpu.lost"}
    assert lost.pop(f"GPU {number}") == ("fail", "reboot")
    assert lost == {f"GPU {other}": ("unknown", "none") for other in range(8) if other != number}
    assert ("gpu.count", "node", "fail", "reboot") in bad(findings)
    assert not [finding for finding in findings if finding.status == "ok"]
    complete(findings)


def test_a_checker_that_expects_h100_says_wrong_sku(recordings: Path, xe9680: dict[str, Any]) -> None:
    findings = judge(of_recording(recordings / "550.163.01-gb200-healthy"), xe9680, "gpu.sku")
    assert [(finding.component, finding.status, finding.action) for finding in findings] == [
        ("node", "fail", "inspect")
    ]
    assert "10de:2341" in findings[0].observed and "10de:2330" in findings[0].expected


def test_a_busy_node_is_seen_as_in_use(recordings: Path, xe9680: dict[str, Any]) -> None:
    findings = judge(of_recording(recordings / "550.163.01-h100-healthy-busy"), xe9680, "gpu.processes")
    assert [(finding.status, finding.observed) for finding in findings] == [
        ("ok", "8 GPUs: 8 processes, the node is in use")
    ]


def test_a_pending_remap_is_no_reason_to_replace(recordings: Path, xe9680: dict[str, Any]) -> None:
    folder = recordings / "550.163.01-h100-gpu1-ecc-dram-uncorr-with-remap-pending"
    texts = {finding.check: finding for finding in judge(of_recording(folder), xe9680) if finding.status == "fail"}
    assert "no reason to replace" in texts["gpu.row_remap"].advice
    assert "spare rows" in texts["gpu.ecc"].advice
    assert texts["gpu.ecc"].component == "GPU 1 (0000:1b:00.0)"
    assert "ECC Errors > Volatile > DRAM Uncorrectable : 1" in texts["gpu.ecc"].evidence[0].excerpt


def test_no_advice_against_a_replacement_beside_one_for_it(recordings: Path, xe9680: dict[str, Any]) -> None:
    for state, said in (("threshold-exceeded", False), ("uncorr-secded", True)):
        found = judge(of_recording(recordings / f"550.163.01-h100-gpu2-sram-{state}"), xe9680, "gpu.ecc")
        assert any("no reason to replace" in finding.advice for finding in found) == said


def test_advice_for_all_gpus_names_none(recordings: Path, xe9680: dict[str, Any]) -> None:
    found = judge(of_recording(recordings / "550.163.01-h100-all-power-limit-500"), xe9680, "gpu.power_limit")
    assert found[0].component == "node" and "'nvidia-smi -pl 700'" in found[0].advice
    assert found[0].observed == "all 8 GPUs: power limit 500 W, default of the board 700.0 W"
