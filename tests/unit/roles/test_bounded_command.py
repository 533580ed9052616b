# SPDX-License-Identifier: Apache-2.0
"""A command that hangs, dies or is missing does not hold up its caller, and its output is whole."""

import time

import pytest
from ansible.module_utils.gpufleet.bounded_command import run_bounded


def test_output_is_whole_and_in_the_c_locale():
    result = run_bounded(["/bin/sh", "-c", "seq 100000; echo $LC_ALL >&2; exit 3"], 20)
    assert (result.outcome, result.rc, result.stderr) == ("done", 3, "C\n")
    assert result.stdout.splitlines()[-1] == "100000" and len(result.stdout.splitlines()) == 100000
    assert len(result.said()) <= 2000


def test_a_command_and_its_children_are_given_up_in_time():
    started = time.monotonic()
    result = run_bounded(["/bin/sh", "-c", "sleep 30 & sleep 30"], 0.3)
    assert (result.outcome, result.rc) == ("timeout", None)
    assert time.monotonic() - started < 5


def test_a_missing_command():
    assert run_bounded(["/nonexistent/command"], 1).outcome == "missing"


def test_no_command():
    with pytest.raises(ValueError, match="empty"):
        run_bounded([], 1)
