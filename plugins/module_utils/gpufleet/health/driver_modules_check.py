# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA kernel module of each installed kernel, the library over it, and what is loaded: of one version."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..modinfo import KernelModule, parse_modinfo
from ..nvidia_loaded_driver import LoadedDriver, flavour_of
from .check import Check, Profile
from .counted_output import counted, one_line, parts_of
from .finding import Evidence, Finding
from .gpu_findings import no_gpus
from .modprobe_file import MODINFO_OF, described
from .node_evidence import NodeEvidence
from .nvidia_driver_version import DRIVER_VERSION
from .probe import ParseError, Probe, ProbeResult

MODULES = "nvidia.modules"

_ROLE = "role nvidia_driver"
_PLAYBOOK = "playbooks/gpu_stack.yml"
_LIBRARY = re.compile(r"/libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)")
# The running kernel, and all that can be booted: with modules and with an image in /boot.
_SCRIPT = rf"""
{MODINFO_OF}
echo '== running'
uname -r
echo '== library'
readlink -f "$(ldconfig -p | sed -n 's/.*libnvidia-ml\.so\.1 .*=> //p' | head -n 1)"
kernels=$(uname -r; for image in /boot/vmlinuz-*; do echo "${{image#/boot/vmlinuz-}}"; done)
for release in $(echo "$kernels" | sort -u); do
  [ -d "/lib/modules/$release" ] || [ "$release" = "$(uname -r)" ] || continue
  echo "== kernel $release"
  modinfo_of "$release" nvidia | grep -aE '^(filename|version|license|vermagic|modinfo: ERROR):'
done
"""


class InstalledDriver(NamedTuple):
    """running: release of the kernel. library: version of libnvidia-ml, None where there is none.

    modules: what modprobe would load, by release of the kernel, None where it has no such module.
    """

    running: str
    library: str | None
    modules: Mapping[str, KernelModule | None]


def parse_installed_driver(result: ProbeResult) -> InstalledDriver:
    """Raises ParseError."""
    parts = parts_of(result, ("running", "library"))
    running = one_line(parts, "running")
    modules = {name[len("kernel ") :]: _module(lines) for name, lines in parts.items() if name.startswith("kernel ")}
    if running not in modules:
        raise ParseError(f"nothing about the running kernel {running}")
    return InstalledDriver(running, _library(parts["library"]), modules)


def _module(lines: list[str]) -> KernelModule | None:
    text = described(lines)
    try:
        return None if text is None else parse_modinfo(text)
    except ValueError as error:
        raise ParseError(f"{error}: {' | '.join(lines)[:200]!r}") from error


def _library(lines: list[str]) -> str | None:
    if not "".join(lines).strip():
        return None
    found = _LIBRARY.search(lines[0])
    if len(lines) != 1 or found is None:
        raise ParseError(f"libnvidia-ml.so.1 is no file with a version in its name: {lines[0][:200]!r}")
    return found[1]


