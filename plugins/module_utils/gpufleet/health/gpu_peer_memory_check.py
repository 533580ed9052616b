# SPDX-License-Identifier: Apache-2.0
"""Whether the HCAs can reach GPU memory in the way that the profile says, and what that way was built against."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from ..gpu_peer_memory_facts import (
    ADVICE,
    CLIENTS,
    DMABUF_SYMBOL,
    MODULE,
    NOTHING_TO_DO,
    REGISTER,
    PeerMemory,
    PeerMemoryEvidence,
    crc_of_register,
    exports_register,
    judge_dma_buf,
    judge_module,
    parse_clients,
)
from ..rdma_facts import LoadedModule, ModuleFile, differs_from_file, parse_sys_module
from .check import Check, Profile
from .counted_output import counted, one_line, parts_of
from .finding import Evidence, Finding
from .modprobe_file import MODINFO_OF
from .node_evidence import NodeEvidence
from .nvidia_driver_version import DRIVER_VERSION
from .pci_tree import LSPCI, PciTree
from .probe import NoEvidence, ParseError, Probe, ProbeResult
from .rdma_stack import STACK, RdmaStack, module_file, sys_files

PEER_MEMORY = "gpu.peer_memory"
# What role nvidia_peermem loads the module with; a list in modules-load.d does it too.
UNIT = "gpufleet-nvidia-peermem.service"

_ROLE = "role nvidia_peermem"
# PCI vendor and classes of GPUs: VGA and 3D controllers
_NVIDIA, _GPU_CLASSES = "10de", ("0300", "0302")
_FIELDS = "filename|version|srcversion|intree|depends|vermagic|license"
# wanted: the checksum of the interface that the module was built with. offered: that of the stack that is installed,
# from the list that OFED's package brings, or else the headers of the kernel: Ubuntu's kernels have the symbol
# themselves, with another checksum than OFED's.
_SCRIPT = f"""
{MODINFO_OF}
release=$(uname -r)
echo '== running'
echo "$release"
echo '== modinfo'
described=$(modinfo_of "$release" {MODULE})
echo "$described" | grep -aE '^({_FIELDS}|modinfo: ERROR):'
echo '== loaded'
grep -aHs '' /sys/module/*peermem*/{{taint,version,srcversion}}
echo '== clients'
find {CLIENTS} -maxdepth 1 -printf '%p\\n' 2>/dev/null
echo '== boot'
systemctl is-enabled {UNIT} 2>/dev/null
grep -ahsE '^[[:space:]]*nvidia[-_]peermem' /etc/modules /etc/modules-load.d/*.conf /usr/lib/modules-load.d/*.conf
echo '== exported'
test -r "/lib/modules/$release/modules.symbols" && echo "read $release"
grep -a '^alias symbol:{REGISTER} ' "/lib/modules/$release/modules.symbols" 2>/dev/null
echo '== wanted'
file=$(echo "$described" | sed -n 's/^filename: *//p')
[ -f "$file" ] && modprobe --dump-modversions "$file" 2>/dev/null | grep -a '[[:space:]]{REGISTER}$'
echo '== offered'
offered=/lib/modules/$release/build/Module.symvers
[ -d /usr/src/ofa_kernel ] && offered=$(ls -d /usr/src/ofa_kernel/*/"$release"/Module.symvers 2>/dev/null)
grep -ahs '[[:space:]]{REGISTER}[[:space:]]' $offered /dev/null | head -n 1
echo '== libibverbs'
library=$(ldconfig -p | sed -n 's/.*libibverbs\\.so\\.1 .*=> //p' | head -n 1)
if [ -r "$library" ]; then
  if grep -qa {DMABUF_SYMBOL} "$library"; then echo has; else echo 'has not'; fi
fi
"""


class PeerMemoryFacts(NamedTuple):
    """As in PeerMemoryEvidence. library_has_symbol: whether libibverbs has DMABUF_SYMBOL, None where there is none.

    loaded_at_boot: whether a unit or a list of modules loads nvidia-peermem.
    """

    running: str
    module: ModuleFile | None
    loaded: LoadedModule | None
    clients: tuple[str, ...] | None
    stack_has_interface: bool | None
    wanted_crc: str | None
    offered_crc: str | None
    library_has_symbol: bool | None
    loaded_at_boot: bool


def parse_peer_memory(result: ProbeResult) -> PeerMemoryFacts:
    """Raises ParseError."""
    names = ("running", "modinfo", "loaded", "clients", "boot", "exported", "wanted", "offered", "libibverbs")
    parts = parts_of(result, names)
    running = one_line(parts, "running")
    try:
        module = module_file(parts["modinfo"])
    except ValueError as error:
        raise ParseError(str(error)) from error
    loaded = parse_sys_module(sys_files(parts["loaded"]))
    exported = parts["exported"]
    library = " ".join(parts["libibverbs"])
    if library not in ("", "has", "has not"):
        raise ParseError(f"expected whether libibverbs has {DMABUF_SYMBOL}, got {library[:100]!r}")
    return PeerMemoryFacts(
        running,
        module,
        next(iter(loaded.values()), None),
        _clients(parts["clients"]),
        exports_register("\n".join(exported[1:])) is not None if exported[:1] == [f"read {running}"] else None,
        crc_of_register("\n".join(parts["wanted"])),
        crc_of_register("\n".join(parts["offered"])),
        {"has": True, "has not": False}.get(library),
        any(line == "enabled" or "peermem" in line for line in parts["boot"]),
    )


def _clients(paths: list[str]) -> tuple[str, ...] | None:
    """Folders below CLIENTS; find prints CLIENTS itself first where it is there. Raises ParseError."""
    if not paths:
        return None
    if paths[0] != CLIENTS or not all(path.startswith(f"{CLIENTS}/") for path in paths[1:]):
        raise ParseError(f"expected {CLIENTS} and what is in it, got {paths[0][:100]!r}")
    return parse_clients([path[len(CLIENTS) + 1 :] for path in paths[1:]])


def check_peer_memory(evidence: NodeEvidence, profile: Profile) -> Iterable[Finding]:
    """HCAs reach GPU memory in the profiled way: module nvidia_peermem, or DMA-BUF.

    Without it each message between nodes goes through the CPU's memory, and NCCL says so only where it is asked to.
    The module has the interface of the RDMA stack that was there when it was built; with another one it does not load,
    or loads and registers nothing.

    Source: platform.gpu_peer_memory of the profile; role nvidia_peermem; NVIDIA/open-gpu-kernel-modules,
    kernel-open/nvidia-peermem/nvidia-peermem.c
    """
    way = profile["platform"]["gpu_peer_memory"]
    if way == "none":
        yield Finding("node", "skipped", "the profile wants no peer memory (platform.gpu_peer_memory)")
        return
    facts: PeerMemoryFacts = evidence.facts(PEER_MEMORY)
    gpus, hcas = _devices(evidence)
    seen = PeerMemoryEvidence(*facts[1:7], running=facts.running, gpus=gpus, hcas=hcas)
    if way == "dma_buf":
        state = judge_dma_buf(facts.running, _loaded_flavour(evidence), facts.library_has_symbol, gpus, hcas)
    else:
        state = judge_module(seen)
    shown = (Evidence(PEER_MEMORY), Evidence(STACK), Evidence(LSPCI))
    if state.state in NOTHING_TO_DO:
        # that GPUs or HCAs are missing is said by gpu.count and rdma.devices
        yield Finding("node", "skipped", f"nothing to judge for {way}: {state.says()}", evidence=shown)
        return
    if state.state != "ready":
        yield _not_ready(way, state)
        return
    stale = _after_reload(seen) if way == "nvidia_peermem" else ""
    if way == "nvidia_peermem" and not stale and not facts.loaded_at_boot:
        stale = f"nothing loads the module at boot ({UNIT} is not enabled, and no list in modules-load.d names it)"
    if stale:
        yield Finding(
            "node",
            "warn",
            f"it works, and will not after the next load or boot: {stale}",
            "the loaded module is the installed one, built against the installed stack, and loaded at each boot",
            "none",
            "run playbooks/gpu_stack.yml on the drained node",
            (Evidence(PEER_MEMORY, stale),),
            _ROLE,
        )
        return
    yield Finding("node", "ok", f"{way}: {state.says()}{_built_against(facts, way)}", evidence=shown)


def _devices(evidence: NodeEvidence) -> tuple[int, int]:
    """GPUs on PCIe, whatever the driver says of them, and RDMA devices with a PCI address. Raises NoEvidence."""
    tree: PciTree = evidence.facts(LSPCI)
    if not tree.with_ids:
        raise NoEvidence(LSPCI, "lspci was called without -nn, so there are no vendor and device ids")
    stack: RdmaStack = evidence.facts(STACK)
    gpus = [one for one in tree.devices.values() if one.vendor == _NVIDIA and one.class_code in _GPU_CLASSES]
    return len(gpus), len([one for one in stack.devices if one.pci_address is not None])


def _loaded_flavour(evidence: NodeEvidence) -> str | None:
    """None where module nvidia is not loaded. Raises NoEvidence."""
    if evidence.raw(DRIVER_VERSION).outcome == "missing":
        return None
    flavour: str = evidence.facts(DRIVER_VERSION).flavour
    return flavour


def _after_reload(seen: PeerMemoryEvidence) -> str:
    """What will be wrong once the module that is installed takes the place of the one that is loaded; "" = nothing."""
    file = judge_module(seen._replace(loaded=None, attempt=None, gpus=1, hcas=1))
    if file.state != "not_loaded":
        return file.says()
    if seen.loaded is None or seen.module is None:
        return ""
    # Where it lies says nothing here: it is never the kernel's own.
    return differs_from_file(seen.loaded._replace(out_of_tree=seen.module.origin == "ofed"), seen.module) or ""


def _built_against(facts: PeerMemoryFacts, way: str) -> str:
    if way != "nvidia_peermem":
        return ""
    if facts.wanted_crc and facts.offered_crc:
        return f", built against the installed RDMA stack ({REGISTER} {facts.wanted_crc})"
    return f", registered as {', '.join(facts.clients)}" if facts.clients else ""


def _not_ready(way: str, state: PeerMemory) -> Finding:
    return Finding(
        "node",
        "unknown" if state.state == "unknown" else "fail",
        f"{way}: {state.says()}",
        f"{way} works (platform.gpu_peer_memory)",
        "none",
        ADVICE.get(state.state, f"run playbooks/gpu_stack.yml on this node, and see dmesg for {MODULE}"),
        (Evidence(PEER_MEMORY, re.sub(r"\s+", " ", state.detail)),),
        _ROLE,
    )


PROBES: tuple[Probe, ...] = (Probe(PEER_MEMORY, parse_peer_memory, argv=counted(_SCRIPT)),)
CHECKS: tuple[Check, ...] = (
    Check("gpu.peer_memory", check_peer_memory, needs=(PEER_MEMORY, STACK, LSPCI), also=(DRIVER_VERSION,)),
)
