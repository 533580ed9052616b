# SPDX-License-Identifier: Apache-2.0
"""QEMU's machine protocol: send commands, hear events."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lab.errors import LabError


class QmpConnection:
    """One connection to a running QEMU. `on_event(name, data)` is called for every event."""

    def __init__(self, on_event: Callable[[str, dict[str, Any]], None]) -> None:
        self._on_event = on_event
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    async def connect(self, path: Path, limit_s: float = 30) -> None:
        """Connect and leave the negotiation mode. Raises LabError when QEMU does not answer in time."""
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    reader, self._writer = await asyncio.open_unix_connection(str(path))
                    break
                except OSError:
                    await asyncio.sleep(0.1)
            await reader.readline()
        self._reading = asyncio.create_task(self._read(reader))
        await self.execute("qmp_capabilities")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "event" in message:
                    self._on_event(message["event"], message.get("data", {}))
                elif message.get("id") in self._answers:
                    self._answers.pop(message["id"]).set_result(message)
        except (OSError, ValueError):
            pass
        finally:
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(LabError("QEMU went away in the middle of a command"))
            self._answers.clear()

    async def execute(self, command: str, arguments: Mapping[str, Any] | None = None, limit_s: float = 30) -> Any:
        """Run one command. Raises LabError with QEMU's text when it refuses or does not answer."""
        if self._writer is None or self._reading is None or self._reading.done():
            raise LabError(f"QEMU is not there to run {command}")
        self._next_id += 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[self._next_id] = answer
        request = {"execute": command, "arguments": dict(arguments or {}), "id": self._next_id}
        try:
            self._writer.write(json.dumps(request).encode() + b"\n")
            message = await asyncio.wait_for(answer, limit_s)
        except TimeoutError:
            raise LabError(f"QEMU did not answer {command} within {limit_s:.0f} s") from None
        if "error" in message:
            raise LabError(f"QEMU refused {command}: {message['error']['desc']}")
        return message["return"]

    def close(self) -> None:
        """Drop the connection."""
        if self._writer:
            self._writer.close()
        if self._reading:
            self._reading.cancel()
