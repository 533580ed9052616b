# SPDX-License-Identifier: Apache-2.0
"""Which data disk sits in which bay, which lie in the drawer, and what serial number each shows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lab.errors import LabError

# NVMe: 20 bytes of printable ASCII, filled up with blanks; no byte of it at all is a blank serial number.
SHOWN_SERIAL = re.compile(r"[!-~]{0,20}")


@dataclass
class DiskBays:
    """`bays[n]` is the serial of the disk in bay n + 1, "" where it is empty; `drawer` are disks in no bay.

    `belongs` are the serials of the shape's data disks, each at its own bay; `spares`
    belong in none. A disk is named by its true serial, whatever it shows to the guest.
    """

    belongs: Sequence[str]
    spares: Sequence[str]
    bays: list[str]
    drawer: list[str]

    def __post_init__(self) -> None:
        """Follow a shape that has changed: disks that are gone leave, new ones come, none moves by itself."""
        known = [*self.belongs, *self.spares]
        wanted = len(self.belongs)
        placed = [serial for serial in self.bays if serial]
        removed = [serial for serial in self.bays[wanted:] if serial in known]
        self.bays = [serial if serial in known else "" for serial in self.bays[:wanted]]
        self.bays += [""] * (wanted - len(self.bays))
        self.drawer = [serial for serial in self.drawer if serial in known] + removed
        for serial in known:
            if serial in placed or serial in self.drawer:
                continue
            own = self._own_bay(serial)
            if own is None or self.bays[own]:
                self.drawer.append(serial)
            else:
                self.bays[own] = serial

    def _own_bay(self, serial: str) -> int | None:
        return self.belongs.index(serial) if serial in self.belongs else None

    def require(self, serial: str) -> None:
        """Raise LabError where the node has no such disk."""
        known = [*self.belongs, *self.spares]
        if serial not in known:
            raise LabError(f"there is no disk {serial!r}; it has {', '.join(known) or 'none'}")

    def bay_of(self, serial: str) -> int | None:
        """Index of the disk's bay, None while it lies in the drawer. Raises LabError for an unknown disk."""
        self.require(serial)
        return self.bays.index(serial) if serial in self.bays else None

    def bay_for(self, serial: str) -> int:
        """Index of the bay that the disk would go into: its own, else the first empty one.

        Raises LabError when it is in a bay already or all are taken.
        """
        present = self.bay_of(serial)
        if present is not None:
            raise LabError(f"disk {serial} is in bay {present + 1} already")
        own = self._own_bay(serial)
        if own is not None and not self.bays[own]:
            return own
        if "" not in self.bays:
            taken = ", ".join(self.bays) or "there is none"
            raise LabError(f"no bay is free for disk {serial} ({taken}); pull one first: disk-pull SERIAL")
        return self.bays.index("")

    def take_out(self, serial: str) -> None:
        """Put the disk into the drawer; nothing happens where it lies there."""
        bay = self.bay_of(serial)
        if bay is not None:
            self.bays[bay] = ""
            self.drawer.append(serial)

    def put_in(self, serial: str, bay: int) -> None:
        """Put a disk from the drawer into an empty bay."""
        self.drawer.remove(serial)
        self.bays[bay] = serial

    def pair_to_swap(self, text: str) -> tuple[str, str]:
        """The two disks of `SERIAL,SERIAL`. Raises LabError unless both are known, different and in a bay."""
        serials = text.split(",")
        if len(serials) != 2 or serials[0] == serials[1]:
            raise LabError(f"name the two disks to swap as SERIAL,SERIAL, not {text!r}")
        for serial in serials:
            if self.bay_of(serial) is None:
                raise LabError(f"disk {serial} is in no bay, so there is nothing to swap; see disk-insert")
        return serials[0], serials[1]

    def require_out(self, serial: str) -> None:
        """Raise LabError while the disk is in a bay."""
        bay = self.bay_of(serial)
        if bay is not None:
            raise LabError(f"disk {serial} is in bay {bay + 1}; pull it first: disk-pull {serial}")


def parse_shown(text: str) -> tuple[str, str]:
    """`SERIAL=SHOWN` as (serial, shown). Raises LabError where it is not understood."""
    serial, found, shown = text.partition("=")
    if not serial or not found:
        raise LabError(f"write SERIAL=SHOWN, not {text!r}; SERIAL= shows a blank serial number")
    if not SHOWN_SERIAL.fullmatch(shown):
        raise LabError(f"{shown!r} is no NVMe serial number: at most 20 printable characters, no blank among them")
    return serial, shown
