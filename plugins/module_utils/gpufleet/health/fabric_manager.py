# SPDX-License-Identifier: Apache-2.0
"""The fabric manager of nodes with NVSwitches: its service, its version and its log.

Without a fabric manager that runs, the GPUs of an HGX board have links but no routes, and CUDA ends with error 802
(system not yet initialized). It must be of the same version as the driver, to the last digit.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .probe import ParseError, Probe, ProbeResult

UNIT = "nvidia-fabricmanager.service"
LOG = "/var/log/fabricmanager.log"
# The log may grow to 1 GiB (LOG_MAX_ROTATE_COUNT and LOG_FILE_MAX_SIZE of fabricmanager.cfg); what the current start
# of the service wrote about faults is at its end.
_LOG_TAIL_BYTES = 256 << 10

_PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", "ExecMainStatus")
_VERSION = re.compile(r"Fabric Manager version is\s*:\s*(\d+(?:\.\d+)+)")
_STAMP = re.compile(r"\[(\w{3} \d{1,2} \d{4} \d\d:\d\d:\d\d)\] \[(\w+)\] \[tid \d+\] ")
_START = re.compile(r"Fabric Manager version \d\S* is running with the following configuration options")

# Kinds of lines, by their words. The wording is that of leptonai/gpud (components/accelerator/nvidia/fabric-manager,
# log_matcher.go) and of the reports named.
_NVSWITCH_ERROR = re.compile(
    r"detected NVSwitch (fatal|non-fatal) error (\d+) on fid \d+ on NVSwitch pci bus id (\S+) physical id (\d+)"
    r"(?: port (\d+))?"
)
_KINDS = (
    ("topology", re.compile(r"number of NVSwitches don't match with any supported system topology")),
    ("multicast", re.compile(r"failed to find the GPU handle \d+ in the multicast team")),
    ("nothing to do", re.compile(r"NV_WARN_NOTHING_TO_DO")),  # NVIDIA/gpu-operator#610
    ("version", re.compile(r"interface version \S+ don't match with driver version \S+")),  # NVIDIA/nvtrust#55
)


class FabricManagerService(NamedTuple):
    """systemd's words: load_state loaded, not-found, masked ...; active_state active, inactive, failed, activating ...

    sub_state: running, dead ...; result: success, exit-code, timeout ...; exit_status: of the last main process.
    """

    load_state: str
    active_state: str
    sub_state: str
    result: str
    exit_status: str


class FabricManagerEvent(NamedTuple):
    """One line of the log that tells of a fault.

    kind: fatal or non-fatal (an error of an NVSwitch), topology, multicast, nothing to do, version, or error for any
    other line of that level. sxid: NVSwitch error number, None for other kinds. nvswitch: PCI address
    (0000:86:00.0), "" for other kinds. port: "" where none is printed.
    """

    kind: str
    line: str
    sxid: int | None = None
    nvswitch: str = ""
    port: str = ""


class FabricManagerLog(NamedTuple):
    """events: of the current start of the service, in order. whole_start: whether its first line is in the part read.

    lines: how many lines of the current start were read. last: time stamp of the last stamped line, as printed.
    """

    events: tuple[FabricManagerEvent, ...]
    whole_start: bool
    lines: int
    last: str


def parse_service(result: ProbeResult) -> FabricManagerService:
    """Raises ParseError where a property is missing."""
    found = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    lost = [name for name in _PROPERTIES if not found.get(name)]
    # systemd prints these two even for a unit that does not exist, so they are never left out or empty.
    if lost:
        raise ParseError(f"systemctl show {UNIT} printed no {', '.join(lost)}")
    return FabricManagerService(*(found[name] for name in _PROPERTIES))


def parse_version(result: ProbeResult) -> str:
    """The version, such as "535.161.08". Raises ParseError where the one line that is expected is not there."""
    match = _VERSION.search(result.stdout)
    if match is None:
        raise ParseError(f"no line 'Fabric Manager version is : ...' in {result.stdout.strip()[:200]!r}")
    return match.group(1)


def parse_log(result: ProbeResult) -> FabricManagerLog | None:
    """The end of the log; None where there is no such file (another place is set, or it never started).

    Raises ParseError for an empty log, and for any other error of reading it.
    """
    if result.outcome == "failed":
        if "No such file" in result.stderr:
            return None
        raise ParseError(f"the log cannot be read: {result.says()}")
    return log_of(result.stdout)


def log_of(text: str) -> FabricManagerLog:
    """The same from the text alone; lines may also have syslog's form, as the journal keeps them."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if _START.search(line)]
    current = lines[starts[-1] :] if starts else lines
    stamps = [match.group(1) for match in map(_STAMP.match, current) if match]
    events = tuple(event for event in map(_event, current) if event)
    if not stamps and not events:
        raise ParseError("not a line in it is one of the fabric manager's" if text.strip() else "the log is empty")
    return FabricManagerLog(events, bool(starts), len(current), stamps[-1] if stamps else "")


def _event(line: str) -> FabricManagerEvent | None:
    switch = _NVSWITCH_ERROR.search(line)
    if switch:
        kind, number, address, _, port = switch.groups()
        return FabricManagerEvent(kind, line, int(number), _short_address(address), port or "")
    for kind, pattern in _KINDS:
        if pattern.search(line):
            return FabricManagerEvent(kind, line)
    stamp = _STAMP.match(line)
    if stamp and stamp.group(2) in ("ERROR", "CRITICAL"):
        return FabricManagerEvent("error", line)
    return None


def _short_address(address: str) -> str:
    """00000000:86:00.0 as 0000:86:00.0."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


PROBES: tuple[Probe, ...] = (
    Probe(
        "fabric_manager.service",
        parse_service,
        argv=("systemctl", "show", UNIT, "--property", ",".join(_PROPERTIES)),
    ),
    Probe("fabric_manager.version", parse_version, argv=("nv-fabricmanager", "--version")),
    Probe(
        "fabric_manager.log",
        parse_log,
        argv=("tail", "--bytes", str(_LOG_TAIL_BYTES), LOG),
        parses=("done", "failed"),
        root=True,
    ),
)
