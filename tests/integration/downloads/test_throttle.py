# SPDX-License-Identifier: Apache-2.0
"""How many nodes download at once: the real ansible-playbook runs a real role's task, whose module is a double.

The nodes are eight local connections. The double writes down when its download began and ended.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.playbook import PlaybookRun, run_playbook

NODES = 8
# Takes the place of library/held_package.py.
DOUBLE = """\
import time

from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule({"name": {}, "version": {}, "supported_os": {"type": "list"}}, supports_check_mode=True)
began = time.monotonic()
time.sleep(@SECONDS@)
line = f"{began} {time.monotonic()}\\n"
with open("@SEEN@", "a") as seen:
    seen.write(line)
module.exit_json(changed=False, installed="1")
"""
PLAY = """\
- name: Install
  hosts: gpu_nodes
  gather_facts: false
  tasks:
    - name: Keep the clock right
      ansible.builtin.import_role: {name: time_sync, tasks_from: install, rolespec_validate: false}
"""


class Downloads:
    """Runs the play, and tells how many downloads of it went on at the same time at most."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._runs = folder, 0
        self._seen = folder / "seen"
        (folder / "library").mkdir()
        (folder / "play.yml").write_text(PLAY)

    def run(self, seconds: float, **variables: Any) -> PlaybookRun:
        """Run the play over all nodes with these inventory variables; each download takes so many seconds."""
        self._runs += 1
        module = DOUBLE.replace("@SEEN@", str(self._seen)).replace("@SECONDS@", str(seconds))
        (self._folder / "library" / "held_package.py").write_text(module)
        self._seen.unlink(missing_ok=True)
        inventory = self._folder / "inventory.yml"
        clock = {"platform": {"clock": {"servers": [{"address": "192.0.2.1"}]}}}
        group = {
            "ansible_connection": "local",
            "node_profile": "lab",
            "node_profile_overrides_fleet": clock,
            **variables,
        }
        hosts: dict[str, Any] = {f"gpu-{number}": {} for number in range(1, NODES + 1)}
        inventory.write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": group}}))
        work = self._folder / f"reports-{self._runs}"
        library = {"ANSIBLE_LIBRARY": str(self._folder / "library")}
        playbook = str(self._folder / "play.yml")
        return run_playbook(playbook, work, "-i", str(inventory), environment=library)

    def at_once(self) -> int:
        """The largest number of downloads that overlapped, of as many as there are nodes."""
        spans = [tuple(map(float, line.split())) for line in self._seen.read_text().splitlines()]
        assert len(spans) == NODES, spans
        return max(sum(began <= moment < ended for began, ended in spans) for moment, _ in spans)


@pytest.fixture
def downloads(tmp_path: Path) -> Downloads:
    return Downloads(tmp_path)


def test_no_more_nodes_download_at_once_than_the_inventory_says(downloads: Downloads) -> None:
    run = downloads.run(1, downloads_at_once=3)
    assert run.code == 0, run.output
    assert downloads.at_once() in (2, 3)
    # Without the variable more of them really do, up to forks of ansible.cfg. Long enough for a busy machine to start
    # the others meanwhile.
    run = downloads.run(6)
    assert run.code == 0, run.output
    assert downloads.at_once() > 3
