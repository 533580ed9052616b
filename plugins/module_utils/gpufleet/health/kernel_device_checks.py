# SPDX-License-Identifier: Apache-2.0
"""Checks of the kernel log for devices beside the GPUs: PCIe, NVMe disks, ConnectX cards, file systems."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .check import Check, Profile
from .finding import Evidence, Finding
from .kernel_log_addresses import any_address, pci_address
from .kernel_log_window import NEEDS, Event, KernelEvidence, limits, without_known
from .kernel_system_checks import concluded, proofs, within
from .node_evidence import NodeEvidence
from .pci_tree import LSPCI, devices_of_class

# Devices that a message of a driver names, for the words of a component.
_KIND_BY_DRIVER = {"nvidia": "GPU", "mlx5_core": "NIC", "nvme": "NVMe", "pcieport": "bridge"}
# Kinds of devices of a profile, for the same.
_KIND_BY_CLASS = {"gpu": "GPU", "nvswitch": "NVSwitch", "hca": "NIC", "ethernet": "NIC", "data_disk": "NVMe"}


def _by_device(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Events by component: the device whose driver prints the message."""
    devices: dict[str, list[Event]] = {}
    for event in events:
        address = any_address(event.text)
        driver = event.text.split(" ", 1)[0]
        component = f"{_KIND_BY_DRIVER.get(driver, 'PCIe device')} {address}" if address else "node"
        devices.setdefault(component, []).append(event)
    return devices


