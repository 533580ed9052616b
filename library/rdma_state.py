#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the RDMA stack that is loaded, against the one that is installed and wanted."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rdma_state
short_description: Judge the RDMA stack by the modules that are loaded, and load it where nothing is lost by that
description:
  - Tells which stack is installed for each kernel (DOCA-OFED or the kernel's own, by the files that modprobe would
    load) and which one is loaded (by C(/sys/module)). What openibd prints is no evidence, since it ends with OK where
    modules have failed.
  - Loads the modules where the node has HCAs and none of them is loaded. With DOCA-OFED it enables
    C(openibd.service), and rebuilds an initramfs that is older than the modules, since Debian's and Ubuntu's hold
    C(mlx5_core) and would go on loading the old one.
  - Where another stack is loaded than the one that is installed, or HCAs have other names than wanted, it returns
    RV(reboot_reason). It restarts openibd only where O(restart_allowed) says so and nothing is in use.
  - On a converged node it runs one modinfo for each module and kernel, and ofed_info with DOCA-OFED.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says what would be loaded, enabled or rebuilt. What a run would install first is not demanded.
    support: full
  diff_mode:
    description: Shows the modules of each kernel, the loaded ones and the devices before and after.
    support: full
options:
  source:
    description:
      - V(vendor) and V(mirror) - DOCA-OFED, whose modules every installed kernel must have.
      - V(distro) - the kernel's own modules; no kernel may load DOCA-OFED's.
    type: str
    choices: [vendor, mirror, distro]
    required: true
  device_names:
    description: V(kernel) - HCAs are called as the driver found them (C(mlx5_0)). V(pci) - by PCI address.
    type: str
    choices: [kernel, pci]
    required: true
  hca_match:
    description: Rules with C(vendor), C(device) and C(class); a PCI function that fits one is an HCA. Those that mlx5
      does not drive are left out.
    type: list
    elements: dict
    default: []
  restart_allowed:
    description: Whether openibd may be restarted where another stack is loaded than the one that is installed. Not
      done while a mount, an NVMe-oF controller, a process, a GPU job or a network route needs the stack.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Judge the RDMA stack
  rdma_state:
    source: vendor
    device_names: kernel
    hca_match: [{vendor: "15b3", device: "1021"}]
"""

RETURN = r"""
installed:
  description: Whether what is on disk is the wanted stack, for every kernel. Only in check mode it can be false.
  type: bool
  returned: success
kernels:
  description: For each installed kernel, and each module that decides, C(origin) (inbox or ofed), C(version) and
    C(path) of what it would load; null where it has none.
  type: dict
  returned: success
running_kernel:
  description: Release of the running kernel.
  type: str
  returned: success
loaded:
  description: For each module that is loaded C(origin) and C(version).
  type: dict
  returned: success
ofed:
  description: What ofed_info calls the installed OFED; null without one.
  type: str
  returned: success
hcas:
  description: PCI addresses of the HCAs that mlx5 drives.
  type: list
  elements: str
  returned: success
devices:
  description: RDMA devices with C(name) and C(pci_address), which is null for a virtual one.
  type: list
  elements: dict
  returned: success
in_use:
  description: Why openibd was not restarted, a sentence each; empty where nothing kept it from that, or nobody asked
    for it.
  type: list
  elements: str
  returned: success
reboot_reason:
  description: Why a reboot is needed; null where none is.
  type: str
  returned: success
reboot_still_needed:
  description: Command that exits 0 while RV(reboot_reason) stands, for C(reboot_request).
  type: list
  elements: str
  returned: success
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.kernel_modules import (
    BOOT_ROOT,
    MODULES_ROOT,
    explain_modprobe,
    installed_kernels,
)
from ansible.module_utils.gpufleet.rdma_devices import hcas_of_mlx5, rdma_devices
from ansible.module_utils.gpufleet.rdma_facts import (
    OFED_INFO_ARGV,
    STACK_MODULES,
    parse_modinfo,
    parse_ofed_info,
    parse_openibd,
    parse_sys_module,
    sys_module_paths,
)
from ansible.module_utils.gpufleet.rdma_stack_need import (
    RdmaStack,
    hcas_without_device,
    installation_fault,
    modules_need,
    names_need,
)
from ansible.module_utils.gpufleet.rdma_users import find_users, name_users

SYS_ROOT = "/sys"
PROC_ROOT = "/proc"
OPENIBD = "openibd.service"
# Beside those that decide: what programs open (uverbs, rdma_cm) and what the fabric's tools open (umad).
TO_LOAD = ("mlx5_ib", "ib_uverbs", "rdma_ucm", "ib_umad")
MODINFO_LIMIT_S = 60
OFED_INFO_LIMIT_S = 60
# Each HCA takes some seconds to start, one after the other.
MODPROBE_LIMIT_S = 300
RESTART_LIMIT_S = 600
SYSTEMCTL_LIMIT_S = 60
INITRAMFS_LIMIT_S = 900


