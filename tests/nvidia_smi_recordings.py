# SPDX-License-Identifier: Apache-2.0
"""The recordings of the real nvidia-smi (tests/fixtures/nvidia-smi, MANIFEST.tsv says what each state is)."""

from __future__ import annotations

import functools
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ARCHIVE = Path(__file__).resolve().parent / "fixtures" / "nvidia-smi" / "recordings.tar.xz"


class Recorded(NamedTuple):
    """What a command printed on standard output (nothing came on standard error), and its exit status."""

    stdout: str
    rc: int


@functools.cache
def recordings() -> Mapping[str, Mapping[str, Recorded]]:
    """All commands by the name of their folder (`q-x`, `nvlink-s`, ...), by the name of the state."""
    files: dict[str, dict[str, dict[str, str]]] = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            parts = member.name.removeprefix("./").split("/")
            if len(parts) == 3 and parts[2] in ("stdout", "rc"):
                content = archive.extractfile(member)
                assert content is not None
                files.setdefault(parts[0], {}).setdefault(parts[1], {})[parts[2]] = content.read().decode()
    return {
        state: {name: Recorded(one["stdout"], int(one["rc"])) for name, one in commands.items()}
        for state, commands in files.items()
    }
