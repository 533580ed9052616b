#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: ZFS user land and the kernel module of every installed kernel, held, loaded and verified."""

from __future__ import annotations

DOCUMENTATION = r"""
module: zfs_packages
short_description: Install ZFS with a kernel module for every installed kernel
description:
  - Installs C(zfsutils-linux) and C(zfs-zed) at one version, brings the kernel module for every installed kernel from
    one source, holds all packages, verifies versions and modules, and loads the module.
  - A kernel is installed where it has a folder below C(/lib/modules) and a C(/boot/vmlinuz-<release>). One without a
    module is an error, since a boot into it would come up without the pool.
  - Removes what another source left once every kernel has its new module. Modules that dkms built lie before all others
    and would go on being loaded. Where the packages conflict, apt exchanges them in one transaction, and a warning says
    so.
  - Never unloads the module. Where another version is loaded than the one that is installed it returns
    RV(reboot_reason).
  - On a converged node it runs one dpkg-query and one modinfo for each kernel, and asks no mirror.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says what would be installed, built, removed and loaded; nothing is written, the package lists neither.
    support: full
  diff_mode:
    description: Shows packages, the module of each kernel and the loaded module before and after.
    support: full
options:
  source:
    description:
      - V(distro) - the distribution's kernel packages hold the module, as Ubuntu's do. Debian's do not.
      - V(dkms) - C(zfs-dkms) builds the module on the node, with the headers of each kernel. Minutes for each kernel.
      - V(prebuilt) - one package for each kernel, named by O(module_package).
    type: str
    choices: [distro, dkms, prebuilt]
    required: true
  version:
    description: Exact version of C(zfsutils-linux), C(zfs-zed) and C(zfs-dkms) as apt spells it. Without it the
      installed version is kept, and the candidate of the package lists is installed where there is none.
    type: str
  module_package:
    description:
      - Name of the package with the module of a kernel, with C({kernel}) in place of the release. Needed for
        O(source=prebuilt); with another source it names the packages that are to go.
      - Debian's C(zfs-zed) depends on C(zfs-modules | zfs-dkms), so there the package must provide C(zfs-modules).
    type: str
  load:
    description: Whether to load the module. Containers cannot.
    type: bool
    default: true
  supported_os:
    description: Operating systems as C(<ID> <VERSION_ID>) of os-release, such as C(debian 12). Any other is refused
      before anything is changed. Empty means any.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Build the module on the node
  zfs_packages:
    source: dkms
    version: 2.3.2-2

- name: Install modules that were built elsewhere
  zfs_packages:
    source: prebuilt
    module_package: zfs-modules-{kernel}
"""

