# SPDX-License-Identifier: Apache-2.0
"""The one error of apt_stack's parts."""

from __future__ import annotations


class AptStackError(Exception):
    """The packages cannot be brought as asked; `next_step` says what an operator does about it."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step
