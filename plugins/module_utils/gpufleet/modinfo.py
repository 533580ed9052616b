# SPDX-License-Identifier: Apache-2.0
"""A kernel module as modinfo describes it, for the roles that bring modules and for the health checks."""

from __future__ import annotations

import re
from typing import NamedTuple


class KernelModule(NamedTuple):
    """The module that a kernel would load, as modinfo tells it; "" where modinfo has no such line.

    path: its file. version: such as 2.3.2-2 or 580.105.08. license: such as "Dual MIT/GPL". vermagic: its first word is
    the release it was built for. signer: name in the certificate of the key that signed it.
    """

    path: str
    version: str
    license: str = ""
    vermagic: str = ""
    signer: str = ""


def parse_modinfo(text: str) -> KernelModule:
    """The module in what `modinfo [-k release] <name>` printed.

    Raises ValueError where file or version are missing: cut short, or a module without a version.
    """
    fields = dict(re.findall(r"^(filename|version|license|vermagic|signer):[ \t]+(\S.*)$", text, re.MULTILINE))
    missing = [key for key in ("filename", "version") if key not in fields]
    if missing:
        raise ValueError(f"modinfo prints no {' and no '.join(missing)}")
    return KernelModule(
        fields["filename"].strip(),
        fields["version"].strip(),
        *(fields.get(key, "").strip() for key in ("license", "vermagic", "signer")),
    )