RETURN = r"""
installed:
  description: Whether user land and the module of every kernel are there now. In check mode on a node that lacks them
    this is false.
  type: bool
  returned: success
versions:
  description: Version of each package that is installed now, or would be after a run without check mode.
  type: dict
  returned: success
kernels:
  description: For each installed kernel the version of the module that it would load; null where it has none yet, which
    only check mode can see.
  type: dict
  returned: success
running_kernel:
  description: Release of the running kernel.
  type: str
  returned: success
loaded_version:
  description: Version of the module that is loaded now; null where none is.
  type: str
  returned: success
exchanged:
  description: Packages of another source that apt removed in the same transaction, since the new ones conflict with
    them. While it ran, kernels were without a module on disk.
  type: list
  elements: str
  returned: success
reboot_reason:
  description: Why a reboot is needed; null where none is, and with O(load=false).
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
  returned: failure, where the message does not say it
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.apt_packages import (
    ENVIRONMENT,
    PackageError,
    PackageState,
    UnknownPackages,
    hold,
    install_together,
    purge_together,
    read_offers,
    read_states,
    refuse_unoffered,
    update_lists,
)
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.kernel_modules import (
    BOOT_ROOT,
    DKMS_ROOT,
    MODULES_ROOT,
    both_spellings,
    built_by_dkms,
    explain_modprobe,
    files_of_packages,
    installed_kernels,
    module_files,
    newest_make_log,
)
from ansible.module_utils.gpufleet.modinfo import KernelModule, parse_modinfo
from ansible.module_utils.gpufleet.os_release import read_os_release, unsupported
from ansible.module_utils.gpufleet.package_version import upstream_version
from ansible.module_utils.gpufleet.zfs_kernel_modules import (
    DKMS_PACKAGE,
    LOADED_VERSION,
    USER_LAND,
    ZfsPackagesError,
    dkms_files,
    fits,
    kernels_without_module,
    module_package_of,
    reboot_need,
    same_upstream,
    unfit_modules,
)

MODINFO_LIMIT_S = 60
MODPROBE_LIMIT_S = 300
# configure and make of one kernel: 6 minutes on two cores of 2026, and machines vary threefold.
DKMS_LIMIT_S = 3600
CANDIDATE = "the candidate of the package lists"


class ZfsOnNode:
    """ZFS on this node; `states`, `modules` and `loaded` are what is there, read again after each step."""

    def __init__(self, module):
        self.module = module
        self.check_mode = module.check_mode
        self.source = module.params["source"]
        self.load = module.params["load"]
        self.began = time.time()
        self.exchanged = []
        self.running = os.uname().release
        self.kernels = installed_kernels(MODULES_ROOT, BOOT_ROOT)
        if not self.kernels:
            raise ZfsPackagesError(
                f"no installed kernel was found: expected a folder below {MODULES_ROOT} and {BOOT_ROOT}/vmlinuz-<the "
                f"same name>. The running kernel is {self.running}",
                f"look at both folders; is {BOOT_ROOT} mounted, is this a container?",
            )
        self.headers = {release: f"linux-headers-{release}" for release in self.kernels}
        self.prebuilt = {}
        pattern = module.params["module_package"]
        if pattern or self.source == "prebuilt":
            self.prebuilt = {release: module_package_of(pattern, release) for release in self.kernels}
        # Of one version; `others` may have any.
        self.of_version = [*USER_LAND, DKMS_PACKAGE] if self.source == "dkms" else list(USER_LAND)
        self.others = {"dkms": self.headers, "prebuilt": self.prebuilt, "distro": {}}[self.source]
        self.foreign = [] if self.source == "dkms" else [DKMS_PACKAGE]
        self.foreign += [] if self.source == "prebuilt" else list(self.prebuilt.values())
        self.read()

    def run(self, argv):
        return self.module.run_command(list(argv), environ_update=ENVIRONMENT)

    def read(self):
        self.states = read_states([*self.of_version, *self.others.values(), *self.foreign], self.run)
        self.read_modules()
        self.loaded = self.read_loaded()

    def read_modules(self):
        self.modules = {release: self.modinfo(release) for release in self.kernels}
        # A package may put its modules where dkms builds them, as those of dkms mkbmdeb do.
        places = [path for release in self.kernels for path in dkms_files(release, MODULES_ROOT)]
        self.packaged = set()
        if places:
            _rc, out, _err = self.run(["dpkg-query", "--search", *both_spellings(places)])
            self.packaged = files_of_packages(out)

    def by_dkms(self, path):
        """Whether dkms has built a module: it lies in its folder and belongs to no package."""
        return built_by_dkms(path) and not self.packaged.intersection(both_spellings([path]))

    def modinfo(self, release):
        result = run_bounded(["modinfo", "-k", release, "zfs"], MODINFO_LIMIT_S)
        if result.outcome != "done":
            raise ZfsPackagesError(
                f"modinfo cannot tell which zfs module kernel {release} has: {result.said()}",
                "install package kmod" if result.outcome == "missing" else f"look at {MODULES_ROOT}/{release}",
            )
        if result.rc != 0:
            return None
        try:
            return parse_modinfo(result.stdout)
        except ValueError:
            return None  # cut short, or no module of ZFS: as good as none

    def read_loaded(self):
        try:
            with open(LOADED_VERSION, encoding="ascii") as file:
                return file.read().strip()
        except FileNotFoundError:
            return None

    def left_by_others(self):
        """Packages of the other sources that are installed, or half so."""
        return [name for name in self.foreign if self.states[name].version is not None or self.states[name].unfinished]

    def version(self):
        """The version of user land that is wanted; None = whatever the candidate is."""
        return self.module.params["version"] or self.states[USER_LAND[0]].version

    def lacking(self, version):
        """Packages that are missing or of another version."""
        return [
            name
            for name in [*self.of_version, *self.others.values()]
            if self.states[name].version is None
            or (name in self.of_version and version not in (None, self.states[name].version))
        ]

    def own_file(self, release):
        """Whether the kernel has a module that dkms did not build, shadowed or not."""
        module = self.modules[release]
        if module is not None and not self.by_dkms(module.path):
            return True
        return any(not self.by_dkms(path) for path in module_files(release, "zfs", MODULES_ROOT))

    def unserved(self, version):
        """Kernels whose module is missing, of another version, or not of this source."""
        found = []
        for release, module in self.modules.items():
            by_dkms = module is not None and self.by_dkms(module.path)
            if self.source == "dkms":
                served = by_dkms and (version is None or same_upstream(module, version))
            elif by_dkms:
                # In the way of this source's own, which comes to light when zfs-dkms goes.
                served = self.own_file(release)
            else:
                served = module is not None and (version is None or fits(module, version, self.source))
            if not served:
                found.append(release)
        return found

    def refuse_beforehand(self):
        """What can be told before anything is changed."""
        if self.source == "distro":
            bare = [release for release in self.kernels if not self.own_file(release)]
            if bare:
                raise ZfsPackagesError(
                    f"the packages of kernel {', '.join(bare)} hold no zfs module (no zfs.ko in "
                    f"{MODULES_ROOT}/<kernel>), so source distro cannot serve it. Nothing was changed",
                    "set packages.zfs.source to dkms or prebuilt in the profile (Debian's kernels never hold it), or "
                    "remove that kernel if it is an old one",
                )
        if self.load and self.loaded is None and self.running not in self.kernels:
            failure = explain_modprobe("zfs", "Module zfs not found", self.running, self.kernels)
            raise ZfsPackagesError(failure.what, failure.next_step)

    def bring_packages(self, version):
        """Install what is missing, in one refresh of the lists and at most two transactions; set the hold."""
        install = self.lacking(version)
        again = []
        if self.source == "prebuilt":
            again = [self.prebuilt[release] for release in self.unserved(version)]
        targets = list(dict.fromkeys([*install, *again]))
        if targets:
            self.install(targets, version, any(name not in install for name in again))
            self.read()
            self.refuse_other_versions(version)
        unheld = [name for name in [*self.of_version, *self.others.values()] if not self.states[name].held]
        if unheld:
            hold(unheld, self.run)
            self.states = read_states(self.states, self.run)

    def install(self, targets, version, reinstall):
        hint = update_lists(self.run)
        offers = read_offers([*self.of_version, *self.others.values(), DKMS_PACKAGE], self.run)
        version = version or offers[USER_LAND[0]].candidate
        wanted = {name: version if name in self.of_version else None for name in targets}
        try:
            refuse_unoffered(wanted, offers, hint)
        except UnknownPackages as error:
            raise ZfsPackagesError(str(error), self.advice_on_unknown(error.names)) from error
        # zfs-dkms builds in its installation, for the kernels whose headers are there by then.
        first = {name: None for name in wanted if name in self.headers.values()}
        rest = {name: wanted[name] for name in wanted if name not in first}
        if first:
            install_together(first, offers, self.run, update_hint=hint)
        if not rest:
            return
        # Otherwise zfs-zed would bring zfs-dkms as its dependency where no package provides zfs-modules, and apt would
        # try again to configure one whose build has failed.
        without = []
        if self.source != "dkms" and self.states[DKMS_PACKAGE].version is None and offers[DKMS_PACKAGE].candidate:
            without = [DKMS_PACKAGE]
        self.exchanged = install_together(
            rest,
            offers,
            self.run,
            update_hint=hint,
            reinstall=reinstall,
            without=without,
            may_remove=self.left_by_others(),
        )
        if self.exchanged:
            self.module.warn(
                f"apt removed {', '.join(self.exchanged)} in the same transaction, since the packages of source "
                f"{self.source} conflict with it: while it ran, kernels were without a zfs module on disk"
            )

    def advice_on_unknown(self, names):
        advice = []
        if set(names) & {*USER_LAND, DKMS_PACKAGE}:
            advice.append(
                "ZFS is in the component contrib of Debian, and zfs-dkms in universe of Ubuntu: add the component to "
                "the node's apt sources"
            )
        without_headers = [release for release, name in self.headers.items() if name in names]
        if without_headers:
            advice.append(
                f"the headers of kernel {', '.join(without_headers)} are not offered (any more): remove that kernel if "
                "it is an old one, or set packages.zfs.source to prebuilt"
            )
        unbuilt = [release for release, name in self.prebuilt.items() if name in names]
        if unbuilt:
            advice.append(
                f"build the module package for kernel {', '.join(unbuilt)} and put it on the node's mirror, remove "
                "that kernel if it is an old one, or correct packages.zfs.module_package"
            )
        return "; ".join(advice) or "check the node's apt sources"

    def refuse_other_versions(self, version):
        wrong = [f"{name} is {self.states[name]}" for name in self.lacking(version)]
        odd = {self.states[name].version for name in self.of_version}
        if not wrong and len(odd) > 1:
            wrong = [f"{name} is {self.states[name]}" for name in self.of_version]
        if wrong:
            raise ZfsPackagesError(
                f"{'; '.join(wrong)} after an installation that reported success; expected {version or 'one version'}",
                "look at /var/log/apt/term.log on the node",
            )

    def build_missing(self):
        """Build the module of each kernel that has none of zfs-dkms' version."""
        package = self.states[DKMS_PACKAGE].version
        built = self.unserved(package)
        for release in built:
            self.build(release, upstream_version(package))
        if built:
            self.read_modules()

    def build(self, release, version):
        which = ["-m", "zfs", "-v", version, "-k", release]
        # dkms believes its own records, even where the file is gone or cut short. Without being taken out first, such a
        # file would be kept as an "original" and put back when zfs-dkms goes. Where nothing is on record this fails,
        # which is as good.
        run_bounded(["dkms", "uninstall", *which], DKMS_LIMIT_S)
        # dkms leaves a file that is not the one it has put there.
        for path in dkms_files(release, MODULES_ROOT):
            if self.by_dkms(path):
                os.unlink(path)
        argv = ["dkms", "install", "--force", *which]
        result = run_bounded(argv, DKMS_LIMIT_S)
        if result.outcome != "done" or result.rc != 0:
            message = f"zfs {version} was not built for kernel {release}"
            failed = self.failed_build(message)
            raise failed or ZfsPackagesError(f"{message}: {result.said()}", f"run on the node: {' '.join(argv)}")

    def failed_build(self, message):
        """The error with the end of the make.log that this run has left, None where it left none."""
        log = newest_make_log("zfs", DKMS_ROOT)
        # A second: some file systems keep no finer time.
        if log is None or os.path.getmtime(log.path) < self.began - 1:
            return None
        return ZfsPackagesError(
            f"{message}. End of {log.path} (kernel {log.release or 'unknown'}):\n{log.tail}",
            "read the log; the kernel may be newer than this release of ZFS supports: choose another version in "
            "packages.zfs, or remove that kernel",
        )

    def remove_foreign(self):
        """Remove what the other sources left, once each kernel has its own module."""
        left = self.left_by_others()
        if not left:
            return
        bare = [
            release
            for release, module in self.modules.items()
            if not (self.own_file(release) if self.source != "dkms" else module and self.by_dkms(module.path))
        ]
        if bare:
            raise ZfsPackagesError(
                f"{', '.join(left)} was not removed, since kernel {', '.join(bare)} would be without a zfs module: the "
                f"packages of source {self.source} brought it none",
                "see what the package holds (dpkg-query --listfiles)",
            )
        try:
            purge_together(left, self.run)
        except PackageError as error:
            raise ZfsPackagesError(
                str(error),
                "on Debian zfs-zed depends on zfs-modules or zfs-dkms: the package of the module must provide "
                "zfs-modules",
            ) from error
        self.read()

    def verify_modules(self, user_land):
        fault = kernels_without_module(self.modules, self.running, self.source)
        if fault:
            raise ZfsPackagesError(
                fault,
                "remove the kernels that are not needed any more, or bring their module: see packages.zfs in the "
                "profile",
            )
        fault = unfit_modules(self.modules, user_land, self.source)
        if fault:
            raise ZfsPackagesError(
                fault,
                "choose one release for both in packages.zfs (a kernel newer than the distribution's first one may "
                "hold a newer ZFS), or another source",
            )
        shadowed = [module.path for module in self.modules.values() if self.by_dkms(module.path)]
        if shadowed and self.source != "dkms":
            raise ZfsPackagesError(
                f"{', '.join(shadowed)} would be loaded in place of the module of source {self.source}, and no "
                "installed package owns it",
                "see dkms status zfs; remove what is left there, run depmod for that kernel, then run again",
            )

    def load_module(self):
        if not self.load or self.loaded is not None:
            return
        result = run_bounded(["modprobe", "zfs"], MODPROBE_LIMIT_S)
        if result.outcome != "done" or result.rc != 0:
            failure = explain_modprobe("zfs", result.said(), self.running, self.kernels)
            raise ZfsPackagesError(
                f"zfs was not loaded: {failure.what}. modprobe said: {result.said()}", failure.next_step
            )
        self.loaded = self.read_loaded()
        if self.loaded is None:
            raise ZfsPackagesError(
                f"modprobe zfs reported success, yet {LOADED_VERSION} is not there", "see dmesg on the node"
            )

    def describe(self):
        return describe(
            {name: str(state) for name, state in self.states.items()},
            {release: shown(module) for release, module in self.modules.items()},
            self.loaded,
        )

    def foresee(self, version):
        """What a run would leave: packages, the module of each kernel in words, and what is loaded.

        Raises ZfsPackagesError for modules that no step of a run would replace.
        """
        lacking, left = self.lacking(version), self.left_by_others()
        if set(lacking) & set(self.of_version):
            version = version or read_offers(USER_LAND, self.run)[USER_LAND[0]].candidate or CANDIDATE
        # Nothing that this module does alters what the distribution's kernel packages hold.
        replaced = set() if self.source == "distro" else set(self.unserved(version))
        if self.source != "dkms":
            replaced |= {release for release, module in self.modules.items() if module and self.by_dkms(module.path)}
        if version != CANDIDATE and not left and not replaced and (self.source == "distro" or not lacking):
            self.verify_modules(version)
        states = dict(self.states)
        for name in self.of_version:
            states[name] = PackageState(version, True)
        for name in self.others.values():
            states[name] = PackageState(states[name].version or CANDIDATE, True)
        for name in left:
            states[name] = PackageState(None, False)
        kernels = {
            release: f"new, from source {self.source}" if release in replaced else shown(module)
            for release, module in self.modules.items()
        }
        return states, kernels, self.loaded or ("newly loaded" if self.load else None)

    def need_of_reboot(self, version=None):
        """What reboot_need says; with a version, what it would say once that is installed (check mode)."""
        if not self.load:
            return None
        modules = self.modules
        if version and self.loaded and self.running in self.unserved(version):
            new = upstream_version(version)
            # The same sources, built anew.
            new = self.loaded if upstream_version(self.loaded) == new else new
            modules = {**modules, self.running: KernelModule("", new)}
        return reboot_need(self.loaded, modules, self.running)


