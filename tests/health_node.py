# SPDX-License-Identifier: Apache-2.0
"""A healthy XE9680 as the probes see it, put together from recordings: the basis of the removal test and the bench.

The outputs come from different machines, so addresses and versions are made to agree: the GPUs of the recordings of
nvidia-smi get the PCI addresses of the recorded XE9680.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.gpufleet.health.probe import ProbeResult
from ansible.module_utils.gpufleet.health.registry import PROBES

from tests.health_node_containers import counted as _counted
from tests.health_node_containers import healthy as containers_and_dcgm
from tests.nvidia_smi_recordings import recordings

REPOSITORY = Path(__file__).resolve().parents[1]
FIXTURES = REPOSITORY / "tests" / "fixtures"
DRIVER = "550.163.01"

# Folder of the recording by probe.
NVIDIA_SMI = {
    "nvidia_smi.query": "q-x",
    "nvidia_smi.list": "L",
    "nvidia_smi.nvlink_status": "nvlink-s",
    "nvidia_smi.nvlink_errors": "nvlink-e",
    "nvidia_smi.topology": "topo-m",
}
# Addresses of the mocked GPUs, and those of the recorded XE9680, both in the order of the bus.
MOCK_BUSES = ("1A", "1B", "4A", "4B", "8A", "8B", "CA", "CB")
XE9680_BUSES = ("19", "3B", "4C", "5D", "9B", "BB", "CB", "DB")


def at_xe9680(text: str) -> str:
    """The text of a recording with the GPUs at the addresses of the XE9680."""
    moved = dict(zip(MOCK_BUSES, XE9680_BUSES, strict=True))
    pattern = rf"(?i)\b((?:[0-9a-f]{{4}})?[0-9a-f]{{4}}:)({'|'.join(MOCK_BUSES)})(?=:00[.:])"
    return re.sub(pattern, lambda match: match[1] + moved[match[2].upper()], text)


def nvidia_smi(state: str) -> dict[str, ProbeResult]:
    """Results of the nvidia-smi probes in a recorded state, at the addresses of the XE9680."""
    commands = recordings()[state]
    return {
        probe: result(probe, at_xe9680(commands[name].stdout), commands[name].rc) for probe, name in NVIDIA_SMI.items()
    }


def result(probe: str, stdout: str, rc: int = 0) -> ProbeResult:
    """What a probe brings that ended by itself."""
    good = next(one.good_rc for one in PROBES if one.id == probe)
    return ProbeResult(probe, "done" if rc in good else "failed", rc, stdout, "", 0.1, 1_790_000_000.0, True)


_TOPOLOGY = FIXTURES / "nvlink" / "topology"

# What no recording holds, as the programs print it.
_TYPED = {
    "nvidia.driver_version": "/proc/driver/nvidia/version:NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
    "  550.163.01  Release Build  (dvs-builder@U22-I3-G18-2)  Tue Apr  8 12:41:17 UTC 2025\n",
    "fabric_manager.service": "LoadState=loaded\nActiveState=active\nSubState=running\nResult=success\n"
    "ExecMainStatus=0\n",
    "fabric_manager.version": "Fabric Manager version is : 550.163.01\n",
    "fabric_manager.log": "[Sep 21 2026 13:33:21] [INFO] [tid 2011] Fabric Manager version 550.163.01 is running with"
    " the following configuration options\n[Sep 21 2026 13:33:25] [INFO] [tid 2011] Successfully configured all the"
    " available NVSwitches to route GPU NVLink traffic.\n",
    "kernel.boot": "/proc/sys/kernel/random/boot_id:0b1c2d3e-0000-4000-8000-000000000001\n/proc/uptime:86400.00 1.00\n",
    "platform.machine": "/sys/class/dmi/id/bios_version:2.7.4\n/sys/class/dmi/id/product_name:PowerEdge XE9680\n"
    "/sys/class/dmi/id/sys_vendor:Dell Inc.\n",
    "platform.kernel": "/proc/sys/kernel/osrelease:5.15.0-91-generic\n/proc/cmdline:BOOT_IMAGE=/vmlinuz ro iommu=pt\n",
    "platform.processors": "/sys/devices/system/cpu/online:0-1\n"
    "/sys/devices/system/cpu/cpu0/topology/physical_package_id:0\n"
    "/sys/devices/system/cpu/cpu1/topology/physical_package_id:1\n"
    "/sys/devices/system/node/node0/cpulist:0\n/sys/devices/system/node/node1/cpulist:1\n"
    "/proc/meminfo:MemTotal:       2113546240 kB\n",
}


_KERNEL = "5.15.0-91-generic"
_OLDER_KERNEL = "5.15.0-88-generic"
_REGISTER = "ib_register_peer_memory_client"


def _nvidia_modinfo(release: str, name: str = "nvidia", more: str = "") -> str:
    return (
        f"filename:       /lib/modules/{release}/updates/dkms/{name}.ko\nversion:        550.163.01\n{more}"
        f"license:        Dual MIT/GPL\nvermagic:       {release} SMP mod_unload modversions \n"
    )


def _ofed_modinfo(name: str) -> str:
    return (
        f"filename:       /lib/modules/{_KERNEL}/updates/dkms/{name}.ko\nlicense:        Dual BSD/GPL\n"
        f"version:        25.07-0.9.7\nsrcversion:     C1C3{len(name):04d}9F4A1D5E7B60A21\ndepends:        mlx_compat\n"
        f"vermagic:       {_KERNEL} SMP mod_unload modversions \n"
    )


def _loaded(name: str, version: str, srcversion: str) -> str:
    folder = f"/sys/module/{name}"
    return f"{folder}/srcversion:{srcversion}\n{folder}/taint:OE\n{folder}/version:{version}\n"


def _rdma_devices() -> str:
    """The links in /sys/class/infiniband of the recorded RDMA devices."""
    uevent = (_TOPOLOGY / "xe9680-h100-uevent.txt").read_text()
    found = re.findall(r"infiniband/(\w+)/device/uevent:PCI_SLOT_NAME=(\S+)", uevent)
    return "".join(f"{name} ../../devices/pci0000:15/{address}/infiniband/{name}\n" for name, address in found)


_OF_DRIVER = ("nvidia-(?!container)", "libnvidia-(?!container)")
_OF_RDMA = ("doca-", "mlnx-", "rdma-core", "libibverbs")
# Stacks of apt_stack by the roles that hand them over, and a pattern for each package.
_CONTAINERS = {
    "docker": ("docker-ce", "containerd\\.io"),
    "nvidia-container-toolkit": ("nvidia-container-toolkit", "libnvidia-container"),
    "dcgm": ("datacenter-gpu-manager-4",),
    "dcgm-exporter": ("datacenter-gpu-manager-exporter",),
}
_HELD = ("containerd.io", "datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-cuda12",
         "datacenter-gpu-manager-exporter", "docker-ce", "docker-ce-cli", "libnvidia-container-tools",
         "libnvidia-container1", "nvidia-container-toolkit", "nvidia-container-toolkit-base")  # fmt: skip


def _blacklist_file(stack: str, patterns: tuple[str, ...]) -> str:
    lines = ["Unattended-Upgrade::Package-Blacklist {", *(f'  "{pattern}";' for pattern in patterns), "};"]
    return "".join(f"/etc/apt/apt.conf.d/52gpufleet-{stack}:{line}\n" for line in lines)


def _patterns() -> tuple[str, ...]:
    return (*_OF_DRIVER, *_OF_RDMA, *(pattern for patterns in _CONTAINERS.values() for pattern in patterns))


# The scripts' output: versions of DOCA-OFED 3.1 and the driver's modules as dkms lays them on Ubuntu 22.04.
_RDMA_MODULES = ("ib_core", "mlx5_core", "mlx5_ib")
_STACK: dict[str, str] = {
    "nvidia.modules": _counted(
        running=f"{_KERNEL}\n",
        library="/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.163.01\n",
        **{f"kernel__{release}": _nvidia_modinfo(release) for release in (_OLDER_KERNEL, _KERNEL)},
    ),
    "rdma.stack": _counted(
        running=f"{_KERNEL}\n",
        packages="doca-ofed installed 3.1.0-091000\nlibibverbs1 installed 2507mlnx58-1.2507097\n"
        "rdma-core installed 2507mlnx58-1.2507097\n",
        loaded="".join(_loaded(name, "25.07-0.9.7", f"C1C3{len(name):04d}9F4A1D5E7B60A21") for name in _RDMA_MODULES),
        **{f"modinfo__{name}": _ofed_modinfo(name) for name in _RDMA_MODULES},
        other__kernels=f"{_OLDER_KERNEL} /lib/modules/{_OLDER_KERNEL}/updates/dkms/mlx5_core.ko\n",
        devices=_rdma_devices(),
    ),
    "gpu.peer_memory": _counted(
        running=f"{_KERNEL}\n",
        modinfo=_nvidia_modinfo(
            _KERNEL, "nvidia-peermem", "srcversion:     5A1E6C2B90D37F4418E2A6B\ndepends:        ib_core,nvidia\n"
        ),
        loaded=_loaded("nvidia_peermem", "550.163.01", "5A1E6C2B90D37F4418E2A6B"),
        clients="/sys/kernel/mm/memory_peers\n/sys/kernel/mm/memory_peers/nv_mem\n",
        boot="enabled\n",
        exported=f"read {_KERNEL}\nalias symbol:{_REGISTER} ib_core\n",
        wanted=f"0x6de0ab5c\t{_REGISTER}\n",
        offered=f"0x6de0ab5c\t{_REGISTER}\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\n",
        libibverbs="has\n",
    ),
    "apt.holds": _counted(
        packages="install installed bash\nhold installed doca-ofed\nhold installed libibverbs1\n"
        "hold installed libnvidia-compute\nhold installed mlnx-ofed-kernel-dkms\nhold installed nvidia-fabricmanager\n"
        "hold installed nvidia-open\nhold installed rdma-core\n"
        + "".join(f"hold installed {name}\n" for name in _HELD),
        blacklist='Unattended-Upgrade::Package-Blacklist "";\n'
        + "".join(f'Unattended-Upgrade::Package-Blacklist:: "{one}";\n' for one in _patterns()),
        files=_blacklist_file("nvidia-driver", _OF_DRIVER)
        + _blacklist_file("rdma", _OF_RDMA)
        + "".join(_blacklist_file(stack, patterns) for stack, patterns in _CONTAINERS.items()),
    ),
}


def kernel_log(lines: int = 0, forms: int = 0) -> dict[str, ProbeResult]:
    """The kernel's messages of a boot, from both sources; behind them `lines` harmless ones of `forms` kinds."""
    text = (FIXTURES / "kernel" / "lab-node-boot.dmesg.txt").read_text().splitlines()
    for number in range(lines):
        word = "".join(chr(ord("a") + digit) for digit in _digits(number % forms))
        text.append(f"kern  :info  : [{100 + number / 100:12.6f}] mlx5_core 0000:1a:00.0: {word} done in {number} us")
    dmesg = "\n".join(text) + "\n"
    journal = re.sub(r"(?m)^\w+ *:\w+ *: (\[ *[\d.]+\]) ", r"\1 kernel: ", dmesg)
    return {
        "kernel.dmesg": result("kernel.dmesg", dmesg),
        "kernel.journal": result("kernel.journal", journal),
    }


