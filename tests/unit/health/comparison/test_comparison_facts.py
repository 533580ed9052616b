# SPDX-License-Identifier: Apache-2.0
"""What nodes are compared by: values of the recorded machines, and none that could not be read."""

from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.health import nvidia_smi_query, pci_tree, platform_facts
from ansible.module_utils.gpufleet.health.comparison_facts import comparison, equal_or_counted
from ansible.module_utils.gpufleet.health.node_evidence import NodeEvidence
from ansible.module_utils.gpufleet.health.probe import ParseError, ProbeResult

from tests.nvidia_smi_recordings import recordings

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
PROBES = (*nvidia_smi_query.PROBES, *pci_tree.PROBES, *platform_facts.PROBES)

PLATFORM = {
    platform_facts.MACHINE: (
        "/sys/class/dmi/id/bios_version:2.7.4\n/sys/class/dmi/id/product_name:PowerEdge XE9680\n"
        "/sys/class/dmi/id/sys_vendor:Dell Inc.\n"
    ),
    platform_facts.KERNEL: (
        "/proc/cmdline:BOOT_IMAGE=/vmlinuz-6.8 root=UUID=1d7fb1a1 ro iommu=pt intel_iommu=on\n"
        "/proc/sys/kernel/osrelease:6.8.0-45-generic\n"
    ),
    platform_facts.PROCESSORS: (
        "/proc/meminfo:MemTotal:       2113449216 kB\n/proc/meminfo:MemFree:        1 kB\n"
        "/sys/devices/system/cpu/cpu0/topology/physical_package_id:0\n"
        "/sys/devices/system/cpu/cpu1/topology/physical_package_id:1\n"
        "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor:performance\n"
        "/sys/devices/system/cpu/online:0-111\n"
        "/sys/devices/system/node/node0/cpulist:0-55\n/sys/devices/system/node/node1/cpulist:56-111\n"
        "/sys/devices/system/node/node2/cpulist:\n"
    ),
}


def result(probe: str, stdout: str, outcome: str = "done") -> ProbeResult:
    return ProbeResult(probe, outcome, 0, stdout, "", 0.1, 1_796_000_000.0, True)


def values(*results: ProbeResult) -> dict[str, str]:
    evidence = NodeEvidence(PROBES, {one.probe: one for one in results})
    compared = comparison(evidence, {"description": "XE9680"})
    assert compared["kind"] == "XE9680"
    found: dict[str, str] = compared["values"]
    return found


def test_the_platform() -> None:
    assert values(*(result(probe, text) for probe, text in PLATFORM.items())) == {
        "manufacturer": "Dell Inc.",
        "product": "PowerEdge XE9680",
        "BIOS version": "2.7.4",
        "kernel": "6.8.0-45-generic",
        "kernel arguments": "intel_iommu=on iommu=pt ro",
        "CPUs online": "0-111",
        "NUMA nodes with CPUs": "2",
        "memory in GiB": "2016",
        "CPU frequency governor": "performance",
    }


def test_the_gpus() -> None:
    found = values(result("nvidia_smi.query", recordings()["550.163.01-h100-healthy"]["q-x"].stdout))
    assert found["number of GPUs"] == "8"
    assert found["NVIDIA driver"] == "550.163.01"
    assert found["GPU model"] == "NVIDIA H100 80GB HBM3"
    assert found["GPU ECC mode"] == "Enabled"


def test_gpus_that_differ_are_counted() -> None:
    found = values(result("nvidia_smi.query", recordings()["550.163.01-h100-gpu0-ecc-disabled"]["q-x"].stdout))
    assert found["GPU ECC mode"] == "Disabled (1), Enabled (7)"


def test_the_pci_devices() -> None:
    found = values(result("pci.lspci", (FIXTURES / "pci" / "xe9680-h100.lspci.txt").read_text()))
    (gpus,) = [name for name in found if name.startswith("number of ") and "[10de:2330]" in name]
    assert found[gpus] == "8"
    assert found[gpus.replace("number of", "PCIe link that") + " can have"] == "32 GT/s x16"


@pytest.mark.parametrize("outcome", ["timeout", "failed", "missing", "truncated"])
def test_what_was_not_read_is_left_out(outcome: str) -> None:
    assert values(*(result(probe.id, "", outcome) for probe in PROBES)) == {}
    assert values() == {}


@pytest.mark.parametrize("probe", PLATFORM)
def test_output_that_is_none_is_refused(probe: str) -> None:
    parse = next(one.parse for one in PROBES if one.id == probe)
    with pytest.raises(ParseError):
        parse(result(probe, "Segmentation fault\n"))


@pytest.mark.parametrize(
    ("probe", "lost"),
    [
        (platform_facts.KERNEL, "osrelease"),
        (platform_facts.KERNEL, "cmdline"),
        (platform_facts.PROCESSORS, "MemTotal"),
        (platform_facts.PROCESSORS, "cpu/online"),
    ],
)
def test_a_lost_line_is_noticed(probe: str, lost: str) -> None:
    text = "".join(line for line in PLATFORM[probe].splitlines(keepends=True) if lost not in line)
    assert values(result(probe, text)) == {}


def test_one_text_for_many_parts() -> None:
    assert equal_or_counted([1, 1]) == "1"
    assert equal_or_counted(["b", "a", "b"]) == "a (1), b (2)"
