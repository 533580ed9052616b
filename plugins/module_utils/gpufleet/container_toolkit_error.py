# SPDX-License-Identifier: Apache-2.0
"""The one error of what brings GPUs into containers."""

from __future__ import annotations


class ToolkitError(Exception):
    """GPUs would not reach containers; `next_step` says what an operator does about it."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step
