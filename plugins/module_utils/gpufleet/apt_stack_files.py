# SPDX-License-Identifier: Apache-2.0
"""The files of a stack below /etc/apt: what is there, what is wanted, and what other files say of the same."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from .apt_packages import PackageState
from .apt_sources import Doubles, Repository, find_doubles, render_blacklist, render_source, shared_source
from .apt_sources_trial import Roots
from .apt_stack_error import AptStackError
from .apt_stack_pins import Blocker, blockers, render_pins

# A keyring holds some kilobytes; what is longer is no key.
MAX_KEY_BYTES = 1 << 20
KEY_LIMIT_S = 60
ARMOUR = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"


class StackFiles:
    """Current and wanted content of each file; raises AptStackError where the key cannot be had as pinned."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._name = asked["name"]
        self._etc = Roots.etc
        given = asked["repository"]
        self.repository = None
        if given:
            self.repository = Repository(given["uri"], tuple(given["suites"]), tuple(given["components"]))
        self._source = f"{self._etc}/sources.list.d/gpufleet-{self._name}.sources"
        self._keys = [f"{self._etc}/keyrings/gpufleet-{self._name}.{ending}" for ending in ("asc", "gpg")]
        self._pins = f"{self._etc}/preferences.d/gpufleet-{self._name}"
        self._blacklist = f"{self._etc}/apt.conf.d/52gpufleet-{self._name}"
        own = [self._source, *self._keys, self._pins, self._blacklist]
        self._now = {path: _read(path) for path in own}
        self.other_sources = self._texts("sources.list", "sources.list.d", (".list", ".sources"), self._source)
        self.other_pins = self._texts("preferences", "preferences.d", ("", ".pref"), self._pins)
        self._doubles = Doubles({}, [])
        wanted: dict[str, bytes | None] = dict.fromkeys(own)
        pins = render_pins(asked["packages"], asked["pins"], asked["keep_out"], self._name)
        wanted[self._pins] = pins.encode() if pins else None
        if asked["never_upgraded"]:
            wanted[self._blacklist] = render_blacklist(asked["never_upgraded"], self._name).encode()
        self._key_path = ""
        if self.repository and not self._is_shared(given["key_sha256"]):
            self._key_path, key = self._key(given["key_url"], given["key_sha256"])
            wanted[self._key_path] = key
            wanted[self._source] = render_source(self.repository, self._key_path, self._name).encode()
            self._doubles = find_doubles(self.repository, self.other_sources)
        self._wanted = wanted

    def _texts(self, single: str, folder: str, endings: Sequence[str], without: str) -> dict[str, str]:
        """Files of a kind that apt reads, path -> text, in its order."""
        found = {}
        paths = [f"{self._etc}/{single}"]
        with contextlib.suppress(FileNotFoundError):
            names = sorted(os.listdir(f"{self._etc}/{folder}"))
            paths += [f"{self._etc}/{folder}/{name}" for name in names if os.path.splitext(name)[1] in endings]
        for path in paths:
            content = _read(path) if path != without else None
            if content is not None:
                found[path] = content.decode("utf-8", "replace")
        return found

    def _is_shared(self, sha256: str | None) -> bool:
        """Whether another stack has the source of this very repository, with the key that is wanted."""
        assert self.repository is not None
        shared = shared_source(self.repository, self.other_sources)
        content = _read(shared[1]) if shared else None
        return content is not None and sha256 in (None, hashlib.sha256(content).hexdigest())

    def _key(self, url: str, sha256: str | None) -> tuple[str, bytes]:
        """Path and content of the key: the one on the node where it is the pinned one, else the one behind the URL."""
        for path in self._keys:
            content = self._now[path]
            if content and sha256 in (None, hashlib.sha256(content).hexdigest()):
                return path, content
        content = _fetch(url)
        digest = hashlib.sha256(content).hexdigest()
        if sha256 not in (None, digest):
            raise AptStackError(
                f"the key at {url} has SHA-256 {digest}, expected {sha256}. Nothing was changed",
                "compare repository.key_sha256 in the profile with what the vendor publishes; if that is right, the "
                "server delivers another file",
            )
        armoured = content.lstrip().startswith(ARMOUR)
        # RFC 9580, 4.2: the first bit of a packet is set; a public key has type 6, in the old or the new format.
        if not armoured and not (content and content[0] in (0x98, 0x99, 0x9A, 0xC6)):
            raise AptStackError(
                f"what {url} delivers is no OpenPGP public key (it begins with {content[:30]!r}). Nothing was changed",
                "correct repository.key_url in the profile",
            )
        return self._keys[0 if armoured else 1], content

    def changed(self) -> dict[str, bytes | None]:
        """Content of each file that differs, None for one that goes; the source comes last."""
        found = {path: content for path, content in self._wanted.items() if content != self._now[path]}
        for path, text in self._doubles.files.items():
            found[path] = None if text is None else text.encode("utf-8", "surrogateescape")
        if self._source in found:
            found[self._source] = found.pop(self._source)
        return found

    def to_be_tried(self) -> bool:
        """Whether a file differs that decides what apt can install: all but the list for unattended-upgrades."""
        return bool(set(self.changed()) - {self._blacklist})

    def for_trial(self, folder: str) -> dict[str, bytes | None]:
        """The changed files, with the key of the trial in `folder` in place of the one that is not there yet."""
        found = self.changed()
        source = self._wanted[self._source]
        if source is not None:
            place = os.path.join(folder, os.path.relpath(self._key_path, self._etc))
            found[self._source] = source.replace(self._key_path.encode(), place.encode())
        return found

    def blockers(self, names: Sequence[str]) -> dict[str, list[Blocker]]:
        """Stanzas of other preferences files that may put packages below zero."""
        found = {name: blockers(name, self.other_pins) for name in names}
        return {name: stanzas for name, stanzas in found.items() if stanzas}

    def taken_out(self) -> list[str]:
        """Sources of other files that name the same repository."""
        return self._doubles.taken_out

    def plan(self) -> list[str]:
        """A line for each file that is written or removed."""
        verbs = {True: "remove", False: "write"}
        return [f"{verbs[content is None]} {path}" for path, content in self.changed().items()]

    def diff(self) -> list[dict[str, str]]:
        """Before and after of each changed file, keys by their SHA-256."""
        found = []
        for path, content in self.changed().items():
            before = self._now[path] if path in self._now else self.other_sources[path].encode()
            shown = [_shown(path in self._keys, text) for text in (before, content)]
            found.append({"before_header": path, "after_header": path, "before": shown[0], "after": shown[1]})
        return found


def _shown(is_key: bool, content: bytes | None) -> str:
    if content is None:
        return ""
    return f"SHA-256 {hashlib.sha256(content).hexdigest()}\n" if is_key else content.decode("utf-8", "replace")


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=KEY_LIMIT_S) as answer:
            content: bytes = answer.read(MAX_KEY_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) and error.reason else error
        raise AptStackError(
            f"the repository's key cannot be fetched from {url}: {reason}. Nothing was changed",
            "check repository.key_url in the profile, and the node's way to that server (proxy, name resolution)",
        ) from error
    return content


def write(path: str, content: bytes | None) -> None:
    """Put a file in place at once, readable for all, or remove it."""
    if content is None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # apt ignores names that begin with a dot.
    handle, temporary = tempfile.mkstemp(prefix=".gpufleet-", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def show(names: Sequence[str], states: Mapping[str, PackageState]) -> str:
    """Packages as the lines of a diff."""
    absent = PackageState(None, False)
    return "".join(f"{name}: {states.get(name, absent)}\n" for name in names)
