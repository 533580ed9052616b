# SPDX-License-Identifier: Apache-2.0
"""Whether an HCA can reach GPU memory, and why not, from text alone: for role nvidia_peermem and the health checks.

Two ways. nvidia_peermem: a module of the driver that registers with ib_core; only DOCA-OFED's (or MLNX_OFED's) ib_core
and that of Ubuntu's kernels have the interface (symbol ib_register_peer_memory_client), and the module has it compiled
in only where it was there when the driver was built. Built without, its load ends with EINVAL and no word in the kernel
log (NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia-peermem/nvidia-peermem.c, nv_mem_client_init). DMA-BUF: no
module, but open kernel modules, Linux 5.12 and a libibverbs that has ibv_reg_dmabuf_mr (rdma-core 34).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .rdma_facts import LoadedModule, ModuleFile

REGISTER = "ib_register_peer_memory_client"
# The name that modprobe is asked by. Debian's file is nvidia-current-open-peermem.ko, found by an install line of
# /etc/modprobe.d that modinfo does not read (kernel_modules.parse_show_depends).
MODULE = "nvidia-peermem"
# Where the interface lives: in ib_core (OFED 5 and later), in ib_uverbs (Ubuntu's kernels) [assumption].
INTERFACE_MODULES = ("ib_core", "ib_uverbs")
# One folder for each registered client, made by ib_core: nv_mem, nv_mem_nc [interfaces.md 6.3].
CLIENTS = "/sys/kernel/mm/memory_peers"
DMABUF_SYMBOL = "ibv_reg_dmabuf_mr"
DMABUF_SINCE = (5, 12)

# ready: it works as far as can be told without a transfer. All others say why not. The first group is nobody's fault:
# a node that has no GPU or no HCA (the lab) has no peer memory to offer.
NOTHING_TO_DO = ("no_gpu", "no_hca")
STATES = {
    "ready": "an HCA can reach GPU memory",
    "no_gpu": "there is no GPU that the driver could use",
    "no_hca": "there is no HCA with an RDMA device",
    "not_built": "there is no module nvidia-peermem for the running kernel",
    "without_interface": "the module was built without the peer memory interface of an RDMA stack",
    "stack_without_interface": "the RDMA stack of this kernel has no peer memory interface",
    "another_stack": "the module was built against another RDMA stack than the one that is installed or loaded",
    "another_kernel": "the module was built for another kernel",
    "key_rejected": "the kernel rejects the module's signature",
    "refused": "the kernel allows no module to be loaded",
    "not_loaded": "the module is not loaded, and nothing that can be seen keeps it from loading",
    "not_registered": "the module is loaded, but not registered with ib_core",
    "predecessor": "the old module nv_peer_mem is loaded, and only one of the two can be",
    "kernel_too_old": "the kernel has no DMA-BUF for RDMA",
    "closed_module": "the proprietary kernel module exports no DMA-BUF",
    "driver_not_loaded": "the module nvidia is not loaded",
    "library_without_dmabuf": "libibverbs has no DMA-BUF registration",
    "unknown": "the evidence does not tell",
}
ADVICE = {
    "not_built": "install the driver's kernel modules for this kernel (role nvidia_driver), with nvidia-peermem among "
    "them",
    "without_interface": "install DOCA-OFED first (packages.rdma.source vendor), then build the driver's modules anew "
    "(dkms, or the package that holds them); or set platform.gpu_peer_memory to dma_buf",
    "stack_without_interface": "set packages.rdma.source to vendor (DOCA-OFED), or platform.gpu_peer_memory to "
    "dma_buf: the inbox stack of Debian's kernels has no such interface",
    "another_stack": "build the driver's modules anew against the RDMA stack that is installed (dkms, or the package "
    "that holds them), then reboot where the other stack is loaded",
    "another_kernel": "install the modules that belong to the running kernel, or boot the kernel they belong to",
    "key_rejected": "enrol the key that signed it (mokutil --import, then confirm at the console), or switch Secure "
    "Boot off",
    "refused": "see dmesg: lockdown with an unsigned module, or kernel.modules_disabled; a container cannot load any",
    "not_loaded": "modprobe nvidia-peermem, and see dmesg where that fails",
    "not_registered": "see dmesg; unload the module and load it again once no job runs",
    "predecessor": "remove package nvidia-peer-memory-dkms and disable nv_peer_mem.service, then unload nv_peer_mem "
    "once no job runs, or reboot",
    "no_gpu": "see role nvidia_driver; nvidia-smi and dmesg tell why the driver has no GPU",
    "no_hca": "see role rdma_stack; lspci -nn and dmesg tell why there is no device below /sys/class/infiniband",
    "kernel_too_old": "install a kernel of 5.12 or later, or set platform.gpu_peer_memory to nvidia_peermem",
    "closed_module": "set packages.nvidia_driver.kernel_modules to open, or platform.gpu_peer_memory to nvidia_peermem",
    "driver_not_loaded": "see role nvidia_driver and dmesg",
    "library_without_dmabuf": "install rdma-core 34 or later, or DOCA-OFED",
    "unknown": "run the role again; the message says which evidence is missing",
}


class PeerMemory(NamedTuple):
    """state: a key of STATES. detail: what was seen, one sentence without a full stop; "" where STATES says it all."""

    state: str
    detail: str = ""

    def says(self) -> str:
        """State and detail in words."""
        return STATES[self.state] + (f": {self.detail}" if self.detail else "")


class PeerMemoryEvidence(NamedTuple):
    """What judge_module needs; None everywhere means that it could not be read or does not exist, as described.

    module: what modinfo says of nvidia-peermem, None where it knows none. loaded: /sys/module of it, None = not loaded.
    clients: folders below CLIENTS, None where that folder does not exist. stack_has_interface: whether the installed
    ib_core or ib_uverbs exports REGISTER (exports_register), None = cannot be told. wanted_crc, offered_crc: checksum
    of REGISTER that the module asks for, and that the installed stack exports. running: release of the kernel.
    gpus: PCI devices that are GPUs, whatever the driver says of them. hcas: RDMA devices with a PCI address.
    attempt: what an attempt to load gave, None where none was made. predecessor: whether nv_peer_mem is loaded (driver
    README, chapter "GPUDirect RDMA Peer Memory Client": only one of both can be).
    """

    module: ModuleFile | None
    loaded: LoadedModule | None
    clients: tuple[str, ...] | None
    stack_has_interface: bool | None
    wanted_crc: str | None
    offered_crc: str | None
    running: str
    gpus: int
    hcas: int
    attempt: PeerMemory | None = None
    predecessor: bool = False


def parse_clients(names: list[str] | None) -> tuple[str, ...] | None:
    """The NVIDIA clients among the folders below CLIENTS, sorted; None where the folder does not exist."""
    return None if names is None else tuple(sorted(name for name in names if name.startswith("nv_mem")))


def built_with_interface(module: ModuleFile) -> bool:
    """Whether a module was built with the interface: then it depends on the module that exports it, else on nvidia."""
    return any(name in INTERFACE_MODULES for name in module.depends)


def exports_register(modules_symbols: str) -> str | None:
    """Name of the module that exports REGISTER by depmod's modules.symbols (/lib/modules/<release>/), None = none does.

    A line is "alias symbol:<symbol> <module>". depmod lists the module that modprobe would take, so OFED's ib_core
    where it lies before the inbox one.
    """
    found = re.search(rf"^alias symbol:{REGISTER} (\S+)$", modules_symbols, re.MULTILINE)
    return found.group(1) if found else None


def crc_of_register(text: str) -> str | None:
    """Checksum of REGISTER, such as 0x1a2b3c4d, in what `modprobe --dump-modversions <file>` prints for a module that
    uses it, or in a Module.symvers of the stack that exports it; None where it is not in there.
    """
    found = re.search(rf"^(0x[0-9a-f]+)\s+{REGISTER}(\s|$)", text, re.MULTILINE)
    return f"0x{int(found.group(1), 16):08x}" if found else None


def judge_module(seen: PeerMemoryEvidence) -> PeerMemory:
    """The state of nvidia_peermem. What is loaded and registered is ready whatever the files on disk say."""
    if seen.loaded is not None:
        if seen.clients == ():
            return PeerMemory("not_registered", f"{seen.loaded.name} is loaded, {CLIENTS} has no folder nv_mem")
        return PeerMemory("ready", f"{seen.loaded.name} is loaded")
    if seen.predecessor:
        return PeerMemory("predecessor")
    fault = _fault_of_file(seen)
    # A node without device has nothing to offer; yet what is wrong with the files is told first where both are there.
    if seen.gpus == 0:
        return PeerMemory("no_gpu", fault.says() if fault else "")
    if seen.hcas == 0:
        return PeerMemory("no_hca", fault.says() if fault else "")
    return fault or seen.attempt or PeerMemory("not_loaded")


def _fault_of_file(seen: PeerMemoryEvidence) -> PeerMemory | None:
    """What can be told before any load, in the order in which it would fail."""
    module = seen.module
    if module is None:
        return PeerMemory("not_built", f"kernel {seen.running}")
    if module.release not in (None, seen.running):
        return PeerMemory("another_kernel", f"{module.path} is for {module.release}, {seen.running} runs")
    if not built_with_interface(module):
        if seen.stack_has_interface is False:
            return PeerMemory("stack_without_interface", f"no module of kernel {seen.running} exports {REGISTER}")
        return PeerMemory("without_interface", f"{module.path} depends on {', '.join(module.depends) or 'nothing'}")
    if seen.stack_has_interface is False:
        return PeerMemory(
            "another_stack",
            f"{module.path} was built with {REGISTER}, which no module of kernel {seen.running} exports",
        )
    if seen.wanted_crc and seen.offered_crc and seen.wanted_crc != seen.offered_crc:
        return PeerMemory(
            "another_stack",
            f"{module.path} asks for {REGISTER} of checksum {seen.wanted_crc}, the stack has {seen.offered_crc}",
        )
    return None


def kernel_version(release: str) -> tuple[int, int] | None:
    """(6, 1) for 6.1.0-26-amd64; None for a text that does not begin so."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found.group(1)), int(found.group(2))) if found else None


