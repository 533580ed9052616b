# SPDX-License-Identifier: Apache-2.0
"""What the running engine was started with, noted before somebody alters the files that tell it."""

from __future__ import annotations

from . import docker_engine_record
from .docker_daemon_file import DaemonFile
from .docker_engine_record import RECORD, Record
from .docker_service import Service
from .docker_unit import proxies
from .nvidia_loaded_driver import PROC_VERSION, parse_proc_version


def loaded_driver(root: str = "") -> str | None:
    """Version of the NVIDIA module that is loaded; None where none is."""
    try:
        with open(root + PROC_VERSION, encoding="utf-8", errors="replace") as file:
            return parse_proc_version(file.read()).version
    except (OSError, ValueError):
        return None


def text_at_start(file: DaemonFile, service: Service, root: str = "") -> str | None:
    """daemon.json as the running engine has read it; None where nothing tells."""
    record = docker_engine_record.read(root + RECORD)
    return docker_engine_record.read_at_start(
        record, service.invocation, file.text(), file.altered_at(), service.started_at
    )


def note_start(file: DaemonFile, service: Service, root: str = "") -> None:
    """Note what the engine has read before `file` is altered, such as after a boot, whose start nobody has noted."""
    record = docker_engine_record.read(root + RECORD)
    if not service.active or (record is not None and record.invocation == service.invocation):
        return
    text = text_at_start(file, service, root)
    if text is not None:
        # The unit may have been altered already: what it had at the last note is what it was started with.
        known = record.proxies if record is not None else proxies(root)
        docker_engine_record.write(root + RECORD, Record(service.invocation, text, loaded_driver(root), known))
