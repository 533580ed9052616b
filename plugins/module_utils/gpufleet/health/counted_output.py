# SPDX-License-Identifier: Apache-2.0
"""Output of a script that gathers several things: parts under headings, and at its end the number of its lines.

The number tells a whole output from one that lost a line, where a line that is absent would mean something of its own:
a module without a version, a kernel without a module, a package that is not installed.
"""

from __future__ import annotations

import re

from .probe import ParseError, ProbeResult

_HEADING = "== "
_END = re.compile(r"end of (\d+) lines")


def counted(script: str) -> tuple[str, ...]:
    """argv of a script of bash. A line "== name" that it prints begins the part of that name."""
    return "bash", "-c", f'{{ {script.strip()}\n}} | awk \'{{ print }} END {{ print "end of " NR " lines" }}\''


def parts_of(result: ProbeResult, names: tuple[str, ...]) -> dict[str, list[str]]:
    """The lines of each part by its name; `names` are those that there must be, others may be.

    Raises ParseError where lines are missing or too many, or the parts are not these.
    """
    lines = result.stdout.splitlines()
    end = _END.fullmatch(lines[-1]) if lines else None
    if end is None:
        raise ParseError(
            f"the end is missing; the last line is {lines[-1][:100]!r}" if lines else "nothing was printed"
        )
    if int(end[1]) != len(lines) - 1:
        raise ParseError(f"{end[1]} lines were printed, {len(lines) - 1} are there")
    parts: dict[str, list[str]] = {}
    part: list[str] | None = None
    for line in lines[:-1]:
        if line.startswith(_HEADING):
            name = line[len(_HEADING) :].strip()
            if name in parts:
                raise ParseError(f"the part {name!r} is there twice")
            part = parts[name] = []
        elif part is None:
            raise ParseError(f"expected a heading first, got {line[:100]!r}")
        else:
            part.append(line)
    lost = [name for name in names if name not in parts]
    if lost:
        raise ParseError(f"the part {lost[0]!r} is missing")
    return parts


def one_line(parts: dict[str, list[str]], name: str) -> str:
    """The one line of a part, which is not empty. Raises ParseError."""
    lines = parts[name]
    if len(lines) != 1 or not lines[0].strip():
        raise ParseError(f"expected one line under {name!r}, got {len(lines)}")
    return lines[0].strip()
