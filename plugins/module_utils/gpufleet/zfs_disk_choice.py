# SPDX-License-Identifier: Apache-2.0
"""Which disks may become members of a pool: the profile's rules, and what no rule can override.

A disk is taken by what it is (PCI function, by-id name, serial number, model, size), never by its kernel name. One that
something uses is never taken. One with data is taken only where the operator has listed its serial number for wiping.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from .block_devices import Disk
from .disk_content import Content

WIPE_VARIABLE = "zfs_pool_wipe_serials"
RULES_KEY = "storage.pool.disks"
COUNT_KEY = "devices.data_disk.count"


class Refusal(Exception):
    """The node's state and the wish do not fit; nothing has been changed. next_step says what to do."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


class DiskRules(NamedTuple):
    """What a data disk is; sizes in bytes, empty lists and None = any. All that is given must hold.

    pci_match: rules with any of the keys vendor, device, class; one of them must match. count: how many a node has.
    """

    pci_match: tuple[Mapping[str, str], ...]
    by_id: tuple[str, ...]
    serial: tuple[str, ...]
    model: tuple[str, ...]
    min_bytes: float | None
    max_bytes: float | None
    max_size_difference_percent: float
    count: int


class Choice(NamedTuple):
    """disks: the members to be, by serial; wipe: those of them that have to be wiped first."""

    disks: tuple[Disk, ...]
    wipe: tuple[Disk, ...]


def rules_from(pci_match: Sequence[Mapping[str, str]], disks: Mapping[str, Any], count: int) -> DiskRules:
    """The rules as the profile spells them (devices.data_disk.match, storage.pool.disks, devices.data_disk.count)."""
    return DiskRules(
        pci_match=tuple(pci_match),
        by_id=tuple(disks["by_id"]),
        serial=tuple(disks["serial"]),
        model=tuple(disks["model"]),
        min_bytes=None if disks["min_gb"] is None else disks["min_gb"] * 1e9,
        max_bytes=None if disks["max_gb"] is None else disks["max_gb"] * 1e9,
        max_size_difference_percent=disks["max_size_difference_percent"],
        count=count,
    )


def mismatch(disk: Disk, rules: DiskRules) -> str | None:
    """The first rule that a disk does not fit, in words; None where it fits all."""
    if rules.pci_match and not any(_pci_matches(disk, rule) for rule in rules.pci_match):
        pci = f"{disk.pci.vendor}:{disk.pci.device} class {disk.pci.class_code}" if disk.pci else "none"
        return f"its PCI function ({pci}) is none of devices.data_disk.match"
    if rules.by_id and not any(fnmatch.fnmatchcase(name, rule) for name in disk.by_id for rule in rules.by_id):
        return f"none of its by-id names ({', '.join(disk.by_id) or 'it has none'}) fits {', '.join(rules.by_id)}"
    for key, value, patterns in (("serial", disk.serial, rules.serial), ("model", disk.model, rules.model)):
        if patterns and not any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns):
            return f"its {key} {value!r} fits none of {', '.join(patterns)}"
    if rules.min_bytes is not None and disk.size < rules.min_bytes:
        return f"its size ({disk.size / 1e9:.1f} GB) is below {rules.min_bytes / 1e9:g} GB"
    if rules.max_bytes is not None and disk.size > rules.max_bytes:
        return f"its size ({disk.size / 1e9:.1f} GB) is above {rules.max_bytes / 1e9:g} GB"
    return None


def _pci_matches(disk: Disk, rule: Mapping[str, str]) -> bool:
    if disk.pci is None:
        return False
    found = {"vendor": disk.pci.vendor, "device": disk.pci.device, "class": disk.pci.class_code}
    return all(found[key] == value for key, value in rule.items())


def free_disks(disks: Sequence[Disk], rules: DiskRules) -> list[Disk]:
    """Disks that fit the rules and that nothing uses, by serial."""
    fitting = [disk for disk in disks if mismatch(disk, rules) is None and not disk.uses]
    return sorted(fitting, key=lambda disk: (disk.serial, disk.kernel_name))


