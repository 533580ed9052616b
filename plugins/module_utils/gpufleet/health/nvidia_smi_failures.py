# SPDX-License-Identifier: Apache-2.0
"""What nvidia-smi says instead of an answer. All of it goes to stdout (recordings of drivers 525 to 555)."""

from __future__ import annotations

import re
from typing import NamedTuple

from .gpu_facts import normalized_address


class Failure(NamedTuple):
    """Why nvidia-smi as a whole gives no answer. text: its words. status, action, advice: as in a finding."""

    text: str
    status: str
    action: str
    advice: str
    reference: str


class HandleFailure(NamedTuple):
    """A GPU that the driver cannot open. number: as nvidia-smi counts, None where only the address is printed."""

    number: int | None
    address: str | None
    reason: str

    @property
    def component(self) -> str:
        """How findings name this GPU, by what is known of it."""
        if self.number is None:
            return f"GPU {self.address}"
        return f"GPU {self.number}" + (f" ({self.address})" if self.address else "")


_RECORDED = "recordings of nvidia-smi, README"
# Pattern of the words, then status, action, advice, reference. The exit status alone does not tell them apart: driver
# 525 ends with 255 for a version mismatch as for an unknown error.
_FAILURES: tuple[tuple[str, str, str, str, str], ...] = (
    (
        r"couldn't find libnvidia-ml\.so library",
        "fail",
        "inspect",
        "the user-space part of the NVIDIA driver is not installed, or its library is not found: install the driver "
        "packages of the profile on this node, then run ldconfig",
        f"exit status 12; {_RECORDED}",
    ),
    (
        r"couldn't communicate with the NVIDIA driver",
        "fail",
        "reboot",
        "the kernel module is not loaded: look at 'modprobe nvidia' and 'dmesg | grep -i nvrm' (module not built for "
        "this kernel, Secure Boot, nouveau); reboot once it is there",
        "exit status 9; bug 004",
    ),
    (
        r"Driver/library version mismatch",
        "fail",
        "reboot",
        "the driver was upgraded while its old kernel module stayed loaded: drain the node and reboot it",
        f"exit status 18, 255 with driver 525; {_RECORDED}",
    ),
    (
        r"Failed to initialize NVML: GPU is lost",
        "fail",
        "reboot",
        "a GPU has fallen off the bus: look for Xid 79 in the kernel log to see which one, drain the node, reboot it",
        f"exit status 15; {_RECORDED}",
    ),
    (
        r"Failed to initialize NVML: Insufficient Permissions",
        "unknown",
        "none",
        "the checker may not open /dev/nvidia*: run it as root, or look at the rights of these devices",
        f"exit status 4; {_RECORDED}",
    ),
    (
        r"Failed to initialize NVML: Driver Not Loaded",
        "fail",
        "reboot",
        "the kernel module is not loaded: look at 'modprobe nvidia' and 'dmesg | grep -i nvrm', then reboot",
        "NVML API reference, nvmlReturn_t",
    ),
    (
        r"Failed to initialize NVML: ",
        "fail",
        "reboot",
        "the driver's library cannot start, often after a GPU fell off the bus: save the kernel log (Xid lines), "
        "drain the node, reboot it",
        f"exit status 255; {_RECORDED}",
    ),
    (
        r"No devices (?:were )?found",
        "fail",
        "power_cycle",
        "the driver is loaded and drives no GPU: see with 'lspci -d 10de:' whether they are on the bus and with "
        "'dmesg | grep -i nvrm' why the driver refused them; power-cycle the node",
        "exit status 6, 0 with -L; bug 004",
    ),
)
_HANDLE = re.compile(
    r"Unable to determine the device handle for gpu ?(?:(\d+)(?![0-9a-fA-F]*:[0-9a-fA-F]{2}:))?:? ?"
    r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])?: ?"
    r"(GPU is lost|Unknown Error|GPU requires reset|[^.]{1,80})",
    re.IGNORECASE,
)
# Where such a message begins: up to there belongs to the one before.
_START = re.compile(r"(?=Unable to determine the device handle)|(?=\bGPU \d+: )")


def failure_of(text: str) -> Failure | None:
    """Why there is no answer at all; None where the text says nothing of that kind. Lines may be wrapped anywhere."""
    words = " ".join(text.split())
    for pattern, status, action, advice, reference in _FAILURES:
        if re.search(pattern, words):
            return Failure(words[:200], status, action, advice, reference)
    return None


def handle_failures(text: str) -> tuple[HandleFailure, ...]:
    """The GPUs that the driver could not open, in the order printed. The message may be wrapped (bug 006)."""
    failures = []
    for part in _START.split(" ".join(text.split())):
        found = _HANDLE.match(part)
        if found and (found.group(1) or found.group(2)):
            number = int(found.group(1)) if found.group(1) else None
            address = normalized_address(found.group(2)) if found.group(2) else None
            failures.append(HandleFailure(number, address, found.group(3).strip()))
    return tuple(failures)
