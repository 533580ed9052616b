# SPDX-License-Identifier: Apache-2.0
"""`nvidia-smi -q -x`, or the text form of old captures: both give the same facts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .gpu_facts import (
    Absent,
    ClockReasons,
    Clocks,
    Count,
    Ecc,
    EccErrors,
    Fabric,
    Gpu,
    GpuProcess,
    GpuReport,
    Inforom,
    Memory,
    PcieLink,
    Power,
    RetiredPages,
    RowRemap,
    Temperature,
    Text,
    Unreadable,
    branch_of,
)
from .nvidia_smi_fields import FIELDS, NEVER_EXPECTED, Field, absent, row_label
from .nvidia_smi_query_xml import RawGpu, RawReport, read_xml
from .probe import ParseError, Probe, ProbeResult

__all__ = ["PROBES", "QUERY", "Absent", "Fabric", "Gpu", "GpuReport", "parse_query", "parse_query_text"]

QUERY = "nvidia_smi.query"


def parse_query(result: ProbeResult) -> GpuReport:
    """The GPUs of `nvidia-smi -q -x` (or -q). Raises ParseError for other, garbled or cut output."""
    return parse_query_text(result.stdout)


def parse_query_text(text: str) -> GpuReport:
    """As parse_query, of the output itself."""
    if not text.strip():
        raise ParseError("nvidia-smi -q printed nothing")
    if "<nvidia_smi_log" in text:
        return _report(read_xml(text), is_xml=True)
    from .nvidia_smi_query_text import is_text_form, read_text  # only old captures need it

    if is_text_form(text):
        return _report(read_text(text), is_xml=False)
    first = text.strip().splitlines()[0][:200]
    raise ParseError(f"line 1 is not the beginning of nvidia-smi -q: {first!r}")


def _report(raw: RawReport, is_xml: bool) -> GpuReport:
    head = {key.lower().replace(" ", "_"): value for key, value in raw.head.items()}
    attached = head.get("attached_gpus", "")
    if not attached.isdigit():
        raise ParseError(f"nvidia-smi -q: Attached GPUs is no number: {attached!r}")
    if int(attached) != len(raw.gpus):
        raise ParseError(
            f"nvidia-smi -q: Attached GPUs is {attached}, but {len(raw.gpus)} are described: the output was cut"
        )
    addresses = [gpu.address for gpu in raw.gpus]
    if len(set(addresses)) != len(addresses):
        raise ParseError("nvidia-smi -q: two GPUs have the same PCI address")
    driver = _version(head, "kmd_version", "driver_version")
    peers = {path for gpu in raw.gpus for path in gpu.rows}
    gpus = tuple(_gpu(index, gpu, is_xml, branch_of(driver), peers) for index, gpu in enumerate(raw.gpus))
    return GpuReport(driver, _version(head, "cuda_umd_version", "cuda_version"), gpus, raw.notes)


def _version(head: Mapping[str, str], *keys: str) -> Text:
    """The first of the rows that has a version. Driver 610 adds a note behind those whose names it gives up:
    "610.57.04 [Deprecated; ...]" (sgl-project/sglang#27487)."""
    for key in keys:
        found = re.fullmatch(r"(\d+(?:\.\d+)+)(?: \[.*\])?", head.get(key, ""))
        if found:
            return found.group(1)
    printed = next((head[key] for key in keys if key in head), None)
    return Absent("missing", "row not printed") if printed is None else Absent("error", printed)


def _gpu(index: int, raw: RawGpu, is_xml: bool, branch: int, peers: Iterable[str]) -> Gpu:
    values: dict[str, Any] = {}
    unreadable = []
    known = set()
    for field in FIELDS:
        paths = field.xml if is_xml else tuple(path.lower() for path in field.text)
        path = next((path for path in paths if path in raw.rows), None)
        if path is None:
            values[field.fact] = _not_printed(field, paths, raw.rows, branch, peers)
            continue
        known.add(path)
        value = _value(field, raw.rows[path])
        values[field.fact] = value
        if isinstance(value, Absent) and value.kind == "error":
            unreadable.append(Unreadable(field.label, value.reason))
    for path, text in raw.rows.items():
        other = absent(text) if path not in known and text else None
        if other is not None and other.kind == "error":
            unreadable.append(Unreadable(row_label(path), other.reason))
    processes = _processes(raw, is_xml)
    if isinstance(processes, Absent) and processes.kind == "error":
        unreadable.append(Unreadable("Processes", processes.reason))
    return Gpu(
        index=index,
        address=raw.address,
        inforom=Inforom(**_section(values, "inforom")),
        link=PcieLink(**_section(values, "link")),
        clock_reasons=ClockReasons(**_section(values, "clock_reasons")),
        memory=Memory(**_section(values, "memory")),
        ecc=Ecc(
            volatile=EccErrors(**_section(values, "ecc.volatile")),
            aggregate=EccErrors(**_section(values, "ecc.aggregate")),
            **_section(values, "ecc"),
        ),
        retired_pages=RetiredPages(**_section(values, "retired_pages")),
        row_remap=RowRemap(**_section(values, "row_remap")),
        temperature=Temperature(**_section(values, "temperature")),
        power=Power(**_section(values, "power")),
        clocks=Clocks(**_section(values, "clocks")),
        fabric=Fabric(**_section(values, "fabric")),
        mig_devices=raw.mig_devices,
        processes=processes,
        unreadable=tuple(unreadable),
        **_section(values, ""),
    )


def _section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The facts right below a path, by their own names."""
    split = {fact: fact.rpartition(".") for fact in values}
    return {split[fact][2]: value for fact, value in values.items() if split[fact][0] == name}


def _value(field: Field, text: str) -> Any:
    none = absent(text)
    return field.convert(text) if none is None else none


def _not_printed(
    field: Field, paths: Iterable[str], rows: Mapping[str, str], branch: int, peers: Iterable[str]
) -> Absent:
    # a whole section collapses into one row where it cannot be read: "Remapped Rows : GPU is lost"
    for path in paths:
        while "/" in path:
            path = path.rpartition("/")[0]
            none = absent(rows[path]) if path in rows else None
            if none is not None:
                return none
    if any(path in peers for path in paths):
        return Absent("missing", "row not printed, though it is for other GPUs")
    if branch and not field.since <= branch <= field.until:
        reason = "row not printed" if field.since == NEVER_EXPECTED else f"driver branch {branch} does not print it"
        return Absent("not_in_driver", reason)
    return Absent("missing", "row not printed")


def _processes(raw: RawGpu, is_xml: bool) -> tuple[GpuProcess, ...] | Absent:
    if raw.processes is None:
        return Absent("missing", "row not printed")
    if isinstance(raw.processes, str):
        return absent(raw.processes) or Absent("error", f"{raw.processes!r} is no list of processes")
    pid, kind, name, used = (
        ("pid", "type", "process_name", "used_memory") if is_xml else ("process id", "type", "name", "used gpu memory")
    )
    return tuple(
        GpuProcess(_number(row, pid), _word(row, kind), _word(row, name), _number(row, used, " MiB"))
        for row in raw.processes
    )


def _word(row: Mapping[str, str], key: str) -> Text:
    if key not in row:
        return Absent("missing", "row not printed")
    return absent(row[key]) or row[key]


def _number(row: Mapping[str, str], key: str, unit: str = "") -> Count:
    text = _word(row, key)
    if isinstance(text, Absent):
        return text
    digits = text[: -len(unit)] if unit and text.endswith(unit) else text
    return int(digits) if digits.isdigit() else Absent("error", f"{text!r} is no number{unit}")


PROBES: tuple[Probe, ...] = (
    # Without persistence mode the driver initialises every GPU first, which takes seconds each; a GPU that hangs makes
    # nvidia-smi hang as well.
    Probe(QUERY, parse_query, argv=("nvidia-smi", "-q", "-x"), deadline_s=60),
)
