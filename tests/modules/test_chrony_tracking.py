# SPDX-License-Identifier: Apache-2.0
"""chrony_tracking: only a clock that follows a configured server within the limit passes."""

import pytest

TRACKING = "chronyc -c -N tracking"
SOURCES = "chronyc -c -N sources"
GOOD = "0A000202,10.0.2.2,3,1796000000.123456789,{offset},0.000012,0.000020,-5.1,0.01,0.2,0.001,0.0005,64.2,Normal\n"
NONE = "00000000,,0,0.000000000,0.000000000,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised\n"
FOLLOWED = "^,*,10.0.2.2,2,6,377,22,0.000012,0.000013,0.0002\n"
SILENT = "^,?,10.0.2.3,0,6,0,4294967295,0.0,0.0,0.0\n"


def arguments(**more):
    return {"servers": ["10.0.2.2", "10.0.2.3"], "max_offset_s": 0.1, "timeout_s": 0, **more}


def test_a_synchronised_clock_passes_though_one_server_is_silent(commands, run_module):
    commands.answer(TRACKING, GOOD.format(offset="-0.000021"))
    commands.answer(SOURCES, FOLLOWED + SILENT)
    result = run_module("chrony_tracking", **arguments())
    assert (result["changed"], result["reference"], result["offset_s"]) == (False, "10.0.2.2", -0.000021)


@pytest.mark.parametrize(
    ("tracking", "sources", "expected"),
    [
        (NONE, SILENT, ["not synchronised", "10.0.2.2: chronyd does not know it", "10.0.2.3: did not answer"]),
        (GOOD.format(offset="0.25"), FOLLOWED, ["+0.250 s off", "limit is 0.1 s"]),
        (GOOD.format(offset="0.0"), FOLLOWED.replace("10.0.2.2", "192.0.2.9"), ["192.0.2.9, which is none"]),
        (GOOD.format(offset="0.0"), FOLLOWED.replace(",*,", ",x,"), ["selected no server", "false ticker"]),
        (GOOD.format(offset="0.0").replace(",3,", ",16,"), FOLLOWED, ["not synchronised"]),
        ("506 Cannot talk to daemon\n", "", ["expected the 14 fields", "506 Cannot talk to daemon"]),
        (GOOD.format(offset="near"), FOLLOWED, ["no number"]),
        (GOOD.format(offset="0.0"), "garbage\n", ["expected the 10 fields", "garbage"]),
    ],
)
def test_anything_less_fails_and_says_why(commands, run_module, tracking, sources, expected):
    commands.answer(TRACKING, tracking)
    commands.answer(SOURCES, sources)
    result = run_module("chrony_tracking", **arguments())
    assert result["failed"]
    assert [part for part in expected if part not in result["msg"]] == []
    assert "UDP" in result["next_step"]


def test_it_waits_for_the_first_synchronisation(commands, run_module, monkeypatch):
    commands.answer(TRACKING, NONE)
    commands.answer(TRACKING, GOOD.format(offset="0.0"))
    commands.answer(SOURCES, FOLLOWED)
    result = run_module("chrony_tracking", **arguments(timeout_s=20))
    assert result["reference"] == "10.0.2.2"
    assert len(commands.calls("chronyc")) == 4


def test_a_silent_chronyd_is_no_evidence(commands, run_module):
    commands.answer(TRACKING, rc=1, out="506 Cannot talk to daemon\n")
    result = run_module("chrony_tracking", **arguments())
    assert result["failed"] and "506 Cannot talk to daemon" in result["msg"]


def test_check_mode_looks_once_and_never_fails(commands, run_module):
    commands.answer(TRACKING, NONE)
    commands.answer(SOURCES, SILENT)
    result = run_module("chrony_tracking", check=True, **arguments(timeout_s=60))
    assert (result["changed"], result["fault"]) == (False, "the clock is not synchronised")
