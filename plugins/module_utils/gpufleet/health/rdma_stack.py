# SPDX-License-Identifier: Apache-2.0
"""The RDMA stack as it is installed, as it is loaded, and the devices that it has made of the HCAs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..rdma_facts import (
    INFINIBAND_CLASS,
    STACK_MODULES,
    LoadedModule,
    ModuleFile,
    RdmaDevice,
    parse_infiniband_devices,
    parse_modinfo,
    parse_sys_module,
)
from .counted_output import counted, one_line, parts_of
from .modprobe_file import described
from .probe import ParseError, Probe, ProbeResult

STACK = "rdma.stack"
# The package that names the stack's version, by packages.rdma.source, and the library that programs use.
STACK_PACKAGES = {"vendor": "doca-ofed", "mirror": "doca-ofed", "distro": "rdma-core"}
LIBRARY = "libibverbs1"

# The driver of the cards: whose it is tells whose stack a kernel that does not run would load.
_CARD = STACK_MODULES[1]
_FIELDS = "filename|version|srcversion|intree|depends|vermagic|license"
# modinfo takes the module that modprobe would load into the running kernel.
_SCRIPT = f"""
echo '== running'
uname -r
echo '== packages'
dpkg-query -W -f '${{Package}} ${{db:Status-Status}} ${{Version}}\\n' doca-ofed rdma-core {LIBRARY} 2>/dev/null
echo '== loaded'
grep -aHs '' /sys/module/{{{",".join(STACK_MODULES)}}}/{{taint,version,srcversion}}
for module in {" ".join(STACK_MODULES)}; do
  echo "== modinfo $module"
  modinfo "$module" 2>&1 | grep -aE '^({_FIELDS}|modinfo: ERROR):'
done
echo '== other kernels'
for image in /boot/vmlinuz-*; do
  release=${{image#/boot/vmlinuz-}}
  [ -d "/lib/modules/$release" ] && [ "$release" != "$(uname -r)" ] || continue
  echo "$release $(modinfo -k "$release" -F filename {_CARD} 2>/dev/null)"
done
echo '== devices'
find {INFINIBAND_CLASS} -mindepth 1 -maxdepth 1 -printf '%f %l\\n' 2>/dev/null
"""


class RdmaStack(NamedTuple):
    """running: release of the kernel. packages: version by name, of those that are installed.

    loaded: modules in the kernel. files: what modprobe would load into the running kernel; None where there is no such
    module. other_kernels: path of the file that each other installed kernel would load as driver of the cards, "" where
    it has none. devices: those of /sys/class/infiniband.
    """

    running: str
    packages: Mapping[str, str]
    loaded: Mapping[str, LoadedModule]
    files: Mapping[str, ModuleFile | None]
    other_kernels: Mapping[str, str]
    devices: tuple[RdmaDevice, ...]


def parse_stack(result: ProbeResult) -> RdmaStack:
    """Raises ParseError."""
    names = (
        "running",
        "packages",
        "loaded",
        *(f"modinfo {module}" for module in STACK_MODULES),
        "other kernels",
        "devices",
    )
    parts = parts_of(result, names)
    try:
        devices = tuple(parse_infiniband_devices("\n".join(parts["devices"])))
        files = {module: module_file(parts[f"modinfo {module}"]) for module in STACK_MODULES}
    except ValueError as error:
        raise ParseError(str(error)) from error
    return RdmaStack(
        one_line(parts, "running"),
        installed_packages(parts["packages"]),
        parse_sys_module(sys_files(parts["loaded"])),
        files,
        _other_kernels(parts["other kernels"]),
        devices,
    )


def _other_kernels(lines: list[str]) -> dict[str, str]:
    found = {}
    for line in lines:
        release, blank, path = line.partition(" ")
        if not blank or not release or release in found or not (path == "" or path.startswith(("/", "(builtin)"))):
            raise ParseError(f"expected a kernel and the file of {_CARD}, got {line[:100]!r}")
        found[release] = path
    return found


def module_file(lines: list[str]) -> ModuleFile | None:
    """The file that modinfo describes; None where it knows no such module. Raises ValueError, ParseError."""
    text = described(lines)
    return None if text is None else parse_modinfo(text)


def sys_files(lines: list[str]) -> dict[str, str]:
    """Content by path, from lines of grep -H about files of one line each. Raises ParseError."""
    found = {}
    for line in lines:
        path, colon, content = line.partition(":")
        if not colon or not path.startswith("/sys/module/") or path in found:
            raise ParseError(f"no line of a file below /sys/module: {line[:100]!r}")
        found[path] = content
    return found


def installed_packages(lines: list[str]) -> dict[str, str]:
    """Version by name of the packages that dpkg-query shows as installed. Raises ParseError."""
    found = {}
    for line in lines:
        words = line.split(" ")
        # what was never installed has no version: "doca-ofed not-installed "
        if len(words) != 3 or not words[0]:
            raise ParseError(f"expected package, state and version, got {line[:100]!r}")
        if words[1] == "installed":
            found[words[0]] = words[2]
    return found


PROBES: tuple[Probe, ...] = (Probe(STACK, parse_stack, argv=counted(_SCRIPT)),)
