# SPDX-License-Identifier: Apache-2.0
"""Recorded kernel logs, and the collected lines of public reports, with the interpretation of their manifests."""

import csv

import pytest

from tests.unit.health.kernel.kernel_node import FIXTURES, REPOSITORY, judge, judge_log, node, profile, troubles

RESET = ("fail", "reset_gpu")
WATCH = ("warn", "observe")

# Logs of one node: file -> what must be found.
LOGS = {
    "aer_fatal_delta_timestamps.log": [
        ("kernel.pcie", "GPU 0000:03:00.0", "fail", "reboot"),
        ("kernel.pcie", "bridge 0000:00:03.0", "fail", "reboot"),
    ],
    # one hung task is a warning, two lockups two hours apart are none
    "cpu_lockup_hung_task.log": [
        ("kernel.hung_tasks", "node", "warn", "observe"),
        ("kernel.hung_tasks", "node", "fail", "reboot"),
    ],
    "disk_raid_nvme_fs_errors.log": [
        ("kernel.nvme", "NVMe nvme0", "fail", "power_cycle"),
        ("kernel.nvme", "NVMe nvme4", "fail", "power_cycle"),
        ("kernel.file_systems", "node", "fail", "inspect"),
    ],
    "fallen_off_bus_without_xid.log": [("kernel.gpu_bus", "GPU 0000:b3:00.0", "fail", "reboot")],
    # The text is that of Xid 74 under number 71: the registers decide, not the number.
    "hyperpod_hma_event_xid71.json": [("kernel.xid", "GPU 0000:b9:00.0", "fail", "reset_gpu")],
    # Manifest: warn. Case 042 says why it is none: noise of processes that end, unless a ConnectX card fails as well.
    "journalctl_short_iso.log": [],
    "peermem_invalid_context_kmsg.log": [],
    "nccl_segfault.log": [("kernel.application_crashes", "node", "warn", "observe")],
    "oom_decode_iso.log": [
        ("kernel.xid", "GPU 0000:38:00.0", "warn", "observe"),
        ("kernel.oom", "node", "warn", "observe"),
    ],
    "pstore_erst_panic.txt": [("kernel.oops", "node", "fail", "reboot")],
    "sxid_22013_at_boot_h100.log": [],
    "vfs_file_max.log": [("kernel.system_limits", "node", "warn", "observe")],
    "xid043_lines.log": [("kernel.xid", "GPU 0000:38:00.0", "warn", "observe")],
    # Xid 149 is to be acted on, the 45s are its consequence.
    "xid045_caused_by_149_b200.log": [
        ("kernel.xid", f"GPU 0000:{bus}:00.0", "warn", "reset_gpu") for bus in ("97", "ba", "dc", "ed")
    ],
    "xid064_row_remapper_exhausted.log": [("kernel.xid", "GPU 0000:0f:00.0", "fail", "replace")],
    "xid094_095_mig_form.log": [("kernel.xid", "GPU 0000:01:00.0", "fail", "reset_gpu")],
    "xid119_gsp_rpc_timeout_h100.log": [("kernel.xid", "GPU 0000:9b:00.0", "fail", "reset_gpu")],
    # Four jobs hit nearly every unit of the GPU: the program, not the GPU.
    "xid13_burst_decode_iso.log": [("kernel.xid", "GPU 0000:38:00.0", "warn", "observe")],
    "dmesg_xid.txt": [("kernel.xid", "GPU 0000:0f:00.0", "fail", "replace")],
}

# Lines of many nodes, each judged by itself: file -> what must be found for the lines, in their order.
XID_LINES = {
    "xid031_lines.log": [
        *[WATCH] * 4,
        # Manifest: warn, as for Xid 31. The text says that the GPU is lost, and a lost GPU is lost under any number;
        # these three lines come from unit tests of another project.
        *[("fail", "reboot")] * 3,
        *[WATCH] * 4,
    ],
    "xid048_lines.log": [RESET, RESET, ("fail", "reboot"), RESET, RESET],  # the third says "fallen off the bus"
    "xid063_lines.log": [WATCH] * 6,
    "xid069_lines.log": [WATCH] * 2,
    "xid074_lines.log": [RESET] * 3,
    "xid079_lines.log": [("fail", "reboot")] * 12,
    "xid119_lines.log": [RESET] * 12,
    "xid144_lines.log": [*[WATCH] * 5, RESET],
    "xid145_lines.log": [*[WATCH] * 5, RESET, *[WATCH] * 5, RESET],
    "xid146_lines.log": [*[WATCH] * 4, *[RESET] * 4, WATCH, RESET],
    "xid149_lines.log": [*[RESET] * 5, *[WATCH] * 2, *[RESET] * 5],
    "xid154_lines.log": [*[RESET] * 5, *[WATCH] * 2],
}


def sample(name: str) -> str:
    folder = "bugs" if name[0] == "0" else "samples"
    text = (FIXTURES / folder / name).read_text()
    return text if text.endswith("\n") else text + "\n"


