# SPDX-License-Identifier: Apache-2.0
"""Kernel messages about everything but GPUs and NVSwitches."""

from __future__ import annotations

import pytest
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.kernel_message_catalog import KINDS, kind_of

from tests.unit.health.kernel.kernel_node import FIRST, LSPCI, done, judge, judge_log, node, profile, troubles


def log(*lines: tuple[float, str]) -> str:
    return "".join(f"[{time:12.6f}] {text}\n" for time, text in lines)


def found(check: str, *lines: tuple[float, str]) -> list[Finding]:
    return judge_log(log(*lines), check)


# check, message -> component, status, action
MESSAGES = {
    ("kernel.memory", "EDAC MC1: 1 UE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0)"): (
        "memory module CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (MC1)",
        "fail",
        "replace",
    ),
    ("kernel.memory", "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400"): (
        "node",
        "fail",
        "inspect",
    ),
    ("kernel.memory", "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: bc00000000800400"): (
        "node",
        "fail",  # bit 61: not corrected
        "inspect",
    ),
    ("kernel.memory", "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010090"): (
        "node",
        "warn",
        "observe",
    ),
    ("kernel.memory", "{1}[Hardware Error]: event severity: corrected"): ("node", "warn", "observe"),
    ("kernel.memory", "{1}[Hardware Error]: event severity: fatal"): ("node", "fail", "inspect"),
    ("kernel.memory", "Memory failure: 0x12345: recovery action for dirty LRU page: Recovered"): (
        "node",
        "fail",
        "inspect",
    ),
    ("kernel.memory", "mce: Uncorrected hardware memory error in user-access at 1234567000"): (
        "node",
        "fail",
        "inspect",
    ),
    ("kernel.oom", "Memory cgroup out of memory: Killed process 123 (python3) total-vm:1kB, anon-rss:1kB"): (
        "node",
        "warn",
        "observe",
    ),
    ("kernel.oom", "Out of memory: Killed process 99 (nv-fabricmanager) total-vm:1kB"): (
        "node",
        "warn",
        "restart_service",
    ),
    ("kernel.oom", "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0"): ("node", "warn", "observe"),
    ("kernel.hung_tasks", "INFO: task python3:6209 blocked for more than 120 seconds."): ("node", "warn", "observe"),
    ("kernel.hung_tasks", "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]"): (
        "node",
        "warn",
        "observe",
    ),
    ("kernel.hung_tasks", "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3"): ("node", "fail", "reboot"),
    ("kernel.hung_tasks", "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:"): ("node", "warn", "observe"),
    ("kernel.oops", "BUG: unable to handle page fault for address: ffffc90000a00000"): ("node", "fail", "reboot"),
    ("kernel.oops", "kernel BUG at fs/ext4/inode.c:2721!"): ("node", "fail", "reboot"),
    ("kernel.oops", "Kernel panic - not syncing: Fatal exception"): ("node", "fail", "reboot"),
    ("kernel.application_crashes", "traps: python3[77] general protection fault ip:7f sp:7f error:0 in a.so[7f+1]"): (
        "node",
        "warn",
        "observe",
    ),
    ("kernel.system_limits", "nf_conntrack: nf_conntrack: table full, dropping packet"): ("node", "warn", "observe"),
    (
        "kernel.pcie",
        "pcieport 0000:97:01.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
    ): (
        "bridge 0000:97:01.0",
        "warn",
        "observe",
    ),
    ("kernel.pcie", "pcieport 0000:97:01.0: DPC: containment event, status:0x1f01 source:0x0000"): (
        "bridge 0000:97:01.0",
        "fail",
        "reboot",
    ),
    ("kernel.pcie", "pcieport 0000:97:01.0: pciehp: Slot(5): Link Down"): ("bridge 0000:97:01.0", "warn", "observe"),
    ("kernel.nvme", "nvme nvme3: I/O 12 QID 4 timeout, aborting"): ("NVMe nvme3", "warn", "observe"),
    ("kernel.nvme", "nvme nvme3: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff"): (
        "NVMe nvme3",
        "fail",
        "power_cycle",
    ),
    ("kernel.nvme", "critical medium error, dev nvme3n1, sector 1234 op 0x0:(READ)"): ("NVMe nvme3", "fail", "replace"),
    ("kernel.mlx5", "mlx5_core 0000:9c:00.0: cmd_work_handler:887: timeout. Will cause a leak of a command resource"): (
        "NIC 0000:9c:00.0",
        "warn",
        "observe",
    ),
    ("kernel.mlx5", "mlx5_core 0000:9c:00.0: poll_health:795: device's health compromised - reached miss count"): (
        "NIC 0000:9c:00.0",
        "fail",
        "reboot",
    ),
    ("kernel.mlx5", "mlx5_core 0000:9c:00.0: Port module event[error]: module 0, Cable error, Bus stuck"): (
        "NIC 0000:9c:00.0",
        "warn",
        "observe",
    ),
    (
        "kernel.file_systems",
        "EXT4-fs error (device sda2): ext4_find_entry:1455: inode #2: comm ls: reading directory",
    ): (
        "node",
        "fail",
        "inspect",
    ),
    (
        "kernel.file_systems",
        "WARNING: Pool 'data' has encountered an uncorrectable I/O failure and has been suspended.",
    ): (
        "node",
        "fail",
        "inspect",
    ),
    ("kernel.file_systems", "blk_update_request: I/O error, dev sda, sector 0 op 0x0:(READ)"): (
        "node",
        "fail",
        "inspect",
    ),
    ("kernel.file_systems", "nfs: server nas1 not responding, still trying"): ("node", "warn", "observe"),
    ("kernel.unknown_messages", "frobnicator 12: fatal error in unit 7"): ("node", "warn", "observe"),
}


