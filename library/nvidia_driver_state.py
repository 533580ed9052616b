#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the NVIDIA driver that is loaded, against the one that is installed for each kernel."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_driver_state
short_description: Verify the NVIDIA driver for every installed kernel, and load it
description:
  - Verifies that the packages of one driver are equal to the last digit, the fabric manager's too, and that every
    installed kernel would load the module of that version and flavour. What dkms has not built is built here.
  - Rebuilds an initramfs that is older than O(configuration), for each kernel whose image holds one of the modules that
    the file is about.
  - Loads the module where the PCI bus has an NVIDIA GPU. A driver that cannot see its GPUs is an error with the reason
    from the kernel log, where O(gpus_demanded).
  - Where another driver is loaded than the one that is installed, or with other options, it returns RV(reboot_reason).
    It reloads the module only where O(reload_allowed) and nothing uses the GPUs.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says what would be built, rebuilt and loaded. What a run would install first is not demanded.
    support: full
  diff_mode:
    description: Shows packages, the module of each kernel and the loaded module before and after.
    support: full
options:
  packages:
    description: Packages that carry the driver's version.
    type: list
    elements: str
    required: true
  fabric_manager:
    description: Which of O(packages) is the fabric manager.
    type: str
  kernel_modules:
    description: Flavour that each kernel must have.
    type: str
    choices: [open, proprietary]
    default: open
  modules_from:
    description: Where the modules come from. What is missing is built with V(dkms) only.
    type: str
    choices: [dkms, prebuilt]
    required: true
  options:
    description: Options that module nvidia is to be loaded with. Those that the driver lists in
      C(/proc/driver/nvidia/params) are compared.
    type: dict
    default: {}
  configuration:
    description: File of modprobe.d whose content an initramfs must not be older than.
    type: path
    default: /etc/modprobe.d/gpufleet-nvidia.conf
  gpus_demanded:
    description: Whether the driver must see GPUs. Without it a node without any is fine.
    type: bool
    default: true
  reload_allowed:
    description: Whether the module may be taken out and loaded anew where nothing uses the GPUs. The node's own
      services are stopped for it and started again.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Verify the driver and load it
  nvidia_driver_state:
    packages: [nvidia-open, nvidia-fabricmanager]
    fabric_manager: nvidia-fabricmanager
    modules_from: dkms
    options: {NVreg_RestrictProfilingToAdminUsers: "0"}
"""

RETURN = r"""
release:
  description: Version of the driver by its packages; null in check mode on a node that lacks them.
  type: str
  returned: success
kernels:
  description: For each installed kernel the version of the module that it would load; null where it has none yet, which
    only check mode can see.
  type: dict
  returned: success
loaded_version:
  description: Version of the loaded module; null where none is.
  type: str
  returned: success
gpus:
  description: PCI addresses of the GPUs that the driver has taken.
  type: list
  elements: str
  returned: success
reloaded:
  description: Whether the module was taken out and loaded anew, or would be.
  type: bool
  returned: success
rebuilt:
  description: Kernels whose initramfs was made anew, or would be.
  type: list
  elements: str
  returned: success
kept_by:
  description: What uses the GPUs, where a reload was allowed and not done.
  type: list
  elements: str
  returned: success
units:
  description: Which of the driver's systemd units exist.
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
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.apt_packages import ENVIRONMENT, PackageError, read_states
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.dkms_build import DkmsBuildError, build_for_kernel
from ansible.module_utils.gpufleet.initramfs_images import InitramfsError, outdated_images, rebuild_image
from ansible.module_utils.gpufleet.kernel_modules import (
    BOOT_ROOT,
    DKMS_ROOT,
    MODULES_ROOT,
    explain_modprobe,
    installed_kernels,
    parse_dkms_status,
    parse_show_depends,
)
from ansible.module_utils.gpufleet.modinfo import parse_modinfo
from ansible.module_utils.gpufleet.nvidia_driver_verdict import (
    DriverError,
    differing_parameters,
    kernels_fault,
    reboot_need,
    release_of,
    unfit_kernels,
    unseen_gpus,
)
from ansible.module_utils.gpufleet.nvidia_gpu_users import NODE_SERVICES, gpu_users, others
from ansible.module_utils.gpufleet.nvidia_loaded_driver import PROC_VERSION, parse_proc_version
from ansible.module_utils.gpufleet.nvidia_module_facts import (
    PROC_GPUS,
    PROC_PARAMETERS,
    WHAT,
    parse_parameters,
    read_reasons,
    since_last_load,
)

