# SPDX-License-Identifier: Apache-2.0
"""Decides between KVM and TCG by starting a guest: /dev/kvm may exist and yet run no ordinary kernel."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from lab.host_tools import SEARCH_PATH
from lab.image import Image

# Without a root file system the kernel boots as far as it can and then says so.
BOOTED = "VFS: Unable to mount root fs"
PROBE_LIMIT_S = 30


def choose_accelerator(image: Image, say: Callable[[str], None]) -> str:
    """`kvm` when the image's own kernel boots under it, else `tcg`. Asked once per boot of this machine."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    remembered = image.directory / "accelerator.json"
    try:
        found = json.loads(remembered.read_text())
        if found["boot_id"] == boot_id:
            return str(found["accelerator"])
    except (OSError, ValueError, KeyError):
        pass
    accelerator = "kvm" if _boots_under_kvm(image.kernel) else "tcg"
    if accelerator == "tcg":
        say("/dev/kvm exists but runs no guest kernel here; nodes are emulated (TCG), which is slower")
    remembered.write_text(json.dumps({"boot_id": boot_id, "accelerator": accelerator}) + "\n")
    return accelerator


def _boots_under_kvm(kernel: Path) -> bool:
    command = [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
        "-machine", "q35,kernel-irqchip=split", "-accel", "kvm", "-cpu", "max", "-smp", "4,sockets=2", "-m", "512M",
        "-serial", "stdio", "-kernel", str(kernel), "-append", "console=ttyS0 panic=-1",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_LIMIT_S, check=False,
            env={**os.environ, "PATH": SEARCH_PATH},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return BOOTED.encode() in done.stdout
