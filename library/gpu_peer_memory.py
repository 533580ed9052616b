#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: whether HCAs reach GPU memory, verified by state; loads nvidia-peermem where nothing stands against
it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_peer_memory
short_description: Load nvidia-peermem where it can be, and tell why HCAs do not reach GPU memory
description:
  - Tells apart why there is no peer memory - not built, built without the interface of an RDMA stack, built against
    another stack, key rejected, no GPU, no HCA, and for DMA-BUF an old kernel, the proprietary module or an old
    libibverbs. What modprobe ends with is no evidence; what is loaded and registered is.
  - Loads the module with O(way=nvidia_peermem) where it is not loaded and nothing that can be seen stands against it,
    by O(unit), so that a restart of openibd finds the unit active.
  - The module's file has another name on Debian (C(nvidia-current-open-peermem.ko), found by an C(install) line), so
    modprobe is asked which file it would take.
  - Where a reboot is asked for already, a state that is not ready is a warning, since the modules that fit each other
    come with that boot.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says whether the module would be loaded. What a run would install first is not demanded.
    support: full
  diff_mode:
    description: Shows the state before and after.
    support: full
options:
  way:
    description: How HCAs are to reach GPU memory.
    type: str
    choices: [nvidia_peermem, dma_buf]
    required: true
  demanded:
    description: Whether any state but C(ready) is an error. Without it the state is told and nothing more, as on a node
      that has no GPU.
    type: bool
    required: true
  unit:
    description: Unit that loads the module at boot.
    type: str
    default: gpufleet-nvidia-peermem.service
"""

EXAMPLES = r"""
- name: Expect that HCAs reach GPU memory
  gpu_peer_memory:
    way: nvidia_peermem
    demanded: true
"""

RETURN = r"""
state:
  description: C(ready), or why not, such as C(not_built), C(without_interface), C(another_stack), C(key_rejected),
    C(no_gpu) or C(no_hca).
  type: str
  returned: success
says:
  description: The state in words, with what was seen.
  type: str
  returned: success
module_name:
  description: Name that the module has in the kernel; null where there is none, and with O(way=dma_buf).
  type: str
  returned: success
waits_for:
  description: Names of the reboot requests that the state waits for; empty where it is ready or none is there.
  type: list
  elements: str
  returned: success
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

import glob
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.gpu_peer_memory_facts import (
    ADVICE,
    CLIENTS,
    DMABUF_SYMBOL,
    MODULE,
    PeerMemory,
    PeerMemoryEvidence,
    crc_of_register,
    exports_register,
    judge_dma_buf,
    judge_module,
    parse_clients,
)
from ansible.module_utils.gpufleet.gpu_peer_memory_load import explain_load_failure
from ansible.module_utils.gpufleet.kernel_modules import parse_show_depends
from ansible.module_utils.gpufleet.nvidia_loaded_driver import PROC_VERSION, parse_proc_version
from ansible.module_utils.gpufleet.rdma_devices import gpus_of_nvidia, rdma_devices
from ansible.module_utils.gpufleet.rdma_facts import parse_modinfo, parse_sys_module
from ansible.module_utils.gpufleet.reboot_request_file import REQUESTS
from ansible.module_utils.gpufleet.reboot_requests import read_folder

# Everything is read below this folder.
ROOT = "/"
PREDECESSOR = "nv_peer_mem"
# Debian and Ubuntu; DOCA-OFED's packages for them put the library there too.
LIBRARIES = "usr/lib/*-linux-gnu/libibverbs.so.1"
# Checksums of what OFED's ib_core exports, kept by package mlnx-ofed-kernel-dkms, and of what the kernel's own does.
OFED_SOURCES = "usr/src/ofa_kernel"
OFED_SYMVERS = OFED_SOURCES + "/*/{release}/Module.symvers"
KERNEL_SYMVERS = "lib/modules/{release}/build/Module.symvers"
READ_LIMIT_S = 60
MODPROBE_LIMIT_S = 180
UNIT_LIMIT_S = 240


class PeerMemoryError(Exception):
    """HCAs do not reach GPU memory: the message says what and where, next_step what to do."""

    def __init__(self, message, next_step):
        super().__init__(message)
        self.next_step = next_step


def below_root(path):
    return os.path.join(ROOT, path.lstrip("/"))


