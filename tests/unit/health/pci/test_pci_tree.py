# SPDX-License-Identifier: Apache-2.0
"""lspci: every form of it is read, its functions hang together, and what was cut or garbled is refused."""

import re
import time
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.health.pci_tree import (
    Acs,
    PciTree,
    devices_of_class,
    parse_lspci,
)
from ansible.module_utils.gpufleet.health.probe import NoEvidence, ParseError

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "pci"
FULL = (FIXTURES / "xe9680-h100.lspci.txt").read_text()
GPU = {"match": [{"vendor": "10de", "device": "2330"}]}
GPUS = [f"0000:{bus}:00.0" for bus in ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")]


def read(name: str) -> PciTree:
    return parse_lspci((FIXTURES / name).read_text())


def as_lspci_prints(excerpt: str) -> str:
    """An excerpt of several functions with the empty line that ends each of them."""
    return re.sub(r"\n(?=\S|$)", "\n\n", excerpt)


def test_the_full_listing_of_an_xe9680() -> None:
    tree = parse_lspci(FULL)
    assert len(tree.devices) == 515 and tree.verbose and tree.with_ids and not tree.without_root
    assert [device.address for device in devices_of_class(tree, GPU)] == GPUS
    gpu = tree.devices["0000:9b:00.0"]
    assert (gpu.class_code, gpu.express, gpu.driver, gpu.numa_node, gpu.iommu_group) == (
        "0302",
        "Endpoint",
        "nvidia",
        1,
        None,
    )
    assert str(gpu.link_capability) == str(gpu.link_status) == "32 GT/s x16"
    assert gpu.max_read_request_bytes == 4096 and gpu.silence == "" and not gpu.acs_shown and gpu.extended
    path = tree.path_to_root("0000:9b:00.0")
    assert [(bridge.address, bridge.express) for bridge in path] == [
        ("0000:99:01.0", "Downstream Port"),
        ("0000:98:00.0", "Upstream Port"),
        ("0000:97:01.0", "Root Port"),
    ]
    assert path[0].acs_control == Acs(
        *(False,) * 7,
        "ACSCtl: SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-",
    )
    assert path[0].acs_capability is not None and path[0].acs_capability.redirects
    shared = tree.shared_bridge("0000:9b:00.0", "0000:9c:00.0")
    assert shared is not None and shared.address == "0000:98:00.0"
    assert tree.shared_bridge("0000:9b:00.0", "0000:19:00.0") is None
    assert not any(device.orphan for device in tree.devices.values())


def test_without_domains_and_ids() -> None:
    bare = re.sub(r"^0000:(.*?) \[\w{4}\]: (.*) \[\w{4}:\w{4}\]", r"\1: \2", FULL, flags=re.MULTILINE)
    tree, full = parse_lspci(bare), parse_lspci(FULL)
    assert list(tree.devices) == list(full.devices) and not tree.with_ids
    assert tree.path_to_root("0000:9b:00.0")[-1].address == "0000:97:01.0"
    with pytest.raises(NoEvidence, match="-nn"):
        devices_of_class(tree, GPU)


def test_one_line_for_each_function_and_domains_that_are_not_zero() -> None:
    tree = read("a100-azure-nn.lspci.txt")
    assert len(devices_of_class(tree, {"match": [{"vendor": "10de", "device": "20b2"}]})) == 8
    switches = devices_of_class(tree, {"match": [{"vendor": "10de", "device": "1af1"}]})
    assert len(switches) == 6 and switches[-1].address == "000a:00:00.0"
    assert not tree.verbose and tree.devices["0001:00:00.0"].link_status is None
    a10 = read("a10-nn.lspci.txt")
    assert len(devices_of_class(a10, {"match": [{"vendor": "10de", "class": "0302"}]})) == 1
    assert not devices_of_class(a10, {"match": [{"vendor": "10de", "class": "0680"}]})


def test_the_listing_of_the_lab_node() -> None:
    tree = read("lab-node.lspci.txt")
    assert tree.devices["0000:10:00.0"].iommu_group is not None
    port = tree.devices["0000:04:00.0"]
    assert port.link_capability is not None and port.link_capability.speed_gts is None
    assert port.link_status is not None and str(port.link_status) == "2.5 GT/s x1"
    shared = tree.shared_bridge("0000:10:00.0", "0000:11:00.0")
    assert shared is not None and shared.address == "0000:0e:00.0"
    assert tree.devices["0000:10:00.0"].numa_node is None, "the kernel says -1: lspci prints no line"


def test_link_status_is_read_without_its_remarks() -> None:
    """Bug 066; the last line but one has the flags behind it, as pciutils before 3.6 prints them."""
    lines = (FIXTURES / "066-lspci-lnksta-variants.txt").read_text().splitlines()
    lines += ["\t\tLnkSta:\tSpeed 8GT/s (strange), Width x32 (overdriven)", "\t\tLnkSta:\tSpeed <unknown>, Width x16"]
    seen = []
    for line in lines:
        text = f"19:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)\n{line}\n\n"
        seen.append(str(parse_lspci(text).devices["0000:19:00.0"].link_status))
    assert seen == [
        "5 GT/s x1",
        "5 GT/s x1",
        "16 GT/s x16",
        "8 GT/s x16",
        "32 GT/s x16",
        "2.5 GT/s x0",
        "8 GT/s x32",
        "unknown speed x16",
    ]


def test_a_function_that_does_not_answer() -> None:
    """Bug 070."""
    text = as_lspci_prints((FIXTURES / "070-lspci-rev-ff.txt").read_text())
    tree = parse_lspci(text)
    assert [device.silence for device in tree.devices.values()] == ["", "Unknown header type 7f"]
    without = parse_lspci(text.replace("\t!!! Unknown header type 7f\n", ""))
    assert [device.silence for device in without.devices.values()] == ["", "rev ff"]
    newer = parse_lspci(text.replace("(rev ff)", "(rev ff) (prog-if ff)"))
    assert newer.devices["0000:1c:00.0"].silence


def test_capabilities_hidden_from_a_user_without_root() -> None:
    """Bug 072."""
    tree = parse_lspci(as_lspci_prints((FIXTURES / "072-lspci-without-root.txt").read_text()))
    assert tree.without_root
    gpu = tree.devices["0000:1b:00.0"]
    assert gpu.denied and gpu.link_status is None and gpu.driver == "nvidia"


def test_virtual_functions_are_below_the_bridge_that_covers_their_bus() -> None:
    port = "17:02.0 PCI bridge: Broadcom / LSI PEX890xx (rev b0)\n\tBus: primary=17, secondary=1a, subordinate=1b\n\n"
    functions = "".join(
        f"{bus}:00.{n} Ethernet controller: Mellanox\n\tLatency: 0\n\n" for bus, n in (("1a", 0), ("1b", 1))
    )
    tree = parse_lspci(port + functions)
    assert [(device.parent, device.orphan) for device in tree.devices.values()] == [
        (None, False),
        ("0000:17:02.0", False),
        ("0000:17:02.0", True),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "printed nothing"),
        ("lspci: Cannot open /proc/bus/pci\n", "no PCI function"),
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n", "no PCI function"),
        ("19:00.0 3D controller: NVIDIA", "cut off"),
        ("19:00.0 3D controller: NVIDIA\n\tLatency: 0\n", "no empty line behind 'Latency: 0'"),
        ("19:00.0 3D controller: NVIDIA\n\tLatency: 0\n1a:00.0 Ethernet controller: M\n\n", "no empty line before"),
        ("\tLatency: 0\n\n", "no PCI function"),
        ("19:00.0 3D controller: N\n\tLnkSta: Speed 3?GT/s, Width x16\n\n", "no LnkSta"),
        ("19:00.0 3D controller: N\n\tLnkSta: Speed 32GT/s, Width x16 (good)\n\n", "no LnkSta"),
        ("19:00.0 3D controller: N\n\tLnkCap: Port #0, Speed 32GT/s, Width x\n\n", "no LnkCap"),
        ("19:00.0 3D controller: N\n\tACSCtl: SrcValid+ TransBlk?\n\n", "no ACSCtl"),
        ("19:00.0 3D controller: N\n\tNUMA node: x\n\n", "no NUMA node"),
        ("19:00.0 3D controller: N\n\t\tMaxPayload 256 bytes, MaxReadReq many bytes\n\n", "no MaxPayload"),
        ("17:00.0 PCI bridge: PEX\n\tLatency: 0\n\n", "no `Bus:` line"),
        ("17:00.0 PCI bridge: PEX\n\tBus: primary=17, secondary=z8\n\n", "no Bus"),
        ("19:00.0 3D controller: N\n\tNUMA node: 0\n\tNUMA node: 1\n\n", "a second line NUMA node"),
        ("19:00.0 3D controller: N\n\n19:00.0 3D controller: N\n\tLatency: 0\n\n", "twice"),
        ("19:00.0 3D controller [0302]: N [10de:2330]\n1a:00.0 3D controller [0302]: N [10de:23?0]\n", "no vendor"),
    ],
)  # fmt: skip
def test_what_lspci_does_not_print_is_refused(text: str, says: str) -> None:
    with pytest.raises(ParseError, match=re.escape(says)):
        parse_lspci(text)


def test_a_cut_is_refused_or_leaves_whole_functions() -> None:
    full = parse_lspci(FULL).devices
    lines = FULL.splitlines(keepends=True)
    # one line alone looks like a listing without -v
    for end in range(2, len(lines), 97):
        text = "".join(lines[:end])
        if text.endswith("\n\n"):
            assert all(full[address] == device for address, device in parse_lspci(text).devices.items())
        else:
            with pytest.raises(ParseError):
                parse_lspci(text)


def test_the_full_listing_takes_less_than_a_tenth_of_a_second() -> None:
    best = min(_seconds() for __ in range(3))
    assert best < 0.1, f"{best:.3f} s"


def _seconds() -> float:
    start = time.process_time()
    parse_lspci(FULL)
    return time.process_time() - start
