# SPDX-License-Identifier: Apache-2.0
"""The file daemon.json on a node: read, held against the unit's flags, validated by the engine, put in place."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from typing import Any

from .bounded_command import run_bounded
from .docker_daemon_json import PATH, parse, render
from .docker_error import DockerError
from .docker_unit import clashes, engine_flags

VALIDATE_LIMIT_S = 120
# More than this is no configuration.
MAX_BYTES = 1 << 20


class DaemonFile:
    """`settings` is what the file says ({} where there is none), `content` its bytes (None where there is none).

    Raises DockerError where the path holds something that must not be read or replaced.
    """

    def __init__(self, path: str = PATH, root: str = "") -> None:
        self.path, self._root = path, root
        self.content, self._mode = self._read()
        self.settings = parse(self.content, path) if self.content is not None else {}

    def _read(self) -> tuple[bytes | None, int]:
        place = self._root + self.path
        try:
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return None, 0o644
        if not stat.S_ISREG(status.st_mode):
            what = f"a link to {os.readlink(place)}" if stat.S_ISLNK(status.st_mode) else "no file"
            raise DockerError(
                f"{self.path} is {what}, expected a file or nothing. It was not altered",
                "put the file itself in that place, or remove what is there",
            )
        with open(place, "rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise DockerError(f"{self.path} has more than {MAX_BYTES} bytes. It was not altered", "look at that file")
        return content, stat.S_IMODE(status.st_mode)

    def altered_at(self) -> float:
        """When the file was last written or renamed, seconds since the epoch; 0 where there is none."""
        try:
            return os.stat(self._root + self.path).st_ctime
        except FileNotFoundError:
            return 0.0

    @staticmethod
    def settings_of(text: str, path: str = PATH) -> dict[str, Any]:
        """What a text says that once was the file; {} for one that cannot be read any more."""
        try:
            return parse(text.encode(), path)
        except DockerError:
            return {}

    def text(self) -> str:
        """The file as text; "" where there is none."""
        return (self.content or b"").decode("utf-8-sig", "replace")

    def refuse_clashes(self, wanted: Mapping[str, Any]) -> None:
        """Raise DockerError where the engine's unit has a key of `wanted` as a flag."""
        found = clashes(wanted, engine_flags(self._root))
        if found:
            raise DockerError(
                f"{self.path} would name what the engine's unit sets by flags, and the engine would not start: "
                f"{'; '.join(found)}. The file was not altered",
                "take these flags out of the named files (systemctl edit docker.service; a vendor's drop-in is hidden "
                "by one of the same name below /etc/systemd/system/docker.service.d), then systemctl daemon-reload",
            )

    def validate(self, wanted: Mapping[str, Any]) -> bool:
        """Let the installed engine look at `wanted`; False where there is none, or one that cannot (before 23.0).

        Raises DockerError with the engine's words.
        """
        if shutil.which("dockerd") is None:
            return False
        folder = tempfile.mkdtemp(prefix="gpufleet-docker-")
        try:
            trial = os.path.join(folder, "daemon.json")
            with open(trial, "wb") as file:
                file.write(render(wanted))
            flags = [word for flag in engine_flags(self._root) for word in flag.word.split()]
            said = run_bounded(["dockerd", "--validate", f"--config-file={trial}", *flags], VALIDATE_LIMIT_S)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if said.outcome == "done" and said.rc == 0:
            return True
        if re.search(r"unknown flag: --validate", said.said()):
            return False
        raise DockerError(
            f"the engine refuses the settings for {self.path}: {said.said().replace(trial, self.path)}. The "
            "file was not altered",
            "correct the settings (docker_daemon_settings, platform.docker); one that only a newer engine knows is set "
            "after the upgrade",
        )

    def diff(self, wanted: Mapping[str, Any]) -> dict[str, str]:
        """Before and after, for the output."""
        after = render(wanted).decode()
        return {"before_header": self.path, "after_header": self.path, "before": self.text(), "after": after}

    def write(self, wanted: Mapping[str, Any]) -> None:
        """Put the settings in place at once; the mode of a file that is there stays."""
        self.write_bytes(render(wanted))

    def write_bytes(self, content: bytes) -> None:
        """Put a whole file in place at once."""
        place = self._root + self.path
        os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".daemon-", dir=os.path.dirname(place))
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), self._mode)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, place)
        except BaseException:
            os.unlink(temporary)
            raise
        self.content, self.settings = content, parse(content, self.path)