@pytest.mark.parametrize(("check", "text"), MESSAGES)
def test_a_message_means_this_and_concerns_one_check(check: str, text: str) -> None:
    assert troubles(judge_log(log((5000, text)))) == [(check, *MESSAGES[(check, text)])]


HARMLESS = (
    "RAS: Correctable Errors collector initialized.",
    "ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PC00], AE_NOT_FOUND (20210730/psargs-330)",
    "mlx_compat: module verification failed: signature and/or required key missing - tainting kernel",
    "mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5)",
    "NVRM: GPU4 GSP RPC buffer contains function 103 (GSP_RM_ALLOC) and data 0x0000000000002081 0x0000000000000004.",
    "NVRM:      0    103  GSP_RM_ALLOC          0x0000000000002081 0x0000000000000004 0x00062ed1a6bd61fa 0x0    y",
    "WARNING: kernel stack frame pointer at 000000005611dc97 in nvidia-smi:2024380 has bad value 00000000ec717e66",
    " ? entry_SYSCALL_64_after_hwframe+0x67/0xd1",
    "EDAC i10nm: No hbm memory",
    "Giving out device to module i10nm_edac controller Intel_10nm Socket#0",
    "spi-nor: probe of spi0.1 failed with error -524",
    "perf: interrupt took too long (2510 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Opts: errors=remount-ro. Quota mode: none.",
    'audit: type=1400 audit(1.0:2): apparmor="DENIED" operation="open"',
)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_healthy_nodes_print_is_no_trouble(text: str) -> None:
    assert not troubles(judge_log(log((5000, text))))
    assert not troubles(judge_log(f"kern  :err   : [ 5000.000000] {text}\n"))


def test_a_priority_is_an_alarm_too() -> None:
    assert troubles(judge_log("kern  :err   : [ 5000.000000] frobnicator 12: gave up on unit 7\n")) == [
        ("kernel.unknown_messages", "node", "warn", "observe")
    ]
    assert not troubles(judge_log("kern  :info  : [ 5000.000000] frobnicator 12: gave up on unit 7\n"))