@pytest.mark.parametrize("name", LOGS)
def test_a_recorded_log_means_what_its_manifest_says(name: str) -> None:
    assert troubles(judge_log(sample(name))) == LOGS[name]


@pytest.mark.parametrize("name", XID_LINES)
def test_each_line_means_what_its_manifest_says(name: str) -> None:
    for line, expected in zip(sample(name).splitlines(), XID_LINES[name], strict=True):
        found = troubles(judge_log(line + "\n", "kernel.xid"))
        assert [one[2:] for one in found] == [expected], line


def test_an_unreadable_address_is_no_reason_to_drop_the_line() -> None:
    (line,) = [line for line in sample("xid119_lines.log").splitlines() if "$pci" in line]
    assert troubles(judge_log(line + "\n", "kernel.xid")) == [
        ("kernel.xid", "GPU with unreadable address", "fail", "reset_gpu")
    ]


def test_edac_lines() -> None:
    uncorrected, corrected = sample("edac_ue_ce.log").splitlines()
    assert troubles(judge_log(uncorrected + "\n")) == [
        ("kernel.memory", "memory module CPU_SrcID#1_Channel#1_DIMM#1 (MC0)", "fail", "replace")
    ]
    # by rate: one is nothing for the profile, which says from how many on
    assert not troubles(judge_log(corrected + "\n"))
    strict = profile(corrected_memory_errors={"count": 1, "within_h": 24})
    assert troubles(judge_log(corrected + "\n", given=strict)) == [
        ("kernel.memory", "memory module CPU_SrcID#0_Channel#0_DIMM#0 (MC0)", "warn", "inspect")
    ]


def test_mlx5_lines() -> None:
    lab = profile("lab")
    power = ("kernel.mlx5", "NIC 0000:5c:00.0", "warn", "observe")
    hot = ("kernel.mlx5", "node", "fail", "inspect")
    assert troubles(judge_log(sample("mlx5_power_temp_accessreg.log"), given=lab)) == [hot, power]
    # 27 W are known of the XE9680, and its profile says so
    assert troubles(judge_log(sample("mlx5_power_temp_accessreg.log"))) == [hot]


def test_pcie_bandwidth_lines() -> None:
    (found,) = judge_log(sample("mlx5_pcie_limited_x8.log"), "kernel.pcie_bandwidth")
    assert (found.component, found.status) == ("NIC 0000:9c:00.0", "fail") and "x8 at 0000:97:01.0" in found.observed


def test_a_journal_without_kernel_records_is_no_evidence() -> None:
    # Manifest: "input for log scan". All of it comes from the audit subsystem's own transport, nothing from the kernel.
    found = judge_log(sample("journald_azhpc.log"), "kernel.xid")
    assert [one.status for one in found] == ["ok"], "the first line alone, which the test adds, is the kernel's"
    (alone,) = judge(node(sample("journald_azhpc.log")), "kernel.xid")
    assert alone.status == "unknown" and "no line of it carries a time" in alone.observed


SXID_LINES = {
    "11111, Data": WATCH,
    "12028, Non-fatal": WATCH,
    "12028, error": WATCH,
    "12033, Severity 1": RESET,
    "20009, Non-fatal": WATCH,
    "20034, Fatal": RESET,
    "20034, Severity 1": RESET,
    "20034, Data": RESET,
    "20123, Unknown error": WATCH,
    "22013, Non-fatal": WATCH,  # without a time it cannot be told from a running node's
    "24007, Fatal": RESET,
    "26006, SOE HALT": ("fail", "reboot"),
    "26007, SOE EXTERR": ("fail", "reboot"),
    "26008, SOE Watchdog": ("fail", "reboot"),
    "28006, Non-fatal": WATCH,
    "99999, Some error": WATCH,
}


@pytest.mark.parametrize("name", ["sxid_mixed_lines.log", "sxid_20034_fatal_ltssm.log"])
def test_each_sxid_line_means_what_its_manifest_says(name: str) -> None:
    for line in sample(name).splitlines():
        (expected,) = [verdict for start, verdict in SXID_LINES.items() if f"): {start}" in line]
        found = troubles(judge_log(line + "\n", "kernel.sxid"))
        assert [one[2:] for one in found] == [expected], line


def test_recovery_actions_028() -> None:
    assert troubles(judge_log(sample("028-xid-154-recovery-action.txt"))) == [
        ("kernel.xid", "GPU 0000:9b:00.0", "warn", "observe"),  # malformed: the raw line is shown
        ("kernel.xid", "GPU 0008:01:00.0", "fail", "reset_gpu"),
        ("kernel.xid", "GPU 0009:01:00.0", "fail", "reset_gpu"),
    ]
    malformed = judge_log(sample("028-xid-154-recovery-action.txt"))[0]
    assert "0x0 None) to 0x2 (Node Reboot Required" in malformed.observed