def _digits(number: int) -> list[int]:
    """Six digits of a number in base 26, so that each is a word without digits, which a normal form would drop."""
    return [number // 26**place % 26 for place in range(6)]


def healthy_node(driver: str = DRIVER, lines: int = 0, forms: int = 0) -> dict[str, ProbeResult]:
    """Results of every probe on a healthy XE9680 with this version of the driver (one that was recorded)."""
    found = nvidia_smi(f"{driver}-h100-healthy")
    found["pci.lspci"] = result("pci.lspci", (FIXTURES / "pci" / "xe9680-h100.lspci.txt").read_text())
    for path in (FIXTURES / "host" / "xe9680").glob("*.txt"):
        found[path.stem] = result(path.stem, path.read_text())
    # The mock has no NICs in its matrix.
    found["nvidia_smi.topology"] = result("nvidia_smi.topology", (_TOPOLOGY / "xe9680-h100.txt").read_text())
    uevent = (_TOPOLOGY / "xe9680-h100-uevent.txt").read_text()
    found["infiniband.pci_addresses"] = result("infiniband.pci_addresses", uevent)
    found.update({probe: result(probe, text.replace(DRIVER, driver)) for probe, text in {**_TYPED, **_STACK}.items()})
    more = containers_and_dcgm(driver, found["nvidia_smi.list"].stdout, XE9680_BUSES)
    found.update({probe: result(probe, text) for probe, text in more.items()})
    found.update(kernel_log(lines, forms))
    return found


def profile() -> dict[str, Any]:
    """profiles/xe9680-h100.yml, with what the mocked GPUs and the recorded node have instead."""
    data: dict[str, Any] = copy.deepcopy(yaml.safe_load((REPOSITORY / "profiles" / "xe9680-h100.yml").read_text()))
    data["limits"]["gpu"]["memory_mib"] = 81920
    data["firmware"]["gpu_vbios"] = {"version": None}
    return data
