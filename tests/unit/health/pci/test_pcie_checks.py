# SPDX-License-Identifier: Apache-2.0
"""PCIe and IOMMU: a healthy node passes, one fault gives one finding at the right place, and less never passes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health import (
    iommu,
    pci_tree,
    pcie_acs,
    pcie_devices,
    pcie_link,
    pcie_read_request,
    system_disks,
)
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.probe import ParseError, ProbeResult

from tests.unit.health.host.node_fixture import FIXTURES, changed, judge, lab_node, profile, troubles, xe9680

PROBES = pci_tree.PROBES + system_disks.PROBES + iommu.PROBES
CHECKS = pcie_devices.CHECKS + pcie_link.CHECKS + pcie_read_request.CHECKS + pcie_acs.CHECKS + iommu.CHECKS
LSPCI, LINKS, MOUNTS = pci_tree.LSPCI, system_disks.LINKS, system_disks.MOUNTS
HEALTHY = xe9680()
XE9680 = profile()


def run(results: dict[str, ProbeResult], wanted: dict[str, Any] = XE9680) -> list[Finding]:
    return judge(CHECKS, PROBES, results, wanted)


def below(address: str, pattern: str, value: str, text: str) -> str:
    """The listing with a text replaced, once, among the lines of one function."""
    start = text.index(f"0000:{address} ")
    end = text.index("\n\n", start)
    block, count = re.subn(pattern, value, text[start:end], count=1)
    assert count == 1, f"{pattern} is not below {address}"
    return text[:start] + block + text[end:]


def without(address: str, text: str) -> str:
    """The listing without a function."""
    start = text.index(f"0000:{address} ")
    return text[:start] + text[text.index("\n\n", start) + 2 :]


def edited(address: str, pattern: str, value: str) -> list[Finding]:
    return run(changed(HEALTHY, LSPCI, lambda text: below(address, pattern, value, text)))


def test_a_healthy_xe9680() -> None:
    findings = run(HEALTHY)
    assert [(one.check, one.status) for one in findings] == [(check.id, "ok") for check in CHECKS]
    said = {one.check: one.observed for one in findings}
    assert said["pcie.devices"].startswith("8 hca, 4 ethernet, 5 data_disk; all 515")
    assert "8 gpu at 32 GT/s x16" in said["pcie.link"] and "45 bridges" in said["pcie.link"]
    assert "24 bridges" in said["pcie.acs"] and "8 have no ACS capability" in said["pcie.acs"]
    assert said["iommu"].startswith("passthrough: 29 devices")


STATUS = r"LnkSta:\tSpeed 32GT/s \(ok\), Width x16 \(ok\)"
OFF = r"ACSCtl:\tSrcValid- TransBlk- ReqRedir-"
FAULTS: list[tuple[str, str, str, str, tuple[str, str, str]]] = [
    # what, function, pattern, replacement, the one finding
    ("GPU x8", "9b:00.0", STATUS, "LnkSta:\tSpeed 32GT/s (ok), Width x8 (downgraded)",
     ("pcie.link", "GPU 0000:9b:00.0", "fail")),
    ("NIC at Gen3", "9c:00.0", STATUS, "LnkSta:\tSpeed 8GT/s, Width x16", ("pcie.link", "NIC 0000:9c:00.0", "fail")),
    ("NIC without link", "9c:00.0", STATUS, "LnkSta:\tSpeed 2.5GT/s, Width x0",
     ("pcie.link", "NIC 0000:9c:00.0", "fail")),
    ("NVMe x2", "9a:00.0", r"LnkSta:\tSpeed 16GT/s \(ok\), Width x4", "LnkSta:\tSpeed 16GT/s (ok), Width x2",
     ("pcie.link", "NVMe 0000:9a:00.0", "fail")),
    ("NVSwitch x1", "83:00.0", r"LnkSta:\tSpeed 16GT/s \(ok\), Width x2", "LnkSta:\tSpeed 16GT/s, Width x1",
     ("pcie.link", "NVSwitch 0000:83:00.0", "fail")),
    ("uplink of a switch x8", "98:00.0", STATUS, "LnkSta:\tSpeed 32GT/s, Width x8",
     ("pcie.link", "bridge 0000:98:00.0", "fail")),
    ("uplink of a switch at Gen3", "98:00.0", STATUS, "LnkSta:\tSpeed 8GT/s, Width x16",
     ("pcie.link", "bridge 0000:98:00.0", "fail")),
    ("root port x8", "97:01.0", STATUS, "LnkSta:\tSpeed 32GT/s, Width x8",
     ("pcie.link", "bridge 0000:97:01.0", "fail")),
    ("slot's end x8", "99:01.0", STATUS, "LnkSta:\tSpeed 32GT/s, Width x8",
     ("pcie.link", "bridge 0000:99:01.0", "fail")),
    ("wider slot", "99:02.0", r"LnkCap:\tPort #2, Speed 32GT/s, Width x16", "LnkCap: Speed 32GT/s, Width x32",
     ("", "", "")),
    ("read requests of 512 bytes", "9c:00.0", "MaxReadReq 4096", "MaxReadReq 512",
     ("pcie.max_read_request", "NIC 0000:9c:00.0", "warn")),
    ("ACS at the slot of a GPU", "99:01.0", OFF, "ACSCtl:\tSrcValid- TransBlk- ReqRedir+",
     ("pcie.acs", "bridge 0000:99:01.0", "fail")),
    ("ACS at the slot of a NIC", "99:02.0", "CmpltRedir- UpstreamFwd- E", "CmpltRedir- UpstreamFwd+ E",
     ("pcie.acs", "bridge 0000:99:02.0", "fail")),
    ("NIC does not answer", "9c:00.0", r"\[15b3:1021\]", "[15b3:1021] (rev ff) (prog-if ff)",
     ("pcie.devices", "NIC 0000:9c:00.0", "fail")),
    ("switch does not answer", "1c:00.0", r"\(rev b0\)", "(rev ff)",
     ("pcie.devices", "function 0000:1c:00.0", "warn")),
    ("SrcValid alone", "99:01.0", "ACSCtl:\tSrcValid-", "ACSCtl:\tSrcValid+", ("", "", "")),
    ("ACS above the disk", "99:00.0", OFF, "ACSCtl:\tSrcValid- TransBlk- ReqRedir+", ("", "", "")),
    ("ACS at a root port", "97:01.0", OFF, "ACSCtl:\tSrcValid- TransBlk- ReqRedir+", ("", "", "")),
    ("sticky error bits", "9b:00.0", "CESta:\tRxErr. BadTLP.", "CESta:\tRxErr+ BadTLP+", ("", "", "")),
]  # fmt: skip


@pytest.mark.parametrize(("address", "pattern", "value", "expected"), [fault[1:] for fault in FAULTS],
                         ids=[fault[0] for fault in FAULTS])  # fmt: skip
def test_one_fault_one_finding(address: str, pattern: str, value: str, expected: tuple[str, str, str]) -> None:
    findings = run(
        {**HEALTHY, LSPCI: HEALTHY[LSPCI]._replace(stdout=below(address, pattern, value, HEALTHY[LSPCI].stdout))}
    )
    assert troubles(findings) == ([expected] if expected[0] else [])
    for one in findings:
        if one.status not in ("ok", "skipped"):
            assert one.advice and one.evidence and one.expected and one.reference and one.action != "none", one
            assert one.evidence[0].excerpt


def test_a_trained_down_link_seen_from_both_ends_is_one_finding() -> None:
    def both(text: str) -> str:
        for address in ("9b:00.0", "99:01.0"):
            text = below(address, STATUS, "LnkSta:\tSpeed 32GT/s (ok), Width x8 (downgraded)", text)
        return text

    findings = run(changed(HEALTHY, LSPCI, both))
    assert troubles(findings) == [("pcie.link", "GPU 0000:9b:00.0", "fail")]
    (found,) = (one for one in findings if one.status == "fail")
    assert (found.observed, found.expected, found.action) == (
        "link at 32 GT/s x8; both ends can do 32 GT/s x16 (the slot, bridge 0000:99:01.0, can do 32 GT/s x16)",
        "32 GT/s x16",
        "reseat",
    )


def test_a_slot_that_is_narrower_by_design_is_no_trained_down_link() -> None:
    def narrow(text: str) -> str:
        text = below("99:02.0", r"Speed 32GT/s, Width x16, ASPM", "Speed 32GT/s, Width x8, ASPM", text)
        for address in ("9c:00.0", "99:02.0"):
            text = below(address, STATUS, "LnkSta:\tSpeed 32GT/s (ok), Width x8 (downgraded)", text)
        return text

    results = changed(HEALTHY, LSPCI, narrow)
    (found,) = (one for one in run(results) if one.status == "fail")
    assert (found.component, found.action) == ("NIC 0000:9c:00.0", "inspect")
    assert "both ends can do 32 GT/s x8" in found.observed and "wrong slot" in found.advice
    wanted = profile()
    wanted["devices"]["hca"]["link"]["width"] = 8
    assert [one for one in run(results, wanted) if one.component == "NIC 0000:9c:00.0"] == []


def test_a_link_below_what_it_can_but_as_good_as_wanted_is_looked_at() -> None:
    wanted = profile()
    wanted["devices"]["hca"]["link"]["width"] = 8
    results = changed(HEALTHY, LSPCI, lambda text: below("9c:00.0", STATUS, "LnkSta:\tSpeed 32GT/s, Width x8", text))
    assert troubles(run(results, wanted)) == [("pcie.link", "NIC 0000:9c:00.0", "warn")]


@pytest.mark.parametrize("ends", [("9b:00.0",), ("9b:00.0", "99:01.0")])
def test_an_idle_gpu_is_not_assessed_by_its_generation(ends: tuple[str, ...]) -> None:
    """Bug 067."""

    def idle(text: str) -> str:
        for address in ends:
            text = below(address, STATUS, "LnkSta:\tSpeed 2.5GT/s (downgraded), Width x16 (ok)", text)
        return text

    findings = [one for one in run(changed(HEALTHY, LSPCI, idle)) if one.check == "pcie.link"]
    assert [(one.component, one.status) for one in findings] == [("GPU 0000:9b:00.0", "skipped")]
    assert "idle" in findings[0].observed


def test_missing_and_unexpected_functions() -> None:
    findings = run(changed(HEALTHY, LSPCI, lambda text: without("9c:00.0", text)))
    assert troubles(findings) == [("pcie.devices", "kind hca", "fail")]
    (found,) = (one for one in findings if one.status == "fail")
    assert found.observed == "7 functions; none beside GPU 0000:9b:00.0" and found.action == "power_cycle"
    skipped = {one.check for one in findings if one.status == "skipped"}
    assert skipped == {"pcie.link", "pcie.max_read_request", "pcie.acs", "iommu"}, "nothing was seen of the eighth NIC"

    wanted = profile()
    wanted["devices"]["ethernet"]["count"] = 2
    assert troubles(run(HEALTHY, wanted)) == [("pcie.devices", "kind ethernet", "warn")]


def test_a_gpu_that_is_gone_or_dead_is_counted_by_gpu_count() -> None:
    gone = run(changed(HEALTHY, LSPCI, lambda text: without("9b:00.0", text)))
    assert troubles(gone) == []
    assert [one.status for one in gone if one.check == "pcie.link"] == ["skipped"]
    dead = edited("9b:00.0", r"\(rev a1\)", "(rev ff)")
    assert troubles(dead) == []
    assert [(one.component, one.status) for one in dead if one.check == "pcie.link"] == [
        ("GPU 0000:9b:00.0", "skipped")
    ]


def test_a_dead_switch_hides_what_is_below_it() -> None:
    """Bug 070: the bridge is reported once, and what cannot be seen behind it is unknown."""
    findings = edited("98:00.0", r"\(rev b0\)", "(rev ff)")
    assert ("pcie.devices", "bridge 0000:98:00.0", "fail") in troubles(findings)
    (found,) = (one for one in findings if one.status == "fail")
    assert "warm reboot does not" in found.advice and found.action == "power_cycle"


def test_acs_lines_of_bug_071() -> None:
    lines = re.findall(r"ACSCtl:.*", (FIXTURES / "pci" / "071-acsctl-lines.txt").read_text())
    before = HEALTHY[LSPCI].stdout
    statuses = []
    for line in lines:
        text = below("99:01.0", "ACSCtl:.*", line, before)
        statuses.append(troubles(run({**HEALTHY, LSPCI: HEALTHY[LSPCI]._replace(stdout=text)})))
    fail = [("pcie.acs", "bridge 0000:99:01.0", "fail")]
    assert statuses == [fail, [], []], "redirection fails; all off and SrcValid alone do not"
    # the line of the chip set's root port, where no GPU or NIC is below
    assert troubles(edited("00:0c.0", "ACSCtl:.*", lines[0])) == []


def test_acs_may_be_kept() -> None:
    wanted = profile()
    wanted["platform"]["acs_redirect"] = "keep"
    findings = judge(pcie_acs.CHECKS, PROBES, HEALTHY, wanted)
    assert [one.status for one in findings] == ["skipped"]


def test_without_root_nothing_is_off() -> None:
    """Bug 072: what is hidden is unknown, and the message says that root is needed."""

    def hide(text: str) -> str:
        text = re.sub(
            r"^\tCapabilities: .*\n(?:\t(?:\t|Capa).*\n)*", "\tCapabilities: <access denied>\n", text, flags=re.M
        )
        return re.sub(r"(\tCapabilities: <access denied>\n)+", r"\1", text)

    results = changed(HEALTHY, LSPCI, hide)
    findings = [one for one in run(results) if one.check in ("pcie.link", "pcie.acs", "pcie.max_read_request")]
    assert {one.status for one in findings} == {"unknown"}
    assert all("without root" in one.observed and one.evidence[0].probe == LSPCI for one in findings)
    assert troubles(judge(pcie_devices.CHECKS, PROBES, results, XE9680)) == [], "the count needs no root"


@pytest.mark.parametrize(
    ("address", "line", "expected"),
    [
        ("9b:00.0", "LnkSta", ("pcie.link", "GPU 0000:9b:00.0")),
        ("9b:00.0", "LnkCap", ("pcie.link", "GPU 0000:9b:00.0")),
        ("99:01.0", "LnkCap", ("pcie.link", "GPU 0000:9b:00.0")),
        ("99:01.0", "LnkSta", ("pcie.link", "GPU 0000:9b:00.0")),
        ("98:00.0", "LnkSta", ("pcie.link", "bridge 0000:98:00.0")),
        ("98:00.0", "Capabilities: .*Express", ("pcie.link", "bridge 0000:98:00.0")),
        ("9c:00.0", "\tMaxPayload 256", ("pcie.max_read_request", "NIC 0000:9c:00.0")),
        ("99:01.0", "ACSCtl", ("pcie.acs", "bridge 0000:99:01.0")),
        ("99:01.0", "ACSCap", ("pcie.acs", "bridge 0000:99:01.0")),
    ],
)
def test_a_line_that_is_gone_makes_it_unknown(address: str, line: str, expected: tuple[str, str]) -> None:
    findings = edited(address, rf"\n\s*{line}.*", "")
    assert troubles(findings) == [(*expected, "unknown")]


def test_a_bridge_without_extended_capabilities_may_hide_acs() -> None:
    def plain(text: str) -> str:
        start = text.index("0000:98:00.0 ")
        end = text.index("\n\n", start)
        block = re.sub(r"\n\tCapabilities: \[\w+ v\d+\].*(?:\n\t\t.*)*", "", text[start:end])
        return text[:start] + block + text[end:]

    findings = run(changed(HEALTHY, LSPCI, plain))
    assert troubles(findings) == [("pcie.acs", "bridge 0000:98:00.0", "unknown")]


def test_speeds_that_an_old_lspci_does_not_know() -> None:
    findings = edited("9c:00.0", STATUS, "LnkSta:\tSpeed unknown (ok), Width x16 (ok)")
    assert troubles(findings) == [("pcie.link", "NIC 0000:9c:00.0", "unknown")]


def test_cut_between_two_functions_never_passes() -> None:
    text = HEALTHY[LSPCI].stdout
    ends = [match.end() for match in re.finditer("\n\n", text)]
    last = text.index("0000:dc:00.0 ")
    for end in [end for end in ends if end <= last][::23]:
        results = {**HEALTHY, LSPCI: HEALTHY[LSPCI]._replace(stdout=text[:end])}
        assert not [one for one in run(results) if one.status == "ok"], end


def test_the_system_disk_does_not_count() -> None:
    wanted = profile()
    wanted["devices"]["data_disk"]["without_os_disk"] = False
    assert troubles(run(HEALTHY, wanted)) == [("pcie.devices", "kind data_disk", "warn")]

    def elsewhere(text: str) -> str:
        return text.replace('"/"', '"/srv"').replace('"/boot/efi"', "null")

    findings = run(changed(HEALTHY, MOUNTS, elsewhere))
    assert troubles(findings) == [("pcie.devices", "kind data_disk", "warn")]


@pytest.mark.parametrize("probe", [LINKS, MOUNTS])
@pytest.mark.parametrize("text", ["", "lsblk: failed\n", "{}"])
def test_no_list_of_block_devices_leaves_only_the_disks_unknown(probe: str, text: str) -> None:
    findings = run({**HEALTHY, probe: HEALTHY[probe]._replace(stdout=text)})
    assert {(check, component, status) for check, component, status in troubles(findings)} == {
        ("pcie.devices", "kind data_disk", "unknown"),
        ("pcie.link", "kind data_disk", "unknown"),
        ("iommu", "kind data_disk", "unknown"),
    }


def test_a_disk_with_two_ports_is_found_by_its_hidden_path() -> None:
    links = (
        "nvme0n1 ../../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1\n"
        "nvme0c1n1 ../../devices/pci0000:15/0000:15:01.0/0000:18:00.0/nvme/nvme1/nvme0c1n1\n"
        "nvme0n1p2 ../../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/nvme0n1p2\n"
    )
    found = system_disks.parse_block_device_links(links)
    assert found["nvme0n1"] == ("0000:18:00.0",)
    mounts = json.dumps({"blockdevices": [{"kname": "nvme0n1", "mountpoints": [], "children": [
        {"kname": "nvme0n1p2", "mountpoints": [None, "/"]}]}]})  # fmt: skip
    disks = system_disks.parse_system_disks(mounts)
    assert system_disks.system_disk_addresses(found, disks) == {"0000:18:00.0"}


def test_iommu_of_another_mode() -> None:
    def translating(text: str) -> str:
        return text.replace("type:identity", "type:DMA-FQ")

    findings = run(changed(HEALTHY, iommu.GROUPS, translating))
    assert troubles(findings) == [("iommu", "node", "fail")]
    (found,) = (one for one in findings if one.status == "fail")
    assert found.observed == "IOMMU translated; kernel arguments: iommu=pt", "the argument proves nothing"
    assert "did not do" in found.advice

    only = iommu.parse_iommu_groups(HEALTHY[iommu.GROUPS].stdout).group_of["0000:9c:00.0"]
    findings = run(
        changed(HEALTHY, iommu.GROUPS, lambda text: text.replace(f"/{only}/type:identity", f"/{only}/type:DMA"))
    )
    assert troubles(findings) == [("iommu", "NIC 0000:9c:00.0", "fail")]


def test_iommu_off() -> None:
    off = run({**HEALTHY, iommu.GROUPS: HEALTHY[iommu.GROUPS]._replace(stdout="/sys/kernel/iommu_groups\n")})
    assert troubles(off) == [("iommu", "node", "fail")]
    wanted = profile()
    wanted["platform"]["iommu"] = "off"
    assert troubles(run(HEALTHY, wanted)) == [("iommu", "node", "fail")]
    results = {**HEALTHY, iommu.GROUPS: HEALTHY[iommu.GROUPS]._replace(stdout="/sys/kernel/iommu_groups\n")}
    assert troubles(run(results, wanted)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: "", "iommu_groups first"),
        (lambda text: text.split("\n", 1)[1], "iommu_groups first"),
        (lambda text: text.replace("/7/type:identity\n", "/7/typ\n"), "neither"),
        (lambda text: re.sub(r".*/7/type:identity\n", "", text), "group 7 has no type"),
    ],
)
def test_iommu_groups_that_are_not_complete(change: Callable[[str], str], says: str) -> None:
    with pytest.raises(ParseError, match=says):
        iommu.parse_iommu_groups(change(HEALTHY[iommu.GROUPS].stdout))


def test_a_device_without_a_group_is_unknown() -> None:
    address = "0000:9c:00.0"
    findings = run(changed(HEALTHY, iommu.GROUPS, lambda text: re.sub(rf".*{address}\n", "", text)))
    assert troubles(findings) == [("iommu", f"NIC {address}", "unknown")]


def test_the_lab_node() -> None:
    """Real sysfs and lspci: QEMU's root ports redirect, the IOMMU passes through, emulated links say nothing."""
    wanted = profile("lab")
    wanted["platform"]["acs_redirect"] = "off"
    findings = judge(CHECKS, PROBES, lab_node(), wanted)
    assert {one.check: one.status for one in findings} == {
        "pcie.devices": "ok",
        "pcie.link": "skipped",
        "pcie.max_read_request": "ok",
        "pcie.acs": "fail",
        "iommu": "ok",
    }
    redirecting = [one.component for one in findings if one.check == "pcie.acs"]
    assert sorted(redirecting) == [f"bridge 0000:00:0{port}.0" for port in (5, 6, 7, 8)]


