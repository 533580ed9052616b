# SPDX-License-Identifier: Apache-2.0
"""What may be in a set of files that one task writes, and what must not lie in its way."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

UNIT_FOLDER = "/etc/systemd/system/"
# More than this is no small text file; it is not read for a comparison, and not shown in a diff.
MAX_BYTES = 1 << 20


def list_faults(
    files: Sequence[Mapping[str, Any]], absent: Sequence[str], directories: Sequence[Mapping[str, Any]]
) -> list[str]:
    """What is wrong with the arguments of file_set by themselves, in sentences without a full stop."""
    faults = []
    seen: dict[str, str] = {}
    named = [("files", entry["path"]) for entry in files] + [("absent", path) for path in absent]
    named += [("directories", entry["path"]) for entry in directories]
    for where, path in named:
        if not path.startswith("/") or path.startswith("//") or os.path.normpath(path) != path or path == "/":
            faults.append(
                f"{where}: {path!r} is no path that can be used, expected an absolute one without '.', '..', '//' and "
                "without '/' at its end"
            )
        elif path in seen:
            faults.append(f"{path} is named twice (in {seen[path]} and in {where}), expected once")
        seen.setdefault(path, where)
    for entry in [*files, *directories]:
        # 0644 without quotes comes as the decimal 420, which would be a mode nobody meant.
        if not re.fullmatch(r"0[0-7]{3}", entry["mode"]):
            faults.append(
                f"{entry['path']}: mode is {entry['mode']!r}, expected four octal digits in quotes, as '0644'"
            )
    return faults


def obstacle(path: str, wanted: str) -> str | None:
    """Why `path` cannot become (or be removed as) a "file" or become a "directory", or None. Links are not followed."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(mode):
        target = os.readlink(path)
        hint = "a masked unit; systemctl unmask removes the link" if target == os.devnull else "links are not followed"
        return (
            f"{path} is a symbolic link to {target} ({hint}), expected a {wanted} or nothing. Remove the link by hand"
        )
    if stat.S_ISDIR(mode):
        if wanted == "directory":
            return None
        return f"{path} is a directory, expected a file or nothing. Remove it by hand if nothing needs it"
    if not stat.S_ISREG(mode) or wanted == "directory":
        return f"{path} is there and is no {wanted}. Remove it by hand if nothing needs it"
    return None


def read_bytes(path: str) -> bytes | None:
    """Content of a regular file; None where there is none, or where it is no small one. Links are not followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(handle, "rb") as file:
        content = file.read(MAX_BYTES + 1)
    return content if len(content) <= MAX_BYTES else None


def needs_daemon_reload(paths: Iterable[str]) -> bool:
    """Whether systemd has to read its units anew after these paths have changed."""
    return any(path.startswith(UNIT_FOLDER) for path in paths)
