# SPDX-License-Identifier: Apache-2.0
"""A few lines at the bottom of a terminal that are redrawn in place, while other output scrolls above.

Everything that is written to the terminal meanwhile, by whomever (Ansible's warnings, -vvv, the
summary), goes through here: the lines are wiped, the text is written, the lines are drawn again.
The cursor is only hidden within one write, so no way of ending the run can leave it hidden.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, TextIO, cast

from .screen_text import cut

# From the cursor to the end of the screen.
_WIPE = "\r\x1b[J"
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"


class _Above:
    """A stream whose text appears above the live lines; everything else is the stream it stands for."""

    def __init__(self, area: LiveArea, stream: TextIO) -> None:
        self._area = area
        self._stream = stream

    def write(self, text: str) -> int:
        self._area.write_above(self._stream, text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class LiveArea:
    """The lines. ``lock`` is re-entrant and guards all writes to the terminal, also those of forks."""

    def __init__(self, stream: TextIO, lock: AbstractContextManager[Any]) -> None:
        self._stream = stream
        self._lock = lock
        self._drawn: list[str] = []
        self._at_line_start = True
        self._streams: tuple[Any, Any] | None = None
        self.needs_drawing = True

    def start(self) -> None:
        """Put stdout, and stderr where it is a terminal too, behind the area."""
        self._streams = (sys.stdout, sys.stderr)
        sys.stdout = cast(TextIO, _Above(self, sys.stdout))
        if sys.stderr.isatty():
            sys.stderr = cast(TextIO, _Above(self, sys.stderr))

    def close(self) -> None:
        """Wipe the lines and give the streams back. Safe to call again."""
        with self._lock:
            self.wipe()
            if self._streams is not None:
                sys.stdout, sys.stderr = self._streams
                self._streams = None

    def size(self) -> os.terminal_size:
        """Columns and lines of the terminal as it is now (it may have been resized)."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except OSError:
            return os.terminal_size((80, 24))
        # a pty that nobody sized says 0 x 0
        return size if size.columns > 0 and size.lines > 0 else os.terminal_size((80, 24))

    def draw(self, lines: Sequence[str]) -> None:
        """Draw these lines in the place of the former ones, cut to the terminal."""
        with self._lock:
            if not self._at_line_start:
                return
            columns, rows = self.size()
            shown = [cut(line, columns - 1) for line in lines][: max(rows - 1, 1)]
            if shown == self._drawn and not self.needs_drawing:
                return
            # The cursor waits at the start of the first line: there it stays with it when a resized
            # terminal breaks the lines anew, so that wiping never takes more or less than the lines.
            up = f"\x1b[{len(shown) - 1}A" if len(shown) > 1 else ""
            self._put(_HIDE + _WIPE + "\n".join(shown) + "\r" + up + _SHOW)
            self._drawn = shown
            self.needs_drawing = False

    def wipe(self) -> None:
        """Take the lines off the screen; the cursor is then where they began."""
        with self._lock:
            if self._drawn:
                self._put(_WIPE)
                self._drawn = []
            self.needs_drawing = True

    def write_above(self, stream: TextIO, text: str) -> None:
        """Write text of another source."""
        if not text:
            return
        with self._lock:
            self.wipe()
            stream.write(text)
            # stdout and stderr are two buffers on one terminal
            stream.flush()
            self._at_line_start = text.endswith("\n")

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