@pytest.mark.parametrize("probe", [probe.id for probe in PROBES])
@pytest.mark.parametrize("outcome", ["timeout", "failed", "missing", "truncated"])
def test_a_probe_without_an_answer_leaves_nothing_that_needs_it_ok(probe: str, outcome: str) -> None:
    result = HEALTHY[probe]._replace(outcome=outcome, stdout="", stderr="it hangs", rc=1)
    needing = {check.id for check in CHECKS if probe in check.needs}
    findings = run({**HEALTHY, probe: result})
    for one in findings:
        if one.check not in needing:
            assert one.status == "ok"
        else:
            assert one.status == "unknown"
    assert not needing or any(one.status == "unknown" and probe in one.observed for one in findings)


@pytest.mark.parametrize(
    ("file", "kind"), [("h100-ok", "gpu"), ("cx7-ok", "hca"), ("nvswitch-22a3", "nvswitch"), ("acs-srcvalid-on", None)]
)
def test_healthy_excerpts(file: str, kind: str | None) -> None:
    """One function each, as published: sticky LaneErrStat and CESta, the NIC's class, SrcValid of the chip set."""
    names = {"Device 2330": "10de:2330", "[ConnectX-7]": "15b3:1021", "Device 22a3": "10de:22a3"}
    classes = {"3D controller": "0302", "Ethernet controller": "0200", "Bridge": "0680", "PCI bridge": "0604"}

    def with_ids(line: re.Match[str]) -> str:
        ids = next((ids for name, ids in names.items() if name in line[3]), "8086:1bbc")
        return f"0000:{line[1]} {line[2]} [{classes[line[2]]}]: {line[3]} [{ids}]{line[4] or ''}"

    text = (FIXTURES / "pci" / f"{file}.lspci.txt").read_text()
    text = re.sub(r"^(\w\w:\S+) ([^:]+): (.*?)( \(.*)?$", with_ids, text, flags=re.M)
    wanted = profile()
    for name, described in wanted["devices"].items():
        described["count"] = int(name == kind)
    findings = judge(
        pcie_devices.CHECKS + pcie_link.CHECKS + pcie_read_request.CHECKS + pcie_acs.CHECKS,
        PROBES,
        {**HEALTHY, LSPCI: HEALTHY[LSPCI]._replace(stdout=text)},
        wanted,
    )
    assert [one.status for one in findings] == ["ok"] * 4