def shown(module):
    return f"{module.version} ({module.path})" if module else "none"


def describe(states, kernels, loaded):
    """One line for each package, kernel, and what is loaded."""
    lines = [f"{name}: {state}" for name, state in sorted(states.items())]
    lines += [f"module of kernel {release}: {version}" for release, version in kernels.items()]
    lines.append(f"loaded module: {loaded or 'none'}")
    return "\n".join(lines) + "\n"


def main():
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "choices": ["distro", "dkms", "prebuilt"], "required": True},
            "version": {"type": "str"},
            "module_package": {"type": "str"},
            "load": {"type": "bool", "default": True},
            "supported_os": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    refusal = unsupported(read_os_release(), module.params["supported_os"])
    if refusal:
        module.fail_json(msg=refusal)
    try:
        result = apply(module)
    except ZfsPackagesError as error:
        module.fail_json(msg=str(error), next_step=error.next_step)
    except PackageError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


def apply(module):
    node = ZfsOnNode(module)
    before = node.describe()
    node.refuse_beforehand()
    version = node.version()
    if module.check_mode:
        states, kernels, loaded = node.foresee(version)
        after = describe({name: str(state) for name, state in states.items()}, kernels, loaded)
        need = node.need_of_reboot(states[USER_LAND[0]].version)
    else:
        try:
            node.bring_packages(version)
        except PackageError as error:
            failed = node.failed_build(str(error))
            if failed is None:
                raise
            raise failed from error
        if node.source == "dkms":
            node.build_missing()
        node.remove_foreign()
        node.verify_modules(node.states[USER_LAND[0]].version)
        node.load_module()
        states = node.states
        after = node.describe()
        need = node.need_of_reboot()
    wanted = [*node.of_version, *node.others.values()]
    return {
        "changed": before != after,
        "installed": all(node.states[name].version for name in wanted) and all(node.modules.values()),
        "versions": {name: states[name].version for name in wanted},
        "kernels": {release: entry.version if entry else None for release, entry in node.modules.items()},
        "running_kernel": node.running,
        "loaded_version": node.loaded,
        "exchanged": node.exchanged,
        "reboot_reason": need[0] if need else None,
        "reboot_still_needed": list(need[1]) if need else None,
        "diff": {"before": before, "after": after},
    }


if __name__ == "__main__":
    main()