def identity_problems(candidates: Sequence[Disk], disks: Sequence[Disk]) -> list[str]:
    """A line for each candidate without a serial number of its own: nobody could name it later."""
    lines = []
    for disk in candidates:
        others = [other for other in disks if other.serial == disk.serial and other.kernel_name != disk.kernel_name]
        if not disk.serial:
            lines.append(f"{disk} reports no serial number, so nothing can tell it from another disk")
        elif others:
            lines.append(f"{disk} reports the serial number that {' and '.join(map(str, others))} reports as well")
    return lines


def content_problem(
    disk: Disk, content: Content, wipe_serials: Collection[str], is_leftover: Callable[[Disk, Content], bool]
) -> str | None:
    """Why a free disk must not be overwritten, or None.

    :arg is_leftover: whether what lies on the disk is what this role itself left when it was cut off.
    """
    if content.group:
        return f"{disk} {content.group} (it is not taken even where its serial number is listed for wiping)"
    if content.blank or is_leftover(disk, content) or disk.serial in wipe_serials:
        return None
    return f"{disk} is not empty: {content}"


def choose_disks(
    disks: Sequence[Disk],
    rules: DiskRules,
    contents: Callable[[Sequence[Disk]], Mapping[str, Content]],
    wipe_serials: Collection[str],
    is_leftover: Callable[[Disk, Content], bool],
) -> Choice:
    """The members of a pool that is to be created. Raises Refusal, which lists all that is in the way."""
    free = free_disks(disks, rules)
    problems = identity_problems(free, disks)
    if problems:
        raise Refusal(
            "a data disk cannot be told from others: " + "; ".join(problems),
            f"replace the disk or correct its firmware; or narrow the rules ({RULES_KEY}) so that it is left out",
        )
    if len(free) != rules.count:
        raise _wrong_number(free, disks, rules)
    sizes = [disk.size for disk in free]
    if min(sizes) < max(sizes) * (1 - rules.max_size_difference_percent / 100):
        raise Refusal(
            f"the {len(free)} data disks have unequal sizes (ZFS uses of each only as much as the smallest has): "
            + "; ".join(map(str, free)),
            f"replace the disk of the wrong size, or narrow the rules ({RULES_KEY}); "
            f"{RULES_KEY}.max_size_difference_percent is {rules.max_size_difference_percent:g}",
        )
    found = contents(free)
    problems = [
        problem
        for problem in (content_problem(disk, found[disk.kernel_name], wipe_serials, is_leftover) for disk in free)
        if problem
    ]
    if problems:
        raise Refusal(
            "disks that the pool would take are not empty: " + "; ".join(problems),
            "look at what lies there; a disk whose content may be destroyed is named by its serial number: "
            f'-e \'{{"{WIPE_VARIABLE}": ["<serial>"]}}\'',
        )
    return Choice(tuple(free), tuple(disk for disk in free if not found[disk.kernel_name].blank))


def _wrong_number(free: Sequence[Disk], disks: Sequence[Disk], rules: DiskRules) -> Refusal:
    few = len(free) < rules.count
    lines = [f"free: {disk}" for disk in free]
    others = [(disk, mismatch(disk, rules)) for disk in disks if disk not in free]
    lines += [f"in use: {disk} {', '.join(disk.uses)}" for disk, reason in others if not reason]
    lines += [f"not a data disk: {disk}: {reason}" for disk, reason in others if reason]
    message = f"{len(free)} disks fit the rules and are free, {'but' if few else 'more than the'} {rules.count} " + (
        f"are needed ({COUNT_KEY}):" if few else f"that a node has ({COUNT_KEY}); which ones are meant cannot be told:"
    )
    return Refusal(
        message + " " + "; ".join(lines or ["the node shows no disk at all"]),
        "look for the missing disk (bay, cable, BMC), or correct the rules "
        f"({RULES_KEY}, devices.data_disk) in the profile"
        if few
        else f"narrow the rules ({RULES_KEY}), or correct {COUNT_KEY}",
    )