def test_nvlink5_errors_029() -> None:
    assert [one[1:3] for one in troubles(judge_log(sample("029-xid-144-150-nvlink5.txt")))] == [
        ("GPU 0000:00:00.0", "fail"),
        ("GPU 0000:01:00.0", "warn"),
        ("GPU 0000:04:00.0", "fail"),  # four registers
        ("GPU 0018:01:00.0", "warn"),
        ("GPU 0019:01:00.0", "fail"),  # link -1
    ]


def test_a_truncated_register_list_030() -> None:
    (found,) = judge_log(sample("030-xid-145-truncated-nonfatal.txt"), "kernel.xid")
    assert found.status == "warn" and "RLW_SRC_TRACK link 17" in found.observed


def test_causes_before_consequences_031() -> None:
    found = judge_log(sample("031-xid-45-caused-by-previous.txt"), "kernel.xid")
    assert len(found) == 4, "one finding for each GPU"
    cause = next(one for one in found if one.component == "GPU 0000:dc:00.0")
    assert cause.status == "fail" and "Xid 149 Fatal" in cause.observed and "2 channels stopped" in cause.observed
    assert all("Xid 145" in one.observed for one in found if one is not cause)


def test_stopped_channels_and_a_hung_task_032() -> None:
    found = troubles(judge_log(sample("032-xid-45-storm-hung-task.txt")))
    assert found[0] == ("kernel.xid", "GPU 0000:61:00.0", "fail", "reboot")


def test_lost_without_an_xid_033() -> None:
    text = sample("033-xid-79-multiline-no-xid.txt")
    assert troubles(judge_log(text)) == [("kernel.gpu_bus", "GPU 0000:b3:00.0", "fail", "reboot")]
    both = text + "[ 1850.000000] NVRM: Xid (PCI:0000:b3:00): 79, pid=1, name=a, GPU has fallen off the bus.\n"
    assert troubles(judge_log(both)) == [("kernel.xid", "GPU 0000:b3:00.0", "fail", "reboot")], "not counted twice"


def test_a_table_behind_an_xid_035() -> None:
    (found,) = judge_log(sample("035-xid-119-rpc-history.txt"), "kernel.xid")
    assert "GSP_RM_ALLOC" in found.observed and "once" in found.observed
    assert troubles(judge_log(sample("035-xid-119-rpc-history.txt"))) == [
        ("kernel.xid", "GPU 0000:9b:00.0", "fail", "reset_gpu")
    ]


def test_addresses_with_a_domain_040() -> None:
    assert [one.component for one in judge_log(sample("040-xid-pci-domain-join.txt"), "kernel.xid")] == [
        "GPU 000b:00:00.0"
    ]


def test_programs_and_hardware_041() -> None:
    found = judge_log(sample("041-xid-app-vs-hardware.txt"), "kernel.xid", profile(max_age_h=None))
    assert [one[1:] for one in troubles(found)] == [
        ("GPU 0000:00:05.0", "warn", "observe"),
        ("GPU 0000:00:07.0", "warn", "observe"),
        ("GPU 0000:00:08.0", "warn", "observe"),
    ]
    assert "uncorrectable memory error" in found[2].observed


def test_peermem_noise_042() -> None:
    text = sample("042-peermem-invalid-context-noise.txt")
    (found,) = judge_log(text, "kernel.peermem")
    assert found.status == "ok" and "3 times" in found.observed
    beside = text + "[  228.000000] mlx5_core 0000:9c:00.0: device's health compromised - reached miss count\n"
    assert troubles(judge_log(beside, "kernel.peermem")) == [("kernel.peermem", "node", "warn", "observe")]


# What the recordings of nvidia-smi with an injected Xid are to mean (nvidia-smi/MANIFEST.tsv); their event stream holds
# the number alone.
RECORDED_EVENTS = {
    13: WATCH,
    43: WATCH,
    48: RESET,
    63: WATCH,
    74: RESET,
    79: ("fail", "reboot"),
    94: WATCH,
    95: RESET,
    109: RESET,
    119: RESET,
    120: RESET,
    140: RESET,
    149: WATCH,  # the word Fatal or Nonfatal is missing
    154: WATCH,  # its words are missing
}


@pytest.mark.parametrize("number", RECORDED_EVENTS)
def test_a_number_alone(number: int) -> None:
    (found,) = troubles(judge_log(f"[  100.000000] NVRM: Xid (PCI:0000:9b:00): {number}\n", "kernel.xid"))
    assert found[2:] == RECORDED_EVENTS[number]


def test_the_lab_nodes_boot_is_clean() -> None:
    text = (FIXTURES / "lab-node-boot.dmesg.txt").read_text()
    assert not troubles(judge_log(text, given=profile("lab")))


def test_the_manifest_lists_every_file_once() -> None:
    root = REPOSITORY / "tests" / "fixtures"
    with (root / "MANIFEST.tsv").open() as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["file"].startswith("kernel/")]
    assert all(all(row.values()) for row in rows)
    there = [str(path.relative_to(root)) for path in FIXTURES.rglob("*") if path.is_file()]
    assert sorted(row["file"] for row in rows) == sorted(there)
