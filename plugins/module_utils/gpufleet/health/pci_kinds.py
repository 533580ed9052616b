# SPDX-License-Identifier: Apache-2.0
"""The PCI functions of each kind of device in the profile, and what a finding calls them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .check import Profile
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .pci_tree import LSPCI, PciDevice, PciTree, devices_of_class
from .probe import NoEvidence
from .system_disks import LINKS, MOUNTS, system_disk_addresses

# What functions_of_kind reads; a check that calls it declares all of it, DISKS for kinds without the system's disk.
DISKS = (LINKS, MOUNTS)
NEEDS = (LSPCI, *DISKS)

NEEDS_ROOT = "lspci ran without root, which hides the capabilities of PCI functions (<access denied>)"

# What to do first about a function that has died or a link that has trained down.
COLD = "power the node off and on again (a warm reboot does not reset the link); if it comes back so, reseat the part"

_LABELS = {"gpu": "GPU", "nvswitch": "NVSwitch", "hca": "NIC", "ethernet": "NIC", "data_disk": "NVMe"}


def functions_of_kind(evidence: NodeEvidence, profile: Profile, kind: str) -> list[PciDevice]:
    """The functions of one kind, by address, without the system's own disk where the profile says so.

    Raises NoEvidence.
    """
    wanted = profile["devices"][kind]
    found = devices_of_class(evidence.facts(LSPCI), wanted)
    if not wanted.get("without_os_disk"):
        return found
    own = system_disk_addresses(evidence.facts(LINKS), evidence.facts(MOUNTS))
    return [device for device in found if device.address not in own]


def component(device: PciDevice, kind: str = "") -> str:
    """Such as "NIC 0000:9c:00.0" or "bridge 0000:98:00.0"."""
    if device.is_bridge:
        return f"bridge {device.address}"
    label = _LABELS.get(kind)
    if label is None:
        base = (device.class_code or "")[:2]
        label = "NVMe" if device.class_code == "0108" else "NIC" if base == "02" else "function"
    return f"{label} {device.address}"


def absent(kind: str, wanted: Mapping[str, Any], found: Sequence[PciDevice]) -> Iterator[Finding]:
    """Says that nothing was seen of some of a kind: their number is judged by pcie.devices, gpu.count and the like."""
    if len(found) < wanted["count"]:
        text = f"{wanted['count'] - len(found)} of {wanted['count']} are not there (see pcie.devices, gpu.count)"
        yield Finding(f"kind {kind}", "skipped", text, evidence=(Evidence(LSPCI),))


def lines(*devices: PciDevice) -> Evidence:
    """The lines of lspci about these functions that decide on links."""
    texts = []
    for device in devices:
        texts.append(device.heading)
        texts += [link.text for link in (device.link_capability, device.link_status) if link]
    return Evidence(LSPCI, "\n".join(texts))


def capabilities(tree: PciTree, device: PciDevice) -> None:
    """Raises NoEvidence where a missing line about this function would say nothing."""
    if not tree.verbose:
        raise NoEvidence(LSPCI, "lspci was called without -vvv, so there are no capabilities")
    if tree.without_root:
        raise NoEvidence(LSPCI, NEEDS_ROOT)
    if device.silence:
        raise NoEvidence(LSPCI, f"{device.address} does not answer ({device.silence})")
