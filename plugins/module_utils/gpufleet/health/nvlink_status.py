# SPDX-License-Identifier: Apache-2.0
"""What `nvidia-smi nvlink -s` prints: for each GPU the speed of each NVLink, or that it is inactive.

    GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-01000100-0000-0000-0000-000000000000)
             Link 0: 26.562 GB/s
             Link 1: <inactive>

In place of the links a GPU may have one sentence: "NVML: Unable to retrieve NVLink information as all links are
inActive" (capitals differ between drivers), or "Nvlink queries are not supported for Devices in MIG mode". On a node
whose GPUs have no NVLink the command prints nothing and exits 0 (recorded with L40S, drivers 535 and 550), so that
empty output is an answer without GPUs here: whoever expects links must not take it for one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .probe import ParseError, Probe, ProbeResult

_GPU = re.compile(r"GPU (\d+): (\S.*?) \(UUID: (\S+)\)\s*")
_LINK = re.compile(r"\s+Link (\d+): (.*?)\s*")
_SPEED = re.compile(r"(\d+(?:\.\d+)?) GB/s")
_INACTIVE = re.compile(r"<?inactive>?", re.IGNORECASE)
_ALL_INACTIVE = re.compile(r"NVML: .* all links are inactive\.?\s*", re.IGNORECASE)
_MIG = re.compile(r"nvlink queries are not supported for devices in mig mode\.?\s*", re.IGNORECASE)


def answer_in_words(line: str) -> str | None:
    """What a sentence in place of a GPU's links says: "all inactive" or "mig"; None for any other line."""
    if _ALL_INACTIVE.fullmatch(line.strip()):
        return "all inactive"
    return "mig" if _MIG.fullmatch(line.strip()) else None


class Nvlink(NamedTuple):
    """One link position of a GPU. gbytes_per_s: speed in one direction, GB/s; None for an inactive link."""

    number: int
    gbytes_per_s: float | None


class NvlinksOfGpu(NamedTuple):
    """number: the GPU's index in nvidia-smi.

    answer: "links" (as listed, perhaps none), "all inactive" (the sentence) or "mig".
    """

    number: int
    name: str
    uuid: str
    answer: str
    links: tuple[Nvlink, ...]

    @property
    def active(self) -> tuple[int, ...]:
        """Numbers of the active links."""
        return tuple(link.number for link in self.links if link.gbytes_per_s is not None)

    @property
    def inactive(self) -> tuple[int, ...]:
        """Numbers of the links that are printed as inactive (none where a sentence stands for all of them)."""
        return tuple(link.number for link in self.links if link.gbytes_per_s is None)


def parse_nvlink_status(result: ProbeResult) -> tuple[NvlinksOfGpu, ...]:
    """The GPUs in the order printed; an empty tuple for empty output. Raises ParseError naming the line."""
    return nvlinks_of_gpus(result.stdout)


def nvlinks_of_gpus(text: str) -> tuple[NvlinksOfGpu, ...]:
    """The same from the text alone."""
    gpus: list[NvlinksOfGpu] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        header = _GPU.fullmatch(line)
        if header:
            index, name, uuid = int(header.group(1)), header.group(2), header.group(3)
            if any(gpu.number == index or gpu.uuid == uuid for gpu in gpus):
                raise ParseError(f"line {number}: GPU {index} ({uuid}) is printed a second time: {line!r}")
            gpus.append(NvlinksOfGpu(index, name, uuid, "links", ()))
            continue
        if not gpus:
            raise ParseError(f"line {number}: no GPU header before {line!r}")
        gpus[-1] = _with_line(gpus[-1], number, line)
    return tuple(gpus)


def _with_line(gpu: NvlinksOfGpu, number: int, line: str) -> NvlinksOfGpu:
    answer = answer_in_words(line)
    if answer and gpu.answer == "links" and not gpu.links:
        return gpu._replace(answer=answer)
    match = _LINK.fullmatch(line)
    if gpu.answer != "links" or match is None:
        raise ParseError(f"line {number}: neither a GPU nor a link: {line!r}")
    link = int(match.group(1))
    if gpu.links and link <= gpu.links[-1].number:
        raise ParseError(f"line {number}: link {link} of GPU {gpu.number} comes after link {gpu.links[-1].number}")
    speed = _SPEED.fullmatch(match.group(2))
    if speed is None and not _INACTIVE.fullmatch(match.group(2)):
        raise ParseError(f"line {number}: neither a speed in GB/s nor <inactive>: {line!r}")
    return gpu._replace(links=(*gpu.links, Nvlink(link, float(speed.group(1)) if speed else None)))


PROBES: tuple[Probe, ...] = (
    Probe("nvidia_smi.nvlink_status", parse_nvlink_status, argv=("nvidia-smi", "nvlink", "-s")),
)
