# SPDX-License-Identifier: Apache-2.0
"""topo -m, and the pairs of GPUs and NICs by the PCI tree with topo -m as the second witness."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.gpufleet.health.gpu_nic_pairing import parse_rdma_devices
from ansible.module_utils.gpufleet.health.gpu_topology import topology_of
from ansible.module_utils.gpufleet.health.probe import ParseError, ProbeResult

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
LSPCI = "pci.lspci"
TOPOLOGY = "nvidia_smi.topology"
RDMA = "infiniband.pci_addresses"
QUERY = "nvidia_smi.query"
MOCK_BUSES = ("1A", "1B", "4A", "4B", "8A", "8B", "CA", "CB")
XE9680_BUSES = ("19", "3B", "4C", "5D", "9B", "BB", "CB", "DB")
LEGEND = (
    "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
    "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
    "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
    "  PIX  = Connection traversing at most a single PCIe bridge\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n"
)


@pytest.fixture
def node(recordings, results_of, fixture_text):
    """The XE9680: its lspci, topo -m and RDMA devices, and nvidia-smi -q with the GPUs at its addresses."""
    moved = dict(zip(MOCK_BUSES, XE9680_BUSES, strict=True))
    pattern = rf"(<gpu id=\"|<pci_bus_id>)00000000:({'|'.join(MOCK_BUSES)}):"
    query = recordings["550.163.01-h100-healthy"][QUERY].stdout
    query = re.sub(pattern, lambda match: f"{match[1]}00000000:{moved[match[2]]}:", query)
    return results_of(
        {
            LSPCI: (FIXTURES / "pci" / "xe9680-h100.lspci.txt").read_text(),
            TOPOLOGY: fixture_text("topology/xe9680-h100.txt"),
            RDMA: fixture_text("topology/xe9680-h100-uevent.txt"),
            QUERY: query,
        }
    )


def with_text(node, probe, text):
    assert text != node[probe].stdout
    return {**node, probe: node[probe]._replace(stdout=text)}


@pytest.mark.parametrize("name", ["h100-590", "h100-mig-590", "h200-mig-590"])
def test_single_gpus(fixture_text, name):
    topology = topology_of(fixture_text(f"topology/{name}.txt"))
    assert (topology.devices, topology.numa) == (("GPU0",), {"GPU0": frozenset({0})})


def test_numa_affinity_is_a_set_or_not_known_but_never_0_by_default(fixture_text):
    text = fixture_text("topology/018-numa-na-and-range.txt")
    with pytest.raises(ParseError, match="legend"):  # the sample's legend is not whole
        topology_of(text)
    assert topology_of(text + LEGEND).numa == {"GPU0": None, "GPU1": frozenset({0, 1})}


def test_the_underlined_header_is_read(fixture_text):
    text = fixture_text("topology/019-ansi-underline.txt")
    assert "\x1b[4m" in text
    topology = topology_of(text + LEGEND)
    assert (topology.devices, topology.numa) == (("GPU0",), {"GPU0": frozenset({0})})


def test_a_refusal_is_no_matrix(fixture_text):
    with pytest.raises(ParseError, match="not the header"):
        topology_of(fixture_text("topology/020-rejects-i.txt"))


def test_columns_that_a_virtual_machine_leaves_blank(fixture_text):
    text = fixture_text("topology/h100-590.txt").replace("\t0-19\t0\t\tN/A", "\t\t0\t\tN/A")
    assert topology_of(text).numa == {"GPU0": None}


def test_the_matrix_of_the_xe9680(fixture_text):
    topology = topology_of(fixture_text("topology/xe9680-h100.txt"))
    assert len(topology.gpus) == 8 and len(topology.nics) == 12
    assert topology.paths["GPU4", "NIC6"] == topology.paths["NIC6", "GPU4"] == "PXB"
    assert topology.nic_names["NIC6"] == "mlx5_6"
    assert topology.numa["GPU7"] == frozenset({1})


def test_older_drivers_print_the_nics_by_name(fixture_text):
    text = fixture_text("topology/xe9680-h100.txt")
    text = re.sub(r"\bNIC(\d+)\b", r"mlx5_\1", text.split("\nNIC Legend")[0])
    topology = topology_of(text)
    assert topology.nics[:2] == ("mlx5_0", "mlx5_1")
    assert topology.nic_names["mlx5_1"] == "mlx5_1"


@pytest.mark.parametrize("name", ["xe9680-h100.txt"])
def test_no_cut_matrix_is_taken_for_a_whole_one(fixture_text, name):
    lines = fixture_text(f"topology/{name}").splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if line.strip())
    for number in range(last + 1):
        with pytest.raises(ParseError):
            topology_of("".join(lines[:number]))
    for number in range(21):
        with pytest.raises(ParseError):
            topology_of("".join(lines[:number] + lines[number + 1 :]))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("GPU0\t X \tNV18", "GPU0\t X \tOK"),
        ("GPU0\t X \tNV18", "GPU0\tPIX\tNV18"),
        ("NIC0\tPXB", "NIC0\tSYS"),
        ("\t0-55,112-167\t0\t\tN/A", "\t0-55,112-167\tzero\t\tN/A"),
        ("\t0-55,112-167\t0\t\tN/A", "\t0-55,112-167\t0-99999\t\tN/A"),
    ],
)
def test_garbled_cells_are_refused(fixture_text, before, after):
    text = fixture_text("topology/xe9680-h100.txt")
    with pytest.raises(ParseError):
        topology_of(text.replace(before, after, 1))


def test_each_gpu_of_the_xe9680_has_its_nic(node, judge):
    (finding,) = judge(node, "gpu.nic_pairing")
    assert (finding.status, finding.observed) == (
        "ok",
        "8 GPUs, each with a NIC of its own below its switch; topo -m says PXB for 8 of 8 pairs",
    )
    assert "0000:9b:00.0 and 0000:9c:00.0" in finding.evidence[0].excerpt


def test_without_the_witness_the_tree_suffices_and_that_is_said(node, judge):
    (finding,) = judge({LSPCI: node[LSPCI]}, "gpu.nic_pairing")
    assert finding.status == "ok" and "topo -m could not be asked" in finding.observed
    without = {probe: result for probe, result in node.items() if probe != RDMA}
    (finding,) = judge(without, "gpu.nic_pairing")
    assert finding.status == "ok" and "cannot be told" in finding.observed
    (finding,) = judge({probe: result for probe, result in node.items() if probe != LSPCI}, "gpu.nic_pairing")
    assert finding.status == "unknown"


def test_a_topology_without_nics_bears_nothing_out(node, judge, recordings):
    lone = recordings["535.261.03-h100-healthy"][TOPOLOGY].stdout
    (finding,) = judge(with_text(node, TOPOLOGY, lone), "gpu.nic_pairing")
    assert finding.status == "ok" and "lists no NIC" in finding.observed


def test_a_nic_in_another_slot(node, judge, told):
    """The NIC of GPU 4 sits below the switch of GPU 5."""
    text = node[LSPCI].stdout.replace("0000:9c:00.0 ", "0000:ba:1e.0 ")
    found = judge(with_text(node, LSPCI, text), "gpu.nic_pairing")
    statuses = told(found)
    assert statuses["gpu.nic_pairing", "GPU 4 (0000:9b:00.0)"] == "fail"
    assert statuses["gpu.nic_pairing", "GPU 5 (0000:bb:00.0)"] == "fail"
    assert statuses["gpu.nic_pairing", "NIC 0000:ba:1e.0"] == "fail"
    assert all(finding.action == "inspect" and finding.advice for finding in found)


def test_a_nic_that_is_gone(node, judge, told):
    text = "\n\n".join(block for block in node[LSPCI].stdout.split("\n\n") if not block.startswith("0000:9c:00.0"))
    found = judge(with_text(node, LSPCI, text), "gpu.nic_pairing")
    assert told(found) == {("gpu.nic_pairing", "GPU 4 (0000:9b:00.0)"): "fail"}
    assert "no hca below any bridge above it" in found[0].observed


def test_witnesses_that_disagree(node, judge, told):
    text = node[TOPOLOGY].stdout.splitlines(keepends=True)
    rows = {line.split("\t")[0]: number for number, line in enumerate(text)}
    for row, column in (("GPU4", 8 + 6), ("NIC6", 4)):
        cells = text[rows[row]].split("\t")
        assert cells[1 + column] == "PXB"
        cells[1 + column] = "NODE"
        text[rows[row]] = "\t".join(cells)
    found = judge(with_text(node, TOPOLOGY, "".join(text)), "gpu.nic_pairing")
    assert told(found) == {("gpu.nic_pairing", "GPU 4 (0000:9b:00.0)"): "warn"}
    assert "from GPU4 to NIC6 NODE" in found[0].observed


def test_numa_nodes_that_disagree(node, judge, told):
    text = node[TOPOLOGY].stdout.replace("\t0-55,112-167\t0\t\tN/A", "\t0-55,112-167\t1\t\tN/A", 1)
    found = judge(with_text(node, TOPOLOGY, text), "gpu.nic_pairing")
    assert told(found) == {("gpu.nic_pairing", "GPU 0 (0000:19:00.0)"): "warn"}


def test_an_unknown_numa_node_is_said_and_is_not_node_0(node, judge, fixture_text):
    """Bug 021: the kernel writes -1, and lspci then prints no NUMA node. The profile demands no affinity: no fault."""
    unknown = sum(line.endswith(":-1") for line in fixture_text("topology/021-numa-minus-one.txt").splitlines())
    blocks = node[LSPCI].stdout.split("\n\n")
    for bus in XE9680_BUSES[4 : 4 + unknown]:
        number = next(i for i, block in enumerate(blocks) if block.startswith(f"0000:{bus.lower()}:00.0"))
        blocks[number] = re.sub(r"\n\tNUMA node: 1", "", blocks[number])
    (finding,) = judge(with_text(node, LSPCI, "\n\n".join(blocks)), "gpu.nic_pairing")
    assert finding.status == "ok" and finding.observed.endswith("the NUMA node of 2 GPUs is not known")


def test_a_machine_without_switches_is_no_evidence(judge, results_of):
    by = {
        "devices": {
            "gpu": {"match": [{"device": "20b2"}], "count": 8, "pair_with": "hca"},
            "hca": {"match": [{"device": "101c"}], "count": 8, "pair_with": "gpu"},
        }
    }
    text = (FIXTURES / "pci" / "a100-azure-nn.lspci.txt").read_text()
    (finding,) = judge(results_of({LSPCI: text}), "gpu.nic_pairing", by=by)
    assert finding.status == "unknown" and "virtual machine" in finding.observed


def test_the_two_ports_of_a_card_are_one_nic(node, judge, profile):
    profile["devices"]["gpu"]["pair_with"] = None
    profile["devices"]["hca"]["pair_with"] = None
    profile["devices"]["ethernet"]["pair_with"] = "gpu"
    profile["devices"]["gpu"]["match"] = [{"vendor": "10de", "device": "2330"}]
    (finding,) = judge(node, "gpu.nic_pairing", by=profile)
    assert finding.status == "ok" and finding.observed.startswith("2 GPUs")


def test_the_lab_node_has_one_pair_below_a_switch(judge, results_of):
    """Recorded there, not written: two of its three pairs lie below root ports of their own."""
    lab = yaml.safe_load((FIXTURES.parents[1] / "profiles" / "lab.yml").read_text())
    text = (FIXTURES / "pci" / "lab-node.lspci.txt").read_text()
    found = judge(results_of({LSPCI: text}), "gpu.nic_pairing", by=lab)
    assert [(finding.component, finding.status) for finding in found] == [
        ("GPU 0000:0a:00.0", "fail"),
        ("GPU 0000:0c:00.0", "fail"),
        ("NIC 0000:0b:00.0", "fail"),
        ("NIC 0000:0d:00.0", "fail"),
    ]


def test_a_profile_without_pairs(judge, profile):
    for kind in profile["devices"].values():
        kind["pair_with"] = None
    (finding,) = judge({}, "gpu.nic_pairing", by=profile)
    assert finding.status == "skipped"


def test_rdma_devices_without_address_are_refused(fixture_text):
    text = fixture_text("topology/xe9680-h100-uevent.txt")
    whole = ProbeResult(RDMA, "done", 0, text, "", 0, 0, True)
    assert parse_rdma_devices(whole)["mlx5_6"] == "0000:9c:00.0"
    for broken in ("", "Permission denied\n", text.replace("PCI_SLOT_NAME=0000:9c:00.0", "PCI_SLOT_NAME=none")):
        with pytest.raises(ParseError):
            parse_rdma_devices(whole._replace(stdout=broken))
    with pytest.raises(ParseError, match="mlx5_6"):
        parse_rdma_devices(whole._replace(stdout=re.sub(r".*PCI_SLOT_NAME=0000:9c:00.0\n", "", text)))
