# SPDX-License-Identifier: Apache-2.0
"""`nvidia-smi -q` without -x: rows by the path of their headings, in lower case, since drivers change the case."""

from __future__ import annotations

import re

from .gpu_facts import normalized_address
from .nvidia_smi_query_xml import RawGpu, RawReport
from .probe import ParseError

_TITLE = re.compile(r"=+ *NVSMI LOG *=+")
_GPU = re.compile(r"GPU ([0-9A-Fa-f:]+\.[0-7])")
_ROW = re.compile(r"( *)([^:]*[^: ]) *:(?: (.*))?")
_HEADING = re.compile(r"( *)([^: ][^:]*)")
_INDENT = 4
# Rows with a value that have rows of their own below them.
_PARENTS_WITH_VALUE = ("hw slowdown", "process id")
# Messages that nvidia-smi prints between the blocks of the GPUs.
_NOTE = re.compile(r"WARNING|ERROR|Unable to|Failed to|.*\binforom is corrupted", re.IGNORECASE)


class _Block:
    """The rows of one GPU while they are read."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.rows: dict[str, str] = {}
        self.path: list[str] = []  # the headings above the next row
        self.open_heading = ""  # a heading that has no row yet
        self.mig_devices = 0
        self.processes: list[dict[str, str]] = []

    def add(self, level: int, label: str, value: str | None) -> str:
        """Takes a row, or a heading (value None). Returns what is wrong with it, "" for nothing."""
        key = label.lower()
        if level > len(self.path) + 1:
            return "a heading above this line is missing"
        self.path = self.path[: level - 1]
        parent = "/".join(self.path)
        if parent in self.rows and self.path[-1] not in _PARENTS_WITH_VALUE:
            return f"{self.path[-1]!r} has a value and cannot have rows below it"
        if self.open_heading and parent != self.open_heading:
            return f"nothing stands below {self.open_heading!r}"
        self.open_heading = ""
        self.path.append(key)
        path = "/".join(self.path)
        if self.path[0] == "mig device":
            self.mig_devices += level == 1
            return ""
        if self.path[0] == "processes" and level > 1:
            if value is None:
                return "no value"
            if not self.processes or key in self.processes[-1]:
                self.processes.append({})
            self.processes[-1][key] = value
            return ""
        if path in self.rows or (value is None and any(row.startswith(path + "/") for row in self.rows)):
            return f"a second {label!r}"
        if value is None:
            self.open_heading = path
        else:
            self.rows[path] = value
        return ""

    def finished(self) -> RawGpu:
        processes: tuple[dict[str, str], ...] | str | None = tuple(self.processes)
        if not self.processes:
            text = self.rows.pop("processes", None)
            processes = () if text == "None" else text
        return RawGpu(self.address, self.rows, self.mig_devices, processes)


def is_text_form(text: str) -> bool:
    """Whether a text has the title of `nvidia-smi -q`."""
    return _TITLE.search(text) is not None


def read_text(text: str) -> RawReport:
    """The rows of every GPU. Raises ParseError for a line that does not fit, and names it."""
    head: dict[str, str] = {}
    blocks: list[_Block] = []
    notes: list[str] = []
    titled = False
    last = 0
    for last, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if not titled:
            titled = bool(_TITLE.fullmatch(line.strip()))
            notes += [] if titled else [line.strip()]
            continue
        wrong = _take(line.rstrip(), head, blocks, notes)
        if wrong:
            raise ParseError(f"nvidia-smi -q: line {last}: {wrong}: {line.strip()!r}")
    if not titled:
        raise ParseError("nvidia-smi -q: there is no title NVSMI LOG")
    if blocks and blocks[-1].open_heading:
        raise ParseError(f"nvidia-smi -q: line {last}: the output ends here, it was cut")
    return RawReport(head, tuple(block.finished() for block in blocks), tuple(notes))


def _take(line: str, head: dict[str, str], blocks: list[_Block], notes: list[str]) -> str:
    gpu = _GPU.fullmatch(line)
    if gpu:
        address = normalized_address(gpu.group(1))
        if address is None:
            return "no PCI address"
        if blocks and blocks[-1].open_heading:
            return f"nothing stands below {blocks[-1].open_heading!r}"
        blocks.append(_Block(address))
        return ""
    if not line.startswith(" ") and _NOTE.match(line):
        notes.append(line)
        return ""
    row = _ROW.fullmatch(line)
    found = row or _HEADING.fullmatch(line)
    indent, label = found.group(1, 2) if found else ("", "")
    value = (row.group(3) or "").strip() if row else None
    if not label or len(indent) % _INDENT:
        return "this line does not fit"
    if not indent:
        if value is None or blocks:
            return "this line does not fit"
        head[label.lower()] = value
        return ""
    if not blocks:
        return "expected a line GPU <address> first"
    return blocks[-1].add(len(indent) // _INDENT, label, value)
