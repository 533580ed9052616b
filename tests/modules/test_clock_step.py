# SPDX-License-Identifier: Apache-2.0
"""clock_step: the module refuses where chrony proves the node right; setting the clock is replaced, never done here."""

import time

import pytest

from tests.modules.conftest import load_module

TRACKING = "chronyc -c -N tracking"
FOLLOWS = "0A000202,ntp1,3,1796000000.1,0.0001,0.0,0.0,0.0,0.0,0.0,0.0,0.0,64.0,Normal\n"
STALE = "0A000202,ntp1,3,1796000000.1,94608000.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,64.0,Normal\n"
NONE = "00000000,,0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised\n"
YEARS = 94608000.0


@pytest.fixture
def clock(commands, monkeypatch):
    """The module with a clock of its own: what it sets is kept here."""
    module = load_module("clock_step")
    commands.answer("systemctl try-restart chrony.service")
    set_to = []
    monkeypatch.setattr(module.time, "clock_settime", lambda clock_id, value: set_to.append(value))
    monkeypatch.setattr(module, "write_hardware_clock", lambda: None)
    return module, set_to


@pytest.mark.parametrize("tracking", [NONE, STALE, "garbage", None])
@pytest.mark.parametrize("correction", [YEARS, -YEARS])
def test_a_clock_that_nothing_vouches_for_is_stepped(commands, run_module, clock, tracking, correction):
    module, set_to = clock
    if tracking is None:
        commands.answer(TRACKING, rc=1)
    else:
        commands.answer(TRACKING, tracking)
    result = run_module(module, max_offset_s=1.0, correction_s=correction)
    assert (result["changed"], result["hardware_clock"]) == (True, "written")
    assert commands.calls("systemctl") == ["systemctl try-restart chrony.service"]
    assert len(set_to) == 1 and abs(set_to[0] - time.time() - correction) < 5


def test_a_clock_that_follows_its_servers_is_kept_and_the_controller_blamed(commands, run_module, clock):
    module, set_to = clock
    commands.answer(TRACKING, FOLLOWS)
    result = run_module(module, max_offset_s=1.0, correction_s=3600.0)
    assert result["failed"] and "ntp1: the controller's clock is wrong" in result["msg"]
    assert set_to == []


def test_check_mode_shows_the_step_and_does_not_do_it(commands, run_module, clock):
    module, set_to = clock
    commands.answer(TRACKING, NONE)
    result = run_module(module, check=True, max_offset_s=1.0, correction_s=YEARS)
    assert result["changed"] and result["diff"]["before"] != result["diff"]["after"]
    assert set_to == []


def test_a_clock_that_may_not_be_set_says_so(commands, run_module, clock, monkeypatch):
    module, dummy = clock

    def refuse(clock_id, value):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(module.time, "clock_settime", refuse)
    commands.answer(TRACKING, NONE)
    result = run_module(module, max_offset_s=1.0, correction_s=YEARS)
    assert result["failed"] and "Operation not permitted" in result["msg"] and "container" in result["msg"]


def test_a_hardware_clock_that_cannot_be_written_is_reported(commands, run_module, clock, monkeypatch):
    module, dummy = clock
    monkeypatch.setattr(module, "write_hardware_clock", lambda: "/dev/rtc0: No such file or directory")
    commands.answer(TRACKING, NONE)
    result = run_module(module, max_offset_s=1.0, correction_s=YEARS)
    assert result["hardware_clock"] == "/dev/rtc0: No such file or directory"


def test_without_its_action_plugin_it_does_nothing(run_module, clock):
    module, set_to = clock
    assert "action plugin" in run_module(module, max_offset_s=1.0)["msg"]
    assert set_to == []
