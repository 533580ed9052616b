# SPDX-License-Identifier: Apache-2.0
"""Write the lists of checks and probes in docs/health-checks.md from the code (`make docs`).

What stands between the marks is replaced, the rest is left as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ansible.module_utils

REPOSITORY = Path(__file__).resolve().parents[1]
_OWN = str(REPOSITORY / "plugins" / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)

from ansible.module_utils.gpufleet.health.check import Check
from ansible.module_utils.gpufleet.health.probe import Probe
from ansible.module_utils.gpufleet.health.registry import CHECKS, PROBES

DOCUMENT = REPOSITORY / "docs" / "health-checks.md"


def check_lines(check: Check) -> list[str]:
    """One check as a paragraph: what it protects against and where that comes from, and what it reads."""
    paragraphs = [" ".join(part.split()) for part in check.documentation.split("\n\n")]
    reads = ", ".join(f"`{probe}`" for probe in check.needs)
    also = ", ".join(f"`{probe}`" for probe in check.also)
    last = f"Reads {reads or 'nothing'}{f'; where it answers also {also}' if also else ''}."
    return [f"### {check.id}", "", *(line for text in [*paragraphs, last] for line in (text, ""))]


def probe_lines(probe: Probe) -> str:
    """One probe as a row of the table."""
    marks = [word for word, holds in (("root", probe.root), ("only when asked for", probe.heavy)) if holds]
    source = f"`{probe.source}`".replace("|", "\\|")
    if "\n" in source:
        source = f"a script, in `health/{probe.parse.__module__.rpartition('.')[2]}.py`"
    return f"| `{probe.id}` | {source} | {probe.deadline_s:g} s | {', '.join(marks)} |"


def lists() -> dict[str, list[str]]:
    """The text of each list by the name in its marks."""
    return {
        "checks": [line for check in CHECKS for line in check_lines(check)],
        "probes": [
            "| probe | command or files | deadline | |",
            "| --- | --- | --- | --- |",
            *(probe_lines(probe) for probe in PROBES),
            "",
        ],
    }


def rewritten(text: str) -> str:
    """The document with both lists as the code has them. Raises ValueError where a mark is missing."""
    for name, lines in lists().items():
        begin, end = f"<!-- {name}: written by make docs -->\n", f"<!-- end of {name} -->\n"
        if begin not in text or end not in text:
            raise ValueError(f"{DOCUMENT.name} has no marks for the list of {name}")
        before, _begin, rest = text.partition(begin)
        text = before + begin + "\n" + "\n".join(lines) + end + rest.partition(end)[2]
    return text


def main() -> int:
    """Write the document."""
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
