# SPDX-License-Identifier: Apache-2.0
"""What apt-get says it would do, and whether a stack may have it done."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from .apt_stack_error import AptStackError
from .apt_stack_pins import Blocker
from .apt_stack_versions import compare

# Packages that hold a kernel or its modules. linux-modules-nvidia-580-open-6.8.0-31-generic is none: Ubuntu's signed
# driver modules for a kernel that is there.
KERNEL_PACKAGES = r"(linux-(image|modules|signed-image)|proxmox-kernel|pve-kernel)-"
FOREIGN_MODULES = r"linux-modules-[a-z]+-.*?(\d+\.\d+\.\d+-\S+)$"


class Step(NamedTuple):
    """A package that apt would unpack or remove; versions are None where there is none before, or after."""

    name: str
    old: str | None
    new: str | None

    @property
    def verb(self) -> str:
        """install, upgrade, downgrade, reinstall or remove."""
        if self.new is None:
            return "remove"
        if self.old is None:
            return "install"
        return {1: "upgrade", 0: "reinstall", -1: "downgrade"}[compare(self.new, self.old)]

    def __str__(self) -> str:
        if self.old is None or self.new is None:
            return f"{self.verb} {self.name} {self.new or self.old}"
        return f"{self.verb} {self.name} {self.old} -> {self.new}"


class Permission(NamedTuple):
    """What a transaction may do. `stack` are packages that change with `upgrade` only; the others are patterns."""

    stack: Collection[str]
    upgrade: bool
    downgrade: Sequence[str]
    may_remove: Sequence[str]
    kernels: Sequence[str]


def parse_simulation(text: str) -> list[Step]:
    """Inst, Remv and Purg lines of `apt-get --simulate`; the names are without an architecture."""
    steps = []
    pattern = r"^(Inst|Remv|Purg) ([^\s:]+)(?::\S+)?(?: \[([^\]]+)\])?(?: \((\S+))?"
    for action, name, old, new in re.findall(pattern, text, re.MULTILINE):
        steps.append(Step(name, old or None, (new or None) if action == "Inst" else None))
    return steps


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the names or glob patterns is for the package."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_kernel(name: str, kernels: Sequence[str]) -> bool:
    """Whether the package brings, changes or takes away a kernel."""
    if not re.match(KERNEL_PACKAGES, name):
        return False
    modules = re.match(FOREIGN_MODULES, name)
    return not (modules and modules.group(1) in kernels)


def refuse(steps: Sequence[Step], may: Permission) -> None:
    """Raise AptStackError for the first kind of step that is not allowed; nothing has been altered by then."""

    def listed(found: Sequence[Step]) -> str:
        return "; ".join(str(step) for step in found)

    kernel = [step for step in steps if is_kernel(step.name, may.kernels)]
    if kernel:
        running = f" (installed: {', '.join(may.kernels)})" if may.kernels else ""
        raise AptStackError(
            f"the packages would bring another kernel{running}: {listed(kernel)}. Expected no kernel package in the "
            "transaction. Nothing was changed",
            "see which package wants it (apt-cache rdepends); choose a version that fits the installed kernel, or "
            "upgrade the kernel first, as a step of its own with a reboot",
        )
    back = [step for step in steps if step.verb == "downgrade" and not matches(step.name, may.downgrade)]
    if back:
        raise AptStackError(
            f"this would be a downgrade: {listed(back)}. Nothing was changed",
            "correct the version in the profile; if going back is meant, name the packages that may go back "
            f"({', '.join(step.name for step in back)})",
        )
    forward = [step for step in steps if step.verb == "upgrade" and step.name in may.stack]
    if forward and not may.upgrade:
        raise AptStackError(
            f"this would upgrade what is installed: {listed(forward)}. Nothing was changed, since an upgrade has to be "
            "asked for",
            "drain the node, then run again with the upgrade allowed, or put the installed version into the profile",
        )
    gone = [step for step in steps if step.verb == "remove" and not matches(step.name, may.may_remove)]
    if gone:
        raise AptStackError(
            f"apt would remove other packages: {listed(gone)}. Expected only {', '.join(may.may_remove) or 'none'} "
            "to go. Nothing was changed",
            "remove them by hand if nothing needs them, or choose versions that do not conflict with them",
        )


def unmet_dependencies(out: str) -> list[str]:
    """The lines in which apt-get says what does not fit, one each, blanks squeezed."""
    block = re.search(r"^The following packages have unmet dependencies:\n((?:^ .*\n?)+)", out, re.MULTILINE)
    if block:
        return [" ".join(line.split()) for line in block.group(1).splitlines()]
    # apt 3 (Debian 13) names the steps of its new solver in standard error.
    solver = re.search(
        r"^E: Unable to satisfy dependencies\. Reached two conflicting (?:\w+):\n((?:^ .*\n?)+)", out, re.M
    )
    return [" ".join(line.split()) for line in solver.group(1).splitlines()] if solver else []


def packages_in(lines: Iterable[str]) -> set[str]:
    """Words that can be names of packages in what apt says about dependencies."""
    return set(re.findall(r"[a-z0-9][a-z0-9+.-]+", " ".join(lines)))


def unsolvable(
    out: str, err: str, held: Collection[str], pinned_out: Mapping[str, Sequence[Blocker]], doubts: str
) -> AptStackError:
    """The error for a simulation that failed. `held`: packages on hold that are not the stack's; `pinned_out`: stanzas
    that put a package below zero; `doubts`: what the refresh of the lists said."""
    lines = unmet_dependencies(f"{out}\n{err}")
    text = "; ".join(lines)
    errors = " ".join(line for line in err.splitlines() if line.startswith("E: "))
    named = packages_in(lines)
    causes, advice = [], []
    holding = sorted(named & set(held))
    if holding:
        causes.append(f"{', '.join(holding)} is on hold and not part of this stack")
        advice.append(f"if nobody needs that hold, lift it (apt-mark unhold {' '.join(holding)})")
    for name in sorted(named & set(pinned_out)):
        causes.append(f"{name} is pinned out by {'; '.join(map(str, pinned_out[name]))}")
        advice.append(f"correct {', '.join(sorted({found.path for found in pinned_out[name]}))}")
    cause = f" {'; '.join(causes)}." if causes else ""
    return AptStackError(
        f"apt sees no way to install the packages: {text or errors or 'it does not say why'}.{cause} Nothing was "
        f"changed.{doubts}",
        "; ".join(advice)
        or "packages of another branch or source stand against it: name those that may go, or give all versions of one "
        "release in the profile",
    )
