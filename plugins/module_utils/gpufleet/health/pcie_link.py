# SPDX-License-Identifier: Apache-2.0
"""The links of GPUs, NICs, disks and NVSwitches, and of the bridges above them, as good as both ends can."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .check import Check, Profile
from .evaluation import unknown
from .finding import Finding
from .node_evidence import NodeEvidence
from .pci_kinds import COLD, NEEDS, absent, capabilities, component, functions_of_kind, lines
from .pci_tree import LSPCI, Link, PciDevice, PciTree
from .probe import NoEvidence


class _End(NamedTuple):
    """One end of a link: what it can do and what it does."""

    device: PciDevice
    capability: Link
    status: Link


def _end(device: PciDevice) -> _End:
    if device.link_capability is None or device.link_status is None:
        name = "LnkCap" if device.link_capability is None else "LnkSta"
        raise NoEvidence(LSPCI, f"no line {name} below {device.heading!r}")
    if device.link_status.speed_gts is None:
        raise NoEvidence(LSPCI, f"this version of lspci does not know the speed of {device.address}")
    return _End(device, device.link_capability, device.link_status)


def check_links(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Every GPU, NIC, disk and NVSwitch, and each bridge above it, has trained to the generation and width it can.

    Expected is devices.*.link of the profile. What both ends of the link can do tells a link that has trained down (a
    fault) from a slot that is narrower by design (the wrong slot, or the wrong profile). A GPU lowers its generation
    while it is idle, and lspci does not tell whether it is: a lower one is not assessed. The width always counts.
    Remarks such as "(downgraded)" do not decide: they stand at every card that is slower than its slot. Error bits of
    a link that has its full width and speed (LaneErrStat, CESta) are no fault. One look misses a link that changes all
    the time (bug 068): gpu.pcie_replays and the kernel log count.

    Source: bugs 066, 067; leptonai/gpud, pkg/pci/testdata (healthy XE9680)
    """
    tree: PciTree = evidence.facts(LSPCI)
    right, judged, not_judged, seen = True, [], [], set()
    uplinks: dict[str, PciDevice] = {}
    for kind, wanted in profile["devices"].items():
        if wanted["link"] is None:
            not_judged.append(kind)
            continue
        try:
            found = functions_of_kind(evidence, profile, kind)
        except NoEvidence as error:
            right = False
            yield unknown(f"kind {kind}", error)
            continue
        for finding in absent(kind, wanted, found):
            right = False
            yield finding
        for device in found:
            for finding in _endpoint(tree, device, kind, wanted["link"]):
                right = False
                yield finding
            uplinks.update({bridge.address: bridge for bridge in tree.path_to_root(device.address)})
            seen.add(device.address)
        judged.append(f"{len(found)} {kind} at {wanted['link']['speed_gts']:g} GT/s x{wanted['link']['width']}")
    if not judged:
        yield Finding("node", "skipped", "the profile wants no link of any kind of device (devices.*.link)")
        return
    for bridge in uplinks.values():
        for finding in _bridge(tree, bridge):
            right = False
            yield finding
    if right:
        more = f"; not judged: {', '.join(not_judged)}" if not_judged else ""
        text = f"{', '.join(judged)} (or better); {len(uplinks)} bridges above them as good as their partners{more}"
        first = [tree.devices[address] for address in sorted(seen)[:1]]
        yield Finding("node", "ok", text, evidence=(lines(*first),))


def _endpoint(tree: PciTree, device: PciDevice, kind: str, wanted: Mapping[str, Any]) -> Iterator[Finding]:
    name = component(device, kind)
    expected = f"{wanted['speed_gts']:g} GT/s x{wanted['width']}"
    if device.silence:
        yield Finding(name, "skipped", f"does not answer ({device.silence}): see pcie.devices, gpu.count")
        return
    try:
        capabilities(tree, device)
        end, upper = _end(device), _upper(tree, device)
    except NoEvidence as error:
        yield unknown(name, error, expected)
        return
    yield from _judge(end, upper, name, wanted, idles=kind == "gpu")
    if upper is not None:
        yield from _far_end(end, upper, speed=kind != "gpu")


