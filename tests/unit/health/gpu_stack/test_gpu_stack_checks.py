# SPDX-License-Identifier: Apache-2.0
"""Driver, RDMA stack, peer memory and holds: what the roles leave passes, and each way to lose it is named."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.gpufleet.health import (
    driver_modules_check,
    gpu_peer_memory_check,
    nvidia_driver_version,
    package_hold_checks,
    pci_tree,
    rdma_checks,
    rdma_stack,
)
from ansible.module_utils.gpufleet.health.evaluation import evaluate
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.probe import ProbeResult

from tests.health_node import healthy_node, profile

MODULES = (
    driver_modules_check,
    nvidia_driver_version,
    rdma_stack,
    gpu_peer_memory_check,
    package_hold_checks,
    pci_tree,
)
PROBES = tuple(probe for module in MODULES for probe in module.PROBES)
CHECKS = (
    *driver_modules_check.CHECKS,
    *rdma_checks.CHECKS,
    *gpu_peer_memory_check.CHECKS,
    *(check for check in package_hold_checks.CHECKS if check.id in ("driver.holds", "rdma.holds")),
)
HEALTHY = healthy_node()
RUNNING, OLDER = "5.15.0-91-generic", "5.15.0-88-generic"
DRIVER, MODULE, STACK, PEER, HOLDS = (
    "nvidia.driver_version",
    "nvidia.modules",
    "rdma.stack",
    "gpu.peer_memory",
    "apt.holds",
)
Change = Callable[[str], str]


def recounted(text: str) -> str:
    """The output with the number of lines that it has now."""
    kept = [line for line in text.splitlines() if not line.startswith("end of ")]
    return "".join(f"{line}\n" for line in (*kept, f"end of {len(kept)} lines"))


def put(old: str, new: str, count: int = -1) -> Change:
    def change(text: str) -> str:
        assert old in text, old
        return text.replace(old, new, count)

    return change


def in_part(name: str, change: Change) -> Change:
    """The change within one part of a script's output."""

    def changed(text: str) -> str:
        before, heading, rest = text.partition(f"== {name}\n")
        assert heading, name
        end = re.search(r"^(== |end of )", rest, re.MULTILINE)
        assert end
        return before + heading + change(rest[: end.start()]) + rest[end.start() :]

    return changed


def nothing(_text: str) -> str:
    return ""


def both(*changes: Change) -> Change:
    def change(text: str) -> str:
        for one in changes:
            text = one(text)
        return text

    return change


def without_functions(words: str) -> Change:
    """lspci without the functions whose description has these words."""
    return lambda text: "\n\n".join(one for one in text.split("\n\n") if words not in one.partition("\n")[0])


NO_MODULE = "modinfo: ERROR: Module nvidia not found.\n"


def run(changes: dict[str, Change], wanted: dict[str, Any] | None = None) -> list[Finding]:
    """Findings on the healthy node with the output of some probes changed; a path of the profile sets a key."""
    results: dict[str, ProbeResult] = {probe.id: HEALTHY[probe.id] for probe in PROBES}
    for probe, change in changes.items():
        text = change(results[probe].stdout)
        assert text != results[probe].stdout
        results[probe] = results[probe]._replace(stdout=recounted(text) if "end of" in text else text)
    data = copy.deepcopy(profile())
    for path, value in (wanted or {}).items():
        node = data
        *parents, last = path.split(".")
        for name in parents:
            node = node[name]
        node[last] = value
    return evaluate(CHECKS, PROBES, results, {**data, "required_checks": []}, {})


def troubles(findings: list[Finding]) -> list[tuple[str, str, str, str]]:
    return [
        (one.check, one.component, one.status, one.action) for one in findings if one.status not in ("ok", "skipped")
    ]


def test_the_healthy_node_passes_every_check() -> None:
    findings = run({})
    assert [(one.check, one.status) for one in findings] == [(check.id, "ok") for check in CHECKS]


