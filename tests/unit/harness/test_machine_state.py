# SPDX-License-Identifier: Apache-2.0
"""The record of this machine's state: each kind of change is seen, and time that passes is none."""

import copy

import pytest

from tests import machine_state

BEFORE: machine_state.State = {
    "boot_id": "a",
    "boottime_s": 1000.0,
    "boot_distance_s": 1_700_000_000.0,
    "clock_steering": 0,
    "hostname": "controller",
    "modules": ["ext4"],
    "sysctls": {"vm.swappiness": "60"},
}


def test_an_hour_in_which_nothing_was_touched_is_no_change() -> None:
    after = copy.deepcopy(BEFORE) | {"boottime_s": 4600.0, "boot_distance_s": 1_700_000_000.0 + 1.0}
    assert machine_state.differences(BEFORE, after) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"boot_distance_s": 1_700_000_001.0}, "clock: stepped by +1.000 s"),
        ({"boot_distance_s": 1_699_996_400.0}, "clock: stepped by -3600.000 s"),
        ({"clock_steering": 0x1}, "clock_steering: was 0, is 1"),
        ({"hostname": "lab-node-1"}, "hostname: was controller, is lab-node-1"),
        ({"modules": ["ext4", "zfs"]}, "module loaded: zfs"),
        ({"modules": []}, "module unloaded: ext4"),
        ({"sysctls": {"vm.swappiness": "10"}}, "sysctl vm.swappiness: was 60, is 10"),
        ({"sysctls": {}}, "sysctl vm.swappiness: was 60, is absent"),
        ({"boot_id": "b"}, "the machine was rebooted"),
    ],
)
def test_every_kind_of_change_is_named(change: dict[str, object], line: str) -> None:
    after = copy.deepcopy(BEFORE) | change
    found = machine_state.differences(BEFORE, after)  # type: ignore[arg-type]
    assert len(found) == 1
    assert line in found[0]


def test_counters_and_container_network_are_left_out_and_settings_kept() -> None:
    text = """\
fs.dentry-state = 1\t2\t45\t0\t3\t0
kernel.random.uuid = 1
net.ipv4.conf.cni-podman0.forwarding = 1
net.ipv4.conf.all.rp_filter = 2
net.ipv4.ip_forward = 1
kernel.core_pattern = core = x
kernel.modprobe =
"""
    assert machine_state.parse_sysctls(text) == {
        "net.ipv4.conf.all.rp_filter": "2",
        "kernel.core_pattern": "core = x",
        "kernel.modprobe": "",
    }


def test_modules_of_the_container_network_are_left_out() -> None:
    assert machine_state.parse_modules("veth 1 0 - Live 0x0\nzfs 1 0 - Live 0x0\n") == ["zfs"]


def test_this_machine_can_be_read_and_equals_itself() -> None:
    assert machine_state.differences(machine_state.read_state(), machine_state.read_state()) == []
