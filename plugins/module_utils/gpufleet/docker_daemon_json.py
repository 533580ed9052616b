# SPDX-License-Identifier: Apache-2.0
"""daemon.json of the container engine: read strictly, merged, and compared with what a running engine has loaded.

Which keys an engine takes over at SIGHUP is moby's daemon/reload.go and reload_unix.go; defaults are dockerd(8)'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from .docker_error import DockerError

PATH = "/etc/docker/daemon.json"

# `features` is in moby's list too, but what it switches (CDI, the image store) counts only when the engine starts.
RELOADED = frozenset(
    {
        "debug",
        "default-runtime",
        "default-shm-size",
        "insecure-registries",
        "labels",
        "live-restore",
        "max-concurrent-downloads",
        "max-concurrent-uploads",
        "max-download-attempts",
        "registry-mirrors",
        "runtimes",
        "shutdown-timeout",
    }
)
DEFAULTS: Mapping[str, Any] = {
    "data-root": "/var/lib/docker",
    "debug": False,
    "default-runtime": "runc",
    "live-restore": False,
    "log-driver": "json-file",
    "log-opts": {},
    "registry-mirrors": [],
    "runtimes": {},
}

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]', re.DOTALL)
_REPAIR = "mend {path} by hand (python3 -m json.tool {path} shows what it makes of it), or move it away, then run again"


def _refuse(path: str, what: str) -> NoReturn:
    raise DockerError(f"{path} {what}. It was not altered", _REPAIR.format(path=path))


def _place(text: str, offset: int) -> str:
    line = text.count("\n", 0, offset) + 1
    return f"line {line} column {offset - (text.rfind(chr(10), 0, offset) + 1) + 1}"


def _double_key(text: str) -> tuple[str, int] | None:
    """The first key that stands twice in one object of valid JSON, and the offset of its second place."""
    objects: list[set[str] | None] = []
    last = None
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word == "{":
            objects.append(set())
        elif word == "[":
            objects.append(None)
        elif word in "}]":
            objects.pop()
        elif word == ":" and last is not None:
            key, keys = json.loads(last.group()), objects[-1]
            if keys is not None:
                if key in keys:
                    return key, last.start()
                keys.add(key)
        last = token if word.startswith('"') else None
    return None


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def parse(content: bytes, path: str = PATH) -> dict[str, Any]:
    """What the file says; an empty one says nothing.

    Raises:
        DockerError: for what the engine would refuse or read in two ways: no UTF-8, no JSON, no object, a key twice in
            one object. The message has line and column.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        _refuse(path, f"is no UTF-8 text (line {line})")
    if not text.strip():
        return {}
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        _refuse(path, f"is no valid JSON: {error.msg}, line {error.lineno} column {error.colno}")
    except ValueError as error:
        _refuse(path, f"is no valid JSON: {error}")
    except RecursionError:
        _refuse(path, "is nested too deeply to be a configuration")
    if not isinstance(found, dict):
        kind = {list: "a list", str: "a text"}.get(type(found), "a single value")
        _refuse(path, f"holds {kind}, expected an object ({{...}}), line 1 column 1")
    double = _double_key(text)
    if double:
        key, offset = double
        _refuse(path, f"names the key {key!r} twice in one object, the second time at {_place(text, offset)}")
    return found


def render(settings: Mapping[str, Any]) -> bytes:
    """The file's content: four blanks, as nvidia-ctk writes it, keys in the order that they have."""
    return (json.dumps(settings, indent=4, ensure_ascii=False) + "\n").encode()


def merge(there: Mapping[str, Any], ours: Mapping[str, Any], path: str = PATH, below: str = "") -> dict[str, Any]:
    """`there` with `ours` in it: objects are merged, anything else is replaced, what only `there` has is kept.

    Raises:
        DockerError: where `ours` has an object and `there` something else, which nobody can merge.
    """
    merged = dict(there)
    for key, value in ours.items():
        if isinstance(value, Mapping):
            now = merged.get(key, {})
            if not isinstance(now, Mapping):
                _refuse(path, f"has {json.dumps(now)} as {below}{key}, expected an object ({{...}})")
            merged[key] = merge(now, value, path, f"{below}{key}.")
        else:
            merged[key] = value
    return merged


def differing(loaded: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Keys in which two configurations differ once defaults are filled in."""
    left, right = {**DEFAULTS, **loaded}, {**DEFAULTS, **wanted}
    return sorted(key for key in {*left, *right} if key not in left or key not in right or left[key] != right[key])
