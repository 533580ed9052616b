# SPDX-License-Identifier: Apache-2.0
"""A fresh node whose clock is years ahead. A folder of its own: it throws away what the tests before have made."""

import time
from pathlib import Path

import pytest

from tests.integration.conftest import LabNode
from tests.playbook import run_playbook

pytestmark = pytest.mark.lab


def test_clock_in_the_future_is_mended(lab_node: LabNode, tmp_path: Path) -> None:
    """A fresh node three years ahead: converged without a signature error, its hardware clock right for the next boot.

    The platform part only: it is the one that needs signed package lists on a wrong clock.
    """
    lab_node.reset(clock="+3y")
    assert lab_node.years_ahead() > 2.5, "the fault did not work: the node's clock is not far ahead"
    done = run_playbook("playbooks/platform.yml", tmp_path)
    assert done.code == 0, done.output
    assert abs(lab_node.years_ahead()) * 365.25 * 86400 < 5
    hardware_clock = float(lab_node.run("cat /sys/class/rtc/rtc0/since_epoch"))
    assert abs(hardware_clock - time.time()) < 60, "the next boot would start with a wrong clock"
