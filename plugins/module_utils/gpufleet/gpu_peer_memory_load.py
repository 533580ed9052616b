# SPDX-License-Identifier: Apache-2.0
"""Why nvidia-peermem could not be loaded, from the words of modprobe and of the kernel log."""

from __future__ import annotations

import re

from .gpu_peer_memory_facts import PeerMemory


def explain_load_failure(said: str, kernel_log: str = "") -> PeerMemory:
    """Why modprobe could not load nvidia-peermem, from what it printed and the kernel log's lines about it.

    The texts are the C library's for the errors of finit_module(2): EKEYREJECTED and ENOKEY (signature), ENODEV
    (nvidia, on which it depends, finds no GPU), EINVAL (built without the interface, or registration failed), ENOENT
    (unknown symbol), ENOEXEC (version magic), EPERM.
    """
    lower, log = said.lower(), kernel_log.lower()
    symbols = re.findall(r"(?:disagrees about version of symbol|unknown symbol) (ib_\w+)", log)
    if symbols:
        return PeerMemory("another_stack", f"the kernel log names symbol {', '.join(dict.fromkeys(symbols))}")
    if "key was rejected" in lower or "required key not available" in lower:
        return PeerMemory("key_rejected")
    if "no such device" in lower:
        return PeerMemory("no_gpu", "modprobe ended with: No such device")
    if "not found in directory" in lower or re.search(r"module \S+ not found", lower):
        return PeerMemory("not_built")
    if "exec format error" in lower or "invalid module format" in lower:
        return PeerMemory("another_kernel")
    if "unknown symbol" in lower:
        return PeerMemory("another_stack", "modprobe ended with: Unknown symbol")
    if "invalid argument" in lower:
        if "error while registering" in log:
            return PeerMemory("not_registered", "ib_core refused its registration")
        return PeerMemory("without_interface", "modprobe ended with: Invalid argument")
    if "operation not permitted" in lower:
        return PeerMemory("refused")
    return PeerMemory("unknown", f"modprobe said: {' '.join(said.split())[-300:] or 'nothing'}")
