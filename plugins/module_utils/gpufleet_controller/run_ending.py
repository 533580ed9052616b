# SPDX-License-Identifier: Apache-2.0
"""Do something at the end of a run that ends in an unusual way: error, Ctrl-C, SIGTERM, SIGHUP.

Ansible sends no last event then. Errors and Ctrl-C still pass through ``atexit``; a signal does
not, so its handler is put in front of Ansible's own, which goes on to end the workers and itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class RunEnding:
    """Calls ``action(cause)`` once when the process ends, in this process only (never in a forked worker)."""

    def __init__(self, action: Callable[[str], None]) -> None:
        self._action = action
        self._pid = os.getpid()
        self._armed = True
        self._cause = "an error ended ansible-playbook; its message is above"
        atexit.register(self._at_exit)
        # Handlers can only be set in the main thread, and only there is ansible-playbook run.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._chain(number)
            self._name_ctrl_c()

    def disarm(self) -> None:
        """The run came to its regular end."""
        self._armed = False

    def _run(self, cause: str) -> None:
        if self._armed and os.getpid() == self._pid:
            self._armed = False
            self._action(cause)

    def _at_exit(self) -> None:
        self._run(self._cause)

    def _name_ctrl_c(self) -> None:
        """Ctrl-C becomes an exception in Ansible's handler and so ends at ``atexit``: only its name is noted here."""
        previous = signal.getsignal(signal.SIGINT)
        if not callable(previous):
            return

        def handle(received: int, frame: FrameType | None) -> None:
            self._cause = "Ctrl-C"
            previous(received, frame)

        signal.signal(signal.SIGINT, handle)

    def _chain(self, number: signal.Signals) -> None:
        previous = signal.getsignal(number)
        if previous is signal.SIG_IGN:  # nohup
            return

        def handle(received: int, frame: FrameType | None) -> None:
            try:
                self._run(f"signal {signal.Signals(received).name}")
            finally:  # a terminal that is gone fails our output, but must not keep the process alive
                if callable(previous):
                    previous(received, frame)
                else:
                    signal.signal(received, signal.SIG_DFL)
                    os.kill(os.getpid(), received)

        signal.signal(number, handle)