class RdmaStateError(Exception):
    """The node cannot have the stack as it is wanted: the message says what and where, next_step what to do."""

    def __init__(self, message, next_step):
        super().__init__(message)
        self.next_step = next_step


class RdmaOnNode:
    """The stack on this node; `stack` is what is there, read again after each step."""

    def __init__(self, module):
        self.module = module
        self.check_mode = module.check_mode
        self.source = module.params["source"]
        self.running = os.uname().release
        self.release_names = installed_kernels(MODULES_ROOT, BOOT_ROOT)
        if not self.release_names:
            raise RdmaStateError(
                f"no installed kernel was found: expected a folder below {MODULES_ROOT} and {BOOT_ROOT}/vmlinuz-<the "
                f"same name>. The running kernel is {self.running}",
                f"look at both folders; is {BOOT_ROOT} mounted, is this a container?",
            )
        self.read()

    def read(self):
        self.stack = RdmaStack(
            source=self.source,
            kernels={
                release: {name: self.modinfo(release, name) for name in STACK_MODULES} for release in self.release_names
            },
            running=self.running,
            loaded=self.read_loaded(),
            ofed=self.read_ofed(),
            devices=rdma_devices(SYS_ROOT),
            hcas=hcas_of_mlx5(self.module.params["hca_match"], SYS_ROOT),
            device_names=self.module.params["device_names"],
        )

    def modinfo(self, release, name):
        result = run_bounded(["modinfo", "-k", release, name], MODINFO_LIMIT_S)
        if result.outcome != "done":
            raise RdmaStateError(
                f"modinfo cannot tell which {name} kernel {release} has: {result.said()}",
                "install package kmod" if result.outcome == "missing" else f"look at {MODULES_ROOT}/{release}",
            )
        if result.rc != 0:
            return None
        try:
            return parse_modinfo(result.stdout)
        except ValueError:
            return None  # cut short: as good as none

    def read_loaded(self):
        files = {}
        for path in sys_module_paths(STACK_MODULES):
            try:
                with open(SYS_ROOT + path[len("/sys") :], encoding="ascii") as file:
                    files[path] = file.read()
            except FileNotFoundError:
                continue
        return parse_sys_module(files)

    def read_ofed(self):
        result = run_bounded(OFED_INFO_ARGV, OFED_INFO_LIMIT_S)
        if result.outcome == "missing":
            return None
        if result.outcome != "done" or result.rc != 0:
            raise RdmaStateError(f"ofed_info -s failed: {result.said()}", "run ofed_info -s on the node")
        try:
            return parse_ofed_info(result.stdout)
        except ValueError as error:
            raise RdmaStateError(str(error), "run ofed_info -s on the node; reinstall package ofed-scripts") from error

    def stale_initramfs(self):
        """Kernels whose initramfs was made before their modules came: it would load the old ones.

        The time that counts for a module is that of its arrival (ctime): packages keep the time of its build.
        """
        found = []
        for release, modules in self.stack.kernels.items():
            image = os.path.join(BOOT_ROOT, f"initrd.img-{release}")
            driver = modules["mlx5_core"]
            if self.stack.origin != "ofed" or driver is None or driver.origin != "ofed" or not os.path.exists(image):
                continue
            if os.path.exists(driver.path) and os.stat(driver.path).st_ctime > os.stat(image).st_mtime:
                found.append(release)
        return found

    def openibd_disabled(self):
        """Whether openibd is there and would not be started at boot."""
        if self.stack.origin != "ofed":
            return False
        result = run_bounded(["systemctl", "is-enabled", OPENIBD], SYSTEMCTL_LIMIT_S)
        return result.outcome == "done" and result.stdout.strip() == "disabled"

    def to_load(self):
        """Modules that are missing on a node with HCAs; nothing of the stack can be in use there."""
        return list(TO_LOAD) if self.stack.hcas and "mlx5_ib" not in self.stack.loaded else []

    def do(self, argv, limit_s, what):
        result = run_bounded(argv, limit_s)
        if result.outcome != "done" or result.rc != 0:
            raise RdmaStateError(
                f"{what}: {' '.join(argv)} said: {result.said()}", f"run on the node: {' '.join(argv)}"
            )

    def load(self, names):
        for name in names:
            result = run_bounded(["modprobe", name], MODPROBE_LIMIT_S)
            if result.outcome != "done" or result.rc != 0:
                why = explain_modprobe(name, result.said(), self.running, self.release_names)
                raise RdmaStateError(
                    f"{name} was not loaded: {why.what}. modprobe said: {result.said()}", why.next_step
                )
        if names:
            self.read()
            if "mlx5_ib" not in self.stack.loaded:
                raise RdmaStateError(
                    f"modprobe {names[0]} reported success, yet {SYS_ROOT}/module/mlx5_ib is not there",
                    "see dmesg on the node",
                )

    def restart(self):
        """Restart openibd and read again; returns the lines in which it says that something failed."""
        self.do(["systemctl", "restart", OPENIBD], RESTART_LIMIT_S, "the RDMA stack was not restarted")
        self.read()
        log = run_bounded(["journalctl", "--unit", OPENIBD, "--lines", "50", "--output", "cat"], SYSTEMCTL_LIMIT_S)
        return parse_openibd(log.stdout).failed

    def describe(self):
        """One line for each module of each kernel, each loaded module and device."""
        lines = [f"DOCA-OFED: {self.stack.ofed.name if self.stack.ofed else 'none'}"]
        for release, modules in self.stack.kernels.items():
            lines += [
                f"{name} of kernel {release}: {shown(module) if module else 'none'}" for name, module in modules.items()
            ]
        lines += [f"loaded: {name} {shown(module)}" for name, module in sorted(self.stack.loaded.items())]
        lines += [f"device {device.name}: {device.pci_address or 'virtual'}" for device in self.stack.devices]
        return "\n".join(lines) + "\n"


