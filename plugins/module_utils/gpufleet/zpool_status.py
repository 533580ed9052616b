# SPDX-License-Identifier: Apache-2.0
"""What `zpool status` prints, as typed facts, and everything about a pool that is not healthy.

Called as `zpool status -v [-P] [-p] [pool...]` with LC_ALL=C; options that add columns (-s, -e, --power) or replace
names by GUIDs (-g) or print JSON are refused. The layout follows cmd/zpool/zpool_main.c of OpenZFS 2.1 to 2.4.

Without any pool zpool prints "no pools available" on stderr and nothing on stdout. Empty text is therefore refused
here: only whoever ran the command knows its stderr and return code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# zpool_state_to_name() and the two words for spares of print_status_config(), zpool_main.c
VDEV_STATES = (
    "ONLINE",
    "DEGRADED",
    "FAULTED",
    "UNAVAIL",
    "OFFLINE",
    "REMOVED",
    "AVAIL",
    "INUSE",
    "SPLIT",
    "UNKNOWN",
)
# zpool_get_state_str(), libzfs_pool.c
POOL_STATES = ("ONLINE", "DEGRADED", "FAULTED", "UNAVAIL", "SUSPENDED", "OFFLINE", "REMOVED", "SPLIT", "UNKNOWN")
# zpool prints no `errors:` line for these where the pool, or its list of errors, cannot be read.
_WITHOUT_ERRORS = ("UNAVAIL", "FAULTED", "SUSPENDED")

SECTIONS = {
    "logs": "log",
    "cache": "cache",
    "spares": "spare",
    "special": "special",
    "dedup": "dedup",
}
# A dRAID group carries parity, data, children and spares in its name: draid2:4d:6c:1s-0 (draid2-0-0 is a spare of it).
_GROUP = re.compile(r"(raidz[123]|mirror|replacing|spare|draid)(?:\d?(?::\d+[dcs])+)?-\d+")
_DRAID_CHILDREN = re.compile(r":(\d+)c")
# A group with fewer rows than this was cut: parity + 1 (zpoolconcepts(7)), and a pair for all the others.
_FEWEST_CHILDREN = {"raidz1": 2, "raidz2": 3, "raidz3": 4, "mirror": 2, "replacing": 2, "spare": 2, "draid": 2}

_KEY = re.compile(
    r" {0,4}(pool|state|status|action|see|scan warning|scan|scrub|remove|checkpoint|expand|trim|config|errors):"
    r"(?:\s+(.*?))?\s*$"
)
_COUNT = r"(-|\d+(?:\.\d+)?[KMGTPEZ]?)"
_ROW = re.compile(rf"(\S.*?)\s+({'|'.join(VDEV_STATES)})(?:\s+(.*))?$")
_COUNTERS = re.compile(rf"{_COUNT}\s+{_COUNT}\s+{_COUNT}(?:\s+(.*))?$")
_HEADER = ["NAME", "STATE", "READ", "WRITE", "CKSUM"]


class ZpoolParseError(ValueError):
    """A command printed something that is not its whole report; the message holds the line."""


class Vdev(NamedTuple):
    """One row of the table of devices.

    kind: root, raidz1, raidz2, raidz3, draid, mirror, replacing or spare for a group, disk for every leaf (files too).
    role: data, log, cache, spare, special or dedup. state: the word as printed; "" for cache and spare devices in the
    listing of `zpool import`, which prints none. read, write, checksum: numbers of errors; None where none is printed
    (spares, '-', the listing of `zpool import`). A number like 1.2K is rounded by zpool, hence only about right.
    note: the text behind the counters, such as "too many errors", "was /dev/sdc1" or "(resilvering)".
    """

    name: str
    kind: str
    state: str
    read: int | None
    write: int | None
    checksum: int | None
    note: str
    children: tuple[Vdev, ...]
    role: str

    @property
    def was_path(self) -> str | None:
        """The path that a missing device had; zpool then prints its GUID as the name."""
        if not self.note.startswith("was /"):
            return None
        return self.note[len("was ") :].split("  ")[0]

    @property
    def has_errors(self) -> bool:
        return any((self.read, self.write, self.checksum))


def vdevs(top: Vdev) -> Iterator[Vdev]:
    """The vdev itself and all below it, in the order of the table."""
    yield top
    for child in top.children:
        yield from vdevs(child)


def leaves(top: Vdev) -> list[Vdev]:
    """The disks (or files) of a vdev, in the order of the table; a disk is its own leaf."""
    return [vdev for vdev in vdevs(top) if not vdev.children]


class Scan(NamedTuple):
    """The last or current pass over the pool's data.

    kind: none, scrub or resilver. state: none, running, paused, finished or cancelled.
    percent: of a running or paused scan; None otherwise, and where zpool prints nan. to_go_s: zpool's estimate in
    seconds, None where it gives none. errors: of a finished scan. component: the top-level vdev of a sequential
    resilver (dRAID, or `zpool replace -s`), which verifies no checksums; "" for the others. text: as printed.
    """

    kind: str
    state: str
    percent: float | None
    to_go_s: int | None
    errors: int | None
    component: str
    text: str

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def paused(self) -> bool:
        return self.state == "paused"

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def cancelled(self) -> bool:
        return self.state == "cancelled"

    @property
    def sequential(self) -> bool:
        return bool(self.component)


# zpool since 2.0 prints no `scan:` line at all where there never was one.
NO_SCAN = Scan("none", "none", None, None, None, "", "none requested")


class Pool(NamedTuple):
    """One pool. status, action: paragraphs on one line, white space folded; "" where zpool prints none.

    scan: the one that matters now (running, else paused, else the last one printed); scans: all that are printed.
    data: top-level vdevs that hold data; others: of logs, cache, spares, special and dedup, with their role.
    errors: the `errors:` line; "" only where the pool is UNAVAIL, FAULTED or SUSPENDED and zpool could not read them
    (nothing then proves that the table is complete). error_files: what -v lists.
    """

    name: str
    state: str
    status: str
    action: str
    see: str
    scan: Scan
    data: tuple[Vdev, ...]
    others: tuple[Vdev, ...]
    errors: str
    suspended: bool
    root: Vdev
    scans: tuple[Scan, ...]
    error_files: tuple[str, ...]


class Line(NamedTuple):
    """A line of the text with its number, counted from 1."""

    number: int
    text: str

    def error(self, what: str) -> ZpoolParseError:
        return ZpoolParseError(f"line {self.number}: {what}: {self.text.strip()!r}")


def numbered(text: str) -> list[Line]:
    """All lines, numbered from 1."""
    return [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)]


def fold(*parts: str) -> str:
    """A paragraph on one line."""
    return " ".join(" ".join(parts).split())


def _count(text: str) -> int | None:
    """An error counter; zpool without -p writes 1.2K for 1228 (powers of 1024, zfs_nicenum())."""
    if text == "-":
        return None
    unit = "KMGTPEZ".find(text[-1])
    return int(text) if text.isdigit() else round(float(text.rstrip("KMGTPEZ")) * 1024 ** (unit + 1))


class _Node:
    """A row while the rows below it are still to come."""

    def __init__(self, line: Line, name: str, state: str, counters: Sequence[str], note: str, role: str) -> None:
        self.line, self.name, self.state, self.note, self.role = line, name, state, note, role
        self.counters = [_count(text) for text in counters] or [None, None, None]
        self.children: list[_Node] = []

    def frozen(self, kind: str = "") -> Vdev:
        group = _GROUP.fullmatch(self.name)
        kind = kind or (group.group(1) if group else "disk")
        if kind == "disk" and self.children:
            raise self.line.error("a row that is no group has rows below it")
        fewest = _FEWEST_CHILDREN.get(kind, 1 if kind == "root" else 0)
        if kind == "draid" and (children := _DRAID_CHILDREN.search(self.name)):
            fewest = int(children.group(1))
        if len(self.children) < fewest:
            raise self.line.error(f"expected at least {fewest} rows below this row, got {len(self.children)}")
        below = tuple(child.frozen() for child in self.children)
        read, write, checksum = self.counters
        return Vdev(self.name, kind, self.state, read, write, checksum, self.note, below, self.role)


def _row(line: Line, role: str, counted: bool) -> _Node:
    text = line.text.strip()
    found = _ROW.match(text)
    if not found:
        # the listing of `zpool import` names cache and spare devices without a state
        if not counted and role in ("cache", "spare") and len(text.split()) == 1:
            return _Node(line, text, "", (), "", role)
        raise line.error("expected a device with its state")
    name, state, rest = found.group(1), found.group(2), found.group(3) or ""
    if not counted or role == "spare":
        return _Node(line, name, state, (), rest.strip(), role)
    counters = _COUNTERS.match(rest)
    if not counters:
        raise line.error("expected three error counters behind the state")
    return _Node(line, name, state, counters.groups()[:3], (counters.group(4) or "").strip(), role)


def parse_table(lines: Sequence[Line], pool: str, counted: bool) -> tuple[Vdev, tuple[Vdev, ...]]:
    """The rows of a pool (without the header): its root with the data vdevs, and the vdevs of all other roles.

    counted: whether rows carry error counters (`zpool status`) or not (`zpool import`). Each row is indented by two
    columns more than the row it belongs to. Raises ZpoolParseError for a row that does not fit and for a group with
    fewer rows than its kind must have.
    """
    if not lines:
        raise ZpoolParseError(f"pool {pool!r}: the table of devices has no rows")
    base = _indent(lines[0])
    root: _Node | None = None
    role = "data"
    others: list[_Node] = []
    above: list[_Node | None] = []
    section: Line | None = None
    for line in lines:
        depth, odd = divmod(_indent(line) - base, 2)
        if odd or depth < 0 or depth > len(above):
            raise line.error("this indentation does not fit the rows above")
        word = line.text.strip()
        if root is not None and depth == 0:
            if word not in SECTIONS:
                raise line.error("expected one of " + ", ".join(SECTIONS))
            if section is not None:
                raise section.error("no rows below this line")
            section, role, above = line, SECTIONS[word], [None]
            continue
        section = None
        node = _row(line, role, counted)
        if root is None:
            if node.name != pool:
                raise line.error(f"expected the row of pool {pool!r}")
            root = node
        elif (parent := above[depth - 1]) is not None:
            parent.children.append(node)
        else:
            others.append(node)
        above = [*above[:depth], node]
    assert root is not None
    if section is not None:
        raise section.error("no rows below this line")
    return root.frozen("root"), tuple(node.frozen() for node in others)


def _indent(line: Line) -> int:
    text = line.text.expandtabs(8)
    return len(text) - len(text.lstrip())


_SCAN = (
    (re.compile(r"none requested$"), "none"),
    (re.compile(r"(scrub) repaired \S+ in .+ with (?P<errors>\d+) errors on \S.*$"), "finished"),
    (
        re.compile(r"(resilver)ed (?:\((?P<component>\S+)\) )?\S+ in .+ with (?P<errors>\d+) errors on \S.*$"),
        "finished",
    ),
    (re.compile(r"(scrub|resilver) (?:\((?P<component>\S+)\) )?cancell?ed on \S.*$"), "cancelled"),
    (re.compile(r"(scrub) paused since \S.* (?P<percent>\S+)% done"), "paused"),
    (
        re.compile(r"(scrub|resilver) (?:\((?P<component>\S+)\) )?in progress since \S.* (?P<percent>\S+)% done"),
        "running",
    ),
)
# secs_to_dhms() since 0.8, hours and minutes before
_TO_GO = re.compile(r"(?:(?:(\d+) days )?(\d+):(\d\d):(\d\d)|(\d+)h(\d+)m) to go")


def _scan(line: Line, first: str, more: Sequence[Line]) -> Scan:
    text = fold(first, *(other.text for other in more))
    matches = [(found, state) for pattern, state in _SCAN if (found := pattern.match(text))]
    if not matches:
        raise line.error(f"no scan that zpool is known to report, or one that was cut ({text!r})")
    found, state = matches[0]
    if state == "none":
        return NO_SCAN
    parts = {"component": None, "errors": None, "percent": None, **found.groupdict()}
    # a scan of which nothing is known yet has done 0 of 0 bytes
    percent = parts["percent"] if (parts["percent"] or "nan").strip("-+") not in ("nan", "inf") else None
    try:
        number = float(percent) if percent else None
    except ValueError as error:
        raise line.error(f"no number before '% done' ({text!r})") from error
    to_go = None
    if time := _TO_GO.search(text):
        days, hours, minutes, seconds, old_hours, old_minutes = (int(part or 0) for part in time.groups())
        to_go = ((days * 24 + hours + old_hours) * 60 + minutes + old_minutes) * 60 + seconds
    errors = int(parts["errors"]) if parts["errors"] else None
    return Scan(found.group(1), state, number, to_go, errors, parts["component"] or "", text)


_NO_ERRORS = "No known data errors"
_ERRORS = re.compile(
    rf"{_NO_ERRORS}$|\d+ data errors, use '-v' for a list$|List of errors unavailable\b.*"
    r"|Permanent errors have been detected in the following files:$"
)


def _errors(entries: Sequence[tuple[Line, str, list[Line]]]) -> tuple[str, tuple[str, ...]]:
    files: list[str] = []
    texts = []
    for line, text, more in entries:
        if not _ERRORS.match(text):
            raise line.error("no `errors:` line that zpool is known to print, or one that was cut")
        listed = [other.text.strip() for other in more]
        if listed and not text.startswith("Permanent errors"):
            raise more[0].error("this line does not fit behind the `errors:` line")
        if not listed and text.startswith("Permanent errors"):
            raise line.error("no file is listed below this line")
        texts.append(text)
        files += listed
    return "; ".join(texts), tuple(files)


def _pool(entries: Sequence[tuple[str, Line, str, list[Line]]]) -> Pool:
    first = entries[0]
    name = first[2]
    found: dict[str, list[tuple[Line, str, list[Line]]]] = {}
    for key, line, text, more in entries:
        found.setdefault(key, []).append((line, text, more))
        if len(found[key]) > 1 and key not in ("scan", "scan warning", "errors"):
            raise line.error(f"pool {name!r} has a second `{key}:`")
        if more and key in ("pool", "state", "see"):
            raise more[0].error(f"this line does not fit behind `{key}:`")

    def paragraph(key: str) -> str:
        return fold(*(part for __, text, more in found.get(key, ()) for part in (text, *(line.text for line in more))))

    state = paragraph("state")
    if not name or state not in POOL_STATES:
        raise first[1].error(f"expected a pool with one of the states {', '.join(POOL_STATES)}, got {state!r}")
    if "config" not in found:
        raise first[1].error("this pool's text ends before its table of devices")
    config, text, table = found["config"][0]
    if text:
        raise config.error("zpool itself has no configuration of this pool")
    if not table or table[0].text.split() != _HEADER:
        line = table[0] if table else config
        raise line.error(f"expected the header {' '.join(_HEADER)} (no options that add columns)")
    if len(table) == 1 or _indent(table[0]) != _indent(table[1]):
        raise table[-1].error("expected the pool's row below the header")
    root, others = parse_table(table[1:], name, counted=True)
    if "errors" not in found and state not in _WITHOUT_ERRORS:
        raise table[-1].error(f"pool {name!r} has no `errors:` line, its text was cut behind this line")
    errors, files = _errors(found.get("errors", ()))
    scans = tuple(_scan(*entry) for entry in found.get("scan", ()))
    status, see = paragraph("status"), paragraph("see")
    return Pool(
        name=name,
        state=state,
        status=status,
        action=paragraph("action"),
        see=see,
        scan=_most_urgent(scans),
        data=root.children,
        others=others,
        errors=errors,
        suspended=state == "SUSPENDED" or _classify(status, see)[0] == "suspended",
        root=root,
        scans=scans,
        error_files=files,
    )


def _most_urgent(scans: Sequence[Scan]) -> Scan:
    for state in ("running", "paused"):
        for scan in scans:
            if scan.state == state:
                return scan
    return scans[-1] if scans else NO_SCAN


def parse_zpool_status(text: str) -> list[Pool]:
    """`zpool status [-v] [-P] [-p] [pool...]`, in the order printed; [] for "no pools available".

    Raises ZpoolParseError, naming the line, for empty or cut text and for any line that does not fit.
    """
    return [_pool(entries) for entries in split_pools(text, "zpool status", "no pools available", _KEY)]


# one keyword of a pool's text: its name, its line, what stands behind it, and the lines that continue it
Entry = tuple[str, Line, str, "list[Line]"]


def split_pools(
    text: str, command: str, none_there: str, key_pattern: re.Pattern[str], unindented: str = ""
) -> list[list[Entry]]:
    """The keywords of each pool in a command's output; [] where it says that there is no pool.

    none_there: how it says so. unindented: the keyword whose continuation may stand without blanks in front. Raises
    ZpoolParseError for empty text, for text that does not begin with a pool, and for a line that belongs to no keyword.
    """
    lines = [line for line in numbered(text) if line.text.strip()]
    if [line.text.strip() for line in lines] == [none_there]:
        return []
    if not lines:
        raise ZpoolParseError(f"{command} printed nothing; without a pool it says so on stderr")
    pools: list[list[Entry]] = []
    for line in lines:
        if key := key_pattern.match(line.text):
            if key.group(1) == "pool":
                pools.append([])
            elif not pools:
                raise line.error("expected `pool:` first")
            pools[-1].append((key.group(1), line, key.group(2) or "", []))
        elif not pools:
            raise line.error("expected `pool:` first")
        elif line.text[0] not in " \t" and pools[-1][-1][0] != unindented:
            raise line.error(f"this line is neither a keyword of {command} nor the continuation of one")
        else:
            pools[-1][-1][3].append(line)
    return pools


class Concern(NamedTuple):
    """Something about a pool that is not healthy.

    kind: one of KINDS. component: the pool or the vdev. severity: info, warn or fail.
    """

    kind: str
    component: str
    what: str
    severity: str


SEVERITIES = ("fail", "warn", "info")
KINDS = (
    "suspended",
    "faulted",
    "data_errors",
    "degraded",
    "unavailable_member",
    "removed_member",
    "faulted_member",
    "offline_member",
    "member_errors",
    "hostid_mismatch",
    "scrub_errors",
    "spare_in_use",
    "errata",
    "unknown_status",
    "resilvering",
    "scrub_advised",
    "block_size",
)

# What each `status:` paragraph means, by how it begins; kind None = informational. The informational ones are those
# that `zpool status -x` counts as healthy (status_callback(), zpool_main.c). Texts of OpenZFS 0.8 to 2.4.
_STATUS: tuple[tuple[str, str | None, str], ...] = (
    (r"Some supported (and requested )?features are not enabled on the pool", None, ""),
    (r"The pool is formatted using (a legacy|an older) on-disk", None, ""),
    (r"This pool has a compatibility list specified", None, ""),
    (r"One or more features are enabled on the pool despite not being requested", None, ""),
    (r"One or more devices could not be opened\. Sufficient", "unavailable_member", "fail"),
    (
        r"One or more devices could not be used because the label is missing or invalid\. Suff",
        "unavailable_member",
        "fail",
    ),
    (r"One or more devices could not be (opened|used because)", "faulted", "fail"),
    (r"One or more devices (has|have) experienced an error resulting in data corruption", "data_errors", "fail"),
    (r"One or more devices (has|have) experienced an unrecoverable error", "member_errors", "warn"),
    (r"One or more devices (has|have) been taken offline", "offline_member", "warn"),
    (r"One or more devices (has|have) been removed", "removed_member", "fail"),
    (r"One or more devices (is|are) currently being resilvered", "resilvering", "info"),
    (r"One or more devices have been sequentially resilvered", "scrub_advised", "info"),
    (r"One or more devices are faulted in response to persistent errors\. Suff", "faulted_member", "fail"),
    (r"One or more devices are faulted in response to persistent errors", "faulted", "fail"),
    (r"One or more failure domains are faulted", "faulted_member", "fail"),
    (r"One or more devices are faulted in response to IO failures", "suspended", "fail"),
    (r"The pool is suspended because multihost writes failed", "suspended", "fail"),
    (r"One or more devices are configured to use a non-native block size", "block_size", "info"),
    (r"The pool metadata is (incomplete or )?corrupted", "faulted", "fail"),
    (r"The pool has been upgraded to a newer, incompatible on-disk version", "faulted", "fail"),
    (r"The pool cannot be accessed on this system because it uses", "faulted", "fail"),
    (r"The pool can only be accessed in read-only mode on this system", "degraded", "fail"),
    (r"An intent log record could not be read", "faulted", "fail"),
    (r"Mismatch between pool hostid and system hostid", "hostid_mismatch", "warn"),
    (r"Errata #\d+ detected", "errata", "warn"),
)
# zfs_msgid_table, libzfs_status.c; meaning and severity from https://openzfs.github.io/openzfs-docs/msg/
_CODES = {
    "14": ("faulted", "fail"),
    "2Q": ("unavailable_member", "fail"),
    "3C": ("faulted", "fail"),
    "4J": ("unavailable_member", "fail"),
    "5E": ("faulted", "fail"),
    "6X": ("faulted", "fail"),
    "72": ("faulted", "fail"),
    "8A": ("data_errors", "fail"),
    "9P": ("member_errors", "warn"),
    "A5": ("faulted", "fail"),
    "EY": ("hostid_mismatch", "warn"),
    "HC": ("suspended", "fail"),
    "JQ": ("suspended", "fail"),
    "MM": ("suspended", "fail"),
    "K4": ("faulted", "fail"),
    "ER": ("errata", "warn"),
}


def _classify(status: str, see: str) -> tuple[str | None, str]:
    """Kind and severity of a status paragraph, or of the message it refers to where zpool prints no paragraph."""
    for start, kind, severity in _STATUS:
        if re.match(start, status):
            return kind, severity
    code = re.search(r"ZFS-8000-(\w\w)$", see)
    if code and code.group(1) in _CODES:
        return _CODES[code.group(1)]
    return ("unknown_status", "warn") if status or see else (None, "")


_MEMBER_KINDS = {
    "UNAVAIL": "unavailable_member",
    "REMOVED": "removed_member",
    "FAULTED": "faulted_member",
    "OFFLINE": "offline_member",
    "SPLIT": "unavailable_member",
    "UNKNOWN": "unavailable_member",
    "DEGRADED": "degraded",
}


def _counters(vdev: Vdev) -> str:
    return f"{vdev.read or 0} read, {vdev.write or 0} write and {vdev.checksum or 0} checksum errors"


def _judge_leaf(vdev: Vdev) -> Iterator[Concern]:
    role = "" if vdev.role == "data" else f" ({vdev.role} device)"
    note = f": {vdev.note}" if vdev.note else ""
    if vdev.state == "INUSE":
        yield Concern("spare_in_use", vdev.name, f"spare in use{note}", "warn")
    elif vdev.state not in ("ONLINE", "AVAIL"):
        # An operator takes a device offline on purpose, and no data is lost with a cache or an idle spare.
        severity = "warn" if vdev.state == "OFFLINE" or vdev.role in ("cache", "spare") else "fail"
        yield Concern(_MEMBER_KINDS[vdev.state], vdev.name, f"{vdev.state}{role}{note}", severity)
    if vdev.has_errors:
        yield Concern("member_errors", vdev.name, f"{_counters(vdev)}{role}", "warn")


def _judge_group(vdev: Vdev, pool: Pool) -> Iterator[Concern]:
    # replacing and spare stand for one member: their disks say what is wrong, and only pass errors on.
    one_member = vdev.kind in ("replacing", "spare")
    # The state of the pool says it already where it is the same word.
    if vdev.state not in ("ONLINE", pool.state) and not one_member:
        kind = "degraded" if vdev.state == "DEGRADED" else "faulted"
        yield Concern(kind, vdev.name, fold(f"{vdev.state} {vdev.note}"), "fail")
    if vdev.has_errors:
        # Errors of any other group are those that its redundancy could not mend.
        yield Concern("member_errors", vdev.name, _counters(vdev), "warn" if one_member else "fail")


def _judge_scan(scan: Scan, pool: Pool) -> Iterator[Concern]:
    if scan.kind == "resilver" and scan.running:
        yield Concern("resilvering", pool.name, scan.text, "info")
    if scan.errors:
        yield Concern("scrub_errors", pool.name, f"the last {scan.kind} ended with errors: {scan.text}", "warn")


def judge(pool: Pool) -> list[Concern]:
    """Everything about a pool that is not healthy, the worst first; [] is a healthy pool.

    The state of the pool, of every vdev of every role, the error counters, the last scans, the data errors and the
    status paragraph each count by themselves: zpool calls a pool ONLINE although a member is UNAVAIL
    (openzfs/zfs issues 4653 and 10123). Features that are not enabled are no concern.
    """
    concerns: list[Concern] = []
    if pool.suspended:
        concerns.append(Concern("suspended", pool.name, pool.status or "the pool is suspended", "fail"))
    if pool.state == "DEGRADED":
        concerns.append(Concern("degraded", pool.name, pool.status or "the pool is degraded", "fail"))
    elif pool.state not in ("ONLINE", "SUSPENDED"):
        concerns.append(Concern("faulted", pool.name, f"the pool is {pool.state}. {pool.status}".strip(), "fail"))
    if pool.errors not in ("", _NO_ERRORS):
        listed = f": {', '.join(pool.error_files)}" if pool.error_files else ""
        concerns.append(Concern("data_errors", pool.name, f"{pool.errors.rstrip(':')}{listed}", "fail"))
    for top in (pool.root, *pool.others):
        for vdev in vdevs(top):
            concerns += _judge_group(vdev, pool) if vdev.children else _judge_leaf(vdev)
    for scan in pool.scans:
        concerns += _judge_scan(scan, pool)
    kind, severity = _classify(pool.status, pool.see)
    if kind and not any(concern.kind == kind for concern in concerns):
        concerns.append(Concern(kind, pool.name, pool.status or pool.see, severity))
    return sorted(concerns, key=lambda concern: (SEVERITIES.index(concern.severity), KINDS.index(concern.kind)))
