# SPDX-License-Identifier: Apache-2.0
"""Fabric manager and NVSwitches: present, running, of the driver's version, and without faults in the log."""

from __future__ import annotations

from collections.abc import Iterator

from .check import Check, Profile
from .fabric_manager import UNIT, FabricManagerEvent, FabricManagerLog, FabricManagerService
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .pci_tree import LSPCI, PciTree, devices_of_class
from .probe import NoEvidence

SERVICE = "fabric_manager.service"
VERSION = "fabric_manager.version"
LOG = "fabric_manager.log"

_NVIDIA = "10de"
_OTHER_BRIDGE = "0680"  # PCI class of all NVSwitches that a host sees (1ac2 V100, 1af1 A100, 22a3 H100)


def nvswitches_wanted(evidence: NodeEvidence, profile: Profile) -> bool:
    """Whether a fabric manager has NVSwitches to manage here, by the profile, else by lspci. Raises NoEvidence."""
    kind = (profile.get("devices") or {}).get("nvswitch")
    if kind is not None:
        return bool(kind["count"])
    tree: PciTree = evidence.facts(LSPCI)
    if not tree.with_ids:
        raise NoEvidence(LSPCI, "lspci was called without -nn, so there are no vendor and device ids")
    return any(device.vendor == _NVIDIA and device.class_code == _OTHER_BRIDGE for device in tree.devices.values())


def _none_wanted(probe: str) -> Finding:
    observed = "no NVSwitch here, by the profile (devices.nvswitch) or lspci: nothing for a fabric manager to do"
    return Finding("node", "skipped", observed, evidence=(Evidence(probe),))