COMMAND_LIMIT_S = 60
MODPROBE_LIMIT_S = 300
UNIT_LIMIT_S = 120
SYS = "/sys"
PROC = "/proc"
UNIT_FOLDERS = ("/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
UNITS = ("gpufleet-nvidia.service", "nvidia-persistenced.service", "nvidia-fabricmanager.service")
# Images that hold none of the modules, by kernel, so that each is looked into once.
SEEN = "/var/lib/gpufleet/nvidia_driver/initramfs.json"
# What the file of modprobe.d is about.
CONFIGURED = ("nouveau", "nvidia", "nvidia-current", "nvidia-current-open")
# Each after those that use it.
UNLOADING = ("nvidia_peermem", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
NVIDIA = "0x10de"
# PCI base class 03: VGA and 3D controllers.
DISPLAY = "0x03"


def read_text(path):
    """Content of a file, None where it is not there."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return None


class DriverOnNode:
    """The driver on this node; versions, modules and loaded are what is there, read again after each step."""

    def __init__(self, module):
        self.module, self.wanted = module, module.params
        self.began = time.time()
        self.running = os.uname().release
        self.kernels = installed_kernels(MODULES_ROOT, BOOT_ROOT)
        if not self.kernels:
            raise DriverError(
                f"no installed kernel was found: expected a folder below {MODULES_ROOT} and {BOOT_ROOT}/vmlinuz-<the "
                f"same name>. The running kernel is {self.running}",
                f"look at both folders; is {BOOT_ROOT} mounted, is this a container?",
            )
        states = read_states(self.wanted["packages"], self.run)
        self.versions = {name: state.version for name, state in states.items()}
        self.on_bus = self.gpus_on_bus()
        self.reloaded, self.rebuilt, self.kept_by = False, [], []
        self.read_modules()
        self.read_loaded()

    def run(self, argv):
        return self.module.run_command(list(argv), environ_update=ENVIRONMENT)

    def read_modules(self):
        self.modules = {release: self.module_of(release) for release in self.kernels}

    def module_of(self, release):
        """The module that modprobe would load into a kernel, None where there is none."""
        result = run_bounded(["modprobe", "--set-version", release, "--show-depends", "nvidia"], COMMAND_LIMIT_S)
        if result.outcome != "done":
            raise DriverError(
                f"modprobe cannot tell which nvidia module kernel {release} has: {result.said()}",
                "install package kmod" if result.outcome == "missing" else f"look at {MODULES_ROOT}/{release}",
            )
        found = parse_show_depends(result.stdout)
        if found is None:
            return None
        argv = ["modinfo", found.path] if found.path else ["modinfo", "-k", release, found.name]
        shown = run_bounded(argv, COMMAND_LIMIT_S)
        try:
            return parse_modinfo(shown.stdout) if shown.rc == 0 else None
        except ValueError:
            return None  # cut short: as good as none

    def read_loaded(self):
        text = read_text(PROC_VERSION)
        self.loaded = parse_proc_version(text) if text is not None else None
        self.parameters = parse_parameters(read_text(PROC_PARAMETERS) or "")
        self.gpus = sorted(os.listdir(PROC_GPUS)) if os.path.isdir(PROC_GPUS) else []

    def gpus_on_bus(self):
        folder = os.path.join(SYS, "bus/pci/devices")
        found = []
        for address in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            vendor, kind = (read_text(os.path.join(folder, address, name)) or "" for name in ("vendor", "class"))
            if vendor.strip() == NVIDIA and kind.startswith(DISPLAY):
                found.append(address)
        return found

    def has_module(self, name):
        return os.path.isdir(os.path.join(SYS, "module", name))

    def release(self):
        """The driver's version by its packages; raises DriverError where one is missing or they differ."""
        missing = [name for name, version in self.versions.items() if version is None]
        if missing:
            raise DriverError(
                f"package {', '.join(missing)} is not installed", "run the role's part nvidia_driver_install first"
            )
        return release_of(self.versions, self.wanted["fabric_manager"])

    def unfit(self, release):
        return unfit_kernels(self.modules, release, self.wanted["kernel_modules"])

    def build_missing(self, release):
        """Have dkms build what is missing, then judge every kernel; raises DriverError."""
        unfit = self.unfit(release)
        if unfit and self.wanted["modules_from"] == "dkms":
            status = self.dkms_status()
            for kernel in unfit:
                self.build(kernel, release, status)
            self.read_modules()
            unfit = self.unfit(release)
        if unfit:
            step = (
                "see dkms status and the make.log below /var/lib/dkms; remove a kernel that is not needed any more"
                if self.wanted["modules_from"] == "dkms"
                else "bring the package of that version for each of these kernels (packages.nvidia_driver."
                "module_package), or remove a kernel that is not needed any more"
            )
            raise DriverError(kernels_fault(unfit, release, self.wanted["kernel_modules"], self.running), step)

    def dkms_status(self):
        result = run_bounded(["dkms", "status"], COMMAND_LIMIT_S)
        return parse_dkms_status(f"{result.stdout}\n{result.stderr}")

    def build(self, kernel, release, status):
        build_for_kernel("nvidia", release, kernel, status, self.began, DKMS_ROOT)

    def rebuild_images(self):
        configuration, remember = self.wanted["configuration"], not self.module.check_mode
        self.rebuilt = outdated_images(self.kernels, configuration, CONFIGURED, SEEN, remember, BOOT_ROOT)
        for release in self.rebuilt if remember else []:
            rebuild_image(release)

    def need(self):
        nouveau = bool(self.on_bus) and self.loaded is None and self.has_module("nouveau")
        differing = differing_parameters(self.wanted["options"], self.parameters) if self.loaded else {}
        return reboot_need(self.loaded, self.modules, self.running, differing, nouveau)

    def load(self):
        """Load the module; a failure is an error where GPUs are demanded, else a warning."""
        result = run_bounded(["modprobe", "nvidia"], MODPROBE_LIMIT_S)
        self.read_loaded()
        if result.outcome == "done" and result.rc == 0 and self.loaded is not None:
            return
        failure = explain_modprobe("nvidia", result.said(), self.running, self.kernels)
        reasons = self.reasons()
        why = "; ".join(f"{WHAT[reason.kind]} ({reason.text})" for reason in reasons)
        message = f"module nvidia was not loaded: {why or failure.what}. modprobe said: {result.said()}"
        # What modprobe says is about the load itself; the kernel log knows more where it found no GPU.
        step = failure.next_step
        if failure.kind in ("no_device", "other") and reasons:
            step = "see dmesg on the node, and lspci -nnk -d 10de: for the driver that holds the GPUs"
        if self.wanted["gpus_demanded"]:
            raise DriverError(message, step)
        self.module.warn(message)

    def reasons(self):
        result = run_bounded(["dmesg"], COMMAND_LIMIT_S)
        return read_reasons(since_last_load(result.stdout)) if result.outcome == "done" else []

    def systemctl(self, verb, unit):
        return run_bounded(["systemctl", verb, unit], UNIT_LIMIT_S)

    def reload(self):
        """Take the module out and load the installed one, unless something uses the GPUs."""
        self.kept_by = [str(user) for user in others(gpu_users(PROC))]
        if self.kept_by or self.module.check_mode:
            self.reloaded = not self.kept_by
            return
        stopped = []
        try:
            for unit in NODE_SERVICES:
                if self.systemctl("is-active", unit).rc == 0:
                    stopped.append(unit)
                    self.systemctl("stop", unit)
            # What has begun meanwhile, or did not stop.
            self.kept_by = [str(user) for user in gpu_users(PROC)] or self.take_out()
            if not self.kept_by:
                self.load()
                self.reloaded = True
        finally:
            for unit in reversed(stopped):
                self.systemctl("start", unit)

    def take_out(self):
        """Unload the modules; returns what the kernel says where one stays."""
        for name in UNLOADING:
            if self.has_module(name):
                result = run_bounded(["rmmod", name], MODPROBE_LIMIT_S)
                if result.outcome != "done" or result.rc != 0:
                    return [f"module {name}: {result.said()}"]
        return []

    def verify_gpus(self):
        """The driver sees every GPU of the bus, by nvidia-smi, which opens each one; raises DriverError."""
        if not self.wanted["gpus_demanded"]:
            return
        seen, said = len(self.gpus), "nothing, since it was not asked"
        if self.on_bus and seen >= len(self.on_bus):
            result = run_bounded(["nvidia-smi", "-L"], COMMAND_LIMIT_S)
            seen, said = sum(line.startswith("GPU ") for line in result.stdout.splitlines()), result.said()
        error = unseen_gpus(self.on_bus, seen, said, self.reasons() if seen < len(self.on_bus) else [])
        if error:
            raise error

    def units(self):
        return [unit for unit in UNITS if any(os.path.exists(os.path.join(folder, unit)) for folder in UNIT_FOLDERS)]

    def describe(self, unfit=()):
        lines = [f"{name}: {version or 'not installed'}" for name, version in sorted(self.versions.items())]
        for release, module in self.modules.items():
            have = f"{module.version} ({module.path})" if module else "none"
            lines.append(f"module of kernel {release}: {'new' if release in unfit else have}")
        loaded = f"{self.loaded.version} ({self.loaded.flavour})" if self.loaded else "none"
        return "\n".join([*lines, f"loaded module: {loaded}"]) + "\n"


def apply(module):
    node = DriverOnNode(module)
    before = node.describe()
    fresh = module.check_mode and None in node.versions.values()
    release = None if fresh else node.release()
    unfit = node.unfit(release) if module.check_mode else {}
    if not module.check_mode:
        node.build_missing(release)
    node.rebuild_images()
    need = node.need()
    loads = bool(node.on_bus) and node.loaded is None and need is None
    if loads and not module.check_mode:
        node.load()
        need = node.need()
    if need and node.loaded and module.params["reload_allowed"] and node.running in node.kernels and not unfit:
        node.reload()
        if not module.check_mode:
            need = node.need()
    if need is None and not module.check_mode:
        node.verify_gpus()
    after = node.describe(unfit)
    return {
        "changed": before != after or bool(node.rebuilt) or node.reloaded or loads,
        "release": release,
        "kernels": {kernel: entry.version if entry else None for kernel, entry in node.modules.items()},
        "loaded_version": node.loaded.version if node.loaded else None,
        "gpus": node.gpus,
        "reloaded": node.reloaded,
        "rebuilt": node.rebuilt,
        "kept_by": node.kept_by,
        "units": node.units(),
        "reboot_reason": need.reason if need else None,
        "reboot_still_needed": list(need.still_needed) if need else None,
        "diff": {"before": before, "after": after},
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "required": True},
            "fabric_manager": {"type": "str"},
            "kernel_modules": {"type": "str", "choices": ["open", "proprietary"], "default": "open"},
            "modules_from": {"type": "str", "choices": ["dkms", "prebuilt"], "required": True},
            "options": {"type": "dict", "default": {}},
            "configuration": {"type": "path", "default": "/etc/modprobe.d/gpufleet-nvidia.conf"},
            "gpus_demanded": {"type": "bool", "default": True},
            "reload_allowed": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        result = apply(module)
    except (DriverError, DkmsBuildError, InitramfsError) as error:
        module.fail_json(msg=str(error), next_step=error.next_step)
    except (PackageError, ValueError) as error:
        module.fail_json(msg=str(error), next_step="see dmesg and /var/log/apt/term.log on the node")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
