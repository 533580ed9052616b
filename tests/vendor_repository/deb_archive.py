# SPDX-License-Identifier: Apache-2.0
"""A .deb of a few files, and a signed flat apt repository of such. Needs gpg, and nothing of Debian's."""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MAINTAINER = "gpufleet tests <nobody@example.com>"


@dataclass(frozen=True)
class Package:
    """A package: `relations` are fields such as Depends, `files` path -> text, `payload` bytes that do not compress.

    A file whose text begins with #! is a program.
    """

    name: str
    version: str
    relations: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    postinst: str = ""
    payload: int = 0
    architecture: str = "all"

    @property
    def control(self) -> dict[str, str]:
        """Fields of its control file."""
        return {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": MAINTAINER,
            **self.relations,
            "Description": f"stand-in for {self.name}, made for tests",
        }


def _fields(values: Mapping[str, str]) -> str:
    return "".join(f"{key}: {value}\n" for key, value in values.items())


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        folders: set[str] = set()
        for path, (content, mode) in sorted(files.items()):
            parents = [str(parent) for parent in Path(path).parents if str(parent) != "."]
            for parent in reversed(parents):
                if parent not in folders:
                    folders.add(parent)
                    entry = tarfile.TarInfo(f"./{parent}")
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(entry)
            entry = tarfile.TarInfo(f"./{path}")
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(stream.getvalue(), mtime=0)


def write_deb(package: Package, folder: Path) -> Path:
    """Write the package as deb(5) describes it; returns its path."""
    data = {
        path.lstrip("/"): (text.encode(), 0o755 if text.startswith("#!") else 0o644)
        for path, text in package.files.items()
    }
    if package.payload:
        data[f"usr/share/doc/{package.name}/payload"] = (os.urandom(package.payload), 0o644)
    control = {"control": (_fields(package.control).encode(), 0o644)}
    conffiles = "".join(f"{path}\n" for path in package.files if path.startswith("/etc/"))
    if conffiles:
        control["conffiles"] = (conffiles.encode(), 0o644)
    if package.postinst:
        control["postinst"] = (f"#!/bin/sh\n{package.postinst}\n".encode(), 0o755)
    members = [("debian-binary", b"2.0\n"), ("control.tar.gz", _tar(control)), ("data.tar.gz", _tar(data))]
    blob = b"!<arch>\n"
    for name, content in members:
        blob += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content
        blob += b"\n" if len(content) % 2 else b""
    path = folder / f"{package.name}_{package.version.replace(':', '%3a')}_{package.architecture}.deb"
    path.write_bytes(blob)
    return path


class SigningKey:
    """An OpenPGP key; `made` (YYYYMMDDTHHMMSS) is the time at which it is made, now if empty. It never expires."""

    def __init__(self, home: Path, name: str, made: str = "") -> None:
        self._home, self._name = home, name
        time = ["--faked-system-time", made] if made else []
        self._gpg(*time, "--passphrase", "", "--quick-generate-key", name, "ed25519", "sign", "0")

    def _gpg(self, *arguments: str) -> bytes:
        command = ["gpg", "--homedir", str(self._home), "--batch", "--quiet", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, timeout=120)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()}"
        return done.stdout

    def public(self) -> bytes:
        """The public key, armoured."""
        return self._gpg("--armor", "--export", self._name)

    def expire(self, when: str) -> None:
        """Let the key have been good for one day from a time on.

        gpg signs with no expired key, and sqv takes what was signed before the key expired: so sign first.
        """
        listing = self._gpg("--with-colons", "--list-keys", self._name).decode()
        fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))
        self._gpg("--faked-system-time", when, "--passphrase", "", "--quick-set-expire", fingerprint, "1d")

    def sign(self, release: Path) -> None:
        """Write InRelease beside a Release file."""
        target = release.with_name("InRelease")
        target.unlink(missing_ok=True)
        self._gpg("--local-user", self._name, "--clearsign", "--output", str(target), str(release))


@contextmanager
def key_ring() -> Iterator[Path]:
    """A folder for gpg, with a short path (its agent's socket has at most 108 characters)."""
    home = Path(tempfile.mkdtemp(prefix="gpg-", dir="/tmp"))
    try:
        yield home
    finally:
        subprocess.run(
            ["gpgconf", "--homedir", str(home), "--kill", "all"], check=False, capture_output=True, timeout=60
        )
        shutil.rmtree(home, ignore_errors=True)


def write_repository(folder: Path, packages: Sequence[Package], key: SigningKey, release: Mapping[str, str]) -> None:
    """Write packages, index, Release and key.asc as a flat repository; `release` are fields such as Origin."""
    folder.mkdir(parents=True)
    records = []
    for package in packages:
        path = write_deb(package, folder)
        content = path.read_bytes()
        records.append(
            _fields(package.control)
            + f"Filename: ./{path.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
        )
    index = "\n".join(records).encode()
    (folder / "Packages").write_bytes(index)
    text = _fields({**release, "Date": "Thu, 01 Jan 2026 00:00:00 UTC"})
    text += f"SHA256:\n {hashlib.sha256(index).hexdigest()} {len(index)} Packages\n"
    (folder / "Release").write_text(text)
    key.sign(folder / "Release")
    (folder / "key.asc").write_bytes(key.public())
