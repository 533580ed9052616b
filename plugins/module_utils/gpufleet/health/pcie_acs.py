# SPDX-License-Identifier: Apache-2.0
"""PCIe ACS: whether a bridge between a GPU and its NIC sends their traffic up to the root complex."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .check import Check, Profile
from .evaluation import unknown
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .pci_kinds import DISKS, absent, capabilities, component, functions_of_kind
from .pci_tree import LSPCI, PciDevice, PciTree
from .probe import NoEvidence

_REFERENCE = "NCCL documentation, troubleshooting, PCI access control services; bug 071"


def check_acs(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """No bridge between a GPU and its NIC redirects their peer-to-peer traffic (ReqRedir, CmpltRedir, UpstreamFwd).

    With redirection GPUDirect RDMA takes the way over the root complex: it is slow, or NCCL hangs. Only the bridges
    from both devices up to the first one that they share are judged: bits of other bridges (chip set, NVSwitches) do
    no harm, neither does SrcValid by itself. A bridge without the capability cannot redirect; one whose capability
    lspci hides, for want of root or of the extended configuration space, is unknown, not off.

    Source: platform.acs_redirect of the profile; bugs 071, 072; NVIDIA/nccl 304, 606, 629
    """
    if profile["platform"]["acs_redirect"] != "off":
        yield Finding("node", "skipped", "the profile keeps ACS redirection as found (platform.acs_redirect)")
        return
    tree: PciTree = evidence.facts(LSPCI)
    right, bridges, paired = True, {}, []
    for one, other in _pairs(profile):
        found = {}
        for kind in (one, other):
            found[kind] = functions_of_kind(evidence, profile, kind)
            for finding in absent(kind, profile["devices"][kind], found[kind]):
                right = False
                yield finding
        paired.append(f"{len(found[one])} {one} and {len(found[other])} {other}")
        for device in (*found[one], *found[other]):
            partners = found[other] if device in found[one] else found[one]
            if device.orphan:
                right = False
                why = f"the bridge that leads to {device.address} is not listed"
                yield unknown(component(device), NoEvidence(LSPCI, why))
            bridges.update({bridge.address: bridge for bridge in _between(tree, device, partners)})
    if not paired:
        yield Finding("node", "skipped", "the profile pairs no kinds of devices (devices.*.pair_with)")
        return
    without = []
    for bridge in bridges.values():
        for finding in _judge(tree, bridge):
            right = False
            yield finding
        if not bridge.acs_shown:
            without.append(bridge.address)
    if right:
        yield _all_off(bridges, paired, without)


def _pairs(profile: Profile) -> list[tuple[str, str]]:
    """Kinds of devices that belong together, each pair once."""
    pairs = {tuple(sorted((kind, wanted["pair_with"]))) for kind, wanted in profile["devices"].items() if
             wanted["pair_with"]}  # fmt: skip
    return sorted((one, other) for one, other in pairs)


def _between(tree: PciTree, device: PciDevice, partners: list[PciDevice]) -> list[PciDevice]:
    """The bridges from a device up to the first that any partner shares, that one included; all where none does."""
    path = tree.path_to_root(device.address)
    shared = {bridge.address for partner in partners for bridge in tree.path_to_root(partner.address)}
    for index, bridge in enumerate(path):
        if bridge.address in shared:
            return path[: index + 1]
    return path


def _judge(tree: PciTree, bridge: PciDevice) -> Iterator[Finding]:
    name = component(bridge)
    try:
        capabilities(tree, bridge)
        if not bridge.acs_shown and not bridge.extended:
            raise NoEvidence(LSPCI, f"no extended capability is shown below {bridge.heading!r}, so ACS cannot be seen")
        if bridge.acs_shown and (bridge.acs_control is None or bridge.acs_capability is None):
            raise NoEvidence(LSPCI, f"no lines ACSCap and ACSCtl below {bridge.heading!r}")
    except NoEvidence as error:
        yield unknown(name, error, "no redirection")
        return
    control = bridge.acs_control
    if control is None or not control.redirects:
        return
    bits = {"ReqRedir": control.request_redirect, "CmpltRedir": control.completion_redirect}
    bits["UpstreamFwd"] = control.upstream_forwarding
    on = [bit for bit, is_on in bits.items() if is_on]
    yield Finding(
        name,
        "fail",
        f"redirects peer-to-peer traffic: {', '.join(f'{bit}+' for bit in on)}",
        "ReqRedir-, CmpltRedir-, UpstreamFwd-",
        "restart_service",
        f"switch it off with `setpci -s {bridge.address} ECAP_ACS+6.w=0:1c` while no job runs; it must be done again "
        "after every boot and reset, and a kernel whose IOMMU translates turns it on (see the check iommu)",
        (Evidence(LSPCI, f"{bridge.heading}\n{control.text}"),),
        _REFERENCE,
    )


def _all_off(bridges: dict[str, PciDevice], paired: list[str], without: list[str]) -> Finding:
    text = f"{'; '.join(paired)}: none of the {len(bridges)} bridges between them redirects"
    if without:
        text += f" ({len(without)} have no ACS capability and cannot: {', '.join(without)})"
    if validating := [bridge.address for bridge in bridges.values() if bridge.acs_control and
                      bridge.acs_control.source_validation]:  # fmt: skip
        text += f"; SrcValid+ on {', '.join(validating)}, which is harmless by itself"
    shown = next((bridge for bridge in bridges.values() if bridge.acs_control), None)
    lines = f"{shown.heading}\n{shown.acs_control.text}" if shown and shown.acs_control else ""
    return Finding("node", "ok", text, evidence=(Evidence(LSPCI, lines),), reference=_REFERENCE)


CHECKS = (Check("pcie.acs", check_acs, (LSPCI,), also=DISKS),)
