# SPDX-License-Identifier: Apache-2.0
"""Shows what several nodes are doing: lines rewritten in place on a terminal, plain lines otherwise."""

import sys
import threading
import time
from typing import TextIO

PLAIN_EVERY_S = 30


class Progress:
    """One line per node. Safe to call from the threads that bring the nodes up."""

    def __init__(self, names: list[str], stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._started = time.monotonic()
        self._texts = dict.fromkeys(names, "waiting")
        self._printed = 0
        self._last_plain: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def show(self, name: str, text: str) -> None:
        """A node's present step. Off a terminal: printed when it changes, and every half minute."""
        with self._lock:
            self._texts[name] = text
            now = time.monotonic()
            if self._live:
                if self._printed:
                    self._stream.write(f"\x1b[{self._printed}A")
                for other, step in self._texts.items():
                    self._stream.write(f"\r\x1b[K{self._line(other, step)}\n")
                self._printed = len(self._texts)
            else:
                last, when = self._last_plain.get(name, ("", 0.0))
                if text == last and now - when < PLAIN_EVERY_S:
                    return
                self._last_plain[name] = (text, now)
                self._stream.write(self._line(name, text) + "\n")
            self._stream.flush()

    def _line(self, name: str, text: str) -> str:
        return f"{name}: {text} ({time.monotonic() - self._started:.0f} s)"