def shown(module):
    return f"{module.origin} {module.version or 'without a version'}"


def main():
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "choices": ["vendor", "mirror", "distro"], "required": True},
            "device_names": {"type": "str", "choices": ["kernel", "pci"], "required": True},
            "hca_match": {"type": "list", "elements": "dict", "default": []},
            "restart_allowed": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        result = apply(module)
    except RdmaStateError as error:
        module.fail_json(msg=str(error), next_step=error.next_step)
    module.exit_json(**result)


def apply(module):
    node = RdmaOnNode(module)
    before = node.describe()
    fault = installation_fault(node.stack)
    if fault and not node.check_mode:
        raise RdmaStateError(f"RDMA stack: {fault.what}", fault.next_step)
    # In check mode what is missing on disk is what the step before would install.
    steps = [] if fault else plan(node)
    in_use, failed = [], ()
    if steps and not node.check_mode:
        act(node)
    need = None if fault else modules_need(node.stack)
    if (
        need
        and module.params["restart_allowed"]
        and node.stack.origin == "ofed"
        and node.stack.running in node.stack.kernels
    ):
        in_use = find_users(PROC_ROOT, SYS_ROOT)
        if in_use:
            module.warn(f"openibd was not restarted, since the RDMA stack is in use: {name_users(in_use)}")
        else:
            steps.append(f"restart {OPENIBD}")
            failed = () if node.check_mode else node.restart()
            need = None if node.check_mode else modules_need(node.stack)
    if need and failed:
        # Bug 111: openibd ends with OK all the same.
        need = need._replace(reason=f"{need.reason}; openibd was restarted and printed: {'; '.join(failed[:5])}")
    need = need or (None if fault else names_need(node.stack))
    lost = hcas_without_device(node.stack)
    if lost and not need and not node.check_mode:
        tell_lost(module, node.stack, lost)
    after = before + "".join(f"would {step}\n" for step in steps) if node.check_mode else node.describe()
    return {
        "changed": bool(steps),
        "installed": fault is None,
        "kernels": {
            release: {
                name: {"origin": entry.origin, "version": entry.version, "path": entry.path} if entry else None
                for name, entry in modules.items()
            }
            for release, modules in node.stack.kernels.items()
        },
        "running_kernel": node.running,
        "loaded": {
            name: {"origin": entry.origin, "version": entry.version} for name, entry in node.stack.loaded.items()
        },
        "ofed": node.stack.ofed.name if node.stack.ofed else None,
        "hcas": list(node.stack.hcas),
        "devices": [device._asdict() for device in node.stack.devices],
        "in_use": in_use,
        "reboot_reason": need.reason if need else None,
        "reboot_still_needed": list(need.still_needed) if need else None,
        "diff": {"before": before, "after": after + "".join(f"{step}\n" for step in steps if not node.check_mode)},
    }


def plan(node):
    """What act would do, a line each."""
    steps = [f"enable {OPENIBD}"] if node.openibd_disabled() else []
    steps += [f"rebuild the initramfs of kernel {release}" for release in node.stale_initramfs()]
    names = node.to_load()
    return steps + ([f"load {', '.join(names)}"] if names else [])


def act(node):
    """Enable openibd, rebuild what is stale, load what is missing."""
    if node.openibd_disabled():
        node.do(["systemctl", "enable", OPENIBD], SYSTEMCTL_LIMIT_S, f"{OPENIBD} was not enabled")
    for release in node.stale_initramfs():
        argv = ["update-initramfs", "-u", "-k", release]
        node.do(argv, INITRAMFS_LIMIT_S, f"the initramfs of kernel {release} still holds the old modules")
    node.load(node.to_load())


def tell_lost(module, stack, lost):
    """One HCA that is dead is for the health check, all of them are a stack that does not work."""
    text = f"no RDMA device belongs to HCA {', '.join(lost)}, although mlx5_ib is loaded"
    if len(lost) == len(stack.hcas):
        raise RdmaStateError(
            f"{text}: none of the {len(stack.hcas)} HCAs works",
            "see dmesg on the node for mlx5_core (firmware, PCI errors)",
        )
    module.warn(f"{text}; node_health tells more")


if __name__ == "__main__":
    main()
