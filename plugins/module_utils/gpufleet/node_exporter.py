# SPDX-License-Identifier: Apache-2.0
"""What the node exporter says of itself: its version, its collectors, its metrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class ExporterParseError(ValueError):
    """The binary or the scrape did not say what a node exporter says; the message holds what it said."""


def parse_version(text: str) -> str:
    """Version from `node_exporter --version` ("node_exporter, version 1.5.0 (branch: ...)")."""
    match = re.search(r"^node_exporter, version (\S+)", text, re.MULTILINE)
    if match is None:
        raise ExporterParseError(f"expected 'node_exporter, version ...', got: {text.strip()[:200]!r}")
    return match.group(1)


def parse_collectors(text: str) -> set[str]:
    """Names of the collectors in `node_exporter --help`.

    Collectors have flags of their own (--collector.cpu.info); only those that switch a collector on or off have one
    part after "collector." and stand with their default.
    """
    # The help of two columns breaks the line after a long flag, so line ends count as blanks.
    flat = re.sub(r"\s+", " ", text)
    names = re.findall(r"--(?:\[no-\])?collector\.([a-z0-9_]+) Enable the", flat)
    if not names:
        raise ExporterParseError(f"no collector in the help of the node exporter: {text.strip()[:200]!r}")
    return set(names)


def collector_faults(known: set[str], enabled: Sequence[str], disabled: Sequence[str], version: str) -> list[str]:
    """One line for each collector that is named by the variables and cannot be had."""
    faults = []
    for name in [*enabled, *disabled]:
        if name not in known:
            import difflib  # only a mistake needs it

            near = difflib.get_close_matches(name, sorted(known), 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            faults.append(f"node exporter {version} has no collector {name}{hint}")
    faults.extend(f"collector {name} is both enabled and disabled" for name in enabled if name in disabled)
    return faults


class Scrape(NamedTuple):
    """What the metrics say about the exporter itself; textfile_error is None where there is no textfile collector."""

    version: str
    textfile_error: bool | None
    failed_collectors: tuple[str, ...]


def parse_scrape(text: str) -> Scrape:
    """The text that /metrics answers with; raises ExporterParseError where it is not a node exporter's."""
    build = re.search(r"^node_exporter_build_info\{[^}]*\bversion=\"([^\"]+)\"", text, re.MULTILINE)
    if build is None:
        raise ExporterParseError(f"no node_exporter_build_info in the answer, which begins: {text[:120]!r}")
    textfile = re.search(r"^node_textfile_scrape_error (\S+)", text, re.MULTILINE)
    failed = re.findall(r"^node_scrape_collector_success\{collector=\"([^\"]+)\"\} 0$", text, re.MULTILINE)
    return Scrape(
        version=build.group(1),
        textfile_error=None if textfile is None else float(textfile.group(1)) != 0,
        failed_collectors=tuple(failed),
    )
