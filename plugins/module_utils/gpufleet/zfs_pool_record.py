# SPDX-License-Identifier: Apache-2.0
"""What the node remembers of its pool in /var/lib/gpufleet/zfs_pool.

`<pool>.json`         which disk (serial number, slot) each member was while it was there: once a disk is gone, ZFS only
                      knows the member's number and its last path.
`<pool>.intent.json`  disks that are being overwritten right now. It is on disk before the first byte is, so that the
                      run after a power cut knows which traces are this role's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

DIRECTORY = "/var/lib/gpufleet/zfs_pool"


class RememberedMember(NamedTuple):
    """guid: ZFS' number of the member. size in bytes. place: slot or PCI address. path: as ZFS was given it."""

    guid: str
    serial: str
    model: str
    size: int
    place: str
    partuuid: str
    path: str


class PoolRecord(NamedTuple):
    """host_id: the node's host id when the pool was last seen."""

    guid: str
    host_id: int
    members: tuple[RememberedMember, ...]


class Intent(NamedTuple):
    """serials: of the disks that may bear traces of the work described by purpose. when: UTC, ISO 8601."""

    purpose: str
    serials: tuple[str, ...]
    when: str


def new_intent(purpose: str, serials: Sequence[str]) -> Intent:
    """An intent of now."""
    return Intent(purpose, tuple(serials), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


class PoolMemory:
    """The two files of one pool. A file that cannot be understood raises ValueError, naming it and what to do."""

    def __init__(self, pool: str, directory: str = DIRECTORY) -> None:
        self.record_path = os.path.join(directory, f"{pool}.json")
        self.intent_path = os.path.join(directory, f"{pool}.intent.json")

    def read_record(self) -> PoolRecord | None:
        """None where the pool has never been seen on this installation."""
        content = _read_json(self.record_path)
        if content is None:
            return None
        try:
            members = tuple(RememberedMember(**member) for member in content["members"])
            return PoolRecord(content["guid"], int(content["host_id"]), members)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(_misunderstood(self.record_path, error)) from error

    def write_record(self, record: PoolRecord) -> None:
        """Replace the file in one step."""
        members = [member._asdict() for member in record.members]
        _write_json(self.record_path, {"guid": record.guid, "host_id": record.host_id, "members": members})

    def read_intent(self) -> Intent | None:
        """None where nothing was cut off."""
        content = _read_json(self.intent_path)
        if content is None:
            return None
        try:
            return Intent(content["purpose"], tuple(content["serials"]), content["when"])
        except (KeyError, TypeError) as error:
            raise ValueError(_misunderstood(self.intent_path, error)) from error

    def write_intent(self, intent: Intent) -> None:
        """Replace the file in one step; on disk when this returns."""
        _write_json(self.intent_path, {**intent._asdict(), "serials": list(intent.serials)})

    def remove_intent(self) -> None:
        """No error where there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.intent_path)


def _misunderstood(path: str, error: Exception) -> str:
    return f"{path} is not understood ({type(error).__name__}: {error}); move it away if it was damaged, then run again"


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(_misunderstood(path, error)) from error
    if not isinstance(content, dict):
        raise ValueError(_misunderstood(path, TypeError("no JSON object")))
    return content


def _write_json(path: str, content: dict[str, Any]) -> None:
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    # The rename itself has to survive a power cut, too.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
