# SPDX-License-Identifier: Apache-2.0
"""Whether the IOMMU translates the addresses of GPUs and NICs, by the kernel's groups and not by its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from .check import Check, Profile
from .evaluation import unknown
from .finding import Evidence, Finding
from .node_evidence import NodeEvidence
from .pci_kinds import NEEDS, absent, component, functions_of_kind
from .probe import NoEvidence, ParseError, Probe, ProbeResult

GROUPS = "iommu.groups"
ARGUMENTS = "iommu.kernel_arguments"

_FOLDER = "/sys/kernel/iommu_groups"
_DEVICE = re.compile(rf"{_FOLDER}/(\d+)/devices/([0-9a-f]{{4,8}}:[0-9a-f]{{2}}:[0-9a-f]{{2}}\.[0-7])$")
_TYPE = re.compile(rf"{_FOLDER}/(\d+)/type:(\S+)$")
_OTHER = re.compile(rf"{_FOLDER}/(\d+)/devices/\S+$")
# Documentation/ABI/testing/sysfs-kernel-iommu_groups
_MODES = {"identity": "passthrough", "DMA": "translated", "DMA-FQ": "translated"}
_ARGUMENT = re.compile(r"(?:\w+_)?iommu(?:\.\w+)?=\S*")


class IommuGroups(NamedTuple):
    """types: by number of the group, as the kernel says (identity, DMA, DMA-FQ, blocked, unmanaged, ...).

    group_of: number of the group by PCI address. No groups: the IOMMU is off.
    """

    types: dict[int, str]
    group_of: dict[str, int]


def parse_iommu_groups(text: str) -> IommuGroups:
    """From `find /sys/kernel/iommu_groups ... -print ... -exec grep -H`: the folder, devices, and types behind a colon.

    Raises ParseError, also for a group of which a line is missing.
    """
    lines = text.splitlines()
    if not lines or lines[0] != _FOLDER:
        raise ParseError(f"expected {_FOLDER} first, got {lines[0] if lines else 'nothing'!r}")
    types: dict[int, str] = {}
    group_of: dict[str, int] = {}
    with_devices = set()
    for line in lines[1:]:
        if found := _DEVICE.match(line):
            group_of[found[2]] = int(found[1])
        elif found := _TYPE.match(line):
            types[int(found[1])] = found[2]
            continue
        elif not (found := _OTHER.match(line)):
            raise ParseError(f"neither a device nor the type of an IOMMU group: {line!r}")
        with_devices.add(int(found[1]))
    if odd := with_devices - set(types):
        raise ParseError(f"IOMMU group {min(odd)} has no type")
    return IommuGroups(types, group_of)


def check_iommu(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """The IOMMU is off, passes addresses through, or translates them, as the profile wants, for each of its devices.

    Translation costs GPUDirect RDMA bandwidth, and the kernel then turns ACS redirection on. The kernel argument
    proves nothing: a BIOS without VT-d, another argument behind it, or a default of the kernel's build overrule it.

    Source: platform.iommu of the profile; kernel documentation, sysfs-kernel-iommu_groups
    """
    wanted = profile["platform"]["iommu"]
    groups: IommuGroups = evidence.facts(GROUPS)
    try:
        arguments: str | None = evidence.facts(ARGUMENTS)
    except NoEvidence:
        arguments = None  # the groups decide; this would only help to say why
    right, modes = True, {}
    for kind, described in profile["devices"].items():
        try:
            found = functions_of_kind(evidence, profile, kind)
        except NoEvidence as error:
            right = False
            yield unknown(f"kind {kind}", error, wanted)
            continue
        for finding in absent(kind, described, found):
            right = False
            yield finding
        for device in found:
            try:
                modes[component(device, kind)] = _mode(groups, device.address)
            except NoEvidence as error:
                right = False
                yield unknown(component(device, kind), error, wanted)
    wrong = {name: found for name, found in modes.items() if found.mode != wanted}
    if wrong and len(wrong) == len(modes) and len({found.mode for found in wrong.values()}) == 1:
        # the whole node was started so
        wrong = {"node": next(iter(wrong.values()))}
    for name, found_mode in wrong.items():
        yield _wrong(name, found_mode, wanted, arguments)
    if right and not wrong:
        counts = [f"{list(groups.types.values()).count(kind)} {kind}" for kind in sorted(set(groups.types.values()))]
        text = (
            f"{wanted}: {len(modes)} devices of the profile; {len(groups.types)} groups ({', '.join(counts) or 'off'})"
        )
        yield Finding("node", "ok", text, evidence=(Evidence(GROUPS),))


class _Mode(NamedTuple):
    """mode: as the profile names it, or the kernel's type. line: what says so."""

    mode: str
    line: str


def _mode(groups: IommuGroups, address: str) -> _Mode:
    if not groups.types:
        return _Mode("off", f"{_FOLDER} is empty")
    group = groups.group_of.get(address)
    if group is None:
        raise NoEvidence(GROUPS, f"{address} is in no group, although there are {len(groups.types)} groups")
    kind = groups.types[group]
    return _Mode(_MODES.get(kind, f"in a group of type {kind}"), f"{_FOLDER}/{group}/type:{kind} ({address})")


def _wrong(name: str, found: _Mode, wanted: str, arguments: str | None) -> Finding:
    given = " ".join(_ARGUMENT.findall(arguments or ""))
    said = "cannot be read" if arguments is None else given or "none about the IOMMU"
    if found.mode == "off":
        advice = "switch VT-d (AMD: IOMMU) on in the BIOS and take intel_iommu=off or amd_iommu=off off the kernel"
    elif given:
        advice = f"the kernel was started with `{given}`, which did not do: see DMAR or AMD-Vi in dmesg, and the BIOS"
    elif arguments is None:
        advice = "look at /proc/cmdline: the argument that the profile names must be there, else add it and reboot"
    else:
        advice = "the kernel was started without any such argument: add the one that the profile names and reboot"
    return Finding(
        name,
        "fail",
        f"IOMMU {found.mode}; kernel arguments: {said}",
        wanted,
        "reboot",
        advice,
        (Evidence(GROUPS, found.line), Evidence(ARGUMENTS, arguments or "")),
        "profile, platform.iommu",
    )


def _parse_groups(result: ProbeResult) -> IommuGroups:
    return parse_iommu_groups(result.stdout)


def _parse_arguments(result: ProbeResult) -> str:
    line = result.stdout.strip().removeprefix("/proc/cmdline:")
    if not line or "\n" in line:
        raise ParseError(f"expected the one line of /proc/cmdline, got {line[:100]!r}")
    return line


_FIND = ("find", _FOLDER, "-maxdepth", "3")

PROBES = (
    Probe(
        GROUPS,
        _parse_groups,
        # The folder itself, so that no groups are told from no answer; links are devices, and each type with its text.
        argv=(*_FIND, "(", "-path", _FOLDER, "-o", "-type", "l", ")", "-print", "-o", "-name", "type", "-exec", "grep",
              "-H", "", "{}", "+"),
        deadline_s=20,
    ),
    Probe(ARGUMENTS, _parse_arguments, paths=("/proc/cmdline",), deadline_s=10),
)  # fmt: skip
CHECKS = (Check("iommu", check_iommu, (GROUPS, *NEEDS), also=(ARGUMENTS,)),)
