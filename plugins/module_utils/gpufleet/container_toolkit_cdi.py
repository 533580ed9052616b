# SPDX-License-Identifier: Apache-2.0
"""Whether the CDI specification is of the driver and the GPUs that are there.

A specification names libraries by the driver's version and GPUs by their device nodes: after a driver upgrade, or with
another set of GPUs, containers that use an old one fail to start, or miss a GPU. It is compared by the few facts that
both nvidia-ctk's YAML and its JSON have literally, since nodes have no YAML parser.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from .nvidia_loaded_driver import PROC_VERSION, parse_proc_version
from .nvidia_module_facts import PROC_GPUS

# NVIDIA's own nvidia-cdi-refresh.service (release 1.18 on) writes it there too. A boot clears the folder, and what lies
# in /run wins over /etc/cdi (CDI specification, "Spec dirs").
SPEC = "/run/cdi/nvidia.yaml"
# By hand, or by older instructions.
STATIC_FOLDER = "/etc/cdi"
NVIDIA_CTK = "/usr/bin/nvidia-ctk"

_LIBRARY = re.compile(r"\blib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)*)")
_NODE = re.compile(r"/dev/nvidia(\d+)\b")
_UUID = re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


class Gpus(NamedTuple):
    """What the driver has: its version (None: none is loaded), device minors, UUIDs (those it tells)."""

    driver: str | None
    minors: frozenset[int]
    uuids: frozenset[str]


class Spec(NamedTuple):
    """What a specification names; made_at is seconds since the epoch."""

    drivers: frozenset[str]
    minors: frozenset[int]
    uuids: frozenset[str]
    made_at: float


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_gpus(root: str = "") -> Gpus:
    """Driver and GPUs by /proc/driver/nvidia."""
    text = _read(root + PROC_VERSION)
    driver = None
    if text is not None:
        with contextlib.suppress(ValueError):
            driver = parse_proc_version(text).version
    minors, uuids = set(), set()
    folder = root + PROC_GPUS
    for address in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        fields = dict(
            re.findall(r"^([^:\n]+):[ \t]*(\S.*)$", _read(f"{folder}/{address}/information") or "", re.MULTILINE)
        )
        if fields.get("Device Minor", "").isdigit():
            minors.add(int(fields["Device Minor"]))
        uuids |= set(_UUID.findall(fields.get("GPU UUID", "")))
    return Gpus(driver, frozenset(minors), frozenset(uuids))


def parse_spec(text: str, made_at: float) -> Spec:
    """The facts of a specification."""
    return Spec(
        frozenset(_LIBRARY.findall(text)),
        frozenset(int(minor) for minor in _NODE.findall(text)),
        frozenset(_UUID.findall(text)),
        made_at,
    )


def read_spec(path: str, root: str = "") -> Spec | None:
    """The specification in a file; None where there is none."""
    text = _read(root + path)
    return parse_spec(text, os.stat(root + path).st_mtime) if text is not None else None


def _listed(numbers: frozenset[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers)) or "none"


def outdated(spec: Spec | None, gpus: Gpus, toolkit_since: float | None) -> list[str]:
    """Why a specification has to be made anew, a phrase each. Nothing where the driver has no GPU: it could make none.

    toolkit_since: when nvidia-ctk was installed, seconds since the epoch.
    """
    if not gpus.minors:
        return []
    if spec is None:
        return ["there is none"]
    reasons = []
    if gpus.driver and spec.drivers != {gpus.driver}:
        named = ", ".join(sorted(spec.drivers)) or "no driver"
        reasons.append(f"it is of {named}, and {gpus.driver} is loaded")
    if spec.minors != gpus.minors:
        reasons.append(f"it has the GPUs {_listed(spec.minors)}, and the driver has {_listed(gpus.minors)}")
    elif spec.uuids and gpus.uuids and spec.uuids != gpus.uuids:
        reasons.append("a GPU was exchanged since it was made")
    if toolkit_since is not None and spec.made_at < toolkit_since:
        reasons.append("the toolkit was installed after it was made")
    return reasons


def static_specs(root: str = "") -> Sequence[str]:
    """Specifications of NVIDIA's devices below /etc/cdi: nobody keeps them current."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(root + STATIC_FOLDER)):
            path = f"{STATIC_FOLDER}/{name}"
            if name.endswith((".yaml", ".json")) and "nvidia.com/gpu" in (_read(root + path) or ""):
                found.append(path)
    return found
