# SPDX-License-Identifier: Apache-2.0
"""The main job on the virtual node: site.yml on a fresh node whose clock is years off.

The tests follow each other on one node, since a boot takes over a minute: the order in this file is the order of an
operator's first day. Each says what it starts from.
"""

from pathlib import Path

import pytest

from tests.integration.conftest import LabNode
from tests.playbook import run_playbook

pytestmark = pytest.mark.lab

# Everything a dry run must leave alone. Left out: what a running system writes by itself (logs, the random seed,
# systemd-timesyncd's clock file), folders that are in memory, the binary caches that apt derives from its lists
# when it is asked for a version, and the lab's own store of compiled Python code.
NODE_STATE = r"""
find / -xdev \( -path /var/log -o -path /var/tmp -o -path /tmp -o -path /root/.ansible \
    -o -path /var/lib/systemd/timesync -o -path /var/lib/systemd/timers -o -path /var/lib/private/systemd/timesync \
    -o -path '/var/cache/apt/*pkgcache.bin' -o -path /var/lib/systemd/random-seed -o -path /var/lib/dhcp \
    -o -path /var/cache/gpufleet-lab \) -prune \
  -o -type f -printf '%p %s %m %u %T@\n' | sort
dpkg-query -W
systemctl list-unit-files --no-legend | sort
systemctl list-units --type=service --state=running --no-legend --plain | grep -v '@' | sort
getent passwd
"""


def test_dry_run_on_a_fresh_node_with_a_clock_in_the_past(lab_node: LabNode, tmp_path: Path) -> None:
    """From a fresh node, three years behind: --check --diff exits 0 and leaves the node as it is."""
    lab_node.reset(clock="-3y")
    assert lab_node.years_ahead() < -0.2, "the fault did not work: the node's clock is not far behind"
    before = lab_node.run(NODE_STATE)
    done = run_playbook("site.yml", tmp_path, "--check", "--diff")
    assert done.code == 0, done.output
    assert set(lab_node.run(NODE_STATE).splitlines()) ^ set(before.splitlines()) == set()
    assert lab_node.years_ahead() < -0.2, "the dry run set the clock"
    assert done.host(lab_node.name)["changed"] > 0, "a dry run on a fresh node must say what it would change"


def test_site_converges_from_a_clock_in_the_past(lab_node: LabNode, tmp_path: Path) -> None:
    """From the node of the test before: everything is installed although the clock is years behind."""
    done = run_playbook("site.yml", tmp_path)
    assert done.code == 0, done.output
    assert abs(lab_node.years_ahead()) * 365.25 * 86400 < 5
    assert lab_node.run("systemctl is-active chrony node_exporter").split() == ["active", "active"]
    assert lab_node.run("zpool list -H -o health data").strip() == "ONLINE"
    assert lab_node.run("stat -f -c %T /scratch /var/lib/docker").split() == ["zfs", "zfs"]
    assert "node_exporter_build_info" in lab_node.run(
        "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:9100/metrics').read().decode())\""
    )


def test_second_run_changes_nothing(lab_node: LabNode, tmp_path: Path) -> None:
    """From a converged node: changed=0, in the report and on the screen."""
    done = run_playbook("site.yml", tmp_path)
    assert done.code == 0, done.output
    assert done.host(lab_node.name)["changed_tasks"] == []
    assert "changed=0" in done.output
