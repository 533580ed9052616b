# SPDX-License-Identifier: Apache-2.0
"""The faults that this node had in earlier boots, and what follows when one comes back.

A fault that stands again after a boot has outlived the action that was asked for, at least the reboot. Each earlier
boot with the same fault makes the action one rung harder, up to `inspect`: that a part is replaced is never decided by
counting. An operator who has mended the node clears its history.
"""

from __future__ import annotations

import fnmatch
import json
import os
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from .finding import ACTIONS, Finding

FORMAT = 1
# Longer ago than this says nothing about the part any more: a setting. Fleets that replace parts see repeats in days.
MEMORY_S = 30 * 86400
MAX_ENTRIES = 500
_HARDEST_BY_REPEAT = ACTIONS.index("inspect")
_EASIEST_THAT_CLIMBS = ACTIONS.index("restart_service")


class HistoryError(Exception):
    """A history file that cannot be read or written; it is left as it is."""


class Entry(NamedTuple):
    """One fault in one boot. last: seconds since the epoch when it was last seen."""

    check: str
    component: str
    action: str
    boot_id: str
    last: float


def read_history(path: str) -> list[Entry]:
    """The entries, none where there is no file. Raises HistoryError for a file that is no history."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        if data["format"] != FORMAT:
            raise HistoryError(f"{path} has format {data['format']!r}; this version reads {FORMAT}")
        return [Entry(*(item[name] for name in Entry._fields)) for item in data["entries"]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HistoryError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise HistoryError(f"{path} is no history of faults ({error}); move it away") from error


def write_history(path: str, entries: Sequence[Entry]) -> None:
    """Replace the file in one step. Raises HistoryError."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        os.makedirs(folder, exist_ok=True)
        number, work = tempfile.mkstemp(prefix=".history-", dir=folder)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                json.dump({"format": FORMAT, "entries": [entry._asdict() for entry in entries]}, file, indent=1)
            os.rename(work, path)
        except BaseException:
            os.unlink(work)
            raise
    except OSError as error:
        raise HistoryError(f"cannot write {path}: {error.strerror}") from error


def climb(findings: Sequence[Finding], entries: Sequence[Entry], boot_id: str, now: float) -> list[Finding]:
    """The findings, with a harder action where the same fault stood in earlier boots of the last 30 days."""
    return [_climbed(finding, entries, boot_id, now) for finding in findings]


def _climbed(finding: Finding, entries: Sequence[Entry], boot_id: str, now: float) -> Finding:
    rung = ACTIONS.index(finding.action)
    boots = {
        entry.boot_id
        for entry in entries
        if (entry.check, entry.component) == (finding.check, finding.component)
        and entry.boot_id != boot_id
        and entry.last >= now - MEMORY_S
    }
    climbs = finding.status == "fail" and _EASIEST_THAT_CLIMBS <= rung < _HARDEST_BY_REPEAT and boots
    if not climbs:
        return finding
    harder = ACTIONS[min(rung + len(boots), _HARDEST_BY_REPEAT)]
    times = "an earlier boot" if len(boots) == 1 else f"{len(boots)} earlier boots"
    why = f"It stood in {times} too, so {finding.action} was not enough: {harder}."
    return finding._replace(action=harder, advice=f"{finding.advice} {why}".strip())


def record(entries: Sequence[Entry], findings: Sequence[Finding], boot_id: str, now: float) -> list[Entry]:
    """The entries with the faults of this run; one for each fault and boot, the oldest are dropped above the limit."""
    faults = {(finding.check, finding.component): finding.action for finding in findings if finding.status == "fail"}
    kept = [
        entry
        for entry in entries
        if entry.last >= now - MEMORY_S and not (entry.boot_id == boot_id and entry[:2] in faults)
    ]
    kept += [Entry(check, component, action, boot_id, now) for (check, component), action in faults.items()]
    return sorted(kept, key=lambda entry: entry.last)[-MAX_ENTRIES:]


def clear(entries: Sequence[Entry], component: str) -> list[Entry]:
    """The entries without those whose component fits the shell pattern ("*" for all)."""
    return [entry for entry in entries if not fnmatch.fnmatchcase(entry.component, component)]
