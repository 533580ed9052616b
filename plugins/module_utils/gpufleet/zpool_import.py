# SPDX-License-Identifier: Apache-2.0
"""Pools that are on disks but not imported: the listing of `zpool import`, and the labels of one device.

The layout follows show_import() of cmd/zpool/zpool_main.c and dump_label() of cmd/zdb/zdb.c, OpenZFS 2.1 to 2.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .zpool_status import VDEV_STATES, Line, Vdev, ZpoolParseError, fold, leaves, numbered, parse_table, split_pools

_KEY = re.compile(r" {0,5}(pool|id|state|status|action|comment|see|config):(?:\s+(.*?))?\s*$")
_MORE_DEVICES = re.compile(r"(Additional devices are known to be part of this pool, though|exact configuration cannot)")
# Printed where the root is corrupted, behind the comment if there is one.
_ADVICE = ("The pool was destroyed,", "The pool may be active on another system,")
_FOREIGN = re.compile(r"The pool (was last accessed|is currently imported) by another system")
_OTHER_HOST = re.compile(r"must be exported from (.+) \(hostid=([0-9a-f]+)\)")


class ImportablePool(NamedTuple):
    """A pool as `zpool import` lists it; vdevs carry no error counters, cache and spare devices not even a state.

    guid: digits, as zpool takes them. importable: whether zpool says that it can be imported (perhaps only with -f or
    -D). foreign: the listing says that another system used it last or uses it now. A listing gives only the first of
    its reasons, and a resilver that was cut off hides this one (check_status(), libzfs_status.c): the proof is hostid
    and state of the label. hostname, hostid: of the system that has it imported, where the listing names it (multihost
    only).
    missing: leaves that are not there. more_devices: zpool knows that devices are missing, but not which.
    """

    name: str
    guid: str
    state: str
    destroyed: bool
    status: str
    action: str
    comment: str
    see: str
    importable: bool
    foreign: bool
    hostname: str | None
    hostid: int | None
    root: Vdev
    data: tuple[Vdev, ...]
    others: tuple[Vdev, ...]
    missing: tuple[Vdev, ...]
    more_devices: bool


def _importable_pool(entries: Sequence[tuple[str, Line, str, list[Line]]]) -> ImportablePool:
    first = entries[0]
    name = first[2]
    texts: dict[str, str] = {}
    table: list[Line] = []
    advice: list[str] = []
    for key, line, text, more in entries:
        if key in texts:
            raise line.error(f"pool {name!r} has a second `{key}:`")
        texts[key] = text
        if key == "config":
            table = more
        elif key in ("status", "action"):
            texts[key] = fold(text, *(other.text for other in more))
        elif key == "comment" and (not more or more[0].text.strip().startswith(_ADVICE)):
            advice = [other.text for other in more]
        elif more:
            raise more[0].error(f"this line does not fit behind `{key}:`")
    state, __, destroyed = texts.get("state", "").partition(" ")
    if (
        not re.fullmatch(r"\d+", texts.get("id", ""))
        or state not in VDEV_STATES
        or destroyed not in ("", "(DESTROYED)")
    ):
        raise first[1].error("expected a pool with its `id:` and `state:`")
    if "config" not in texts:
        raise first[1].error("this pool's text ends before its devices")
    rows = [line for line in table if not _MORE_DEVICES.match(line.text.strip())]
    root, others = parse_table(rows, name, counted=False)
    action = fold(texts.get("action", ""), *advice)
    status = texts.get("status", "")
    other_host = _OTHER_HOST.search(action)
    return ImportablePool(
        name=name,
        guid=texts["id"],
        state=state,
        destroyed=bool(destroyed),
        status=status,
        action=action,
        comment=texts.get("comment", ""),
        see=texts.get("see", ""),
        importable=state in ("ONLINE", "DEGRADED") and "cannot be imported" not in action,
        foreign=bool(_FOREIGN.match(status)),
        hostname=other_host.group(1) if other_host else None,
        hostid=int(other_host.group(2), 16) if other_host else None,
        root=root,
        data=root.children,
        others=others,
        missing=tuple(leaf for top in (root, *others) for leaf in leaves(top) if leaf.state in ("UNAVAIL", "REMOVED")),
        more_devices=len(rows) < len(table),
    )


def parse_zpool_import(text: str) -> list[ImportablePool]:
    """`zpool import [-D] [-d directory]` without a pool's name, in the order printed.

    [] for "no pools available to import", which zpool prints on stderr; empty text is refused. Raises ZpoolParseError,
    naming the line, for what does not fit and for pools whose text was cut before or in a group with fewer rows than
    it must have. The listing has no end mark: text that was cut behind a row is a shorter listing, so who decides by
    the number of members compares it with the label (nparity, children).
    """
    # 2.1 does not indent the second line of one status paragraph.
    pools = split_pools(text, "zpool import", "no pools available to import", _KEY, unindented="status")
    return [_importable_pool(entries) for entries in pools]


# pool_state_t, include/sys/fs/zfs.h
ACTIVE, EXPORTED, DESTROYED, SPARE, CACHE = range(5)


class LabelMember(NamedTuple):
    """A leaf of the top-level vdev that a label describes; what the label does not say is "" or False.

    guid: digits. path: such as /dev/disk/by-id/...-part1. devid: the by-id name alone. phys_path: the slot, such as
    pci-0000:41:00.0-nvme-1. within: type of the vdev right above (raidz, mirror, replacing, spare, draid; "" for a disk
    that is a top-level vdev). missing: it was not there when the label was written.
    """

    guid: str
    path: str
    devid: str
    phys_path: str
    whole_disk: bool
    missing: bool
    offline: bool
    removed: bool
    within: str


class Label(NamedTuple):
    """What a device says of itself. GUIDs are digits.

    state: of the pool (ACTIVE 0, EXPORTED 1, DESTROYED 2), or SPARE 3 or CACHE 4, whose labels name no pool (name "",
    pool_guid "", no kind and no children). guid: of this vdev. txg: transaction group of the label; 0 = written by a
    create, add or replace that was not committed. hostid, hostname: of the system that wrote it, None if it had none.
    vdev_children: number of top-level vdevs of the pool. kind, top_guid, nparity, ashift, children: of the top-level
    vdev that this device is part of. numbers: which of the four copies (0 to 3) say this. unreadable: copies without
    content. bad_checksum: zdb says that the copy's checksum is wrong.
    """

    name: str
    pool_guid: str
    guid: str
    state: int
    txg: int | None
    hostid: int | None
    hostname: str | None
    vdev_children: int | None
    kind: str
    top_guid: str
    nparity: int | None
    ashift: int | None
    children: tuple[LabelMember, ...]
    numbers: tuple[int, ...]
    unreadable: tuple[int, ...]
    bad_checksum: bool


_HEADER = re.compile(r"LABEL (\d)\s*(\(Bad label cksum\))?$")
_FAILED = re.compile(r"failed to (?:unpack|read) label (\d)$")
_NUMBERS = re.compile(r"\s+labels = ((?:\d )*\d)\s*$")
_VALUE = re.compile(r"(\S+?): (?:'(.*)'|(\S+))$")
_CHILD = re.compile(r"children\[\d+\]$")

# an nvlist as zdb prints it: numbers and strings as text, nested lists as mappings, flags as ""
_Tree = dict[str, "str | _Tree"]


def _text(tree: Mapping[str, str | _Tree], key: str) -> str:
    value = tree.get(key, "")
    return value if isinstance(value, str) else ""


def _number(tree: Mapping[str, str | _Tree], key: str) -> int | None:
    value = _text(tree, key)
    return int(value) if value.isdigit() else None


def _tree(lines: Sequence[Line]) -> _Tree:
    """The nested values of a label; each level is indented by four columns."""
    root: _Tree = {}
    levels = [root]
    for line in lines:
        depth, odd = divmod(len(line.text) - len(line.text.lstrip()), 4)
        if odd or not 1 <= depth <= len(levels):
            raise line.error("this indentation does not fit a label")
        word = line.text.strip()
        del levels[depth:]
        if word.endswith(":") and " " not in word:
            below: _Tree = {}
            levels[-1][word[:-1]] = below
            levels.append(below)
        elif value := _VALUE.match(word):
            levels[-1][value.group(1)] = value.group(3) if value.group(2) is None else value.group(2)
        elif " " not in word:
            levels[-1][word] = ""
        else:
            raise line.error("this line does not fit a label")
    return root


def _members(tree: _Tree, within: str) -> list[LabelMember]:
    found = []
    below = [child for key, child in tree.items() if _CHILD.match(key) and isinstance(child, dict)]
    if below:
        for child in below:
            found += _members(child, _text(tree, "type"))
    elif tree:
        found.append(
            LabelMember(
                guid=_text(tree, "guid"),
                path=_text(tree, "path"),
                devid=_text(tree, "devid"),
                phys_path=_text(tree, "phys_path"),
                whole_disk=_text(tree, "whole_disk") == "1",
                missing=_text(tree, "not_present") == "1",
                offline=_text(tree, "offline") == "1",
                removed=_text(tree, "removed") == "1",
                within=within,
            )
        )
    return found


class _Copy(NamedTuple):
    """A copy of the label: its number, its lines, and the numbers of all copies that say the same."""

    number: int
    bad_checksum: bool
    header: Line
    lines: list[Line]
    same: list[int]


def _label(copy: _Copy, unreadable: Sequence[int]) -> Label:
    tree = _tree(copy.lines)
    state = _number(tree, "state")
    needed = ["guid"] if state in (SPARE, CACHE) else ["name", "pool_guid", "guid", "txg"]
    absent = [key for key in needed if not _text(tree, key)]
    top = tree.get("vdev_tree", {})
    if state is None or absent or not isinstance(top, dict) or (state not in (SPARE, CACHE) and not top):
        raise copy.header.error("this label lacks " + (", ".join(absent) or "its state or its vdev_tree"))
    return Label(
        name=_text(tree, "name"),
        pool_guid=_text(tree, "pool_guid"),
        guid=_text(tree, "guid"),
        state=state,
        txg=_number(tree, "txg"),
        hostid=_number(tree, "hostid"),
        hostname=_text(tree, "hostname") or None,
        vdev_children=_number(tree, "vdev_children"),
        kind=_text(top, "type"),
        top_guid=_text(tree, "top_guid"),
        nparity=_number(top, "nparity"),
        ashift=_number(top, "ashift"),
        children=tuple(_members(top, "")),
        numbers=tuple(copy.same),
        unreadable=tuple(unreadable),
        bad_checksum=copy.bad_checksum,
    )


def parse_labels(text: str) -> list[Label]:
    """`zdb -l <device>`: the different labels among the four copies, in the order of their first copy.

    All four copies of a good device say the same and give one Label. Raises ZpoolParseError where no copy is readable,
    where a copy is unaccounted for (the text was cut) and for lines that do not fit.
    """
    unreadable: list[int] = []
    copies: list[_Copy] = []
    for line in numbered(text):
        word = line.text.strip()
        if not word or not word.strip("-"):
            continue
        if failed := _FAILED.match(word):
            unreadable.append(int(failed.group(1)))
        elif header := _HEADER.match(word):
            copies.append(_Copy(int(header.group(1)), bool(header.group(2)), line, [], []))
        elif copies and copies[-1].same and word.startswith("L2ARC device header"):
            # the header of a cache device's content follows its labels
            break
        elif not copies or copies[-1].same:
            raise line.error("expected a label")
        elif found := _NUMBERS.match(line.text):
            copies[-1].same.extend(int(number) for number in found.group(1).split())
        else:
            copies[-1].lines.append(line)
    for copy in copies:
        if copy.lines and not copy.same:
            raise copy.lines[-1].error("a label ends here without saying which copies are the same")
        if not copy.lines and copy.number not in unreadable:
            raise copy.header.error("this label has no content")
    known = sorted(unreadable + [number for copy in copies for number in copy.same])
    if known != [0, 1, 2, 3]:
        raise ZpoolParseError(f"expected all four copies of the label, got {known or 'none'}: {fold(text)[:200]!r}")
    labels = [_label(copy, unreadable) for copy in copies if copy.lines]
    if not labels:
        raise ZpoolParseError(f"no copy of the label is readable: {fold(text)[:200]!r}")
    return labels


def parse_label(text: str) -> Label:
    """`zdb -l <device>`: the newest label, the one with the highest txg.

    Raises ZpoolParseError as parse_labels does, and where the copies name different pools.
    """
    labels = parse_labels(text)
    pools = sorted({f"{label.name or 'no name'} ({label.pool_guid or label.guid})" for label in labels})
    if len({label.pool_guid for label in labels}) > 1:
        raise ZpoolParseError(f"the copies of the label name different pools: {', '.join(pools)}")
    return max(labels, key=lambda label: label.txg or 0)
