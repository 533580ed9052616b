# SPDX-License-Identifier: Apache-2.0
"""All PCI functions that the profile counts are there, and all answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .check import Check, Profile
from .evaluation import unknown
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .pci_kinds import COLD, NEEDS, component, functions_of_kind
from .pci_tree import LSPCI, PciDevice, PciTree
from .probe import NoEvidence

# gpu.count and nvlink's checks count these, together with what the driver says.
_COUNTED_ELSEWHERE = ("gpu", "nvswitch")


def check_devices(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Every PCI function that the profile counts is there and answers, and there are no more of its kind.

    GPUs and NVSwitches are counted by gpu.count and nvlink's checks. A function that has died stays in the list with
    "(rev ff)" and an unknown header type, so that counting lines finds nothing. A dead bridge is reported too.

    Source: bug 070 (kata-containers/kata-containers 835, pciutils/pciutils 91); counts: devices.*.count of the profile
    """
    tree: PciTree = evidence.facts(LSPCI)
    counted, kinds, right = [], {}, True
    for kind, wanted in profile["devices"].items():
        try:
            found = functions_of_kind(evidence, profile, kind)
        except NoEvidence as error:
            right = False
            yield unknown(f"kind {kind}", error, f"{wanted['count']} functions")
            continue
        kinds.update({device.address: kind for device in found})
        if kind in _COUNTED_ELSEWHERE:
            continue
        counted.append(f"{len(found)} {kind}")
        if len(found) != wanted["count"]:
            right = False
            yield _wrong_count(tree, profile, kind, found)
    for device in tree.devices.values():
        kind = kinds.get(device.address, "")
        if device.silence and kind not in _COUNTED_ELSEWHERE:
            right = False
            yield _lost(device, kind)
    if right:
        text = f"{', '.join(counted)}; all {len(tree.devices)} PCI functions answer" if counted else "none is counted"
        yield Finding("node", "ok", text, evidence=(Evidence(LSPCI),))


def _wrong_count(tree: PciTree, profile: Profile, kind: str, found: list[PciDevice]) -> Finding:
    count = profile["devices"][kind]["count"]
    listed = "\n".join(device.heading for device in found) or "none"
    reference = f"profile, devices.{kind}.count"
    if len(found) > count:
        return Finding(
            f"kind {kind}",
            "warn",
            f"{len(found)} functions: {', '.join(device.address for device in found)}",
            f"{count} functions",
            "observe",
            f"find out where the additional part comes from; if it belongs there, correct devices.{kind}.count",
            (Evidence(LSPCI, listed),),
            reference,
        )
    beside = _without_partner(tree, profile, kind, found)
    return Finding(
        f"kind {kind}",
        "fail",
        f"{len(found)} functions{f'; none beside {beside}' if beside else ''}",
        f"{count} functions",
        "power_cycle",
        f"look for the part in the BMC's inventory{f' (near {beside})' if beside else ''}, then {COLD}",
        (Evidence(LSPCI, listed),),
        reference,
    )


def _without_partner(tree: PciTree, profile: Profile, kind: str, found: list[PciDevice]) -> str:
    """Functions of the paired kind that share no bridge with any of `found`: where the missing ones should be."""
    other = profile["devices"][kind]["pair_with"]
    if other is None:
        return ""
    from_other = [device for device in tree.devices.values() if _is_of(device, profile["devices"][other])]
    alone = [one for one in from_other if not any(tree.shared_bridge(one.address, two.address) for two in found)]
    return ", ".join(component(device, other) for device in alone) if len(alone) < len(from_other) else ""


def _is_of(device: PciDevice, wanted: Mapping[str, Any]) -> bool:
    own = {"vendor": device.vendor, "device": device.device, "class": device.class_code}
    return any(all(own[key] == value for key, value in rule.items()) for rule in wanted["match"])


def _lost(device: PciDevice, kind: str) -> Finding:
    matters = bool(kind) or device.is_bridge
    return Finding(
        component(device, kind),
        "fail" if matters else "warn",
        f"does not answer: {device.silence}",
        "a function that answers",
        "power_cycle" if matters else "observe",
        COLD if matters else "no part that the profile counts; look at it when the node is serviced",
        (Evidence(LSPCI, f"{device.heading}\n{device.silence}"),),
        "bug 070",
    )


CHECKS = (Check("pcie.devices", check_devices, NEEDS),)
