# SPDX-License-Identifier: Apache-2.0
"""`nvidia-smi -L`: it goes on with the other GPUs where `nvidia-smi -q` stops at one that cannot be opened."""

from __future__ import annotations

import re
from typing import NamedTuple

from .nvidia_smi_failures import HandleFailure, failure_of, handle_failures
from .probe import ParseError, Probe, ProbeResult

LIST = "nvidia_smi.list"
_LINE = re.compile(r"GPU (\d+): (.+) \(UUID: (GPU-[0-9a-f-]{36})\)")


class ListedGpu(NamedTuple):
    """A GPU that answers."""

    number: int
    name: str
    uuid: str


class GpuList(NamedTuple):
    """gpus: those that answer. failures: those that the driver cannot open."""

    gpus: tuple[ListedGpu, ...]
    failures: tuple[HandleFailure, ...]


def parse_list(result: ProbeResult) -> GpuList:
    """The GPUs by number. Raises ParseError for output without any, and for a gap in the numbers that nothing
    explains (a line is missing)."""
    text = result.stdout
    gpus = tuple(
        ListedGpu(int(found.group(1)), found.group(2), found.group(3))
        for found in (_LINE.fullmatch(line.strip()) for line in text.splitlines())
        if found
    )
    failures = handle_failures(text)
    whole = failure_of(text)
    if whole is not None:
        raise ParseError(f"nvidia-smi -L: {whole.text}")
    if not gpus and not failures:
        first = text.strip().splitlines()[0][:200] if text.strip() else "nothing"
        raise ParseError(f"nvidia-smi -L names no GPU: {first!r}")
    for line in text.splitlines():
        if line.startswith("GPU ") and not _LINE.fullmatch(line.strip()):
            raise ParseError(f"nvidia-smi -L: no line of a GPU: {line!r}")
    numbers = sorted([gpu.number for gpu in gpus] + [one.number for one in failures if one.number is not None])
    if all(one.number is not None for one in failures) and numbers != list(range(len(numbers))):
        raise ParseError(f"nvidia-smi -L: the GPUs are numbered {numbers}, a line is missing")
    return GpuList(gpus, failures)


PROBES: tuple[Probe, ...] = (
    # A GPU that cannot be opened ends it with 15 or 255, after all others were printed.
    Probe(LIST, parse_list, argv=("nvidia-smi", "-L"), deadline_s=60, parses=("done", "failed")),
)
