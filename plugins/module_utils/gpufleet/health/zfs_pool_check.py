# SPDX-License-Identifier: Apache-2.0
"""The pool over the data disks: state, shape, and members by serial number (what the role zfs_pool sets)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ..zfs_pool_record import DIRECTORY, PoolRecord, RememberedMember
from ..zpool_status import Concern, Pool, Vdev, ZpoolParseError, judge, leaves, parse_zpool_status
from .check import Check, Profile
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .probe import NoEvidence, ParseError, Probe, ProbeResult

STATUS = "zfs.pool_status"
RECORDS = "zfs.pool_records"
NAMES = "block_devices.by_id"

_REFERENCE = "docs/storage.md"
_BY_ID = "/dev/disk/by-id/"
_LINK = re.compile(r"(\S+) (?:\.\./)+(\S+)$")


class PoolRecords(NamedTuple):
    """records: by name of the pool. intents: pools of which a change was cut off."""

    records: Mapping[str, PoolRecord]
    intents: tuple[str, ...]


def parse_pool_records(text: str) -> PoolRecords:
    """From the files of /var/lib/gpufleet/zfs_pool, each line behind its path and a colon. Raises ParseError."""
    files: dict[str, list[str]] = {}
    for line in text.splitlines():
        path, colon, content = line.partition(":")
        if not colon or not path.startswith(f"{DIRECTORY}/"):
            raise ParseError(f"no line of a file in {DIRECTORY}: {line!r}")
        files.setdefault(path, []).append(content)
    if not files:
        raise ParseError(f"the files in {DIRECTORY} are empty")
    records, intents = {}, []
    for path, lines in files.items():
        name = path[len(DIRECTORY) + 1 :].removesuffix(".json")
        if name.endswith(".intent"):
            intents.append(name.removesuffix(".intent"))
            continue
        try:
            content = json.loads("\n".join(lines))
            members = tuple(RememberedMember(**member) for member in content["members"])
            records[name] = PoolRecord(content["guid"], int(content["host_id"]), members)
        except (ValueError, KeyError, TypeError) as error:
            raise ParseError(f"{path} is not understood ({type(error).__name__}: {error})") from error
    return PoolRecords(records, tuple(intents))


def parse_by_id(text: str) -> dict[str, str]:
    """Kernel name by the name in /dev/disk/by-id, from `find ... -printf '%f %l\\n'`. Raises ParseError."""
    names = {}
    for line in text.splitlines():
        if not (found := _LINK.match(line)):
            raise ParseError(f"no name and link of a disk: {line!r}")
        names[found[1]] = found[2]
    if not names:
        raise ParseError(f"{_BY_ID} is empty")
    return names


def check_pool(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """The pool is imported and healthy, of the profile's shape, and each member is the disk that the role put there.

    ZFS calls a pool ONLINE although a member is gone that it has not tried to use, so each member's device must be
    there, and be the disk whose serial number the node's record has.

    Source: storage.pool of the profile; role zfs_pool; openzfs/zfs 4653, 10123 (bug 073)
    """
    wanted = profile["storage"]["pool"]
    if not wanted["manage"]:
        yield Finding("node", "skipped", "the profile has no pool (storage.pool.manage is false)")
        return
    name = wanted["name"]
    pools: list[Pool] = evidence.facts(STATUS)
    records: PoolRecords = evidence.facts(RECORDS)
    names: Mapping[str, str] = evidence.facts(NAMES)
    pool = next((pool for pool in pools if pool.name == name), None)
    if pool is None:
        others = ", ".join(pool.name for pool in pools) or "none"
        advice = "look at `zpool import` and at the kernel log for its disks; playbooks/storage.yml imports it"
        yield Finding(f"pool {name}", "fail", f"is not imported (imported: {others})", "is imported", "inspect", advice,
                      (Evidence(STATUS),), _REFERENCE)  # fmt: skip
        return
    if name not in records.records:
        raise NoEvidence(RECORDS, f"no record of pool {name}: playbooks/storage.yml writes it")
    members = {member.path: member for member in records.records[name].members}
    members.update({member.guid: member for member in records.records[name].members})
    right = True
    for finding in (
        *(_concern(pool, concern, members) for concern in judge(pool) if concern.severity != "info"),
        *_shape(pool, profile),
        *(found for top in pool.data for leaf in leaves(top) for found in _member(pool, leaf, members, names)),
        *(_cut_off(name) for _ in range(name in records.intents)),
    ):
        right = False
        yield finding
    if right:
        serials = ", ".join(members[leaf.name].serial for top in pool.data for leaf in leaves(top))
        text = f"{pool.state}: {wanted['layout']} of {profile['devices']['data_disk']['count']} disks ({serials}); "
        yield Finding(f"pool {name}", "ok", text + pool.errors, evidence=(Evidence(STATUS), Evidence(RECORDS)))


def _named(pool: Pool, vdev: str, members: Mapping[str, RememberedMember]) -> str:
    """How a finding calls a member: by serial number and slot where the record knows it."""
    member = members.get(vdev)
    if member is None:
        return f"pool {pool.name}" if vdev == pool.name else f"{vdev} of pool {pool.name}"
    return f"disk {member.serial} ({member.place}) of pool {pool.name}"


def _concern(pool: Pool, concern: Concern, members: Mapping[str, RememberedMember]) -> Finding:
    component = _named(pool, concern.component, members)
    gone = concern.kind in ("unavailable_member", "removed_member", "faulted_member")
    return Finding(
        component,
        concern.severity,
        concern.what,
        "ONLINE without errors",
        "inspect" if concern.severity == "fail" else "observe",
        f"check whether the disk is seated and listed by lspci; if it is dead, exchange it: {_REFERENCE} says how"
        if gone
        else f"`zpool status -v {pool.name}` on the node; {_REFERENCE} says what to do",
        (Evidence(STATUS, f"{concern.component}: {concern.what}"),),
        "openzfs/zfs 4653, 10123 (bug 073)",
    )


def _shape(pool: Pool, profile: Profile) -> Iterator[Finding]:
    wanted = profile["storage"]["pool"]
    kinds = {"disk": "stripe"}
    layouts = {kinds.get(top.kind, top.kind) for top in pool.data}
    count = sum(len(leaves(top)) for top in pool.data)
    expected = f"{wanted['layout']} of {profile['devices']['data_disk']['count']} disks"
    # While a member is being replaced it is two rows.
    replacing = any(vdev.kind in ("replacing", "spare") for top in pool.data for vdev in top.children)
    if layouts != {wanted["layout"]} or (count != profile["devices"]["data_disk"]["count"] and not replacing):
        yield Finding(
            f"pool {pool.name}",
            "fail",
            f"{' and '.join(sorted(layouts))} of {count} disks",
            expected,
            "inspect",
            f"a pool's layout cannot be changed in place: {_REFERENCE} says what can be done; or correct the profile",
            (Evidence(STATUS),),
            "profile, storage.pool",
        )


def _member(
    pool: Pool, leaf: Vdev, members: Mapping[str, RememberedMember], names: Mapping[str, str]
) -> Iterator[Finding]:
    """A member that ZFS takes for healthy: its device is there, and it is the recorded disk."""
    if leaf.state != "ONLINE":
        return
    member = members.get(leaf.name)
    component = _named(pool, leaf.name, members)
    if member is None:
        advice = "run playbooks/storage.yml on this node: it writes down which disk this is"
        yield Finding(component, "warn", "is not in the node's record", "a disk that the role put there", "observe",
                      advice, (Evidence(STATUS, leaf.name), Evidence(RECORDS)), _REFERENCE)  # fmt: skip
        return
    device = names.get(leaf.name[len(_BY_ID) :]) if leaf.name.startswith(_BY_ID) else leaf.name.removeprefix("/dev/")
    aliases = [name for name, target in names.items() if target == device]
    if not aliases:
        advice = f"check whether the disk is seated and listed by lspci; `zpool scrub {pool.name}` makes ZFS notice"
        yield Finding(component, "fail", "its device is gone, though ZFS has not noticed yet", f"{leaf.name} is there",
                      "inspect", advice, (Evidence(NAMES, leaf.name),), "bug 073")  # fmt: skip
    elif not any(re.sub(r"\s+", "_", member.serial) in alias for alias in aliases):
        advice = f"compare with `lsblk -o NAME,SERIAL` on the node; {_REFERENCE} says how members are exchanged"
        yield Finding(component, "fail", f"another disk is there: {', '.join(aliases)}", f"serial {member.serial}",
                      "inspect", advice, (Evidence(NAMES, "\n".join(aliases)),), "bug 080")  # fmt: skip


def _cut_off(name: str) -> Finding:
    return Finding(
        f"pool {name}",
        "warn",
        "a change of the pool was cut off",
        "no open change",
        "observe",
        "run playbooks/storage.yml on this node: it finishes what it had begun",
        (Evidence(RECORDS, f"{DIRECTORY}/{name}.intent.json"),),
        _REFERENCE,
    )


def _parse_status(result: ProbeResult) -> list[Pool]:
    if not result.stdout.strip() and "no pools available" in result.stderr:
        return []
    try:
        return parse_zpool_status(result.stdout)
    except ZpoolParseError as error:
        raise ParseError(str(error)) from error


def _parse_records(result: ProbeResult) -> PoolRecords:
    return parse_pool_records(result.stdout)


def _parse_by_id(result: ProbeResult) -> dict[str, str]:
    return parse_by_id(result.stdout)


PROBES = (
    # With a hung device it may wait for a lock that is never given back.
    Probe(STATUS, _parse_status, argv=("zpool", "status", "-v", "-P", "-p"), deadline_s=30, root=True),
    Probe(RECORDS, _parse_records, paths=(f"{DIRECTORY}/*.json",), deadline_s=10),
    Probe(NAMES, _parse_by_id, argv=("find", _BY_ID.rstrip("/"), "-type", "l", "-printf", "%f %l\\n"), deadline_s=15),
)
CHECKS = (Check("zfs.pool", check_pool, (STATUS, RECORDS, NAMES)),)