def _upper(tree: PciTree, device: PciDevice) -> _End | None:
    """The other end of a function's link; None where no bridge is above it, as in a virtual machine."""
    if device.orphan:
        raise NoEvidence(LSPCI, f"the bridge that leads to {device.address} is not listed")
    if device.parent is None:
        return None
    parent = tree.devices[device.parent]
    capabilities(tree, parent)
    return _end(parent)


def _bridge(tree: PciTree, bridge: PciDevice) -> Iterator[Finding]:
    """The link above a bridge. A root port has none, and the ports within a switch are joined by none."""
    try:
        capabilities(tree, bridge)
        if bridge.express is None:
            raise NoEvidence(LSPCI, f"no line `Capabilities: ... Express` below the bridge {bridge.heading!r}")
        if bridge.express == "Downstream Port":
            return
        upper = _upper(tree, bridge)
        if upper is None:
            return
        end = _end(bridge)
    except NoEvidence as error:
        yield unknown(component(bridge), error)
        return
    yield from _judge(end, upper, component(bridge), None, idles=False)
    yield from _far_end(end, upper, speed=True)


class _Possible(NamedTuple):
    speed_gts: float
    width: int

    def __str__(self) -> str:
        return f"{self.speed_gts:g} GT/s x{self.width}"


def _possible(end: _End, upper: _End | None) -> _Possible:
    """What both ends can do. A capability that is unknown or 0 (emulated ports) limits nothing."""
    both = [end.capability, *([upper.capability] if upper else [])]
    speeds = [link.speed_gts for link in both if link.speed_gts]
    widths = [link.width for link in both if link.width]
    return _Possible(min(speeds, default=end.status.speed_gts or 0), min(widths, default=end.status.width))


def _judge(
    end: _End, upper: _End | None, name: str, wanted: Mapping[str, Any] | None, idles: bool
) -> Iterator[Finding]:
    """wanted: None for bridges, which must reach what is possible."""
    possible = _possible(end, upper)
    speed, width = end.status.speed_gts or 0, end.status.width
    want = _Possible(wanted["speed_gts"], wanted["width"]) if wanted else possible
    evidence = (lines(end.device, *([upper.device] if upper else [])),)
    slow = speed < max(want.speed_gts, possible.speed_gts)
    narrow = width < max(want.width, possible.width)
    if narrow or (slow and not idles):
        trained_down = width < possible.width or (speed < possible.speed_gts and not idles)
        enough = width >= want.width and (speed >= want.speed_gts or idles)
        where = f" (the slot, {component(upper.device)}, can do {upper.capability})" if upper else ""
        if trained_down:
            action = "reseat"
            advice = (
                f"the link has trained down: {COLD}; if it stays, exchange the part or the cable of the slot"
                if not end.device.is_bridge
                else f"the link above the bridge has trained down: {COLD} or the cable to its board"
            )
        else:
            action = "inspect"
            advice = "the slot or the card can do no more: the part is in the wrong slot, or devices.*.link is wrong"
        yield Finding(
            name,
            "warn" if enough else "fail",
            f"link at {end.status}; both ends can do {possible}{where}",
            f"{max(want.speed_gts, 0):g} GT/s x{want.width}" if not enough else str(possible),
            "observe" if enough else action,
            advice,
            evidence,
            "bug 066",
        )
    elif slow:
        yield Finding(
            name,
            "skipped",
            f"{end.status}: generation not assessed, since an idle GPU lowers it and lspci does not tell whether it is "
            f"idle; the width is right",
            str(want),
            advice="gpu.pcie_link judges it by what the driver says of the GPU's load",
            evidence=evidence,
            reference="bug 067",
        )


def _far_end(end: _End, upper: _End, speed: bool) -> Iterator[Finding]:
    """The bridge's own reading of the same link, where it is worse than the lower end's."""
    possible = _possible(end, upper)
    narrow = upper.status.width < min(possible.width, end.status.width)
    slow = speed and (upper.status.speed_gts or 0) < min(possible.speed_gts, end.status.speed_gts or 0)
    if narrow or slow:
        yield Finding(
            component(upper.device),
            "fail",
            f"its end of the link to {end.device.address} is at {upper.status}, the other end at {end.status}",
            str(possible),
            "reseat",
            f"run the check again, since the link may have been training; if it stays, {COLD}",
            (lines(upper.device, end.device),),
            "bug 066",
        )


CHECKS = (Check("pcie.link", check_links, NEEDS),)
