# SPDX-License-Identifier: Apache-2.0
"""Values of properties of pools and datasets in one spelling.

Written because 1M and 1048576 are the same recordsize, 0 and none the same quota, and posixacl and posix the same
acltype, while `zfs get -p` always prints one of them.
"""

from __future__ import annotations

import re

# Sizes that `zfs get -p` prints in bytes; 0 = none for the first group (zfsprops(7)).
_LIMITS = ("quota", "refquota", "reservation", "refreservation")
_BLOCKS = ("recordsize", "volblocksize")
_SIZES = (*_LIMITS, *_BLOCKS, "volsize", "special_small_blocks")
# Numbers of things, not of bytes; `get -p` prints none as the largest number (seen with 2.1.11).
_COUNT_LIMITS = ("filesystem_limit", "snapshot_limit")
# userquota@anna, groupquota@7 and so on, but not the counts userobjquota@...
_USER_LIMITS = re.compile(r"(user|group|project)quota@.")
# SPA_MINBLOCKSIZE and SPA_MAXBLOCKSIZE, include/sys/spa.h
_SMALLEST_BLOCK, _LARGEST_BLOCK = 512, 16 * 1024**2
# Numbers as zfs reads them (zfs_nicestrtonum() and str2shift(), libzfs_util.c): K = KB = KiB, in either case.
_SIZE = re.compile(r"(\d+)(\.\d*)?(?:(B)|([KMGTPEZ])(?:I?B)?)?$", re.IGNORECASE)

# Values with several names: zfs takes all and prints the first (tables of zfs_prop_init(), zfs_prop.c).
_SAME = {
    "compression": {"gzip-6": "gzip", "zstd-fast-1": "zstd-fast"},
    "acltype": {"posixacl": "posix", "noacl": "off", "disabled": "off"},
}
# What xattr=on means changed: directories before 2.3, system attributes since. 2.3 prints sa as on, 2.4 as sa.
_XATTR_ON_IS_SA = (2, 3)


def _bytes(name: str, value: str) -> int:
    found = _SIZE.match(value)
    if not found:
        raise ValueError(f"{name}={value}: expected a size, such as 1048576, 1M or 1.5G")
    whole, fraction, __, unit = found.groups()
    shift = 10 * ("KMGTPEZ".index(unit.upper()) + 1) if unit else 0
    # zfs computes with a double only where there is a fraction, and cuts off what is left of a byte
    size = int(float(f"{whole}{fraction}") * 2.0**shift) if fraction else int(whole) << shift
    if size >= 2**64:
        raise ValueError(f"{name}={value}: larger than any size zfs can store")
    return size


def canonical(name: str, value: str | int, zfs_version: tuple[int, int] | None = None) -> str:
    """A property's value as `get -p` spells it: sizes in bytes, none as 0, one of several names for the same value.

    zfs_version: (major, minor), needed only for xattr, whose value `on` means `dir` before 2.3 and `sa` since; None
    leaves it as it is. Raises ValueError for a size that is none, for a recordsize or volblocksize that is no power of
    two from 512 to 16M, and for a YAML boolean (on and off must be quoted).
    """
    if isinstance(value, bool):
        raise ValueError(f"{name}={value}: expected text, such as 'on' or 'off' in quotes")
    text = str(value).strip()
    limit = name in _LIMITS or bool(_USER_LIMITS.match(name))
    if limit and text == "none":
        return "0"
    if name in _COUNT_LIMITS and text == "none":
        return str(2**64 - 1)
    if name == "refreservation" and text == "auto":
        return text
    if text == "-":
        # what `get` prints where a property does not apply
        return text
    if limit or name in _SIZES:
        size = _bytes(name, text)
        power_of_two = size & (size - 1) == 0
        if name in _BLOCKS and not (power_of_two and _SMALLEST_BLOCK <= size <= _LARGEST_BLOCK):
            raise ValueError(f"{name}={value}: expected a power of two from 512 to 16M")
        return str(size)
    if name == "xattr" and zfs_version is not None and text in ("on", "dir", "sa"):
        return "dir" if text == "dir" or (text == "on" and zfs_version < _XATTR_ON_IS_SA) else "sa"
    return _SAME.get(name, {}).get(text, text)
