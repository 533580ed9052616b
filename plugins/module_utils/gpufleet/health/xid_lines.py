# SPDX-License-Identifier: Apache-2.0
"""Messages of the NVIDIA driver about GPUs and NVSwitches, as typed facts: Xid, SXid, and a GPU that fell off the bus.

The forms follow the open driver 595.45.04 and the lines of public reports (bugs 028 to 041). A line that was cut short
gives what it still holds; what is not there is None or "".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .kernel_log_addresses import pci_address


class Xid(NamedTuple):
    """One Xid line. address: of the GPU, "" where the line has none that can be read. instance: the MIG instance.

    number: None where the line ends before it. pid, process: as printed, "" where missing or "<unknown>". detail: the
    rest of the line.
    """

    address: str
    instance: str
    number: int | None
    pid: str
    process: str
    detail: str


_XID = re.compile(
    r"Xid \((?:PCI:)?(?P<address>[^\s)]*)(?: (?P<instance>GPU-I:\w+))?\)[:,]? *(?P<number>\d+)?\b[,:]? *(?P<rest>.*)"
)
_PROCESS = re.compile(r"pid='?(?P<pid>[^,']*)'?(?:, *name=(?P<name>[^,]*))?(?:, *|$)(?P<rest>.*)")


def parse_xid(text: str) -> Xid:
    """The Xid of a message of the kind `xid`. A line that is cut before its number gives number None."""
    found = _XID.search(text)
    if not found:
        return Xid("", "", None, "", "", text.partition("Xid")[2].strip())
    rest = found["rest"].strip()
    pid = process = ""
    if of_process := _PROCESS.match(rest):
        pid, process = of_process["pid"].strip("<>"), (of_process["name"] or "").strip("<> ")
        pid = "" if not pid.isdigit() else pid
        process = "" if process == "unknown" else process
        rest = of_process["rest"]
    number = int(found["number"]) if found["number"] else None
    return Xid(pci_address(found["address"]) or "", found["instance"] or "", number, pid, process, rest)


_COMPUTE_UNIT = re.compile(r"GPC (\d+), TPC (\d+)(?:, SM (\d+))?")
_MMU_UNIT = re.compile(r"MMU Fault: (ENGINE .+?) faulted")


def unit_of(xid: Xid) -> str:
    """The part of the GPU that an Xid 13 or 31 names: "GPC 2, TPC 0, SM 1" or "ENGINE GRAPHICS GPCCLIENT_T1_8"."""
    if found := _COMPUTE_UNIT.search(xid.detail):
        return found[0]
    found = _MMU_UNIT.search(xid.detail)
    return found[1] if found else ""


_CAUSED_BY = re.compile(r"caused by previous Xid (\d+)")
_RESET = re.compile(r"\bRST: (Yes|No)")
_GSP_FUNCTION = re.compile(r"Expected function \d+ \((\w+)\)")


def cause_of(xid: Xid) -> int | None:
    """The number that an Xid 45 names as its cause, None where it names none."""
    found = _CAUSED_BY.search(xid.detail)
    return int(found[1]) if found else None


def demands_reset(xid: Xid) -> bool:
    """Whether the line of a memory error says that the GPU must be reset (RST: Yes)."""
    found = _RESET.search(xid.detail)
    return bool(found and found[1] == "Yes")


def stuck_function(xid: Xid) -> str:
    """The call that the GPU's system processor did not answer (Xid 119), such as GSP_RM_CONTROL; "" for none."""
    found = _GSP_FUNCTION.search(xid.detail)
    return found[1] if found else ""


# What the driver wants done with the GPU, by its words (the numbers differ between branches): action of the ladder.
RECOVERY_ACTIONS = {
    "None": "none",
    "GPU Reset Required": "reset_gpu",
    "PF FLR": "reset_gpu",
    "Drain and Reset": "reset_gpu",
    "Drain P2P": "reset_gpu",
    "Node Reboot Required": "reboot",
    "Recover IMEX Domain": "restart_service",
}
_RECOVERY = re.compile(r"recovery action changed from 0x\w+ \(([^()]+)\) to 0x\w+ \(([^()]+)\)")


def recovery_action(xid: Xid) -> str | None:
    """The words of an Xid 154 for what the driver wants from now on; None where the line is not of its form."""
    found = _RECOVERY.search(xid.detail)
    return found[2] if found else None


class LinkError(NamedTuple):
    """An Xid 144 to 150. unit: of the link hardware, such as NETIR_LINK_EVT. fatal: by the word in the line.

    link: number, -1 where the driver names none. registers: as many as the line still holds.
    """

    unit: str
    fatal: bool
    link: int | None
    registers: tuple[int, ...]


_LINK_ERROR = re.compile(r"(\S+)\s+(Fatal|Non-?fatal)\b(?:.*?\bLink\s+(-?\d+))?(?:.*?\(([^)]*)\)?)?", re.IGNORECASE)