def check_pcie(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """PCIe errors that the kernel logged (AER, DPC, hot-plug): fatal, uncorrected, lost links, corrected ones.

    The kernel names the port or device that reported the error. Corrected errors are judged by their rate
    (limits.kernel_log.corrected_pcie_errors): single ones are what the protocol is there for.

    Source: Linux, drivers/pci/pcie/aer.c, dpc.c and err.c; a case of rwth-i6/returnn (issue 1500).
    """
    kernel = KernelEvidence(evidence)
    yield from concluded(kernel, _pcie(kernel, profile), "no uncorrected PCIe error, no rate of corrected ones")


def _pcie(kernel: KernelEvidence, profile: Profile) -> Iterator[Finding]:
    reference = "Linux, drivers/pci/pcie/aer.c"
    for component, events in _by_device(kernel.messages("pcie_fatal", "pcie_recovery")).items():
        advice = "Drain and reboot the node; if it comes back, reseat the card or cable and look at power and heat."
        words = f"fatal PCIe error, {kernel.often(events)}: {events[0].text[:160]}"
        yield Finding(component, "fail", words, "none", "reboot", advice, proofs(events), reference)
    uncorrected = kernel.recent(kernel.messages("pcie_uncorrected", "pcie_link_down"), profile)
    for component, events in _by_device(uncorrected).items():
        advice = "Look at the link of this device (check pcie.link); if it comes back, reseat the card or cable."
        words = f"uncorrected PCIe error or lost link, {kernel.often(events)}: {events[0].text[:160]}"
        yield Finding(component, "warn", words, "none", "observe", advice, proofs(events), reference)
    rule = limits(profile)["corrected_pcie_errors"]
    for component, events in _by_device(kernel.recent(kernel.messages("pcie_corrected"), profile)).items():
        count = within(events, rule["within_h"])
        if count >= rule["count"]:
            advice = "Look at the link of this device (check pcie.link) and reseat the card or cable when it is idle."
            words = f"{count} corrected PCIe errors within {rule['within_h']:g} h ({kernel.often(events)})"
            expected = f"fewer than {rule['count']}"
            yield Finding(component, "warn", words, expected, "observe", advice, proofs(events), reference)


class _Limited(NamedTuple):
    """The kernel's statement that a device has less PCIe bandwidth than it could."""

    event: Event
    device: str
    speed_gts: float
    width: int
    bridge: str


_LIMITED = re.compile(
    r"(\S+): (\S+ Gb/s available PCIe bandwidth, limited by ([\d.]+) GT/s PCIe x(\d+) link at ([0-9a-f:.]+))"
)


def _limited(event: Event) -> _Limited | None:
    found = _LIMITED.search(event.text)
    device, bridge = (pci_address(found[1]), pci_address(found[5])) if found else (None, None)
    if not found or device is None:
        return None
    return _Limited(event, device, float(found[3]), int(found[4]), bridge or found[5])


def check_pcie_bandwidth(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """Devices for which the kernel found less PCIe bandwidth than they could use, and the bridge that limits it.

    The kernel says so while it starts, before anything is idle, and names the narrow place. Judged are the devices of
    the profile's kinds whose link is narrower or slower than `devices.<kind>.link`; the BMC's graphics card and parts
    that are narrow by design are not.

    Source: imbue-ai/cluster-health, PCIe check of health_checks.py; Linux, drivers/pci/pci.c.
    """
    kernel = KernelEvidence(evidence)
    tree = evidence.facts(LSPCI)
    judged = {}
    for name, kind in profile["devices"].items():
        if kind["link"] is not None:
            judged.update({device.address: (name, kind["link"]) for device in devices_of_class(tree, kind)})
    findings = _narrow(kernel, judged)
    yield from concluded(kernel, findings, "no device of the profile with less PCIe bandwidth than it should have")


def _narrow(kernel: KernelEvidence, judged: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Iterator[Finding]:
    newest: dict[str, _Limited] = {}
    for event in kernel.messages("pcie_limited"):
        if (limited := _limited(event)) is not None and limited.device in judged:
            newest[limited.device] = limited
    for address, limited in sorted(newest.items()):
        name, link = judged[address]
        if limited.speed_gts >= link["speed_gts"] and limited.width >= link["width"]:
            continue
        yield Finding(
            f"{_KIND_BY_CLASS.get(name, name)} {address}",
            "fail",
            f"{limited.speed_gts:g} GT/s x{limited.width} at {limited.bridge}, {kernel.often([limited.event])}",
            f"{link['speed_gts']:g} GT/s x{link['width']} (devices.{name}.link)",
            "reseat",
            f"Compare with check pcie.link, which shows the link of today; reboot, then reseat what lies behind "
            f"{limited.bridge}.",
            (Evidence(limited.event.source, limited.event.excerpt),),
            "imbue-ai/cluster-health, PCIe check",
        )


_NVME = re.compile(r"\b(nvme\d+)(?:n\d+)?\b")
_NVME_FUNCTION = re.compile(r"nvme (nvme\d+): pci function ([0-9a-f:.]+)")


def check_nvme(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """NVMe disks: lost controllers, media errors, commands that timed out, one finding for each disk.

    Source: leptonai/gpud, disk matchers; facebookresearch/gcm; Linux, drivers/nvme/host.
    """
    kernel = KernelEvidence(evidence)
    yield from concluded(kernel, _nvme(kernel, profile), "no lost NVMe disk, media error or timeout")


def _nvme(kernel: KernelEvidence, profile: Profile) -> Iterator[Finding]:
    addresses = {}
    for event in kernel.messages("nvme_function"):
        if found := _NVME_FUNCTION.search(event.text):
            addresses[found[1]] = pci_address(found[2])
    disks: dict[str, dict[str, list[Event]]] = {}
    for kind in ("nvme_lost", "nvme_media", "nvme_timeout"):
        for event in kernel.messages(kind):
            found = _NVME.search(event.text)
            disks.setdefault(found[1] if found else "", {}).setdefault(kind, []).append(event)
    for disk, kinds in sorted(disks.items()):
        address = addresses.get(disk)
        component = f"NVMe {address}" if address else f"NVMe {disk or 'of unknown name'}"
        worst, words, action, advice = next(_NVME_FAULTS[kind] for kind in _NVME_FAULTS if kind in kinds)
        events = next(kinds[kind] for kind in _NVME_FAULTS if kind in kinds)
        if worst == "warn" and not kernel.recent(events, profile):
            continue
        observed = f"{disk}: {words}, {kernel.often(events)}"
        every = [event for kind in _NVME_FAULTS for event in kinds.get(kind, ())]
        yield Finding(component, worst, observed, "none", action, advice, proofs(every), "leptonai/gpud, disk matchers")


_NVME_FAULTS = {
    "nvme_lost": (
        "fail",
        "the disk or the path to it is lost",
        "power_cycle",
        "Look at the pool (check zfs.pool); switch the node's power off and on, then reseat or replace the disk.",
    ),
    "nvme_media": (
        "fail",
        "the disk could not read or write blocks",
        "replace",
        "Look at the pool and the disk's SMART data (nvme smart-log), and replace the disk where it shows errors.",
    ),
    "nvme_timeout": (
        "warn",
        "commands timed out and the controller was reset",
        "observe",
        "Look at the disk's SMART data (nvme smart-log); reseat it when it comes back.",
    ),
}

_MLX5_FAULTS = {
    "mlx5_health": (
        "fail",
        "the card's firmware is in trouble",
        "reboot",
        "Drain and reboot the node; if it comes back, switch the power off and on and check the card's firmware.",
    ),
    "mlx5_hot": (
        "fail",
        "the transceiver is too hot",
        "inspect",
        "Look at fans and air flow, and at the transceiver's temperature (mlxlink -m); replace it if it alone is hot.",
    ),
    "mlx5_timeout": (
        "warn",
        "commands to the card timed out",
        "observe",
        "Look at the card's ports (ibstat); reboot the node when it comes back.",
    ),
    "mlx5_module": (
        "warn",
        "the cable or transceiver reports an error",
        "observe",
        "Reseat or clean the transceiver, and look at the port's error counters.",
    ),
    "mlx5_power": (
        "warn",
        "the slot offers less power than the card asks for",
        "observe",
        "Common on HGX boards, whose slots announce 27 W; look at it only where the card or its transceiver drops out.",
    ),
}


def check_mlx5(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """ConnectX cards: firmware in trouble, hot transceivers, timeouts, cable errors, slot power.

    Failed ACCESS_REG commands are left out: reading counters of a function that may not prints them without end.
    Warnings that a fleet knows (limits.kernel_log.known_messages) are left out too.

    Source: leptonai/gpud, infiniband matchers and issue 1164; NVIDIA/NVSentinel NIC rules.
    """
    kernel = KernelEvidence(evidence)
    yield from concluded(kernel, _mlx5(kernel, profile), "no fault of a ConnectX card or its transceiver")


def _mlx5(kernel: KernelEvidence, profile: Profile) -> Iterator[Finding]:
    for kind, (status, words, action, advice) in _MLX5_FAULTS.items():
        events = kernel.messages(kind)
        if status == "warn":
            events = without_known(kernel.recent(events, profile), profile)
        for component, of_card in _by_device(events).items():
            observed = f"{words}, {kernel.often(of_card)}: {of_card[0].text[:160]}"
            reference = "leptonai/gpud, infiniband matchers"
            yield Finding(component, status, observed, "none", action, advice, proofs(of_card), reference)


def check_peermem(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """nvidia-peermem's "invalid context": noise when a process with GPUDirect RDMA ends, unless a ConnectX card fails.

    The word ERROR in it comes many times within microseconds. Beside a fault of a ConnectX card it is a trace of that
    fault, and then a warning.

    Source: bug 042 (leptonai/gpud issue 46).
    """
    kernel = KernelEvidence(evidence)
    events = kernel.recent(kernel.messages("peermem"), profile)
    faulty = kernel.recent(kernel.messages("mlx5_health", "mlx5_timeout"), profile)
    found: Sequence[Finding] = ()
    if events and faulty:
        words = f"nvidia-peermem lost its context, {kernel.often(events)}, beside a fault of a ConnectX card"
        advice = "Act on the card (check kernel.mlx5); GPUDirect RDMA of the job broke with it."
        shown = proofs([*events[:1], *faulty])
        found = [Finding("node", "warn", words, "none", "observe", advice, shown, "bug 042 (leptonai/gpud issue 46)")]
    nothing = "no message of nvidia-peermem"
    if events and not faulty:
        nothing = f"nvidia-peermem: invalid context, {kernel.often(events)}, as when a process ends; no card fails"
    yield from concluded(kernel, found, nothing)


def check_file_systems(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """File systems, arrays and the disks below them: errors, read-only remounts, file servers that do not answer.

    Source: leptonai/gpud, disk and nfs matchers; Linux, fs/ext4, fs/xfs, drivers/md.
    """
    kernel = KernelEvidence(evidence)
    yield from concluded(kernel, _file_systems(kernel, profile), "no error of a file system or disk")


def _file_systems(kernel: KernelEvidence, profile: Profile) -> Iterator[Finding]:
    reference = "leptonai/gpud, disk matchers"
    if events := kernel.messages("file_system_failed", "disk_error"):
        words = f"a file system, array or disk failed, {kernel.often(events)}: {events[0].text[:160]}"
        advice = "Take the node out, save what is needed, and look at the disk named here before anything is repaired."
        yield Finding("node", "fail", words, "none", "inspect", advice, proofs(events), reference)
    if events := kernel.recent(kernel.messages("server_silent"), profile):
        words = f"a file server did not answer, {kernel.often(events)}: {events[0].text[:160]}"
        advice = "Look at the file server and the network to it; the node is at fault only where others reach it."
        yield Finding("node", "warn", words, "none", "observe", advice, proofs(events), reference)


CHECKS = (
    Check("kernel.pcie", check_pcie, NEEDS),
    Check("kernel.pcie_bandwidth", check_pcie_bandwidth, (*NEEDS, LSPCI)),
    Check("kernel.nvme", check_nvme, NEEDS),
    Check("kernel.mlx5", check_mlx5, NEEDS),
    Check("kernel.peermem", check_peermem, NEEDS),
    Check("kernel.file_systems", check_file_systems, NEEDS),
)
