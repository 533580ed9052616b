# SPDX-License-Identifier: Apache-2.0
"""What the probes brought, kept as a folder or .tar.gz: evaluated later by the same code, without the node.

<capture>/capture.json          {"format": 1, "created": seconds since the epoch}
<capture>/<probe id>/stdout, stderr
<capture>/<probe id>/meta.json  source (argv or paths), rc, seconds, outcome, when, root, why, and the sizes of the
                                two outputs in bytes, so that one that was cut is seen
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .probe import OUTCOMES, Probe, ProbeResult

FORMAT = 1
# A capture of a node with 100,000 kernel lines has 30 MB. Archives from elsewhere may claim anything.
MAX_TOTAL_BYTES = 512 << 20
MAX_FILES = 2000
_FILE = re.compile(r"(?:(?:\./)?[^/]+/)?(?P<probe>[a-z0-9_.]+)/(?P<file>stdout|stderr|meta\.json)")


class CaptureError(Exception):
    """A capture that cannot be read or written; the message says why and where."""


class Capture(NamedTuple):
    """created: seconds since the epoch, None where the capture does not say. results: by probe id."""

    created: float | None
    results: dict[str, ProbeResult]


def write_capture(path: str, results: Mapping[str, ProbeResult], probes: Iterable[Probe], created: float) -> None:
    """Write a capture as a folder, or as an archive where the path ends with .tar.gz or .tgz.

    It appears whole or not at all, readable for its owner only: kernel logs and process names are nobody else's.
    Raises CaptureError where something is there already, or nothing can be written.
    """
    import shutil  # these are large, and a check that only reads a folder does without
    import tarfile
    import tempfile

    if os.path.lexists(path):
        raise CaptureError(f"{path} is there already; name another place")
    sources = {probe.id: list(probe.argv or probe.paths) for probe in probes}
    parent = os.path.dirname(os.path.abspath(path))
    try:
        os.makedirs(parent, exist_ok=True)
        # In the same folder, so that the last step is a rename.
        work = tempfile.mkdtemp(prefix=".capture-", dir=parent)
    except OSError as error:
        raise CaptureError(f"cannot write to {parent}: {error.strerror}") from error
    try:
        folder = os.path.join(work, "capture")
        os.mkdir(folder, 0o700)
        _write(os.path.join(folder, "capture.json"), json.dumps({"format": FORMAT, "created": created}))
        for name, result in results.items():
            _write_result(os.path.join(folder, name), result, sources.get(name, []))
        if path.endswith((".tar.gz", ".tgz")):
            archive = os.path.join(work, "archive")
            with tarfile.open(archive, "w:gz") as tar:
                tar.add(folder, arcname="capture")
            os.chmod(archive, 0o600)
            os.rename(archive, path)
        else:
            os.rename(folder, path)
    except OSError as error:
        raise CaptureError(f"cannot write {path}: {error.strerror}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_result(folder: str, result: ProbeResult, source: list[str]) -> None:
    os.mkdir(folder, 0o700)
    sizes = {
        f"{name}_bytes": _write(os.path.join(folder, name), text)
        for name, text in (("stdout", result.stdout), ("stderr", result.stderr))
    }
    fields = {name: getattr(result, name) for name in ("outcome", "rc", "seconds", "when", "root", "why")}
    _write(os.path.join(folder, "meta.json"), json.dumps({"source": source, **fields, **sizes}, indent=1))


def _write(path: str, text: str) -> int:
    data = text.encode("utf-8", "surrogateescape")
    with open(path, "wb") as file:
        file.write(data)
    return len(data)


def read_capture(path: str) -> Capture:
    """Read a capture from a folder or a tar archive (compressed or not); nothing is unpacked to the disk.

    A probe whose files are incomplete, or shorter than its meta.json says, has the outcome `truncated`. Raises
    CaptureError where the whole is no capture.
    """
    if os.path.isdir(path):
        files = _read_folder(path)
    elif os.path.exists(path):
        files = _read_archive(path)
    else:
        raise CaptureError(f"{path} is not there")
    created = None
    about = files.pop(("", "capture.json"), None)
    if about is not None:
        created = _creation(about, path)
    names = sorted({probe for probe, _file in files})
    if not names and about is None:
        raise CaptureError(f"{path} is no capture: it has no folder of a probe and no capture.json")
    return Capture(created, {name: _result(name, files) for name in names})


def _creation(data: bytes, path: str) -> float | None:
    try:
        about = json.loads(data)
        number, created = about["format"], about["created"]
    except (ValueError, KeyError, TypeError):
        return None
    if number != FORMAT:
        raise CaptureError(f"{path} has format {number!r}; this version reads format {FORMAT}")
    return float(created) if isinstance(created, (int, float)) else None


def _read_folder(path: str) -> dict[tuple[str, str], bytes]:
    files: dict[tuple[str, str], bytes] = {}
    total = 0
    try:
        names = sorted(os.listdir(path))
        wanted = [("", "capture.json")] if "capture.json" in names else []
        for name in names:
            if re.fullmatch(r"[a-z0-9_.]+", name) and os.path.isdir(os.path.join(path, name)):
                wanted += [(name, file) for file in ("stdout", "stderr", "meta.json")]
        for key in wanted:
            place = os.path.join(path, *key)
            if not os.path.isfile(place):
                continue
            total += os.path.getsize(place)
            if total > MAX_TOTAL_BYTES:
                raise CaptureError(f"{path} has more than {MAX_TOTAL_BYTES >> 20} MiB")
            with open(place, "rb") as file:
                files[key] = file.read()
    except OSError as error:
        raise CaptureError(f"cannot read {error.filename or path}: {error.strerror}") from error
    return files


def _read_archive(path: str) -> dict[tuple[str, str], bytes]:
    """The members that a capture has; links, devices and names that lead elsewhere are passed over."""
    import tarfile  # as above
    import zlib

    files: dict[tuple[str, str], bytes] = {}
    total = 0
    try:
        with tarfile.open(path, "r:*") as tar:
            for number, member in enumerate(tar):
                total += member.size
                if number >= MAX_FILES or total > MAX_TOTAL_BYTES:
                    raise CaptureError(
                        f"{path} has more than {MAX_FILES} files or {MAX_TOTAL_BYTES >> 20} MiB: it is no capture"
                    )
                match = _FILE.fullmatch(member.name)
                about = re.fullmatch(r"(?:(?:\./)?[^/]+/)?capture\.json", member.name)
                if not member.isreg() or not (match or about):
                    continue
                content = tar.extractfile(member)
                assert content is not None
                key = (match["probe"], match["file"]) if match else ("", "capture.json")
                files[key] = content.read()
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
        if not files:
            raise CaptureError(f"{path} is no readable archive: {error}") from error
        # An archive that was cut: what came before the cut counts, the rest is missing.
    return files


def _result(name: str, files: Mapping[tuple[str, str], bytes]) -> ProbeResult:
    stdout, stderr = files.get((name, "stdout")), files.get((name, "stderr"))
    out, err = ((data or b"").decode("utf-8", "replace") for data in (stdout, stderr))
    meta = _meta(files.get((name, "meta.json")))
    if meta is None:
        return ProbeResult(name, "truncated", None, out, err, 0.0, 0.0, False, "its meta.json is missing or unreadable")
    outcome, why = meta["outcome"], meta["why"]
    sizes = (len(stdout or b""), len(stderr or b""))
    if sizes != (meta["stdout_bytes"], meta["stderr_bytes"]) and outcome != "timeout":
        outcome = "truncated"
    return ProbeResult(name, outcome, meta["rc"], out, err, meta["seconds"], meta["when"], meta["root"], why)


_META: dict[str, tuple[type, ...]] = {
    "outcome": (str,),
    "rc": (int, type(None)),
    "seconds": (int, float),
    "when": (int, float),
    "root": (bool,),
    "why": (str,),
    "stdout_bytes": (int,),
    "stderr_bytes": (int,),
}


def _meta(data: bytes | None) -> dict[str, Any] | None:
    """meta.json, or None where it is not one in every key."""
    try:
        meta = json.loads(data or b"")
    except ValueError:
        return None
    if not isinstance(meta, dict) or meta.get("outcome") not in OUTCOMES:
        return None
    return meta if all(isinstance(meta.get(key), types) for key, types in _META.items()) else None
