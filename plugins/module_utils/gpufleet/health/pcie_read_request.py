# SPDX-License-Identifier: Apache-2.0
"""How much a PCI function may ask for in one read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .check import Check, Profile
from .evaluation import unknown
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .pci_kinds import DISKS, absent, capabilities, component, functions_of_kind
from .pci_tree import LSPCI, PciDevice, PciTree
from .probe import NoEvidence


def check_max_read_request(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """The largest read that a function may ask for (MaxReadReq) is at least what the profile wants.

    A NIC that asks for 512 bytes at a time cannot fill 400 Gb/s. Firmware, drivers and resets put it back.

    Source: devices.*.max_read_request_bytes of the profile; leptonai/gpud, pkg/pci/testdata (XE9680: 4096 everywhere)
    """
    tree: PciTree = evidence.facts(LSPCI)
    right, judged, last = True, [], None
    for kind, wanted in profile["devices"].items():
        least = wanted.get("max_read_request_bytes")
        if least is None:
            continue
        try:
            found = functions_of_kind(evidence, profile, kind)
        except NoEvidence as error:
            right = False
            yield unknown(f"kind {kind}", error, f"at least {least} bytes")
            continue
        for finding in absent(kind, wanted, found):
            right = False
            yield finding
        for device in found:
            last = device
            for finding in _read_request(tree, device, kind, least):
                right = False
                yield finding
        judged.append(f"{len(found)} {kind} at {least} bytes or more")
    if not judged and right:
        yield Finding("node", "skipped", "the profile wants no read request size (devices.*.max_read_request_bytes)")
    elif right:
        text = f"{last.heading}\nMaxReadReq {last.max_read_request_bytes} bytes" if last else ""
        yield Finding("node", "ok", f"MaxReadReq: {', '.join(judged)}", evidence=(Evidence(LSPCI, text),))


def _read_request(tree: PciTree, device: PciDevice, kind: str, least: int) -> Iterator[Finding]:
    name, expected = component(device, kind), f"at least {least} bytes"
    if device.silence:
        yield Finding(name, "skipped", f"does not answer ({device.silence}): see pcie.devices, gpu.count")
        return
    try:
        capabilities(tree, device)
        if device.max_read_request_bytes is None:
            raise NoEvidence(LSPCI, f"no line with MaxReadReq below {device.heading!r}")
    except NoEvidence as error:
        yield unknown(name, error, expected)
        return
    if device.max_read_request_bytes < least:
        # PCI Express specification, device control register: 128 bytes << the three bits 14:12
        bits = (least // 128).bit_length() - 1
        yield Finding(
            name,
            "warn",
            f"MaxReadReq {device.max_read_request_bytes} bytes",
            expected,
            "observe",
            f"set it until the next reset with `setpci -s {device.address} CAP_EXP+8.w={bits}000:7000`, and for good "
            "in the BIOS or the firmware of the card",
            (Evidence(LSPCI, f"{device.heading}\nMaxReadReq {device.max_read_request_bytes} bytes"),),
            f"profile, devices.{kind}.max_read_request_bytes",
        )


CHECKS = (Check("pcie.max_read_request", check_max_read_request, (LSPCI,), also=DISKS),)
