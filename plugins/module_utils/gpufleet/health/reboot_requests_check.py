# SPDX-License-Identifier: Apache-2.0
"""Whether somebody waits for a reboot of the node, or one has not helped (what reboot_request and the role leave)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..reboot_request_file import BOOT_ID, OS_REQUEST, RECORDS, REQUESTS, Request, RequestError, parse_request
from .check import Check, Profile
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .probe import ParseError, Probe, ProbeResult

FILES = "reboot.requests"


class RebootFiles(NamedTuple):
    """requests: of this boot. records: what a reboot was tried for. os_request: packages that the system names ("" none
    named), None where it asks for nothing. damaged: path and what is wrong, of files that are neither."""

    boot_id: str
    requests: tuple[Request, ...]
    records: tuple[Request, ...]
    os_request: str | None
    damaged: tuple[str, ...]


def parse_reboot_files(text: str) -> RebootFiles:
    """From `find ... -print -exec grep -H`: each file's path on a line, then its lines behind the path. The boot id
    comes first, so that no requests are told from no answer. Raises ParseError."""
    files: dict[str, list[str]] = {}
    path = ""
    for line in text.splitlines():
        if path and line.startswith(f"{path}:"):
            files[path].append(line[len(path) + 1 :])
        elif line.startswith("/") and ":" not in line:
            path = line
            files[path] = []
        else:
            raise ParseError(f"neither a file nor a line of {path or 'one'}: {line!r}")
    boot_id = " ".join(files.pop(BOOT_ID, []))
    if not boot_id or next(iter(text.splitlines())) != BOOT_ID:
        raise ParseError(f"expected {BOOT_ID} and its line first")
    found: dict[str, list[Request]] = {REQUESTS: [], RECORDS: []}
    damaged = []
    packages = files.pop(f"{OS_REQUEST}.pkgs", [])
    os_request = ", ".join(sorted(set(packages))) if files.pop(OS_REQUEST, None) is not None else None
    for path, lines in files.items():
        folder, __, entry = path.rpartition("/")
        if folder not in found:
            raise ParseError(f"no file that was asked for: {path!r}")
        if entry.startswith(".new-"):
            continue
        try:
            found[folder].append(parse_request("\n".join(lines), entry.removesuffix(".json")))
        except RequestError as error:
            damaged.append(f"{path}: {error}")
    return RebootFiles(boot_id, tuple(found[REQUESTS]), tuple(found[RECORDS]), os_request, tuple(damaged))


def check_requests(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """No role and no package waits for a reboot, and no reboot was tried in vain.

    The reboot stage records what a reboot is for and removes the record once the reason is gone: a record of an
    earlier boot is a reason that stands, or one that nobody has looked at since.

    Source: roles/reboot/README.md
    """
    files: RebootFiles = evidence.facts(FILES)
    records = {record.name: record for record in files.records}
    right = True
    for finding in (*_open(files, records), *_tried(files, records), *_others(files)):
        right = False
        yield finding
    if right:
        yield Finding("node", "ok", "nobody asks for a reboot", evidence=(Evidence(FILES, BOOT_ID),))


def _open(files: RebootFiles, records: dict[str, Request]) -> Iterable[Finding]:
    for request in files.requests:
        record = records.get(request.name)
        again = record is not None and record.boot_id != files.boot_id and record.reason == request.reason
        yield Finding(
            f"reboot request {request.name}",
            "fail" if again else "warn",
            f"{request.requested_by} asks for a reboot: {request.reason}"
            + (", although the node was rebooted for it" if again else ""),
            "no open request",
            "inspect" if again else "reboot",
            f"a reboot did not help: find out why; then remove {RECORDS}/{request.name}.json to allow another"
            if again
            else "drain the node and run playbooks/reboot.yml with -e reboot_allowed=true",
            (Evidence(FILES, f"{request.name}: {request.reason} ({request.when})"),),
            "roles/reboot/README.md",
        )


def _tried(files: RebootFiles, records: dict[str, Request]) -> Iterable[Finding]:
    asked = {request.name for request in files.requests}
    for name, record in records.items():
        if name in asked:
            continue
        before = record.boot_id != files.boot_id
        yield Finding(
            f"reboot request {name}",
            "fail" if before and record.still_needed is not None else "warn",
            f"the node was rebooted for it, and nothing says that the reason is gone: {record.reason}"
            if before
            else f"a reboot is under way: {record.reason}",
            "no record of an earlier reboot",
            "inspect" if before else "observe",
            "run playbooks/reboot.yml --tags reboot_status: it removes the record if the reason is gone, else says why "
            "it stands",
            (Evidence(FILES, f"{name}: {record.reason} ({record.when})"),),
            "roles/reboot/README.md",
        )


def _others(files: RebootFiles) -> Iterable[Finding]:
    for text in files.damaged:
        advice = "remove the file; the role that wants a reboot asks again"
        yield Finding("reboot requests", "warn", f"no valid request: {text}", "", "observe", advice,
                      (Evidence(FILES, text),), "roles/reboot/README.md")  # fmt: skip
    if files.os_request is not None:
        why = f"updated packages: {files.os_request}" if files.os_request else "it does not say why"
        advice = "plan a reboot (reboot_include_os_requests lets playbooks/reboot.yml serve it)"
        yield Finding("operating system", "warn", f"it asks for a reboot; {why}", "no open request", "reboot", advice,
                      (Evidence(FILES, f"{OS_REQUEST}: {files.os_request}"),), "roles/reboot/README.md")  # fmt: skip


def _parse(result: ProbeResult) -> RebootFiles:
    return parse_reboot_files(result.stdout)


PROBES = (
    Probe(
        FILES,
        _parse,
        argv=("find", BOOT_ID, REQUESTS, RECORDS, OS_REQUEST, f"{OS_REQUEST}.pkgs", "-maxdepth", "1", "-type", "f",
              "-print", "-exec", "grep", "-a", "-H", "", "{}", ";"),
        # 1: one of the places does not exist
        good_rc=(0, 1),
        deadline_s=15,
    ),
)  # fmt: skip
CHECKS = (Check("reboot.requests", check_requests, (FILES,)),)