def link_error(xid: Xid) -> LinkError | None:
    """The link error of an Xid 144 to 150, also of a line that was cut; None where it has no word Fatal or Nonfatal."""
    found = _LINK_ERROR.search(xid.detail)
    if not found:
        return None
    registers = tuple(int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]+", found[4] or ""))
    return LinkError(found[1], found[2].lower() == "fatal", int(found[3]) if found[3] else None, registers)


class LinkRegisters(NamedTuple):
    """The registers of an Xid 74: of which link, and what their bits mean (kind, words)."""

    link: int
    meanings: tuple[tuple[str, str], ...]


_LINK_REGISTERS = re.compile(r"NVLink: .*?link (\d+) ?\(([0-9a-fA-Fx, ]+)\)?")
# Bits of the seven registers on Hopper, registers counted from 1 (healthchecks.md, 2; NVIDIA/NVSentinel issue 364).
_REGISTER_BITS: dict[tuple[int, int], tuple[str, str]] = {}
for _register, _bits, _kind, _words in (
    (1, (0, 23, 30), "ignored", "no fault by itself"),
    (1, (1, 20), "secondary", "a consequence of an error elsewhere"),
    (1, (4, 5), "ecc", "memory or parity error of the link unit"),
    (1, (8, 9, 12, 16, 17, 24, 28), "hardware", "fault of the link hardware"),
    (1, (21, 22), "signal", "weak signal"),
    (1, (27, 29), "report", "to be reported if it comes back"),
    (3, (0, 1, 2, 6), "ecc", "memory or parity error of the link unit"),
    (3, (13,), "report", "not expected on this GPU"),
    (3, (16, 19), "hardware", "fault that calls for the GPU's diagnosis"),
    (3, (17, 18), "report", "to be reported if it comes back"),
    (4, (16, 17), "secondary", "a consequence of an error elsewhere"),
    (4, (18,), "fabric", "the fabric needs a reset"),
    (5, (18, 19, 21, 22, 24, 25, 27, 28), "ecc", "memory or parity error of the link unit"),
    (5, (20, 23, 26, 29), "threshold", "corrected errors went over a limit"),
):
    for _bit in _bits:
        _REGISTER_BITS[(_register, _bit)] = (_kind, f"register {_register} bit {_bit}: {_words}")


def link_registers(xid: Xid) -> LinkRegisters | None:
    """The registers of a link in a line of Xid 74 (some tools print them under another number); None without them."""
    found = _LINK_REGISTERS.search(xid.detail)
    if not found:
        return None
    meanings = []
    for register, word in enumerate(re.findall(r"0x([0-9a-fA-F]+)", found[2]), 1):
        value = int(word, 16)
        for bit in range(value.bit_length()):
            if value >> bit & 1 and register in (1, 3, 4, 5):  # the others hold no error bits
                unknown = ("report", f"register {register} bit {bit}: meaning not published")
                meanings.append(_REGISTER_BITS.get((register, bit), unknown))
    return LinkRegisters(int(found[1]), tuple(meanings))


_FALLEN = re.compile(
    r"(?:GPU|PCI)[ :]*(?:at )?(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F:.]+?)[:.]?(?=[\s,)]).*fallen off the bus"
)


def fallen_address(text: str) -> str:
    """The PCI address in a message that a GPU has fallen off the bus, "" where it names none."""
    found = _FALLEN.search(text)
    return (pci_address(found[1]) or "") if found else ""


class Sxid(NamedTuple):
    """One SXid line. address, switch: of the NVSwitch, "" where it cannot be read. number: None in a line cut before.

    fatal: by the word in the line, or by "Severity 1" and "Severity 0"; None where it has neither. link: its number.
    text: what stands behind the word and the link. is_detail: a line of registers or a severity: repeats an event.
    """

    address: str
    switch: str
    number: int | None
    fatal: bool | None
    link: int | None
    text: str
    is_detail: bool


_SXID = re.compile(
    r"(?:nvidia-nvswitch(?P<switch>\d+): )?SXid \(PCI:(?P<address>[^\s)]*)\): *(?P<number>\d+)?,? *(?P<rest>.*)"
)
_SXID_WORD = re.compile(r"(Fatal|Non-fatal)\b,? *(?:Link (\d+)\b *)?(.*)")
_SXID_SEVERITY = re.compile(r"Severity (\d+)\b.*")


def parse_sxid(text: str) -> Sxid:
    """The SXid of a message of the kind `sxid`."""
    found = _SXID.search(text)
    if not found:
        return Sxid("", "", None, None, None, text.partition("SXid")[2].strip(), False)
    rest = found["rest"].strip()
    number = int(found["number"]) if found["number"] else None
    fatal: bool | None = None
    link: int | None = None
    is_detail = rest.startswith("Data {")
    if word := _SXID_WORD.match(rest):
        fatal, rest = word[1] == "Fatal", word[3]
        link = int(word[2]) if word[2] else None
    elif severity := _SXID_SEVERITY.match(rest):
        fatal, is_detail = severity[1] != "0", True
    return Sxid(pci_address(found["address"]) or "", found["switch"] or "", number, fatal, link, rest, is_detail)
