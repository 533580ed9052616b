# SPDX-License-Identifier: Apache-2.0
"""The journal of a fleet's campaigns: one JSON object a line, each on the disk before the step it tells of goes on.

It says what a campaign is and which nodes it took out of service. Versions and states are read from the nodes and the
scheduler instead: a run may be killed between a step and its record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# In the order in which a campaign writes them; from batch_started on once for each batch.
CAMPAIGN_STARTED = "campaign_started"
CAMPAIGN_SUPERSEDED = "campaign_superseded"
PLANNED = "planned"
BATCH_STARTED = "batch_started"
DRAINING = "draining"
DRAINED = "drained"
ROLES_RAN = "roles_ran"
JUDGED = "judged"
RELEASING = "releasing"
RELEASED = "released"
BATCH_ENDED = "batch_ended"
CAMPAIGN_COMPLETED = "campaign_completed"

Record = dict[str, Any]


class Journal:
    """Appends to one file and reads it. `who` and `run` say whose run writes, for the reader of next month."""

    def __init__(self, path: Path, who: str = "", run: str = "") -> None:
        self.path = path
        self._who = who
        self._run = run

    def append(
        self,
        step: str,
        campaign: str,
        why: str,
        *,
        nodes: Iterable[str] = (),
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Record:
        """Write one record and wait until it is on the disk; OSError where it cannot be."""
        record: Record = {
            "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "step": step,
            "campaign": campaign,
            "run": self._run,
            "who": self._who,
            "why": why,
            "nodes": list(nodes),
            "before": dict(before or {}),
            "after": dict(after or {}),
            **more,
        }
        new = not self.path.exists()
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            end = os.fstat(descriptor).st_size
            # A line that a power cut left unfinished must not swallow this one.
            torn = end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"
            data = (b"\n" if torn else b"") + json.dumps(record, ensure_ascii=False).encode() + b"\n"
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            _sync_folder(self.path.parent)
        return record

    def records(self) -> tuple[list[Record], int]:
        """All records in order, and how many lines are none (cut short by a power cut)."""
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return [], 0
        records, broken = [], 0
        for line in filter(str.strip, lines):
            try:
                record = json.loads(line)
            except ValueError:
                broken += 1
                continue
            if isinstance(record, dict) and "step" in record and "campaign" in record:
                records.append(record)
            else:
                broken += 1
        return records, broken


def _sync_folder(folder: Path) -> None:
    """The name of a new file survives a power cut too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
