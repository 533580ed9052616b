# SPDX-License-Identifier: Apache-2.0
"""Requests for a reboot: which lie on this node, and what became of those that a reboot has served.

A request lies in /run, so a boot removes it. What the reboot stage acted on is recorded in /var/lib before the reboot:
without it a run that was cut off in between, or the next run of a role whose reason a reboot does not mend, would
reboot the node again and again.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .bounded_command import CommandResult, run_bounded
from .reboot_request_file import BOOT_ID, OS_REQUEST, Request, RequestError, parse_request

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
# A request is a few hundred bytes; more is no request.
MAX_BYTES = 65536
# still_needed reads a file or two; one that hangs proves nothing and must not hold up the run.
STILL_NEEDED_LIMIT_S = 30


class Problem(NamedTuple):
    """A file among the requests (or records) that is none; it is reported and never acted on."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def utc_now() -> str:
    """The time as it stands in a request."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read_boot_id(path: str = BOOT_ID) -> str:
    """The kernel's id of this boot: the reliable proof that a reboot has happened."""
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def _distrust(status: os.stat_result, owner: int) -> str | None:
    """Why a file or folder could have been written by somebody else, or None: its command will be run as root."""
    if status.st_uid != owner:
        return f"belongs to user id {status.st_uid}, not to {owner}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def read_folder(folder: str) -> tuple[list[Request], list[Problem]]:
    """All valid requests in a folder, by name, and what else lies there. A missing folder holds none.

    Folder and files must belong to the user who runs this and be writable by no other; links are not followed.
    """
    owner = os.geteuid()
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return [], []
    if not stat.S_ISDIR(status.st_mode):
        return [], [Problem(folder, "is no folder")]
    distrust = _distrust(status, owner)
    if distrust:
        return [], [Problem(folder, distrust)]
    requests, problems = [], []
    for entry in sorted(os.listdir(folder)):
        if entry.startswith(".new-"):
            continue
        path = os.path.join(folder, entry)
        try:
            requests.append(_read_file(path, entry, owner))
        except RequestError as error:
            problems.append(Problem(path, str(error)))
        except OSError as error:
            problems.append(Problem(path, error.strerror or str(error)))
    return requests, problems


def _read_file(path: str, entry: str, owner: int) -> Request:
    name, extension = os.path.splitext(entry)
    if extension != ".json" or not NAME.fullmatch(name):
        raise RequestError("is not named <name>.json with a name of a-z, 0-9, '_', '.' and '-'")
    # O_NONBLOCK: opening a FIFO must not hang.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise RequestError("is no regular file")
        distrust = _distrust(status, owner)
        if distrust:
            raise RequestError(distrust)
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise RequestError(f"is larger than {MAX_BYTES} bytes")
    try:
        return parse_request(content.decode("utf-8"), name)
    except UnicodeDecodeError as error:
        raise RequestError("is not UTF-8") from error


def write_request(folder: str, request: Request) -> None:
    """Write a request whole or not at all, and so that it is trusted later."""
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o755)
    path = os.path.join(folder, request.name + ".json")
    new = os.path.join(folder, ".new-" + request.name)
    with open(new, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(request.as_json())
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)


def remove_request(folder: str, name: str) -> None:
    """Remove a request or record; one that is gone is fine."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, name + ".json"))


def reason_stands(request: Request, run: Callable[[Sequence[str], float], CommandResult] = run_bounded) -> str | None:
    """None where the reason is proven to be gone, else what says that it stands.

    A command that is missing, hangs or was killed proves nothing, so the reason counts as standing.
    """
    if request.still_needed is None:
        return "no command was given that could tell"
    result = run(request.still_needed, STILL_NEEDED_LIMIT_S)
    shown = " ".join(request.still_needed)
    if result.outcome != "done":
        return f"cannot be told: {shown}: {result.said()}"
    if result.rc == 0:
        return f"{shown} says so"
    if result.rc is None or result.rc < 0 or result.rc in (126, 127):
        return f"cannot be told: {shown}: exit status {result.rc}"
    return None


class Findings(NamedTuple):
    """What a node's requests come to.

    pending: to be served by a reboot. stuck: a reboot was tried for them, and the reason stands (with what says so).
    settled: names of records whose reboot served its purpose. stale: requests whose reason is gone without a reboot.
    """

    pending: list[Request]
    stuck: list[tuple[Request, str]]
    settled: list[str]
    stale: list[Request]


def judge(
    requests: Sequence[Request],
    records: Sequence[Request],
    boot_id: str,
    stands: Callable[[Request], str | None] = reason_stands,
) -> Findings:
    """Sort requests and records of earlier reboots.

    A record whose boot id is another than now's was followed by a reboot. If its request is back with the same reason,
    or its reason stands still, the reboot did not help: never a second one.
    """
    served = {record.name: record for record in records if record.boot_id != boot_id}
    pending: list[Request] = []
    stuck: list[tuple[Request, str]] = []
    settled: list[str] = []
    stale: list[Request] = []
    for request in requests:
        record = served.pop(request.name, None)
        why = stands(request) if request.still_needed is not None else "it was asked for again"
        if why is None:
            stale.append(request)
            if record is not None:
                settled.append(record.name)
        elif record is not None and record.reason == request.reason:
            stuck.append((record, why))
        else:
            if record is not None:
                settled.append(record.name)
            pending.append(request)
    for record in served.values():
        # Where no command can tell, the role not asking again does.
        why = None if record.still_needed is None else stands(record)
        if why is None:
            settled.append(record.name)
        else:
            stuck.append((record, why))
    return Findings(pending, stuck, settled, stale)


def read_os_request(path: str = OS_REQUEST) -> str:
    """What Debian and Ubuntu packages ask a reboot for ("packages linux-image-amd64"); empty where none asks."""
    if not os.path.lexists(path):
        return ""
    try:
        with open(path + ".pkgs", encoding="utf-8", errors="replace") as file:
            packages = sorted({line.strip() for line in file if line.strip()})
    except OSError:
        packages = []
    if not packages:
        return "the operating system asks for it and does not say why"
    return "updated packages: " + ", ".join(packages[:20])
