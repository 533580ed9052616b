# SPDX-License-Identifier: Apache-2.0
"""The comparison of two clocks over a link of unknown delay, and the hardware clock's format."""

import importlib.util
import struct
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet import hardware_clock

PLUGIN = Path(__file__).resolve().parents[3] / "plugins" / "action" / "clock_step.py"
spec = importlib.util.spec_from_file_location("gpufleet_action_clock_step", PLUGIN)
clock_step = importlib.util.module_from_spec(spec)
spec.loader.exec_module(clock_step)


def test_a_slow_link_does_not_look_like_a_wrong_clock():
    # The node is right; its answer took 30 s on the way there and none back.
    found = clock_step.compare(sent=1000.0, node=1030.0, received=1030.0)
    assert not found.certainly_off(1.0)
    assert not found.certainly_right(1.0)


@pytest.mark.parametrize("offset", [2.0, -2.0, 94608000.0, -94608000.0])
def test_a_wrong_clock_is_found_on_a_fast_link(offset):
    found = clock_step.compare(sent=1000.0, node=1000.1 + offset, received=1000.2)
    assert found.certainly_off(1.0)
    assert found.offset_s == pytest.approx(offset)


def test_a_right_clock_on_a_fast_link_is_certain_at_once():
    assert clock_step.compare(1000.0, 1000.3, 1000.2).certainly_right(1.0)


def test_the_answer_is_found_behind_what_a_login_prints():
    text = 'Welcome!\ngpufleet-clock=1796000000.123456789\nID=debian\nVERSION_ID="12"\n'
    seconds, rest = clock_step.parse_answer(text)
    assert seconds == 1796000000.123456789
    assert clock_step.parse_os_release(rest) == {"ID": "debian", "VERSION_ID": "12"}


@pytest.mark.parametrize("text", ["", "date: not found\n", "gpufleet-clock=%s.%N\n"])
def test_no_answer_is_no_time(text):
    with pytest.raises(ValueError, match="expected gpufleet-clock"):
        clock_step.parse_answer(text)


@pytest.mark.parametrize(
    ("release", "refused"),
    [
        ('ID=debian\nVERSION_ID="12"', False),
        ("ID=debian\nVERSION_ID='13'\nNAME=\"Debian GNU/Linux\"", False),
        ('ID=ubuntu\nVERSION_ID="24.04"', False),
        ('ID=ubuntu\nVERSION_ID="20.04"', True),
        ('ID="rocky"\nVERSION_ID="9.4"', True),
        ("ID=debian\n# testing has no VERSION_ID", True),
        ("", True),
    ],
)
def test_operating_systems(release, refused):
    supported = ["debian 12", "debian 13", "ubuntu 22.04", "ubuntu 24.04"]
    message = clock_step.unsupported(clock_step.parse_os_release(release), supported)
    assert (message is not None) is refused


def test_the_hardware_clocks_time():
    # 2026-11-29 18:30:15 UTC
    fields = struct.unpack("9i", hardware_clock.rtc_time(1795977015, local=False))
    assert fields == (15, 30, 18, 29, 10, 126, 0, 0, 0)


@pytest.mark.parametrize(
    ("adjtime", "local"),
    [("0.0 0 0.0\n0\nLOCAL\n", True), ("0.0 0 0.0\n0\nUTC\n", False), ("0.0 0 0.0\n", False), ("", False)],
)
def test_the_hardware_clocks_zone(adjtime, local):
    assert hardware_clock.keeps_local_time(adjtime) is local


def test_a_machine_without_a_hardware_clock(tmp_path):
    assert "No such file" in hardware_clock.write_hardware_clock(str(tmp_path / "rtc0"), str(tmp_path / "adjtime"))