def read_text(path):
    """Content of a file, None where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


class PeerMemoryOnNode:
    """What this node has; `module_file` and the evidence are read again after each step."""

    def __init__(self, module):
        self.module = module
        self.check_mode = module.check_mode
        self.way = module.params["way"]
        self.unit = module.params["unit"]
        self.release = os.uname().release
        self.module_file = None
        self.attempt = None

    def devices(self):
        """Numbers of GPUs on the bus and of RDMA devices that are no virtual ones."""
        sys_root = below_root("sys")
        hcas = [device for device in rdma_devices(sys_root) if device.pci_address is not None]
        return len(gpus_of_nvidia(sys_root)), len(hcas)

    def judge(self):
        gpus, hcas = self.devices()
        if self.way == "dma_buf":
            return judge_dma_buf(self.release, self.flavour(), self.library_has_symbol(), gpus, hcas)
        self.module_file = self.read_module()
        symbols = read_text(below_root(f"lib/modules/{self.release}/modules.symbols"))
        return judge_module(
            PeerMemoryEvidence(
                module=self.module_file,
                loaded=self.read_loaded(),
                clients=self.read_clients(),
                stack_has_interface=None if symbols is None else exports_register(symbols) is not None,
                wanted_crc=self.wanted_crc(),
                offered_crc=self.offered_crc(),
                running=self.release,
                gpus=gpus,
                hcas=hcas,
                attempt=self.attempt,
                predecessor=os.path.isdir(below_root(f"sys/module/{PREDECESSOR}")),
            )
        )

    def read_module(self):
        """The file that modprobe would load into the running kernel; None where there is none."""
        asked = self.ask(["modprobe", "--set-version", self.release, "--show-depends", MODULE])
        resolved = parse_show_depends(asked.stdout)
        if resolved is None:
            return None
        result = self.ask(["modinfo", "-k", self.release, resolved.path or resolved.name])
        try:
            return parse_modinfo(result.stdout) if result.rc == 0 else None
        except ValueError:
            return None  # cut short: as good as none

    def ask(self, argv):
        result = run_bounded(argv, READ_LIMIT_S)
        if result.outcome != "done":
            raise PeerMemoryError(
                f"{argv[0]} cannot tell which {MODULE} kernel {self.release} has: {result.said()}",
                "install package kmod" if result.outcome == "missing" else f"run on the node: {' '.join(argv)}",
            )
        return result

    def read_loaded(self):
        """The module in the kernel, whatever the file is called that modinfo finds now."""
        files = {}
        for name in {os.path.basename(path) for path in glob.glob(below_root("sys/module/*peermem*"))}:
            for file in ("taint", "version", "srcversion"):
                text = read_text(below_root(f"sys/module/{name}/{file}"))
                if text is not None:
                    files[f"/sys/module/{name}/{file}"] = text
        return next(iter(parse_sys_module(files).values()), None)

    def read_clients(self):
        folder = below_root(CLIENTS)
        return parse_clients(os.listdir(folder) if os.path.isdir(folder) else None)

    def wanted_crc(self):
        if self.module_file is None or not self.module_file.path:
            return None
        result = run_bounded(["modprobe", "--dump-modversions", self.module_file.path], READ_LIMIT_S)
        return crc_of_register(result.stdout) if result.outcome == "done" else None

    def offered_crc(self):
        # Ubuntu's kernels have an interface of their own, whose checksum says nothing where OFED is installed.
        pattern = OFED_SYMVERS if os.path.isdir(below_root(OFED_SOURCES)) else KERNEL_SYMVERS
        for path in sorted(glob.glob(below_root(pattern.format(release=glob.escape(self.release))))):
            found = crc_of_register(read_text(path) or "")
            if found:
                return found
        return None

    def flavour(self):
        """open or proprietary; None where the driver is not loaded."""
        text = read_text(below_root(PROC_VERSION))
        try:
            return parse_proc_version(text).flavour if text is not None else None
        except ValueError:
            return None

    def library_has_symbol(self):
        found = sorted(glob.glob(below_root(LIBRARIES)))
        if not found:
            return None
        with open(found[0], "rb") as file:
            return DMABUF_SYMBOL.encode("ascii") in file.read()

    def unit_is_active(self):
        result = run_bounded(["systemctl", "is-active", self.unit], READ_LIMIT_S)
        return result.outcome == "done" and result.stdout.strip() == "active"

    def load(self):
        """Load the module; an attempt that failed is kept for the judgement."""
        # modprobe by itself first: what systemctl prints names no reason.
        result = run_bounded(["modprobe", MODULE], MODPROBE_LIMIT_S)
        if result.outcome != "done" or result.rc != 0:
            log = run_bounded(["dmesg"], READ_LIMIT_S)
            # The last attempt only: older ones may have had other reasons.
            lines = [line for line in log.stdout.splitlines() if "peermem" in line or "ib_register" in line]
            self.attempt = explain_load_failure(result.said(), "\n".join(lines[-10:]))

    def start_unit(self):
        result = run_bounded(["systemctl", "start", self.unit], UNIT_LIMIT_S)
        if result.outcome != "done" or result.rc != 0 or not self.unit_is_active():
            raise PeerMemoryError(
                f"{MODULE} is loaded, yet {self.unit}, which loads it at boot, did not become active: {result.said()}",
                f"see systemctl status {self.unit} on the node",
            )


def main():
    module = AnsibleModule(
        argument_spec={
            "way": {"type": "str", "choices": ["nvidia_peermem", "dma_buf"], "required": True},
            "demanded": {"type": "bool", "required": True},
            "unit": {"type": "str", "default": "gpufleet-nvidia-peermem.service"},
        },
        supports_check_mode=True,
    )
    try:
        result = apply(module)
    except PeerMemoryError as error:
        module.fail_json(msg=str(error), next_step=error.next_step)
    module.exit_json(**result)


def apply(module):
    node = PeerMemoryOnNode(module)
    before = verdict = node.judge()
    changed = False
    if node.way == "nvidia_peermem" and verdict.state in ("not_loaded", "ready"):
        changed = verdict.state == "not_loaded" or not node.unit_is_active()
        if changed and not module.check_mode:
            node.load()
            verdict = node.judge()
            changed = verdict.state == "ready"
            if changed:
                node.start_unit()
    after = verdict
    if module.check_mode and changed:
        after = PeerMemory("ready", f"{MODULE} newly loaded")
    waits_for = []
    if after.state != "ready" and module.params["demanded"] and not module.check_mode:
        waits_for = [request.name for request in read_folder(below_root(REQUESTS))[0]]
        if not waits_for:
            raise PeerMemoryError(f"HCAs cannot reach GPU memory by {node.way}: {after.says()}", ADVICE[after.state])
        module.warn(f"HCAs cannot reach GPU memory before the reboot ({', '.join(waits_for)}): {after.says()}")
    return {
        "changed": changed,
        "state": after.state,
        "says": after.says(),
        "module_name": node.module_file.name if node.module_file else None,
        "waits_for": waits_for,
        "diff": {"before": f"{before.says()}\n", "after": f"{after.says()}\n"},
    }


if __name__ == "__main__":
    main()
