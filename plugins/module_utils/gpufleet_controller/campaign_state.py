# SPDX-License-Identifier: Apache-2.0
"""The folder of an inventory's campaigns on the controller: journal, lock and plans, as a task of a run sees it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .campaign_history import BatchOutcome, History, batch_outcomes, fold
from .campaign_journal import Journal, Record
from .campaign_lock import CampaignLock, process_mark
from .report_files import write_whole
from .run_lock import LockOwner, lock_path


class CampaignState:
    """State of the campaigns of one inventory. Made in a worker: its parent is the ansible-playbook of the run."""

    def __init__(self, directory: str, inventory: Sequence[str]) -> None:
        pid = os.getppid()
        # Named as the lock of a run is, so that two inventories never share one.
        self.folder = Path(directory).absolute() / lock_path(Path(), inventory).stem
        self.inventory = list(inventory)
        self.run = f"{socket.gethostname()}:{pid}:{process_mark(pid)}"
        owner = LockOwner.this_process("", "", inventory)
        self.journal = Journal(self.folder / "journal.jsonl", f"{owner.user}@{owner.host} pid {pid}", self.run)
        self.lock = CampaignLock(self.folder / "lock.json", pid)

    def history(self) -> tuple[History, int]:
        """What the journal says, and how many of its lines are none."""
        records, broken = self.journal.records()
        return fold(records), broken

    def outcomes(self) -> list[BatchOutcome]:
        """The batches of this run so far."""
        return batch_outcomes(self.journal.records()[0], self.run)

    def append(self, step: str, campaign: str, why: str, **what: Any) -> Record:
        """Write a record, if this run still is the one that may act; raises CampaignHeldError."""
        self.lock.check()
        return self.journal.append(step, campaign, why, **what)

    def save_plan(self, plan: dict[str, Any]) -> Path:
        """Write the plan of a run; a later run of the same campaign does not overwrite it."""
        folder = self.folder / "plans"
        folder.mkdir(parents=True, exist_ok=True)
        number = 1
        while (path := folder / f"{plan['campaign']}-{number}.json").exists():
            number += 1
        write_whole(path, json.dumps(plan, indent=1, ensure_ascii=False) + "\n")
        return path
