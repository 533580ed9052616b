# SPDX-License-Identifier: Apache-2.0
"""`nvidia-smi -q -x`: rows by their path of tags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from xml.etree import ElementTree

from .gpu_facts import normalized_address
from .probe import ParseError


class RawGpu(NamedTuple):
    """One GPU, untyped. rows: text by path. processes: rows of each process, or the text that stands for the list."""

    address: str
    rows: dict[str, str]
    mig_devices: int
    processes: tuple[dict[str, str], ...] | str | None


class RawReport(NamedTuple):
    """The whole output, untyped. head: rows above the first GPU. notes: lines that belong to no row."""

    head: dict[str, str]
    gpus: tuple[RawGpu, ...]
    notes: tuple[str, ...]


_ROOT = "nvidia_smi_log"
# What XML 1.0 does not allow and a process may have in its name.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")


def read_xml(text: str) -> RawReport:
    """The rows of every GPU. Raises ParseError for text that is cut, and names the line."""
    start = text.find("<?xml")
    start = start if start >= 0 else text.find(f"<{_ROOT}")
    closing = f"</{_ROOT}>"
    end = text.rfind(closing)
    if end < start:
        last = len(text.splitlines())
        raise ParseError(f"nvidia-smi -q -x: line {last}: the output ends before {closing}, it was cut")
    document = text[start : end + len(closing)]
    if "<!ENTITY" in document:
        raise ParseError("nvidia-smi -q -x: the document declares entities, which nvidia-smi never does")
    try:
        root = ElementTree.fromstring(_CONTROL.sub("?", document))
    except ElementTree.ParseError as error:
        line = error.position[0] + text.count("\n", 0, start)
        what = error.msg.partition(":")[0]
        raise ParseError(f"nvidia-smi -q -x: line {line}: {what}") from error
    if root.tag != _ROOT:
        raise ParseError(f"nvidia-smi -q -x: expected <{_ROOT}>, found <{root.tag}>")
    around = text[:start].splitlines() + text[end + len(closing) :].splitlines()
    notes = [line.strip() for line in around if line.strip()]
    notes += _loose_text(root)
    head = {child.tag: _text(child) for child in root if child.tag != "gpu"}
    return RawReport(head, tuple(_gpu(gpu) for gpu in root.iterfind("gpu")), tuple(notes))


def _text(element: ElementTree.Element) -> str:
    return (element.text or "").strip()


def _loose_text(root: ElementTree.Element) -> Iterator[str]:
    """Lines between the tags: warnings that were printed into the document."""
    for element in root.iter():
        loose = [child.tail or "" for child in element]
        if len(element):
            loose.append(element.text or "")
        for text in loose:
            yield from (line.strip() for line in text.splitlines() if line.strip())


def _gpu(element: ElementTree.Element) -> RawGpu:
    printed = element.get("id", "")
    address = normalized_address(printed)
    if address is None:
        raise ParseError(f'nvidia-smi -q -x: <gpu id="{printed}"> has no PCI address')
    rows: dict[str, str] = {}
    processes: tuple[dict[str, str], ...] | str | None = None
    mig_devices = 0
    for child in element:
        if child.tag == "processes":
            listed = tuple({row.tag: _text(row) for row in process} for process in child.iterfind("process_info"))
            processes = _text(child) if not listed and _text(child) else listed
        elif child.tag == "mig_devices":
            mig_devices = len(child.findall("mig_device"))
        elif child.tag not in ("supported_clocks", "accounted_processes"):
            for path, text in _rows(child, child.tag):
                if path in rows:
                    raise ParseError(f"nvidia-smi -q -x: {printed} has two rows {path}")
                rows[path] = text
    return RawGpu(address, rows, mig_devices, processes)


def _rows(element: ElementTree.Element, path: str) -> Iterator[tuple[str, str]]:
    if len(element) == 0:
        yield path, _text(element)
    for child in element:
        yield from _rows(child, f"{path}/{child.tag}")