def check_nvswitches(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """All NVSwitches of the board are there and answer on PCIe. A lost one takes the same links from every GPU.

    Source: HGX H100 has four (10de:22a3), HGX A100 six (10de:1af1); devices.nvswitch.count of the profile.
    """
    kind = (profile.get("devices") or {}).get("nvswitch")
    if kind is None or not kind["count"]:
        yield Finding("node", "skipped", "the profile has no NVSwitch (devices.nvswitch)")
        return
    found = devices_of_class(evidence.facts(LSPCI), kind)
    silent = [device for device in found if device.silence]
    for device in silent:
        yield Finding(
            f"NVSwitch {device.address}",
            "fail",
            f"does not answer on PCIe ({device.silence})",
            "a device that answers",
            "power_cycle",
            "cut the node's power (a reboot does not reset a dead NVSwitch); if it stays silent, have the baseboard "
            "inspected",
            (Evidence(LSPCI, device.heading),),
            "lspci: rev ff",
        )
    listing = "\n".join(device.heading for device in found)
    if len(found) != kind["count"]:
        missing = len(found) < kind["count"]
        yield Finding(
            "node",
            "fail" if missing else "warn",
            f"{len(found)} NVSwitches",
            f"{kind['count']} (devices.nvswitch.count)",
            "power_cycle" if missing else "observe",
            "cut the node's power; if the NVSwitch stays away, have the baseboard inspected"
            if missing
            else "the profile is of another kind of node: choose the right one (node_profile)",
            (Evidence(LSPCI, listing),),
            "profile, devices.nvswitch",
        )
    elif not silent:
        yield Finding("node", "ok", f"{len(found)} NVSwitches answer", evidence=(Evidence(LSPCI, listing),))


def check_service(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """The fabric manager runs where there are NVSwitches, whatever state the GPUs report.

    GPUs that were registered stay "Completed" when the service dies; the next reset or fault finds nobody at work.

    Source: bug 027 (leptonai/gpud#1151, NVIDIA/NVSentinel#883: dead for 20 days); NVIDIA/gpu-operator#610.
    """
    if not nvswitches_wanted(evidence, profile):
        yield _none_wanted(SERVICE)
        return
    service: FabricManagerService = evidence.facts(SERVICE)
    words = f"{service.load_state}, {service.active_state} ({service.sub_state})"
    if (service.load_state, service.active_state, service.sub_state) == ("loaded", "active", "running"):
        yield Finding("node", "ok", f"{UNIT} is {words}", evidence=(Evidence(SERVICE),))
        return
    action, advice = "restart_service", f"systemctl restart {UNIT}; if it fails: journalctl -u {UNIT}"
    if service.load_state == "not-found":
        action, advice = (
            "none",
            "install nvidia-fabricmanager in the driver's version, to the last digit, and enable it",
        )
    elif service.load_state == "masked":
        action, advice = "none", f"systemctl unmask {UNIT} and start it, or set devices.nvswitch.count to 0"
    elif service.active_state in ("activating", "reloading"):
        action, advice = "observe", "it takes up to two minutes after a boot: run the check again then"
    elif service.active_state == "failed":
        words += f", last result {service.result}, exit status {service.exit_status}"
    evidence_lines = Evidence(SERVICE, f"ActiveState={service.active_state} SubState={service.sub_state}")
    expected = "loaded, active (running)"
    yield Finding("node", "fail", f"{UNIT} is {words}", expected, action, advice, (evidence_lines,), "bug 027")


def check_version(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Fabric manager and driver have the same version, to the last digit: else it refuses to start.

    Source: bug 100 (NVIDIA/gpu-operator#544, NVIDIA/nvtrust#55).
    """
    if not nvswitches_wanted(evidence, profile):
        yield _none_wanted(VERSION)
        return
    version: str = evidence.facts(VERSION)
    driver = evidence.facts(QUERY).driver_version
    if not isinstance(driver, str):
        raise NoEvidence(QUERY, f"the driver's version: {driver.reason}")
    if version == driver:
        yield Finding("node", "ok", f"{version}, as the driver", evidence=(Evidence(VERSION), Evidence(QUERY)))
        return
    yield Finding(
        "node",
        "fail",
        f"fabric manager {version}, driver {driver}",
        f"fabric manager {driver}",
        "none",
        f"install nvidia-fabricmanager {driver}, hold both packages at this version, and restart {UNIT}; a driver that "
        "was updated but not loaded yet needs a reboot instead",
        (Evidence(VERSION), Evidence(QUERY, f"driver_version {driver}")),
        "bug 100",
    )


def check_log(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """The log of the fabric manager's current start tells of no fault. Older starts are history.

    A fatal NVSwitch error and a board on which NVSwitches are missing fail; a non-fatal one (12028 is the usual
    by-product of a job that was killed) and multicast trouble are looked at.

    Source: leptonai/gpud, fabric-manager log matcher; NVIDIA/gpu-operator#610 ("nothing to do").
    """
    if not nvswitches_wanted(evidence, profile):
        yield _none_wanted(LOG)
        return
    log: FabricManagerLog | None = evidence.facts(LOG)
    if log is None:
        yield Finding(
            "node", "skipped", "no /var/log/fabricmanager.log: it logs to another place", evidence=(Evidence(LOG),)
        )
        return
    kinds: dict[tuple[str, str], list[FabricManagerEvent]] = {}
    for event in log.events:
        kinds.setdefault((event.kind, event.nvswitch), []).append(event)
    for (kind, nvswitch), events in kinds.items():
        yield _fault(kind, nvswitch, events)
    if not kinds:
        since = "since its last start" if log.whole_start else "in the part of the log that was read"
        observed = f"no fault in {log.lines} lines {since}, the last of {log.last}"
        yield Finding("node", "ok", observed, evidence=(Evidence(LOG),))


# By kind: status, action, what it says, what to do.
_FAULTS = {
    "fatal": (
        "fail",
        "reset_gpu",
        "fatal NVSwitch error",
        "drain the node and reset all GPUs together, which resets the NVSwitches (or reboot); if it comes back, have "
        "the baseboard inspected",
    ),
    "non-fatal": (
        "warn",
        "observe",
        "non-fatal NVSwitch error",
        "12028 comes with jobs that were killed; others, or many on one port, point to the links of that port: compare "
        "with nvlink.errors",
    ),
    "multicast": (
        "warn",
        "restart_service",
        "a multicast team (NVLink SHARP) asked for a GPU that the fabric manager does not know",
        f"if jobs fail with NVLS errors, drain the node and restart {UNIT}; or run them with NCCL_NVLS_ENABLE=0",
    ),
    "topology": (
        "fail",
        "reboot",
        "the NVSwitches that it found are no board that it knows: one is missing",
        "count the NVSwitches (nvlink.nvswitches) and look for SXid lines; reboot, then power-cycle the node",
    ),
    "nothing to do": (
        "fail",
        "reboot",
        "the driver shows it no NVSwitch, although this node has some",
        "count the NVSwitches (nvlink.nvswitches); the driver may have been loaded before they answered: reboot",
    ),
    "version": (
        "fail",
        "none",
        "it is of another version than the driver",
        "install the version of the driver and hold both packages (fabric.manager_version)",
    ),
    "error": ("warn", "observe", "an error that no rule knows", "read the log around this line; report what it was"),
}


def _fault(kind: str, nvswitch: str, events: list[FabricManagerEvent]) -> Finding:
    status, action, words, advice = _FAULTS[kind]
    numbers = sorted({str(event.sxid) for event in events if event.sxid is not None})
    ports = sorted({event.port for event in events if event.port})
    where = f" {', '.join(numbers)}" if numbers else ""
    where += f" on port {', '.join(ports)}" if ports else ""
    return Finding(
        f"NVSwitch {nvswitch}" if nvswitch else "node",
        status,
        f"{words}{where}, {len(events)} times" if len(events) > 1 else f"{words}{where}",
        "no such line since the fabric manager's last start",
        action,
        advice,
        (Evidence(LOG, events[-1].line),),
        "leptonai/gpud, fabric-manager/log_matcher.go",
    )


CHECKS: tuple[Check, ...] = (
    Check("nvlink.nvswitches", check_nvswitches, needs=(LSPCI,)),
    Check("fabric.manager", check_service, needs=(SERVICE,), also=(LSPCI,)),
    Check("fabric.manager_version", check_version, needs=(VERSION, QUERY), also=(LSPCI,)),
    Check("fabric.manager_log", check_log, needs=(LOG,), also=(LSPCI,)),
)