def check_modules(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Each installed kernel has the NVIDIA module, of the library's version and the profiled flavour, and what is
    loaded is what is installed.

    An upgrade leaves the old module in the kernel, and from then on no program can use the GPUs. A kernel for which
    the module was not built boots without GPUs, weeks later.

    Source: packages.nvidia_driver of the profile; role nvidia_driver; bugs 098, 099, 102
    """
    wanted = profile["packages"]["nvidia_driver"]
    nothing = no_gpus(profile)
    if nothing is not None and not wanted["manage"]:
        yield nothing
        return
    node: InstalledDriver = evidence.facts(MODULES)
    # A node without GPUs has a driver that nothing loads.
    missing = evidence.raw(DRIVER_VERSION).outcome == "missing"
    loaded: LoadedDriver | None = None if nothing is not None and missing else evidence.facts(DRIVER_VERSION)
    found = [
        *_loaded(node, loaded),
        *(one for release in node.modules for one in _kernel(node, release, wanted, loaded)),
    ]
    yield from found
    if not found:
        kernels = f"{len(node.modules)} kernel{'s' * (len(node.modules) != 1)} with the module"
        says = "not loaded (the profile has no GPU)" if loaded is None else f"{loaded.version} {loaded.flavour} loaded"
        shown = (Evidence(MODULES, ", ".join(node.modules)), Evidence(DRIVER_VERSION))
        yield Finding("node", "ok", f"{says}, library {node.library}, {kernels}", evidence=shown)


def _loaded(node: InstalledDriver, loaded: LoadedDriver | None) -> Iterable[Finding]:
    """The library against what is loaded, else whether there is one."""
    if node.library is None:
        yield _finding(
            "node",
            "fail",
            "there is no libnvidia-ml.so.1",
            "the library of the installed driver",
            "none",
            f"the user space of the driver is not installed: run {_PLAYBOOK} on this node",
            Evidence(MODULES, "library"),
        )
    elif loaded is not None and loaded.version != node.library:
        file = node.modules[node.running]
        reboot = file is not None and file.version == node.library
        yield _finding(
            "node",
            "fail",
            f"module {loaded.version} is loaded, the library is {node.library}",
            f"one version: {node.library}",
            "reboot" if reboot else "none",
            "the driver was changed while its old module stayed loaded: drain the node and reboot it"
            if reboot
            else f"a reboot would not help, since kernel {node.running} has no module {node.library}: run {_PLAYBOOK} "
            "on the drained node",
            Evidence(DRIVER_VERSION, loaded.version),
        )


def _kernel(
    node: InstalledDriver, release: str, wanted: Mapping[str, Any], loaded: LoadedDriver | None
) -> Iterator[Finding]:
    module, running = node.modules[release], release == node.running
    component = f"kernel {release}"
    after_boot = "the next load or boot" if running else "a boot into it"
    if module is None:
        text = "it runs and has no NVIDIA module" if running else "it would boot without the NVIDIA module"
        yield _finding(
            component,
            "fail" if running and loaded is None else "warn",
            text,
            "a module for each installed kernel",
            "none",
            f"run {_PLAYBOOK}: it says why the module is not there (dkms status; headers of this kernel), or remove "
            "the kernel",
            Evidence(MODULES, component),
        )
        return
    shown = Evidence(MODULES, f"{component}: {module.path} {module.version} {module.license}")
    built_for = module.vermagic.split(" ")[0]
    if built_for != release:
        yield _finding(
            component,
            "fail" if running and loaded is None else "warn",
            f"{module.path} was built for {built_for or 'a kernel that it does not name'}",
            f"a module for {release}",
            "none",
            f"it cannot be loaded: run {_PLAYBOOK}, or build it anew (dkms)",
            shown,
        )
    version = wanted["version"] or node.library
    if version is not None and module.version != version:
        source = "packages.nvidia_driver.version" if wanted["version"] else "as the library"
        yield _finding(
            component,
            "warn",
            f"{module.path} is of version {module.version}",
            f"{version} ({source})",
            "none",
            f"{after_boot} takes another version than the library: run {_PLAYBOOK} on the drained node",
            shown,
        )
    flavour = flavour_of(module.license)
    if wanted["manage"] and flavour != wanted["kernel_modules"]:
        yield _finding(
            component,
            "warn",
            f"{module.path} is {flavour or 'of an unknown kind'} (license {module.license or 'not named'})",
            f"{wanted['kernel_modules']} (packages.nvidia_driver.kernel_modules)",
            "none",
            f"run {_PLAYBOOK} on the drained node",
            shown,
        )
    elif running and loaded is not None and flavour is not None and loaded.flavour != flavour:
        yield _finding(
            component,
            "warn",
            f"the {loaded.flavour} module is loaded, {module.path} is {flavour}",
            "the installed module is loaded",
            "reboot",
            "the driver was changed while its old module stayed loaded: drain the node and reboot it",
            shown,
        )


def _finding(
    component: str, status: str, observed: str, expected: str, action: str, advice: str, shown: Evidence
) -> Finding:
    return Finding(component, status, observed, expected, action, advice, (shown,), _ROLE)


PROBES: tuple[Probe, ...] = (Probe(MODULES, parse_installed_driver, argv=counted(_SCRIPT)),)
CHECKS: tuple[Check, ...] = (Check("driver.modules", check_modules, needs=(MODULES, DRIVER_VERSION)),)
