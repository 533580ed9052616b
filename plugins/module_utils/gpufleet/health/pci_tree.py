# SPDX-License-Identifier: Apache-2.0
"""What lspci says of a node's PCI functions, and which bridge leads to which of them.

Read: `lspci -D -nn -vvv`, also without -D (no domain: it is 0000), without -nn (no ids) and without -v (one line for
each function, hence nothing but names). The layout follows lspci.c, ls-caps.c and ls-ecaps.c of pciutils 3.5 to 3.13:
a function begins in the first column, its lines are indented, and with -v an empty line ends it, also the last one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from .probe import NoEvidence, ParseError, Probe, ProbeResult

LSPCI = "pci.lspci"


class Link(NamedTuple):
    """Rate in GT/s and number of lanes; None where lspci prints "unknown". text: the line as printed."""

    speed_gts: float | None
    width: int
    text: str

    def __str__(self) -> str:
        return f"{'unknown speed' if self.speed_gts is None else f'{self.speed_gts:g} GT/s'} x{self.width}"


class Acs(NamedTuple):
    """The bits of ACSCap (what a port can do) or ACSCtl (what is switched on). text: the line as printed."""

    source_validation: bool
    translation_blocking: bool
    request_redirect: bool
    completion_redirect: bool
    upstream_forwarding: bool
    egress_control: bool
    direct_translated: bool
    text: str

    @property
    def redirects(self) -> bool:
        """Whether traffic between two devices below a switch is sent up to the root complex."""
        return self.request_redirect or self.completion_redirect or self.upstream_forwarding


class PciDevice(NamedTuple):
    """One PCI function.

    address: dddd:bb:dd.f in lower case. vendor, device, class_code: four hexadecimal digits; None without -nn.
    class_name, name: words of the id data base. heading: the first line as printed.
    silence: why the function does not answer ("rev ff", ...), "" where it does. denied: its capabilities were hidden,
    since lspci ran without root.
    express: kind of PCIe port ("Endpoint", "Root Port", "Upstream Port", "Downstream Port", "Root Complex Integrated
    Endpoint", ...). extended: whether any extended capability is shown (AER and ACS are among those).
    link_capability, link_status, max_read_request_bytes, acs_capability, acs_control, driver: None where no such line
    is printed. acs_shown: a line of the ACS capability is there.
    numa_node, iommu_group: None where the kernel knows none (for the NUMA node it then says -1).
    secondary, subordinate: bus numbers of a bridge, else None. parent: address of the bridge that leads to it, None
    on a root bus. orphan: a bridge's range covers its bus, but no bridge leads to just that bus: a virtual function,
    or the bridge between is not listed.
    """

    address: str
    vendor: str | None
    device: str | None
    class_code: str | None
    class_name: str
    name: str
    revision: str
    heading: str
    silence: str = ""
    denied: bool = False
    express: str | None = None
    extended: bool = False
    link_capability: Link | None = None
    link_status: Link | None = None
    max_read_request_bytes: int | None = None
    acs_shown: bool = False
    acs_capability: Acs | None = None
    acs_control: Acs | None = None
    numa_node: int | None = None
    iommu_group: int | None = None
    driver: str | None = None
    secondary: int | None = None
    subordinate: int | None = None
    parent: str | None = None
    orphan: bool = False

    @property
    def domain(self) -> str:
        """Digits before the first colon."""
        return self.address.split(":")[0]

    @property
    def bus(self) -> int:
        """Number of the bus that it is on."""
        return int(self.address.split(":")[1], 16)

    @property
    def slot(self) -> str:
        """The address without the function: the functions of one card share it."""
        return self.address.rpartition(".")[0]

    @property
    def is_bridge(self) -> bool:
        """Whether it is a PCI-to-PCI bridge: root port, port of a switch, or a conventional bridge."""
        return self.class_code == "0604" or (self.class_code is None and self.class_name == "PCI bridge")


class PciTree(NamedTuple):
    """devices: by address, in the order of lspci. verbose: whether -v was given. with_ids: whether -nn was.

    without_root: capabilities of at least one function were hidden, so that a missing line says nothing.
    """

    devices: Mapping[str, PciDevice]
    verbose: bool
    with_ids: bool
    without_root: bool

    def path_to_root(self, address: str) -> list[PciDevice]:
        """The bridges above a function, the nearest first; empty on a root bus. Raises KeyError."""
        path: list[PciDevice] = []
        parent = self.devices[address].parent
        while parent is not None and len(path) < len(self.devices):
            path.append(self.devices[parent])
            parent = path[-1].parent
        return path

    def shared_bridge(self, one: str, other: str) -> PciDevice | None:
        """The nearest bridge above both functions; None where only the root complex joins them."""
        above = {bridge.address for bridge in self.path_to_root(other)}
        return next((bridge for bridge in self.path_to_root(one) if bridge.address in above), None)


_ADDRESS = r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_HEADING = re.compile(
    rf"{_ADDRESS} (?P<class_name>\S.*?)(?: \[(?P<class>[0-9a-f]{{4}})\])?: (?P<name>\S.*?)"
    r"(?: \[(?P<vendor>[0-9a-f]{4}):(?P<device>[0-9a-f]{4})\])?"
    r"(?: \(rev (?P<revision>[0-9a-f]{2})\))?(?: \(prog-if [0-9a-f]{2}(?: \[.*\])?\))?$"
)
# One pass over a function's lines finds all those that are read. Python finds an expression that begins with a certain
# character faster than one that begins with ^.
_LINE = re.compile(
    r"\n[ \t]+(?:(LnkCap|LnkSta|ACSCap|ACSCtl|Bus|NUMA node|IOMMU group|Kernel driver in use|Capabilities):"
    r"|(MaxPayload|!!!) )[ \t]*(.*)"
)
_NOT_INDENTED = re.compile(r"\n(\S.*)")
_SPEED = r"(?:Port #\d+, )?Speed (unknown|<unknown>|\d+(?:\.\d+)?GT/s)"
_WIDTH = r"Width x(\d+)"
_REMARK = r"(?: \((?:ok|downgraded|overdriven|strange)\))?"
_LINK_CAPABILITY = re.compile(rf"{_SPEED}, {_WIDTH}(?:, ASPM .*|$)")
_LINK_STATUS = re.compile(rf"{_SPEED}{_REMARK}, {_WIDTH}{_REMARK}(?:,? TrErr.*|$)")
_ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_ACS = re.compile(" ".join(rf"{bit}([+-])" for bit in _ACS_BITS))
_BUS = re.compile(r"primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})(?:, |$)")
_READ_REQUEST = re.compile(r"\d+ bytes, MaxReadReq (\d+) bytes$")
_EXPRESS = re.compile(r"\[[0-9a-f]+\] Express \(v\d+\) ([^,(]+?)(?:,| \(|$)")
_EXTENDED = re.compile(r"\[[0-9a-f]{3} v\d+\]")


def parse_lspci(text: str) -> PciTree:
    """The functions and how they hang together. Raises ParseError, naming the line, for what lspci does not print.

    A listing with -v that was cut within a function is refused, since it does not end with an empty line; one that
    was cut between two functions, or without -v, cannot be told from a whole one.
    """
    if not text.strip():
        raise ParseError("lspci printed nothing")
    if not text.endswith("\n"):
        raise ParseError(f"the last line of lspci was cut off: {text.rsplit(chr(10), 1)[-1]!r}")
    verbose = re.search(r"^[ \t]", text, re.MULTILINE) is not None
    blocks = text.split("\n\n") if verbose else text.splitlines()
    if verbose and blocks.pop().strip():
        raise ParseError(f"lspci was cut off: no empty line behind {text.rstrip().rsplit(chr(10), 1)[-1].strip()!r}")
    devices: dict[str, PciDevice] = {}
    for block in blocks:
        device = _device(block)
        if device.address in devices:
            raise ParseError(f"lspci lists {device.address} twice: {device.heading!r}")
        devices[device.address] = device
    with_ids = any(device.vendor for device in devices.values())
    for device in devices.values():
        if with_ids and not (device.vendor and device.class_code):
            raise ParseError(f"no vendor and device id, which the other lines have: {device.heading!r}")
        if verbose and device.is_bridge and not device.silence and device.secondary is None:
            raise ParseError(f"no `Bus:` line below the bridge {device.heading!r}")
    denied = any(device.denied for device in devices.values())
    return PciTree(_with_parents(devices), verbose, with_ids, denied)


def _device(block: str) -> PciDevice:
    heading = block.partition("\n")[0]
    rest = block[len(heading) :]
    found = _HEADING.match(heading)
    if not found:
        raise ParseError(f"no PCI function as lspci prints it: {heading!r}")
    if outside := _NOT_INDENTED.search(rest):
        raise ParseError(f"no empty line before this line of lspci: {outside[1]!r}")
    revision = found["revision"] or ""
    values: dict[str, Any] = {"silence": "rev ff"} if revision == "ff" else {}
    for key, sign, printed in _LINE.findall(rest):
        value = printed.rstrip(" \t")
        read = _READERS[key or sign](value, heading)
        if (key or sign) not in _REPEATED and any(name in values for name in read):
            raise ParseError(f"a second line {key or sign} below {heading!r}: {value!r}")
        values.update(read)
    return PciDevice(
        address=f"{found[1] or '0000'}:{found[2]}".lower(),
        vendor=found["vendor"],
        device=found["device"],
        class_code=found["class"],
        class_name=found["class_name"],
        name=found["name"],
        revision=revision,
        heading=heading,
        **values,
    )


_REPEATED = ("Capabilities", "!!!", "ACSCap", "ACSCtl")


def _match(pattern: re.Pattern[str], key: str, value: str, heading: str) -> re.Match[str]:
    found = pattern.match(value)
    if not found:
        raise ParseError(f"no {key} as lspci prints it, below {heading!r}: {value!r}")
    return found


def _link(pattern: re.Pattern[str], key: str, value: str, heading: str) -> Link:
    found = _match(pattern, key, value, heading)
    speed = None if "unknown" in found[1] else float(found[1].removesuffix("GT/s"))
    return Link(speed, int(found[2]), f"{key}: {value}")


def _acs(key: str, value: str, heading: str) -> Acs:
    bits = [sign == "+" for sign in _match(_ACS, key, value, heading).groups()]
    return Acs(bits[0], bits[1], bits[2], bits[3], bits[4], bits[5], bits[6], f"{key}: {value}")


def _number(key: str, value: str, heading: str) -> int:
    return int(_match(re.compile(r"(\d+)$"), key, value, heading)[1])


def _capability(value: str, heading: str) -> dict[str, Any]:
    if value == "<access denied>":
        return {"denied": True}
    read: dict[str, Any] = {"extended": True} if _EXTENDED.match(value) else {}
    if express := _EXPRESS.match(value):
        read["express"] = express[1]
    if value.endswith("Access Control Services"):
        read["acs_shown"] = True
    return read


def _bus(value: str, heading: str) -> dict[str, Any]:
    found = _match(_BUS, "Bus", value, heading)
    return {"secondary": int(found[2], 16), "subordinate": int(found[3], 16)}


_READERS: Mapping[str, Any] = {
    "LnkCap": lambda value, heading: {"link_capability": _link(_LINK_CAPABILITY, "LnkCap", value, heading)},
    "LnkSta": lambda value, heading: {"link_status": _link(_LINK_STATUS, "LnkSta", value, heading)},
    "ACSCap": lambda value, heading: {"acs_capability": _acs("ACSCap", value, heading), "acs_shown": True},
    "ACSCtl": lambda value, heading: {"acs_control": _acs("ACSCtl", value, heading), "acs_shown": True},
    "NUMA node": lambda value, heading: {"numa_node": _number("NUMA node", value, heading)},
    "IOMMU group": lambda value, heading: {"iommu_group": _number("IOMMU group", value, heading)},
    "Kernel driver in use": lambda value, heading: {"driver": value},
    "Capabilities": _capability,
    "Bus": _bus,
    "MaxPayload": lambda value, heading: {
        "max_read_request_bytes": int(_match(_READ_REQUEST, "MaxPayload", value, heading)[1])
    },
    # Another remark ("Invalid class 0604 for header type 00") is about a function that does answer.
    "!!!": lambda value, heading: {"silence": value} if value.startswith("Unknown header type") else {},
}


def _with_parents(devices: Mapping[str, PciDevice]) -> dict[str, PciDevice]:
    leading: dict[tuple[str, int], PciDevice] = {}
    # Narrowest first, so that the first range that covers a bus is the nearest bridge.
    bridges: list[PciDevice] = []
    for device in devices.values():
        # 0: the firmware has not given this bridge a bus
        if device.secondary:
            where = (device.domain, device.secondary)
            if where in leading:
                raise ParseError(f"two bridges lead to bus {device.secondary:02x}: {device.heading!r}")
            leading[where] = device
            bridges.append(device)
    bridges.sort(key=lambda bridge: (bridge.subordinate or 0) - (bridge.secondary or 0))
    covering: dict[tuple[str, int], PciDevice | None] = {}
    found = {}
    for address, device in devices.items():
        where = (device.domain, device.bus)
        above = leading.get(where)
        orphan = above is None
        if above is None:
            if where not in covering:
                covering[where] = next((bridge for bridge in bridges if _covers(bridge, *where)), None)
            above = covering[where]
        if above is not None:
            device = device._replace(parent=above.address, orphan=orphan)
        found[address] = device
    return found


def _covers(bridge: PciDevice, domain: str, bus: int) -> bool:
    if bridge.domain != domain or bridge.secondary is None or bridge.subordinate is None:
        return False
    return bridge.secondary < bus <= bridge.subordinate


def devices_of_class(tree: PciTree, device_class: Mapping[str, Any]) -> list[PciDevice]:
    """The functions that a kind of device of the profile (`profile["devices"][name]`) matches, by address.

    A function that does not answer is among them: the kernel remembers its ids. Raises NoEvidence where the listing
    has no ids. Its key without_os_disk is not looked at: only the block devices know (system_disks.py).
    """
    if not tree.with_ids:
        raise NoEvidence(LSPCI, "lspci was called without -nn, so there are no vendor and device ids")
    wanted = [(rule.get("vendor"), rule.get("device"), rule.get("class")) for rule in device_class["match"]]
    found = []
    for device in tree.devices.values():
        for vendor, number, class_code in wanted:
            if (
                (vendor is None or vendor == device.vendor)
                and (number is None or number == device.device)
                and (class_code is None or class_code == device.class_code)
            ):
                found.append(device)
                break
    return found


def _parse(result: ProbeResult) -> PciTree:
    return parse_lspci(result.stdout)


PROBES = (
    # The configuration space of 500 functions and the product data of all NICs take one to three seconds.
    Probe(LSPCI, _parse, argv=("lspci", "-D", "-nn", "-vvv"), deadline_s=45, root=True, max_bytes=16 << 20),
)
