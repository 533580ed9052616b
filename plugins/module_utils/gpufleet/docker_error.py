# SPDX-License-Identifier: Apache-2.0
"""The one error of what keeps the container engine."""

from __future__ import annotations


class DockerError(Exception):
    """The engine, its file or its storage is not as it has to be; `next_step` says what an operator does about it."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step
