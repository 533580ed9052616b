# SPDX-License-Identifier: Apache-2.0
"""Run the repository's playbooks as an operator does, and read the report they leave."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
# A whole site.yml on a fresh emulated node takes about five minutes; machines vary threefold.
LIMIT_S = 1800


@dataclass(frozen=True)
class PlaybookRun:
    """What a run left: exit code, everything it printed, and its report ({} if it left none)."""

    code: int
    output: str
    report: dict[str, Any]

    def host(self, name: str) -> dict[str, Any]:
        """The report's entry of a host."""
        entry: dict[str, Any] = self.report["hosts"][name]
        return entry


def run_playbook(playbook: str, work: Path, *options: str, environment: Mapping[str, str] | None = None) -> PlaybookRun:
    """Run a playbook with the repository's settings; `work` is an empty folder for its report."""
    work.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [BIN / "ansible-playbook", playbook, *options],
        cwd=REPOSITORY,
        env={
            **os.environ,
            **(environment or {}),
            "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
            "GPUFLEET_REPORTS_DIR": str(work),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    reports = sorted(work.glob("*/report.json"))
    report = json.loads(reports[-1].read_text()) if reports else {}
    return PlaybookRun(done.returncode, done.stdout, report)
