# SPDX-License-Identifier: Apache-2.0
"""The files of a report: a folder per run, each file complete or absent."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any


def write_report(
    directory: Path, started: datetime, playbook: str, report: Mapping[str, Any], in_need: Sequence[str]
) -> Path:
    """Write report.json and attention.limit into a new ``<UTC time>-<playbook>`` folder and return it.

    attention.limit is for ``--limit @file``, one node a line; it is not written when no node needs
    attention, since Ansible takes an empty limit file for "no host matches" and ends with an error.
    OSError (no permission, no space) is left to the caller; then nothing is left behind.
    """
    folder = _new_folder(directory, f"{started:%Y%m%dT%H%M%SZ}-{_file_name(playbook)}")
    try:
        if in_need:
            write_whole(folder / "attention.limit", "".join(f"{name}\n" for name in in_need))
        write_whole(folder / "report.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    except OSError:
        for name in ("attention.limit", "report.json"):
            with contextlib.suppress(OSError):
                (folder / name).unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise
    return folder


def _file_name(playbook: str) -> str:
    """The playbook's name without its ending, fit for a folder name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(playbook).stem).strip("-.")[:60] or "playbook"


def _new_folder(directory: Path, name: str) -> Path:
    """Make a folder that nobody else has: a second run in the same second gets -2, a third -3."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        folder = directory / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{directory / name} and 998 more like it exist")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there as a whole or not at all, on the disk before it has its name."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp's 0600 would hide the report from the colleagues who read the folder
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
