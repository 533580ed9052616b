# SPDX-License-Identifier: Apache-2.0
"""The exporter's list of metrics, and what a scrape says of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

# NVIDIA/dcgm-exporter, internal/pkg/counters/variables.go; histogram and summary are accepted there and never served.
TYPES = ("gauge", "counter", "label")
PROFILING = "DCGM_FI_PROF_"
_FIELD = r"DCGM_(?:FI|EXP)_[A-Z0-9_]+"
# dcgm_structs.h, DCGM_INT64_BLANK and DCGM_INT32_BLANK: from here on a number says "no value" (bug 011). The values of
# 64 bits are rounded up where they have come as a floating-point number.
BLANKS = ((0x7FFFFFF0, 0x7FFFFFFF), (0x7FFFFFFFFFFFFFF0, 1 << 63))


class ScrapeError(ValueError):
    """The text is no answer of a DCGM exporter; the message says why."""


class Scrape(NamedTuple):
    """samples: metric -> number of its samples. blank: metrics that have one whose value is DCGM's "no value"."""

    samples: dict[str, int]
    blank: tuple[str, ...]


def render_csv(metrics: Iterable[Mapping[str, Any]]) -> str:
    """The exporter's file of metrics. The help is always quoted, and nothing stands before the quote: Go's reader
    refuses both a bare quote and a comma in a field without them."""
    lines = ["# Written by gpufleet, role dcgm_exporter; changes made here are lost.\n"]
    for metric in metrics:
        text = str(metric["help"]).replace('"', '""')
        lines.append(f'{metric["field"]},{metric["type"]},"{text}"\n')
    return "".join(lines)


def list_faults(metrics: Sequence[Mapping[str, Any]], profiling: bool) -> list[str]:
    """What is wrong with the list by itself, in sentences without a full stop."""
    faults = []
    seen = set()
    for number, metric in enumerate(metrics, start=1):
        field, kind, text = (metric.get(key) for key in ("field", "type", "help"))
        unknown = sorted(set(metric) - {"field", "type", "help", "optional"})
        if unknown:
            faults.append(f"metric {number}: unknown key {', '.join(unknown)}, expected field, type, help, optional")
        if not isinstance(field, str) or not re.fullmatch(_FIELD, field):
            faults.append(f"metric {number}: {field!r} cannot be a field, expected such as DCGM_FI_DEV_GPU_TEMP")
            continue
        if field in seen:
            faults.append(f"{field} is listed twice")
        seen.add(field)
        if kind not in TYPES:
            faults.append(f"{field}: type is {kind!r}, expected {', '.join(TYPES[:-1])} or {TYPES[-1]}")
        if not isinstance(text, str) or not text.strip() or "\n" in text:
            faults.append(f"{field}: help is {text!r}, expected one line of text")
        if not isinstance(metric.get("optional", False), bool):
            faults.append(f"{field}: optional is {metric['optional']!r}, expected true or false")
        if field.startswith(PROFILING) and not profiling:
            faults.append(
                f"{field} is a profiling metric, and packages.dcgm_exporter.profiling_metrics of the profile is false"
            )
    return faults


def known_fields(program: bytes) -> bytes:
    """All that looks like names of fields in the exporter's program.

    Go keeps the names that the release knows one behind the other without a gap, so a name is known if it stands
    somewhere in this; the beginning of a longer one passes too, and is found out when the exporter starts.
    """
    return b" ".join(re.findall(rb"DCGM_(?:FI|EXP)_[A-Z0-9_]+", program))


def unknown_fields(fields: Iterable[str], known: bytes) -> list[str]:
    """A line for each field that the exporter does not know, with the nearest that it does."""
    lines = []
    for field in fields:
        if field.encode() in known:
            continue
        import difflib  # only a mistake needs it

        every = re.findall(r"DCGM_(?:FI|EXP)_(?:(?!DCGM_(?:FI|EXP)_)[A-Z0-9_])+", known.decode("ascii", "replace"))
        near = difflib.get_close_matches(field, sorted(set(every)), 1, 0.7)
        lines.append(field + (f" (did you mean {near[0]}?)" if near else ""))
    return lines


def parse_scrape(text: str) -> Scrape:
    """The text that /metrics answers with; raises ScrapeError for a line that Prometheus could not read."""
    samples: dict[str, int] = {}
    blank = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        found = re.fullmatch(r"([A-Za-z_:][\w:]*)(?:\{.*\})? (\S+)(?: -?\d+)?", line)
        value = _number(found.group(2)) if found else None
        if found is None or value is None:
            raise ScrapeError(f"line {number} is no metric: {line[:120]!r}")
        name = found.group(1)
        samples[name] = samples.get(name, 0) + 1
        if any(low <= value <= high for low, high in BLANKS) and name not in blank:
            blank.append(name)
    return Scrape(samples, tuple(blank))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def missing_metrics(metrics: Sequence[Mapping[str, Any]], seen: Collection[str]) -> list[str]:
    """Fields that were promised and are not served; labels are no metrics of their own."""
    return [
        metric["field"]
        for metric in metrics
        if metric["type"] != "label" and not metric.get("optional", False) and metric["field"] not in seen
    ]


def reasons_in_log(log: str) -> list[str]:
    """The lines of the exporter's log that say why it does not serve what it should, the last ones."""
    telling = re.compile(
        r"level=(?:error|fatal|warn)|metric not enabled|could not find|malformed|panic|mismatch|Failed at step",
        re.IGNORECASE,
    )
    return [line.strip()[-300:] for line in log.splitlines() if telling.search(line)][-5:]