def judge_dma_buf(
    release: str, module_kind: str | None, library_has_symbol: bool | None, gpus: int, hcas: int
) -> PeerMemory:
    """The state of DMA-BUF.

    module_kind: "open" or "proprietary" of the nvidia module that is loaded, None where none is. library_has_symbol:
    whether libibverbs has DMABUF_SYMBOL, None where the library was not found.
    """
    version = kernel_version(release)
    fault = None
    if version is None:
        fault = PeerMemory("unknown", f"the kernel calls itself {release!r}")
    elif version < DMABUF_SINCE:
        fault = PeerMemory("kernel_too_old", f"{release}, expected 5.12 or later")
    elif not library_has_symbol:
        what = "libibverbs.so.1 was not found" if library_has_symbol is None else f"it has no {DMABUF_SYMBOL}"
        fault = PeerMemory("library_without_dmabuf", what)
    elif module_kind == "proprietary":
        fault = PeerMemory("closed_module")
    if gpus == 0:
        return PeerMemory("no_gpu", fault.says() if fault else "")
    if fault:
        return fault
    if module_kind is None:
        return PeerMemory("driver_not_loaded")
    if hcas == 0:
        return PeerMemory("no_hca")
    return PeerMemory("ready", f"kernel {release}, open kernel module, libibverbs with {DMABUF_SYMBOL}")
