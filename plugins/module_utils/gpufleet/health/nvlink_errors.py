# SPDX-License-Identifier: Apache-2.0
"""What `nvidia-smi nvlink -e` prints: error counters of each active NVLink, since the driver was loaded.

    GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-01000100-0000-0000-0000-000000000000)
             Link 0: Replay Errors: 0
             Link 0: Recovery Errors: 0
             Link 0: CRC Errors: 0

Drivers up to 565 and GPUs up to Hopper print these three; NVLink 5 (Blackwell, driver 570 and later) has names of its
own such as "Symbol Errors" and "Effective BER". An inactive link is left out. Sentences in place of the counters and
empty output: as for `nvlink -s` (nvlink_status.py); some builds print no UUID behind the name (NVIDIA/srt-slurm#307).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .nvlink_status import answer_in_words
from .probe import ParseError, Probe, ProbeResult

_GPU = re.compile(r"GPU (\d+): (\S.*?)(?: \(UUID: (\S+)\))?\s*")
_COUNTER = re.compile(r"\s+Link (\d+): (\S.*?): (\S.*?)\s*")
_COUNT = re.compile(r"\d+")
_RATE = re.compile(r"\d+(?:\.\d+)?e[+-]?\d+", re.IGNORECASE)

# What the older generation prints for each link, always all of it.
OLDER_COUNTERS = ("Replay Errors", "Recovery Errors", "CRC Errors")


class LinkCounter(NamedTuple):
    """value: a count, or None where another text is printed (a bit error rate such as 15e-255, "N/A"): see text."""

    name: str
    value: int | None
    text: str

    @property
    def is_rate(self) -> bool:
        return bool(_RATE.fullmatch(self.text))


class LinkCounters(NamedTuple):
    """All counters of one link."""

    number: int
    counters: tuple[LinkCounter, ...]


class ErrorsOfGpu(NamedTuple):
    """number: the GPU's index in nvidia-smi. uuid: "" where none is printed. answer: links, all inactive or mig."""

    number: int
    name: str
    uuid: str
    answer: str
    links: tuple[LinkCounters, ...]


def parse_nvlink_errors(result: ProbeResult) -> tuple[ErrorsOfGpu, ...]:
    """The GPUs in the order printed; an empty tuple for empty output.

    Raises ParseError naming the line, also where one link of a GPU has other counters than the next: a line was lost.
    """
    return errors_of_gpus(result.stdout)


def errors_of_gpus(text: str) -> tuple[ErrorsOfGpu, ...]:
    """The same from the text alone."""
    gpus: list[ErrorsOfGpu] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        header = _GPU.fullmatch(line)
        if header:
            index = int(header.group(1))
            if any(gpu.number == index for gpu in gpus):
                raise ParseError(f"line {number}: GPU {index} is printed a second time: {line!r}")
            gpus.append(ErrorsOfGpu(index, header.group(2), header.group(3) or "", "links", ()))
            continue
        if not gpus:
            raise ParseError(f"line {number}: no GPU header before {line!r}")
        gpus[-1] = _with_line(gpus[-1], number, line)
    for gpu in gpus:
        _same_counters_on_each_link(gpu)
    return tuple(gpus)


def _with_line(gpu: ErrorsOfGpu, number: int, line: str) -> ErrorsOfGpu:
    answer = answer_in_words(line)
    if answer and gpu.answer == "links" and not gpu.links:
        return gpu._replace(answer=answer)
    match = _COUNTER.fullmatch(line)
    if gpu.answer != "links" or match is None:
        raise ParseError(f"line {number}: neither a GPU nor a counter of a link: {line!r}")
    link, name, text = int(match.group(1)), match.group(2), match.group(3)
    counter = LinkCounter(name, int(text) if _COUNT.fullmatch(text) else None, text)
    if gpu.links and link == gpu.links[-1].number:
        before = gpu.links[-1].counters
        if any(name == other.name for other in before):
            raise ParseError(f"line {number}: {name} of link {link} is printed a second time: {line!r}")
        return gpu._replace(links=(*gpu.links[:-1], LinkCounters(link, (*before, counter))))
    if gpu.links and link < gpu.links[-1].number:
        raise ParseError(f"line {number}: link {link} of GPU {gpu.number} comes after link {gpu.links[-1].number}")
    return gpu._replace(links=(*gpu.links, LinkCounters(link, (counter,))))


def _same_counters_on_each_link(gpu: ErrorsOfGpu) -> None:
    everything = {counter.name for link in gpu.links for counter in link.counters}
    if everything & set(OLDER_COUNTERS):
        everything |= set(OLDER_COUNTERS)
    for link in gpu.links:
        lost = ", ".join(sorted(everything - {counter.name for counter in link.counters}))
        if lost:
            raise ParseError(f"link {link.number} of GPU {gpu.number} has no line for {lost}: the output is not whole")


PROBES: tuple[Probe, ...] = (
    Probe("nvidia_smi.nvlink_errors", parse_nvlink_errors, argv=("nvidia-smi", "nvlink", "-e")),
)
