# SPDX-License-Identifier: Apache-2.0
"""The host id that ZFS writes into its pools, so that no other machine imports them by mistake.

It is derived from the machine's SMBIOS UUID: a re-installed node has the same one and finds its own pool, a node made
from another's image has another. OpenZFS reads /etc/hostid, four bytes in the machine's own order (hostid(5) of
illumos, zgenhostid(8)).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys

PATH = "/etc/hostid"
PRODUCT_UUID = "/sys/class/dmi/id/product_uuid"
MACHINE_ID = "/etc/machine-id"


def read_host_id(path: str = PATH) -> int | None:
    """The id in the file; None where there is none or it is not one (another length, or zero)."""
    try:
        with open(path, "rb") as file:
            content = file.read(5)
    except OSError:
        return None
    value = int.from_bytes(content, sys.byteorder) if len(content) == 4 else 0
    return value or None


def derive_host_id(product_uuid_path: str = PRODUCT_UUID, machine_id_path: str = MACHINE_ID) -> int:
    """The id that this machine should have: a number from 1 to 2^32 - 1.

    The machine id stands in where the firmware has no UUID of its own (all digits equal). Raises OSError where there
    is neither.
    """
    seed = ""
    with contextlib.suppress(OSError), open(product_uuid_path, encoding="ascii", errors="replace") as file:
        seed = file.read().strip().lower()
    if len(set(seed.replace("-", ""))) < 2:
        with open(machine_id_path, encoding="ascii", errors="replace") as file:
            seed = file.read().strip()
        if not seed:
            raise OSError(f"{machine_id_path} is empty")
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big") or 1


def write_host_id(value: int, path: str = PATH) -> None:
    """Write the file in one step, world-readable."""
    temporary = f"{path}.new"
    with open(temporary, "wb") as file:
        file.write(value.to_bytes(4, sys.byteorder))
        os.fchmod(file.fileno(), 0o644)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
