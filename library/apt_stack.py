#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: packages that belong together, from one pinned source, at exact versions, held."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_stack
short_description: Install packages that belong together from one pinned source, at exact versions, and hold them
description:
  - Writes the source, its key, pins and a blacklist for unattended-upgrades, installs the packages, verifies their
    versions and holds them, companions included.
  - Plans before it acts. Source, key and pins are first tried in a folder of their own, the whole transaction is
    simulated with them, and what is not allowed is refused while nothing on the node has been altered.
  - Never brings another kernel. A transaction that installs, upgrades or removes a kernel package is refused, and the
    installed kernels are compared before and after.
  - On a converged node it reads files and asks dpkg once; no mirror is asked, unless O(upgrade) is set for a package
    without a version.
  - Where an interrupted run left packages half configured, dpkg is told to finish first.
author: The gpufleet authors
attributes:
  check_mode:
    description: The plan is the real one, made with package lists in a temporary folder. Nothing else is written.
    support: full
  diff_mode:
    description: Shows files, packages, versions and holds before and after.
    support: full
options:
  name:
    description:
      - Name of the stack, part of the names of the files that the module owns below C(/etc/apt) -
        C(sources.list.d/gpufleet-<name>.sources), C(keyrings/gpufleet-<name>.asc) (or C(.gpg), for a key that is not
        armoured), C(preferences.d/gpufleet-<name>) and C(apt.conf.d/52gpufleet-<name>). One that nothing calls for is
        removed.
    type: str
    required: true
  repository:
    description:
      - The apt repository of the stack. Null means the node's own sources.
      - Where another stack of this module has the source of the very same repository, that source is used, and none is
        written.
      - The same repository in another source file would stop apt from reading any source, since it names another key.
        Such a line or stanza is removed with a warning. One that says more than that, or spells the address with
        another scheme, is refused.
    type: dict
    suboptions:
      uri:
        description: Address, C(https://), C(http://) or C(file:/).
        type: str
        required: true
      suites:
        description: Suites; one that ends in C(/) is the path of a flat repository.
        type: list
        elements: str
        required: true
      components:
        description: Components; empty for a flat repository.
        type: list
        elements: str
        default: []
      key_url:
        description: Address of the OpenPGP key that signs the repository, C(https://), C(http://) or C(file:/). It is
          fetched where the key is not on the node yet.
        type: str
        required: true
      key_sha256:
        description: SHA-256 of the file behind O(repository.key_url). Without it TLS alone vouches for the key, so the
          address must begin with C(https://).
        type: str
  packages:
    description: Packages that are installed in one transaction, and held unless their entry says otherwise.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the package.
        type: str
        required: true
      version:
        description: Exact version as apt spells it. It is pinned.
        type: str
      upstream:
        description: Version without epoch and revision, such as C(580.105.08). Any installed revision of it is kept,
          else the newest that is offered is installed. It is pinned.
        type: str
      hold:
        description: False for a package that only has to be there; updates of the system may move it.
        type: bool
        default: true
  first:
    description: Packages that are installed in a transaction of their own before O(packages), such as one that
      carries pins. They are held too.
    type: list
    elements: str
    default: []
  headers:
    description: Whether to install the headers of every installed kernel (C(linux-headers-<release>)) before
      O(packages), for modules that dkms builds. A kernel whose headers are not offered is an error.
    type: bool
    default: false
  keep_out:
    description: Names or patterns of packages that apt must not install from anywhere (pinned to -1), such as
      those of another repository that conflict.
    type: list
    elements: str
    default: []
  pins:
    description: Further pins, in the order given.
    type: list
    elements: dict
    default: []
    suboptions:
      packages:
        description: Names or patterns of packages, as in apt_preferences(5).
        type: list
        elements: str
        required: true
      version:
        description: Version or pattern that the pin is for. Either this or O(pins[].origin).
        type: str
      origin:
        description: Host name of the source that the pin is for; empty for C(file:/).
        type: str
      priority:
        description: Priority. 1000 keeps a version from being replaced by a newer one, above that apt goes back to it.
        type: int
        default: 1000
  never_upgraded:
    description:
      - Python regular expressions that unattended-upgrades compares with the beginning of package names
        (C(Unattended-Upgrade::Package-Blacklist)).
      - Installed packages that one of them matches are held too. The hold of a driver alone does not keep its
        libraries.
    type: list
    elements: str
    default: []
  may_remove:
    description: Names or patterns of packages that the transaction may remove. Any other removal is refused.
    type: list
    elements: str
    default: []
  downgrade:
    description: Names or patterns of packages that may go back to an older version. Any other downgrade is refused.
    type: list
    elements: str
    default: []
  upgrade:
    description:
      - Whether packages of the stack that are installed may change to a newer version. Their holds are lifted for the
        transaction and set again. Without it, another version than the wanted one is an error that names both.
      - A package without a version is brought to the candidate, for which the lists are read anew in every run.
    type: bool
    default: false
  lock_timeout_s:
    description: Seconds to wait for another apt or dpkg. Past that the error names the process.
    type: int
    default: 300
  supported_os:
    description: Operating systems as C(<ID> <VERSION_ID>) of os-release, such as C(debian 12). Any other is refused
      before anything is changed. Empty means any.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Install the driver from the vendor's repository
  apt_stack:
    name: nvidia-driver
    repository:
      uri: https://mirror.example.com/cuda/debian12/x86_64/
      suites: [/]
      key_url: https://mirror.example.com/cuda/debian12/x86_64/8793F200.pub
      key_sha256: "{{ key_sha256 }}"
    first: [nvidia-driver-pinning-580.105.08]
    headers: true
    packages:
      - {name: nvidia-open, upstream: 580.105.08}
      - {name: nvidia-fabricmanager, upstream: 580.105.08}
    never_upgraded: ["nvidia-", "libnvidia-"]

- name: Go back to the version before, by name
  apt_stack:
    name: rdma
    packages: [{name: rdma-core, version: 44.0-2}]
    downgrade: [rdma-core, "ibverbs-*", "libib*", librdmacm1]
"""

RETURN = r"""
installed:
  description: Version of each package of O(packages), O(first) and the headers that is installed now, or would be after
    a run without check mode. Null where check mode cannot know it.
  type: dict
  returned: success
before:
  description: Version of each of them before the run; null where it was not installed.
  type: dict
  returned: success
kernels_before:
  description: Releases of the installed kernels before the run.
  type: list
  elements: str
  returned: success
kernels_after:
  description: Releases of the installed kernels after the run. Always the same, else the module fails.
  type: list
  elements: str
  returned: success
removed:
  description: Packages that the transaction removed, or would remove.
  type: list
  elements: str
  returned: success
plan:
  description: What is done, a line for each file, package and hold; in check mode what would be done.
  type: list
  elements: str
  returned: success
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

import errno
import re
import shutil
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.apt_packages import PackageError, PackageState
from ansible.module_utils.gpufleet.apt_plan import Permission, refuse
from ansible.module_utils.gpufleet.apt_sources_refresh import is_clock_behind
from ansible.module_utils.gpufleet.apt_sources_trial import Trial
from ansible.module_utils.gpufleet.apt_stack_apt import Apt, transaction_words
from ansible.module_utils.gpufleet.apt_stack_error import AptStackError
from ansible.module_utils.gpufleet.apt_stack_files import StackFiles, show, write
from ansible.module_utils.gpufleet.apt_stack_request import (
    choose_versions,
    is_served,
    list_faults,
    versions_of_companions,
)
from ansible.module_utils.gpufleet.kernel_modules import BOOT_ROOT, MODULES_ROOT, installed_kernels
from ansible.module_utils.gpufleet.os_release import read_os_release, unsupported

TRIAL_FOLDERS = "/var/tmp"

ARGUMENTS = {
    "name": {"type": "str", "required": True},
    "repository": {
        "type": "dict",
        "options": {
            "uri": {"type": "str", "required": True},
            "suites": {"type": "list", "elements": "str", "required": True},
            "components": {"type": "list", "elements": "str", "default": []},
            "key_url": {"type": "str", "required": True, "no_log": False},
            "key_sha256": {"type": "str", "no_log": False},
        },
    },
    "packages": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "version": {"type": "str"},
            "upstream": {"type": "str"},
            "hold": {"type": "bool", "default": True},
        },
        "mutually_exclusive": [("version", "upstream")],
    },
    "first": {"type": "list", "elements": "str", "default": []},
    "headers": {"type": "bool", "default": False},
    "keep_out": {"type": "list", "elements": "str", "default": []},
    "pins": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "packages": {"type": "list", "elements": "str", "required": True},
            "version": {"type": "str"},
            "origin": {"type": "str"},
            "priority": {"type": "int", "default": 1000},
        },
        "mutually_exclusive": [("version", "origin")],
        "required_one_of": [("version", "origin")],
    },
    "never_upgraded": {"type": "list", "elements": "str", "default": []},
    "may_remove": {"type": "list", "elements": "str", "default": []},
    "downgrade": {"type": "list", "elements": "str", "default": []},
    "upgrade": {"type": "bool", "default": False},
    "lock_timeout_s": {"type": "int", "default": 300},
    "supported_os": {"type": "list", "elements": "str", "default": []},
}