def test_unknown_messages_are_grouped_bounded_and_known_ones_left_out() -> None:
    names = [chr(97 + number // 26) + chr(97 + number % 26) + "x" for number in range(200)]
    lines = [(5000.0 + number, f"driver_{names[number % 200]}: fatal error {number}") for number in range(1000)]
    (one,) = found("kernel.unknown_messages", *lines)
    assert "200 kinds" in one.observed and "and 190 more kinds" in one.observed and "5x driver_" in one.observed
    assert len(one.evidence) == 10
    known = profile(known_messages=[{"pattern": "^driver_[a-z]+: fatal", "reason": "test"}])
    assert not troubles(judge_log(log(*lines), "kernel.unknown_messages", known))


def test_a_rate_of_corrected_memory_errors() -> None:
    line = "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Channel#0_DIMM#0 (channel:0 slot:0 page:0x{:x})"
    many = [(5000.0 + number, line.format(number)) for number in range(10)]
    assert [one[2:] for one in troubles(found("kernel.memory", *many))] == [("warn", "inspect")]
    assert not troubles(found("kernel.memory", *many[:9]))
    spread = [(5000.0 + number * 10000, line.format(number)) for number in range(10)]
    assert not troubles(judge_log(log(*spread), "kernel.memory", profile(max_age_h=None))), "ten in 25 hours"
    at_once = line.replace("1 CE", "12 CE").format(1)
    assert troubles(found("kernel.memory", (5000, at_once))), "one record may stand for many"


def test_a_rate_of_corrected_pcie_errors() -> None:
    line = "pcieport 0000:97:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID) {}"
    many = [(5000.0 + number, line.format(number)) for number in range(100)]
    (one,) = found("kernel.pcie", *many)
    assert (one.component, one.status) == ("bridge 0000:97:01.0", "warn") and "100 corrected" in one.observed
    assert not troubles(found("kernel.pcie", *many[:99]))


@pytest.mark.parametrize(("times", "status"), [((100, 220), "warn"), ((100, 220, 460), "fail"), ((100, 9000), "fail")])
def test_standstills_that_come_again(times: tuple[float, ...], status: str) -> None:
    lines = [(time, f"INFO: task python3:{time:.0f} blocked for more than 120 seconds.") for time in times]
    (one,) = found("kernel.hung_tasks", *lines)
    assert one.status == status


def test_memory_of_a_container_is_told_from_the_nodes() -> None:
    kill = (5000.0, "Memory cgroup out of memory: Killed process 123 (python3) total-vm:1kB")
    limited = (4999.0, "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0-1")
    (one,) = found("kernel.oom", limited, kill)
    assert "killed: python3" in one.observed and "container" in one.observed
    (one,) = found("kernel.oom", (4999.0, limited[1].replace("MEMCG", "NONE")), kill)
    assert "container" not in one.observed


def test_a_disk_is_named_by_its_address() -> None:
    (one,) = found(
        "kernel.nvme",
        (3.0, "nvme nvme3: pci function 0000:5e:00.0"),
        (5000.0, "nvme nvme3: Disabling device after reset failure: -19"),
        (5001.0, "nvme nvme3: I/O 12 QID 4 timeout, aborting"),
    )
    assert one.component == "NVMe 0000:5e:00.0" and one.observed.startswith("nvme3: the disk")


LIMITED = (
    "{}: 252.056 Gb/s available PCIe bandwidth, limited by {} GT/s PCIe x{} link at 0000:97:01.0 (capable of 504 Gb/s)"
)


@pytest.mark.parametrize(
    ("device", "speed", "width", "component"),
    [
        ("mlx5_core 0000:9c:00.0", "32.0", 8, "NIC 0000:9c:00.0"),
        ("mlx5_core 0000:9c:00.0", "16.0", 16, "NIC 0000:9c:00.0"),
        ("mlx5_core 0000:9c:00.0", "32.0", 16, None),  # as the profile wants it
        ("pci 0000:05:00.0", "16.0", 2, None),  # an NVSwitch is x2 by design
        ("pci 0000:02:00.0", "5.0", 1, None),  # the BMC's graphics
        ("pci 0000:ee:00.0", "5.0", 1, None),  # no device of this node
    ],
)
def test_less_bandwidth_than_the_profile_says(device: str, speed: str, width: int, component: str | None) -> None:
    text = FIRST + log((18.6, LIMITED.format(device, speed, width)))
    findings = troubles(judge(node(text), "kernel.pcie_bandwidth"))
    assert [one[1:3] for one in findings] == ([(component, "fail")] if component else [])


def test_bandwidth_needs_the_pci_devices() -> None:
    results = node(FIRST)
    for changed in (done("pci.lspci", ""), done("pci.lspci", LSPCI.read_text())._replace(outcome="timeout")):
        (one,) = judge({**results, "pci.lspci": changed}, "kernel.pcie_bandwidth")
        assert one.status == "unknown" and "pci.lspci" in one.observed


def test_every_kind_of_message_is_tried_here() -> None:
    """The kinds that no test of this file, of Xids or of samples reaches would be dead."""
    tried = {kind_of(text) for __, text in MESSAGES}
    elsewhere = {"xid", "sxid", "gpu_bus", "gpu_init", "driver_load", "peermem", "mlx5_power", "mlx5_hot", "segfault"}
    elsewhere |= {"edac_corrected", "pcie_limited", "pcie_corrected", "pcie_recovery", "oom_constraint", "disk_error"}
    elsewhere |= {"nvme_function"}
    assert set(KINDS) <= tried | elsewhere


def test_errors_without_times_or_beyond_the_kept_ones_count() -> None:
    line = "pcieport 0000:97:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    same_text = "".join(f"[{5000 + number:5d}.000000] {line}\n" for number in range(100))
    for text in (same_text, f"{line}\n" * 100):
        assert [one[2] for one in troubles(judge_log(text, "kernel.pcie"))] == ["warn"]