# what: changes, profile keys, findings, and words of the first one
FAULTS: dict[str, tuple[dict[str, Change], dict[str, Any], list[tuple[str, str, str, str]], str]] = {
    "bug 098: upgraded, and the old module stayed loaded": (
        {DRIVER: put("550.163.01", "535.183.01")},
        {},
        [("driver.modules", "node", "fail", "reboot")],
        "module 535.183.01 is loaded, the library is 550.163.01",
    ),
    "the library was upgraded alone: no reboot helps": (
        {MODULE: put("libnvidia-ml.so.550.163.01", "libnvidia-ml.so.555.58.02")},
        {},
        [("driver.modules", "node", "fail", "none"), *(("driver.modules", f"kernel {one}", "warn", "none") for one in
         (OLDER, RUNNING))],
        "the library is 555.58.02",
    ),
    "the library is gone": (
        {MODULE: in_part("library", lambda _text: "\n")},
        {},
        [("driver.modules", "node", "fail", "none")],
        "no libnvidia-ml.so.1",
    ),
    "bug 102: a kernel for which dkms built nothing": (
        {MODULE: in_part(f"kernel {OLDER}", lambda _text: NO_MODULE)},
        {},
        [("driver.modules", f"kernel {OLDER}", "warn", "none")],
        "it would boot without the NVIDIA module",
    ),
    "the running kernel's module was removed while it is loaded": (
        {MODULE: in_part(f"kernel {RUNNING}", lambda _text: NO_MODULE)},
        {},
        [("driver.modules", f"kernel {RUNNING}", "warn", "none")],
        "it runs and has no NVIDIA module",
    ),
    "a module that was built for another kernel": (
        {MODULE: in_part(f"kernel {OLDER}", put(f"vermagic:       {OLDER}", "vermagic:       5.15.0-80-generic"))},
        {},
        [("driver.modules", f"kernel {OLDER}", "warn", "none")],
        "was built for 5.15.0-80-generic",
    ),
    "one kernel has an older module": (
        {MODULE: in_part(f"kernel {OLDER}", put("550.163.01", "535.183.01"))},
        {},
        [("driver.modules", f"kernel {OLDER}", "warn", "none")],
        "is of version 535.183.01",
    ),
    "another version than profiled": (
        {},
        {"packages.nvidia_driver.version": "580.105.08"},
        [*(("driver.modules", f"kernel {one}", "warn", "none") for one in (OLDER, RUNNING)),
         ("driver.holds", "node", "warn", "none")],
        "is of version 550.163.01",
    ),
    "proprietary modules where open ones are profiled": (
        {MODULE: put("Dual MIT/GPL", "NVIDIA"), DRIVER: put("Open Kernel Module for x86_64", "x86_64 Kernel Module")},
        {},
        [("driver.modules", f"kernel {one}", "warn", "none") for one in (OLDER, RUNNING)],
        "is proprietary (license NVIDIA)",
    ),
    "open modules are installed, the proprietary one is loaded": (
        {DRIVER: put("Open Kernel Module for x86_64", "x86_64 Kernel Module")},
        {},
        [("driver.modules", f"kernel {RUNNING}", "warn", "reboot")],
        "the proprietary module is loaded",
    ),
    "a GPU node on which no module is loaded": (
        {DRIVER: nothing},
        {},
        [("driver.modules", "node", "unknown", "none")],
        "nvidia.driver_version",
    ),
    "bug 112: OFED is installed, the inbox modules are loaded": (
        {STACK: in_part("loaded", lambda text: "".join(line.replace("taint:OE", "taint:") + "\n" for line in
                        text.splitlines() if "ersion" not in line))},
        {},
        [("rdma.stack", "node", "fail", "reboot")] * 3,
        "ib_core is loaded from the kernel's own (inbox) stack",
    ),
    "bug 111: a module that openibd could not load": (
        {STACK: in_part("loaded", lambda text: "".join(line + "\n" for line in text.splitlines() if "mlx5_ib" not in
                        line))},
        {},
        [("rdma.stack", "node", "fail", "none")],
        "mlx5_ib is not loaded",
    ),
    "OFED was not built for the running kernel": (
        {STACK: both(put(f"/lib/modules/{RUNNING}/updates/dkms", f"/lib/modules/{RUNNING}/kernel/drivers/infiniband"),
                     put("taint:OE", "taint:"))},
        {},
        [("rdma.stack", "node", "fail", "none")] * 3,
        "would load ib_core of the kernel's own (inbox) stack",
    ),
    "OFED was not built for another kernel": (
        {STACK: put(f"/lib/modules/{OLDER}/updates/dkms", f"/lib/modules/{OLDER}/kernel/drivers/net")},
        {},
        [("rdma.stack", f"kernel {OLDER}", "warn", "none")],
        "it would boot with the kernel's own (inbox) stack",
    ),
    "another kernel has no driver of the cards": (
        {STACK: in_part("other kernels", lambda _text: f"{OLDER} \n")},
        {},
        [("rdma.stack", f"kernel {OLDER}", "warn", "none")],
        "it would boot without mlx5 drivers",
    ),
    "OFED where the distribution's stack is profiled": (
        {},
        {"packages.rdma.source": "distro"},
        [("rdma.stack", "node", "warn", "none"), *[("rdma.stack", "node", "fail", "none")] * 3,
         ("rdma.stack", f"kernel {OLDER}", "warn", "none")],
        "libibverbs1 2507mlnx58-1.2507097 is of DOCA-OFED",
    ),
    "an older OFED is loaded than installed": (
        {STACK: in_part("loaded", put("25.07-0.9.7", "24.10-1.1.4"))},
        {},
        [("rdma.stack", "node", "warn", "reboot")] * 3,
        "ib_core 24.10-1.1.4 is loaded",
    ),
    "another version of DOCA than profiled": (
        {},
        {"packages.rdma.version": "3.2.0"},
        [("rdma.stack", "node", "warn", "none"), ("rdma.holds", "node", "warn", "none")],
        "package doca-ofed 3.1.0-091000",
    ),
    "DOCA is not installed": (
        {STACK: put("doca-ofed installed 3.1.0-091000", "doca-ofed not-installed ")},
        {},
        [("rdma.stack", "node", "warn", "none")],
        "doca-ofed is not installed",
    ),
    "the distribution's libraries over DOCA's modules": (
        {STACK: put("libibverbs1 installed 2507mlnx58-1.2507097", "libibverbs1 installed 39.0-1")},
        {},
        [("rdma.stack", "node", "warn", "none")],
        "libibverbs1 39.0-1 is of the distribution",
    ),
    "an HCA that its driver gave up": (
        {STACK: lambda text: "".join(line + "\n" for line in text.splitlines() if "mlx5_9 " not in line)},
        {},
        [("rdma.devices", "NIC 0000:bc:00.0", "fail", "reboot")],
        "it has no RDMA device (driver mlx5_core)",
    ),
    "a card is missing": (
        {"pci.lspci": without_functions("0000:bc:00.0")},
        {},
        [("rdma.devices", "node", "fail", "power_cycle")],
        "7 HCAs with an RDMA device, 7 on PCIe",
    ),
    "names by another rule": (
        {STACK: put("mlx5_0 ", "ibp26s0 ")},
        {},
        [("rdma.devices", "node", "warn", "reboot")],
        "ibp26s0 named by rule pci",
    ),
    "names by the kernel where those by address are profiled": (
        {},
        {"packages.rdma.device_names": "pci"},
        [("rdma.devices", "node", "warn", "reboot")],
        "named by rule kernel",
    ),
    "no stack is loaded at all": (
        {STACK: both(in_part("loaded", nothing), in_part("devices", nothing))},
        {},
        [*[("rdma.stack", "node", "fail", "none")] * 3,
         *[("rdma.devices", f"NIC 0000:{bus}:00.0", "fail", "reboot") for bus in
           ("1a", "3c", "4d", "5e", "9c", "bc", "cc", "dc")]],
        "ib_core is not loaded",
    ),
    "peer memory: the module was built without the interface": (
        {PEER: both(in_part("modinfo", put("depends:        ib_core,nvidia", "depends:        nvidia")),
                    in_part("loaded", nothing), in_part("wanted", nothing))},
        {},
        [("gpu.peer_memory", "node", "fail", "none")],
        "built without the peer memory interface",
    ),
    "peer memory: built against another stack": (
        {PEER: both(in_part("loaded", nothing), in_part("wanted", put("0x6de0ab5c", "0x11111111")))},
        {},
        [("gpu.peer_memory", "node", "fail", "none")],
        "asks for ib_register_peer_memory_client of checksum 0x11111111",
    ),
    "peer memory: no module for this kernel": (
        {PEER: both(in_part("modinfo", lambda _text: "modinfo: ERROR: Module nvidia-peermem not found.\n"),
                    in_part("loaded", nothing))},
        {},
        [("gpu.peer_memory", "node", "fail", "none")],
        "there is no module nvidia-peermem",
    ),
    "peer memory: not loaded": (
        {PEER: in_part("loaded", nothing)},
        {},
        [("gpu.peer_memory", "node", "fail", "none")],
        "the module is not loaded",
    ),
    "peer memory: loaded, and nobody is registered": (
        {PEER: put("/sys/kernel/mm/memory_peers/nv_mem\n", "")},
        {},
        [("gpu.peer_memory", "node", "fail", "none")],
        "not registered with ib_core",
    ),
    "peer memory: works until the next load, since OFED was exchanged": (
        {PEER: in_part("offered", put("0x6de0ab5c", "0x22222222"))},
        {},
        [("gpu.peer_memory", "node", "warn", "none")],
        "it works, and will not after the next load or boot",
    ),
    "peer memory: an older module is loaded than installed": (
        {PEER: in_part("loaded", put("550.163.01", "535.183.01"))},
        {},
        [("gpu.peer_memory", "node", "warn", "none")],
        "nvidia_peermem 535.183.01 is loaded",
    ),
    "peer memory: works until the next boot, since nothing loads it then": (
        {PEER: in_part("boot", lambda _text: "disabled\n")},
        {},
        [("gpu.peer_memory", "node", "warn", "none")],
        "nothing loads the module at boot",
    ),
    "DMA-BUF: libibverbs cannot": (
        {PEER: put("== libibverbs\nhas\n", "== libibverbs\nhas not\n")},
        {"platform.gpu_peer_memory": "dma_buf"},
        [("gpu.peer_memory", "node", "fail", "none")],
        "libibverbs has no DMA-BUF registration",
    ),
    "DMA-BUF: the proprietary module is loaded": (
        {DRIVER: put("Open Kernel Module for x86_64", "x86_64 Kernel Module")},
        {"platform.gpu_peer_memory": "dma_buf"},
        [("driver.modules", f"kernel {RUNNING}", "warn", "reboot"), ("gpu.peer_memory", "node", "fail", "none")],
        "the proprietary module is loaded",
    ),
    "DMA-BUF: an old kernel": (
        {PEER: both(put(f"== running\n{RUNNING}", "== running\n5.4.0-150-generic"),
                    put(f"read {RUNNING}", "read 5.4.0-150-generic"))},
        {"platform.gpu_peer_memory": "dma_buf"},
        [("gpu.peer_memory", "node", "fail", "none")],
        "the kernel has no DMA-BUF",
    ),
    "bug 098: a library that nobody held": (
        {HOLDS: put("hold installed libnvidia-compute", "install installed libnvidia-compute")},
        {},
        [("driver.holds", "node", "warn", "none")],
        "1 of 3 packages are not held: libnvidia-compute",
    ),
    "holds of the RDMA stack were lifted": (
        {HOLDS: both(put("hold installed doca", "install installed doca"), put("hold installed rdma-core",
                     "install installed rdma-core"))},
        {},
        [("rdma.holds", "node", "warn", "none")],
        "2 of 4 packages are not held: doca-ofed, rdma-core",
    ),
    "the blacklist file was removed": (
        {HOLDS: lambda text: "".join(line + "\n" for line in text.splitlines() if "nvidia-driver:" not in line)},
        {},
        [("driver.holds", "node", "warn", "none")],
        "unattended-upgrades may change libnvidia-compute, nvidia-fabricmanager, nvidia-open",
    ),
    "the blacklist is there, and a later file clears it": (
        {HOLDS: in_part("blacklist", lambda _text: 'Unattended-Upgrade::Package-Blacklist "";\n')},
        {},
        [("driver.holds", "node", "warn", "none"), ("rdma.holds", "node", "warn", "none")],
        "unattended-upgrades may change",
    ),
    "a pattern that does not cover a package": (
        {HOLDS: put('"libnvidia-(?!container)"', '"libnvidia-gl"')},
        {},
        [("driver.holds", "node", "warn", "none")],
        "unattended-upgrades may change libnvidia-compute",
    ),
    "an interrupted install": (
        {HOLDS: put("hold installed nvidia-open", "hold half-configured nvidia-open")},
        {},
        [("driver.holds", "node", "warn", "none")],
        "nvidia-open (half-configured)",
    ),
    "nothing is installed": (
        {HOLDS: lambda text: "".join(line + "\n" for line in text.splitlines() if not line.startswith("hold "))},
        {},
        [("driver.holds", "node", "warn", "none"), ("rdma.holds", "node", "warn", "none")],
        "no package of it is installed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found_and_nothing_else(
    case: tuple[dict[str, Change], dict[str, Any], list[tuple[str, str, str, str]], str],
) -> None:
    changes, wanted, expected, words = case
    findings = run(changes, wanted)
    assert troubles(findings) == expected
    first = next(one for one in findings if one.status not in ("ok", "skipped"))
    assert words in first.observed, first.observed
    assert first.advice or first.status == "unknown"
    # one sentence of observation on a page of an operator, not an output
    assert len(first.observed) < 300 and "\n" not in first.observed


HEALTHY_OTHERWISE: dict[str, tuple[dict[str, Change], dict[str, Any]]] = {
    "a pin of the profiled version": (
        {HOLDS: put("end of", "/etc/apt/preferences.d/gpufleet-nvidia-driver:Package: nvidia-open\n"
         "/etc/apt/preferences.d/gpufleet-nvidia-driver:Pin: version 550.163.01-*\nend of")},
        {"packages.nvidia_driver.version": "550.163.01"},
    ),
    "the profiled version of DOCA, pinned": (
        {HOLDS: put("end of", "/etc/apt/preferences.d/gpufleet-rdma:Pin: version 3.1.0-*\nend of")},
        {"packages.rdma.version": "3.1.0"},
    ),
    "loaded at boot by a list of modules": (
        {PEER: in_part("boot", lambda _text: "disabled\nnvidia-peermem\n")},
        {},
    ),
    "DMA-BUF": ({PEER: in_part("loaded", nothing)}, {"platform.gpu_peer_memory": "dma_buf"}),
    "no peer memory is wanted": ({PEER: in_part("loaded", nothing)}, {"platform.gpu_peer_memory": "none"}),
    "somebody else's driver and stack without holds": (
        {HOLDS: put("hold ", "install ")},
        {"packages.nvidia_driver.manage": False, "packages.rdma.manage": False},
    ),
    "somebody else's driver, of the other flavour": (
        {MODULE: put("Dual MIT/GPL", "NVIDIA"), DRIVER: put("Open Kernel Module for x86_64", "x86_64 Kernel Module")},
        {"packages.nvidia_driver.manage": False},
    ),
    "somebody else's stack, of another origin": ({}, {"packages.rdma.manage": False, "packages.rdma.source": "distro"}),
    "a node without HCAs": ({STACK: in_part("loaded", nothing)}, {"devices.hca.count": 0}),
    "names that somebody's own rule gives": ({STACK: put("mlx5_0 ", "storage_a ")}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", HEALTHY_OTHERWISE.values(), ids=HEALTHY_OTHERWISE)
def test_what_is_right_in_another_way_passes(case: tuple[dict[str, Change], dict[str, Any]]) -> None:
    assert troubles(run(*case)) == []


def test_a_node_whose_profile_has_no_gpu_says_why_nothing_is_loaded() -> None:
    """The lab: the driver is installed for each kernel, loads nothing, and lends no memory."""
    results = {probe.id: HEALTHY[probe.id] for probe in PROBES}
    gone = results[DRIVER]._replace(outcome="missing", rc=None, stdout="", why="no file is there")
    lspci = results["pci.lspci"]
    without = without_functions("[10de:")(lspci.stdout)
    peer = recounted(in_part("loaded", nothing)(results[PEER].stdout))
    results.update(
        {DRIVER: gone, "pci.lspci": lspci._replace(stdout=without), PEER: results[PEER]._replace(stdout=peer)}
    )
    data = profile()
    data["limits"]["gpu"] = data["platform"]["gpu"] = None
    findings = evaluate(CHECKS, PROBES, results, {**data, "required_checks": []}, {})
    assert troubles(findings) == []
    said = {one.check: (one.status, one.observed) for one in findings}
    assert said["driver.modules"] == (
        "ok",
        "not loaded (the profile has no GPU), library 550.163.01, 2 kernels with the module",
    )
    assert said["gpu.peer_memory"][0] == "skipped"
    assert "there is no GPU that the driver could use" in said["gpu.peer_memory"][1]
