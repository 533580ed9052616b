# SPDX-License-Identifier: Apache-2.0
"""Download a file whose SHA-256 is known, and take one file out of a tarball."""

from __future__ import annotations

import hashlib
import os
import ssl
import tarfile
import urllib.error
import urllib.request

CHUNK = 1 << 20


class DownloadError(Exception):
    """The file could not be had as pinned; the message says why and what to do."""


def download(url: str, sha256: str, target: str, ca_file: str | None, timeout_s: float) -> None:
    """Fetch url into the new file `target`; raises DownloadError where its SHA-256 is not the pinned one.

    TLS is verified, against ca_file (PEM) in place of the system's authorities where one is given. Proxies come from
    the environment.
    """
    digest = hashlib.sha256()
    size = 0
    try:
        context = ssl.create_default_context(cafile=ca_file)
        with urllib.request.urlopen(url, timeout=timeout_s, context=context) as answer, open(target, "wb") as file:
            while True:
                chunk = answer.read(CHUNK)
                if not chunk:
                    break
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
    except (OSError, ValueError) as error:
        # HTTPError and URLError are OSErrors, as are a lost connection and a full disk.
        reason = error.reason if isinstance(error, urllib.error.URLError) and error.reason else error
        raise DownloadError(f"{url} could not be downloaded: {reason}") from error
    if digest.hexdigest() != sha256.lower():
        raise DownloadError(
            f"{url} ({size} bytes) has SHA-256 {digest.hexdigest()}, expected {sha256.lower()}. It was thrown away. "
            "Compare version and sha256 in the profile with the vendor's list of checksums; if they are right, the "
            "server delivers another file."
        )


def extract_file(tarball: str, name: str, target: str) -> None:
    """Write the regular file called `name` (last part of its path) from a tarball to `target`."""
    try:
        with tarfile.open(tarball) as archive:
            for member in archive:
                if member.isfile() and os.path.basename(member.name) == name:
                    source = archive.extractfile(member)
                    assert source is not None
                    with open(target, "wb") as file:
                        while True:
                            chunk = source.read(CHUNK)
                            if not chunk:
                                return
                            file.write(chunk)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DownloadError(f"{os.path.basename(tarball)} could not be unpacked: {error}") from error
    raise DownloadError(f"{os.path.basename(tarball)} holds no file {name}")