class StackOnNode:
    """A stack on this node: what is there, what is wanted, and the way between them."""

    def __init__(self, module):
        self.module, self.asked = module, module.params
        self.apt = Apt(self.asked["lock_timeout_s"], time.monotonic() + self.asked["lock_timeout_s"])
        self.kernels = installed_kernels(MODULES_ROOT, BOOT_ROOT)
        headers = [f"linux-headers-{release}" for release in self.kernels] if self.asked["headers"] else []
        self.early = [*self.asked["first"], *headers]
        free = [{"name": name, "version": None, "upstream": None} for name in self.early]
        self.requests = [*free, *self.asked["packages"]]
        self.names = [request["name"] for request in self.requests]
        self.plan, self.steps = [], []
        self.read_states()
        self.before = self.states
        self.files = None

    def read_states(self):
        self.states = self.apt.states()
        for name in self.names:
            self.states.setdefault(name, PackageState(None, False))

    def companions(self):
        """Installed packages that unattended-upgrades is kept from, and that are not asked for by name."""
        patterns = [re.compile(pattern) for pattern in self.asked["never_upgraded"]]
        return [
            name
            for name, state in self.states.items()
            if state.version and name not in self.names and any(pattern.match(name) for pattern in patterns)
        ]

    def unheld(self):
        free = {package["name"] for package in self.asked["packages"] if not package["hold"]}
        return [
            name
            for name in [*self.names, *self.companions()]
            if name not in free and self.states[name].version is not None and not self.states[name].held
        ]

    def lacking(self):
        return [
            request["name"]
            for request in self.requests
            if not is_served(request, self.states[request["name"]]) or self.states[request["name"]].unfinished
        ]

    def asks_for_newest(self):
        """Whether the lists have to be read though every package is there."""
        return self.asked["upgrade"] and any(p["version"] is p["upstream"] is None for p in self.asked["packages"])

    def finish_dpkg(self):
        """Let dpkg finish what an interrupted run left."""
        unfinished = self.apt.unfinished(self.states)
        if not unfinished:
            return
        what = f"dpkg --configure -a, since an earlier run was interrupted ({', '.join(unfinished)})"
        self.plan.append(what)
        if self.module.check_mode:
            return
        self.apt.wait()
        said = self.apt.configure()
        self.read_states()
        left = [name for name in self.apt.unfinished(self.states) if name not in self.lacking()]
        if left:
            raise AptStackError(
                f"dpkg cannot finish what an interrupted run left: {', '.join(left)}. dpkg --configure -a said: {said}",
                "mend that package by hand (its own script failed), or remove it, then run again",
            )

    def work(self):
        """Bring the stack about, or in check mode say how."""
        try:
            self.files = StackFiles(self.asked)
            self.finish_dpkg()
            self.install_what_lacks()
        except AptStackError as error:
            # On a fresh node site.yml sets the clock first, which a dry run cannot do.
            if not (self.module.check_mode and is_clock_behind(str(error))):
                raise
            self.foresee_without_lists()
        unheld = self.unheld()
        self.plan += [f"hold {name}" for name in unheld]
        if unheld and not self.module.check_mode:
            self.apt.mark("hold", unheld)
            self.read_states()

    def install_what_lacks(self):
        if self.files.to_be_tried() or self.lacking() or self.asks_for_newest():
            folder = tempfile.mkdtemp(prefix="gpufleet-apt-", dir=TRIAL_FOLDERS)
            try:
                self.change(folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        elif self.files.changed():
            self.plan += self.files.plan()
            if not self.module.check_mode:
                self.write_files()

    def write_files(self):
        for path, content in self.files.changed().items():
            write(path, content)

    def change(self, folder):
        """Plan in a folder of its own, and act where the plan is allowed."""
        stack = {*self.names, *self.companions()}
        trial = Trial(folder, self.files.for_trial(folder), stack)
        doubts = self.apt.refresh(trial, self.files)
        self.chosen = self.choose(trial, doubts)
        targets = {**self.chosen, **self.apt.bound_dependencies(trial, self.chosen)}
        may = Permission(stack, self.asked["upgrade"], self.asked["downgrade"], self.asked["may_remove"], self.kernels)
        self.steps, words = self.apt.foresee(trial, targets, self.states, may, self.files, doubts)
        refuse(self.steps, may)
        self.plan += self.files.plan()
        self.plan += [str(step) for step in self.steps]
        for line in self.files.taken_out():
            self.module.warn(f"the same repository is listed a second time, and that source is taken out: {line}")
        if self.module.check_mode:
            self.foresee_states()
            return
        self.apt.wait()
        if self.steps:
            self.apt.download(trial, words)
        self.write_files()
        trial.take_over_lists()
        if self.steps:
            self.install(words, may)
        self.verify()

    def choose(self, trial, doubts):
        """Version of each package, with the pins that the packages of `first` will have brought by then."""
        companions = self.companions()

        def choose(requests):
            policies = self.apt.policies(trial, [*self.names, *companions])
            blocked_by = self.files.blockers(self.names)
            newest = self.asked["upgrade"]
            chosen = choose_versions(requests, self.states, policies, blocked_by, newest=newest, doubts=doubts)
            return chosen, policies

        first, _policies = choose([request for request in self.requests if request["name"] in self.asked["first"]])
        new = {name: version for name, version in first.items() if self.states[name].version != version}
        if new:
            self.apt.bring_pins(trial, new)
        chosen, policies = choose(self.requests)
        return {**chosen, **versions_of_companions(companions, chosen, self.states, policies)}

    def install(self, words, may):
        """Lift the stack's holds, run the transactions, and set the holds again whatever comes."""
        held = [name for name in may.stack if self.states.get(name) and self.states[name].held]
        if held:
            self.apt.mark("unhold", held)
        try:
            early = {name: self.chosen[name] for name in self.early}
            if any(step.name in early for step in self.steps):
                bound = self.apt.bound_dependencies(None, early)
                self.apt.install(transaction_words({**early, **bound}), may)
            self.apt.install(words, may)
        finally:
            self.read_states()
            still = [name for name in held if self.states.get(name) and self.states[name].version]
            if still:
                self.apt.mark("hold", still)
                self.read_states()

    def verify(self):
        wrong = [
            f"{name} is {self.states[name]}, expected {version}"
            for name, version in self.chosen.items()
            if self.states[name].version != version
        ]
        if wrong:
            raise AptStackError(
                f"after an installation that reported success {'; '.join(wrong)}",
                "look at /var/log/apt/term.log on the node",
            )

    def foresee_without_lists(self):
        """Check mode with a clock that is behind: what would come, without versions."""
        lacking = self.lacking()
        self.plan += [f"install {name}, of a version that the package lists will tell" for name in lacking]
        self.module.warn(
            f"apt_stack {self.asked['name']}: this node's clock is behind, and by it the package lists are not valid "
            "yet. A real run sets the clock first (playbooks/platform.yml); then --check tells the versions too"
        )

    def foresee_states(self):
        """Check mode: the states that a run would leave."""
        self.states = dict(self.states)
        for step in self.steps:
            held = step.new is not None and step.name in self.states and self.states[step.name].held
            self.states[step.name] = PackageState(step.new, held)

    def result(self):
        kernels = installed_kernels(MODULES_ROOT, BOOT_ROOT)
        if kernels != self.kernels:
            raise AptStackError(
                f"the installed kernels changed from {', '.join(self.kernels)} to {', '.join(kernels)}, though apt "
                "announced no kernel package",
                "see /var/log/apt/history.log for what brought it, and remove that kernel before the next boot",
            )
        shown = [*self.names, *(step.name for step in self.steps if step.name not in self.names)]
        after = dict(self.states)
        if self.module.check_mode:
            held = [*self.names, *self.companions()]
            after.update({name: after[name]._replace(held=True) for name in held if after[name].version})
        return {
            "changed": bool(self.plan),
            "installed": {name: self.states[name].version for name in self.names},
            "before": {name: self.before.get(name, PackageState(None, False)).version for name in self.names},
            "kernels_before": self.kernels,
            "kernels_after": kernels,
            "removed": [step.name for step in self.steps if step.verb == "remove"],
            "plan": self.plan,
            "diff": [
                *(self.files.diff() if self.files else []),
                {"before": show(shown, self.before), "after": show(shown, after)},
            ],
        }


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    fault = unsupported(read_os_release(), module.params["supported_os"])
    if fault:
        module.fail_json(msg=fault, next_step="see docs/compatibility.md")
    faults = list_faults(module.params)
    if faults:
        module.fail_json(
            msg=f"apt_stack {module.params['name']}: {'; '.join(faults)}. Nothing was changed",
            next_step="correct the profile, or the role that calls this module",
        )
    try:
        stack = StackOnNode(module)
        stack.work()
        result = stack.result()
    except AptStackError as error:
        module.fail_json(msg=f"apt_stack {module.params['name']}: {error}", next_step=error.next_step)
    except PackageError as error:
        module.fail_json(msg=f"apt_stack {module.params['name']}: {error}", next_step="see the message")
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        module.fail_json(
            msg=f"apt_stack {module.params['name']}: {error}",
            next_step="free some space (df -h), then run again" if full else "see whether that path can be used",
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
