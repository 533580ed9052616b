# SPDX-License-Identifier: Apache-2.0
"""Which scenarios there are, of which kind, and that nothing to run is no success."""

import re
import subprocess
import sys
from pathlib import Path

from tools import molecule_scenarios

REPOSITORY = Path(__file__).resolve().parents[3]


def test_scenarios_that_share_state_are_on_the_lab_node(tmp_path: Path) -> None:
    for name, text in (("a", "shared_state: true"), ("b", "platforms: []"), ("c", ""), ("default", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "molecule.yml").write_text(text)
    assert molecule_scenarios.scenarios_by_kind(tmp_path) == {"containers": ["b", "c"], "lab": ["a"]}


def test_an_unknown_scenario_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "tools" / "molecule_scenarios.py", "no_such_role"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no such scenario: no_such_role" in done.stderr


def test_no_scenario_is_privileged_or_keeps_what_changes_the_machine() -> None:
    create = (REPOSITORY / ".config" / "molecule" / "create.yml").read_text()
    assert "cap_drop: [SYS_TIME, SYS_MODULE, SYS_RAWIO]" in create
    for file in (REPOSITORY / ".config" / "molecule" / "create.yml", *(REPOSITORY / "molecule").glob("*/molecule.yml")):
        assert not re.search(r"(?m)^\s*privileged:", file.read_text()), file
