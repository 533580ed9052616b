# SPDX-License-Identifier: Apache-2.0
"""PCI addresses in kernel messages, whichever way a driver spells them."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?$")


def pci_address(text: str) -> str | None:
    """dddd:bb:dd.f in lower case, of any spelling (0000:9b:00, 0000000B:00:00.0); None for what is no address."""
    found = _ADDRESS.match(text.strip())
    if not found:
        return None
    domain, bus, device = (int(found[part] or "0", 16) for part in (1, 2, 3))
    return f"{domain:04x}:{bus:02x}:{device:02x}.{found[4] or 0}"


_INIT_ADDRESS = re.compile(r"\b([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\b")


def any_address(text: str) -> str:
    """The first PCI address in a message, "" where it names none."""
    found = _INIT_ADDRESS.search(text)
    return (pci_address(found[1]) or "") if found else ""
