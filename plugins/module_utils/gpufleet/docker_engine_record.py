# SPDX-License-Identifier: Apache-2.0
"""What the running engine was started with, as far as it cannot be asked for: its daemon.json, and the GPU driver.

The engine tells little of its configuration (no log-opts, no exec-opts), so the node remembers what each start read.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from typing import NamedTuple

RECORD = "/var/lib/gpufleet/docker/engine.json"
# Times of a file and of a process come from two clocks; a file that is written this close to a start was read by it.
SAME_MOMENT_S = 1.0


class Record(NamedTuple):
    """invocation: systemd's id of that start. text: daemon.json as it was read. driver: version of the loaded NVIDIA
    module. proxies: the proxy variables that the unit had."""

    invocation: str
    text: str
    driver: str | None
    proxies: Mapping[str, str]


def read(path: str) -> Record | None:
    """The record; None where there is none that can be read."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return Record(str(found["invocation"]), str(found["text"]), found["driver"], dict(found["proxies"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def write(path: str, record: Record) -> None:
    """Put the record in place at once. Readable for root alone: proxies may carry a password."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".engine-", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({**record._asdict(), "proxies": dict(record.proxies)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_at_start(
    record: Record | None, invocation: str, text: str, altered_at: float, started_at: float
) -> str | None:
    """daemon.json as the running engine has read it; None where nothing tells.

    text, altered_at: the file now, and when it was last altered (seconds since the epoch). started_at: when the engine
    was started.
    """
    if record is not None and record.invocation == invocation:
        return record.text
    return text if altered_at <= started_at + SAME_MOMENT_S else None
