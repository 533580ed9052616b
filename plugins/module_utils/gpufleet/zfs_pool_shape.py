# SPDX-License-Identifier: Apache-2.0
"""The groups of disks of a pool, and the disks that go into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .block_devices import Disk, stable_path
from .disk_content import Content
from .zfs_disk_choice import Refusal
from .zfs_pool_record import Intent
from .zfs_pool_types import RUNBOOK, Step, WantedPool
from .zpool_status import Vdev


def layout_of(tops: Sequence[Vdev]) -> list[tuple[str, int]]:
    """(layout, disks) of each group of data disks; a disk that is being replaced counts once."""
    groups = []
    for top in tops:
        if top.kind in ("disk", "replacing", "spare"):
            groups.append(("stripe", 1))
        else:
            groups.append((top.kind, len(top.children)))
    if groups and all(layout == "stripe" for layout, dummy in groups):
        return [("stripe", len(groups))]
    return groups


def wanted_layout(wanted: WantedPool) -> list[tuple[str, int]]:
    if wanted.layout == "stripe":
        return [("stripe", wanted.rules.count)]
    return [(wanted.layout, wanted.group_size)] * (wanted.rules.count // wanted.group_size)


def in_words(groups: Sequence[tuple[str, int]]) -> str:
    words = []
    for group in dict.fromkeys(groups):
        number = groups.count(group)
        words.append(f"{f'{number} groups of ' if number > 1 else ''}{group[0]} over {group[1]} disks")
    return ", ".join(words) or "no disks"


def refuse_another_layout(wanted: WantedPool, tops: Sequence[Vdev], what: str) -> None:
    found, want = layout_of(tops), wanted_layout(wanted)
    if found != want:
        raise Refusal(
            f"{what} is {in_words(found)}, the profile wants {in_words(want)}. ZFS cannot change the layout of a "
            "pool that has data, and nothing is added to it by itself",
            "set storage.pool.layout, storage.pool.disks_per_group and devices.data_disk.count to what is there, or "
            f"make the pool anew by hand after saving its data ({RUNBOOK}, 'Grow' and 'Destroy')",
        )


def is_leftover(intent: Intent | None) -> Callable[[Disk, Content], bool]:
    """Whether a disk bears no more than what zpool leaves when it is cut off: a partition table of ZFS' own kind.

    A label that libblkid knows means that the pool lived: it needs four uberblocks, which come with as many
    transactions. Such a disk is never taken for a leftover.
    """

    def check(disk: Disk, content: Content) -> bool:
        return (
            intent is not None
            and disk.serial in intent.serials
            and all(signature.type in ("gpt", "PMBR", "dos") for signature in content.signatures)
            and content.data is None
            and all(part.partlabel.startswith("zfs-") or not part.partlabel for part in disk.partitions)
        )

    return check


def path_for(disk: Disk, disks: Sequence[Disk]) -> str:
    path = stable_path(disk, disks)
    if path is None:
        raise Refusal(
            f"{disk} has no name in /dev/disk/by-id, so the pool could not keep it apart from others",
            "on the node: udevadm trigger --subsystem-match=block; if no name appears, the disk reports no identity",
        )
    return path


def wipe(disk: Disk, content: Content) -> Step:
    return Step("wipe", f"wipe {disk}", before=f"{disk}: {content}", disk=disk)
