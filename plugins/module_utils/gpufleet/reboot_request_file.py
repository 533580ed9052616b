# SPDX-License-Identifier: Apache-2.0
"""A request for a reboot as a file: where it lies, and what a valid one holds."""

from __future__ import annotations

import json
from typing import NamedTuple

REQUESTS = "/run/gpufleet/reboot.d"
RECORDS = "/var/lib/gpufleet/reboot"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
OS_REQUEST = "/run/reboot-required"


class RequestError(ValueError):
    """A file that is no valid request; the message says what is wrong with it."""


class Request(NamedTuple):
    """still_needed: command that exits 0 while the reason stands, None = a reboot always serves it.

    boot_id: the boot in which it was asked for. when: UTC, ISO 8601.
    """

    name: str
    reason: str
    still_needed: tuple[str, ...] | None
    requested_by: str
    boot_id: str
    when: str

    def as_json(self) -> str:
        content = self._asdict()
        content["still_needed"] = None if self.still_needed is None else list(self.still_needed)
        return json.dumps(content, indent=1, sort_keys=True) + "\n"


def parse_request(text: str, name: str) -> Request:
    """The request in a file called <name>.json; raises RequestError."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise RequestError(f"no JSON ({error}); it may have been cut short") from error
    if not isinstance(content, dict):
        raise RequestError("not a JSON object")
    for key in ("name", "reason", "requested_by", "boot_id", "when"):
        if not isinstance(content.get(key), str) or not content[key]:
            raise RequestError(f"key {key} must be a text that is not empty")
    if content["name"] != name:
        raise RequestError(f"says that it is the request {content['name']}")
    command = content.get("still_needed")
    if command is not None and not (
        isinstance(command, list) and command and all(isinstance(part, str) for part in command)
    ):
        raise RequestError("key still_needed must be null or a command as a list of texts")
    return Request(
        name=name,
        reason=content["reason"],
        still_needed=None if command is None else tuple(command),
        requested_by=content["requested_by"],
        boot_id=content["boot_id"],
        when=content["when"],
    )
