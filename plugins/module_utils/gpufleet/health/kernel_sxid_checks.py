# SPDX-License-Identifier: Apache-2.0
"""Check of what the NVSwitch driver logged: SXids, one finding for each switch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .check import Check, Profile
from .finding import Finding
from .kernel_log_window import NEEDS, Event, KernelEvidence
from .node_evidence import NodeEvidence

if TYPE_CHECKING:
    from .xid_lines import Sxid


def check_sxid(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """SXids: faults that the NVSwitch driver reports in the kernel log, one finding for each switch.

    The word Fatal or Non-fatal in the line decides. Where the line has neither, the catalog does, by number and text;
    numbers move between driver branches, so that the text wins where the two disagree, and the finding says so. Lines
    of registers (Data) and of severity repeat an event and are not counted. SXid 22013 is link bring-up while the
    driver loads. A number that is in no table asks for a person.

    Source: healthchecks.md, section 2.2; NVIDIA/nvtrust issue 124.
    """
    kernel = KernelEvidence(evidence)
    switches = _by_switch(kernel)
    found = False
    for finding in _findings(switches, kernel, profile):
        found = True
        yield finding
    gaps = kernel.gaps("no SXid")
    yield from gaps
    if not found and not gaps:
        harmless = sum(event.occurrences for lines in switches.values() for event, __ in lines)
        words = f"no SXid that counts ({harmless} lines of link bring-up or older ones)" if harmless else "no SXid"
        yield Finding("node", "ok", f"{words}, {kernel.window()}", evidence=kernel.evidence())


def _by_switch(kernel: KernelEvidence) -> dict[str, list[tuple[Event, Sxid]]]:
    events = kernel.messages("sxid")
    if not events:
        return {}
    from .xid_lines import parse_sxid  # only faults need it

    switches: dict[str, list[tuple[Event, Sxid]]] = {}
    for event in events:
        sxid = parse_sxid(event.text)
        switches.setdefault(sxid.address, []).append((event, sxid))
    return switches


def _findings(
    switches: dict[str, list[tuple[Event, Sxid]]], kernel: KernelEvidence, profile: Profile
) -> Iterable[Finding]:
    if not switches:
        return
    from .sxid_faults import judge_switch  # only faults need it

    for address in sorted(switches):
        finding = judge_switch(address, switches[address], kernel, profile)
        if finding is not None:
            yield finding


CHECKS = (Check("kernel.sxid", check_sxid, NEEDS),)
