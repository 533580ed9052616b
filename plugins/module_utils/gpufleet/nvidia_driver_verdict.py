# SPDX-License-Identifier: Apache-2.0
"""Whether packages, the module of each kernel, the loaded module and the GPUs of a node fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .kernel_modules import KERNEL_STILL_GONE
from .modinfo import KernelModule
from .nvidia_loaded_driver import LoadedDriver, flavour_of
from .nvidia_module_facts import WHAT, LogReason
from .package_version import upstream_version

# Shell that sets m to the module that modprobe would take (kernel_modules.parse_show_depends says why modinfo cannot).
_RESOLVE = (
    "PATH=$PATH:/usr/sbin:/sbin; "
    "d=$(modprobe --show-depends nvidia 2>/dev/null | tail -n 1); "
    'case $d in insmod*) m=${d#insmod }; m=${m%% *};; *" -i "*) m=${d#* -i }; m=${m%% *};; *) m=nvidia;; esac; '
)
# argv that exits 0 while the loaded module is of another version or flavour than the one that would be loaded. Where
# none is loaded, nothing old is in the kernel.
MODULE_STILL_DIFFERS = (
    "/bin/sh",
    "-c",
    "loaded=$(cat /sys/module/nvidia/version 2>/dev/null) || exit 1; " + _RESOLVE + 'test "$loaded" = '
    '"$(modinfo -F version "$m")" || exit 0; o=$(grep -c "Open Kernel Module" /proc/driver/nvidia/version); w=1; '
    'test "$(modinfo -F license "$m")" != NVIDIA || w=0; test "$o" != "$w"',
)
NOUVEAU_STILL_LOADED = ("/bin/sh", "-c", "test -e /sys/module/nouveau")
# argv, with the name of a parameter and its value behind it, that exits 0 while the loaded module has another value.
PARAMETER_STILL_DIFFERS = (
    "/bin/sh",
    "-c",
    'test -e /proc/driver/nvidia/params && ! grep -qx "$0: \\"\\{0,1\\}$1\\"\\{0,1\\}" /proc/driver/nvidia/params',
)
# Names in /proc/driver/nvidia/params that are not the option's without NVreg_ (kernel-open/nvidia/nv-reg.h).
_PARAMETER = {"NVreg_RestrictProfilingToAdminUsers": "RmProfilingAdminOnly"}


class DriverError(Exception):
    """The node cannot have the driver as it is wanted: the message says what and where, next_step what to do."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(message)
        self.next_step = next_step


class Need(NamedTuple):
    """A reboot that is needed: why, and a command that exits 0 while the reason stands."""

    reason: str
    still_needed: tuple[str, ...]


def release_of(versions: Mapping[str, str], fabric_manager: str | None) -> str:
    """The driver's version by its packages, all of which must be equal to the last digit; raises DriverError."""
    releases = {name: upstream_version(version) for name, version in versions.items()}
    if len(set(releases.values())) == 1:
        return next(iter(releases.values()))
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    why = "the fabric manager refuses any other driver, and CUDA then fails with error 802"
    raise DriverError(
        f"packages of one driver are of different versions: {shown}"
        + (f"; expected {fabric_manager} equal to the driver to the last digit, since {why}" if fabric_manager else ""),
        "name one version in packages.nvidia_driver.version that the repository has of all of them, then run with "
        "nvidia_driver_upgrade",
    )


def unfit_kernels(modules: Mapping[str, KernelModule | None], release: str | None, flavour: str) -> dict[str, str]:
    """Kernels whose module is missing or not the wanted one -> what they have; a release of None fits any version."""
    found = {}
    for kernel, module in modules.items():
        built_for = module.vermagic.split(" ")[0] if module else ""
        if module is None:
            found[kernel] = "no module"
        elif release is not None and module.version != release:
            found[kernel] = f"{module.version} ({module.path})"
        elif built_for and built_for != kernel:
            found[kernel] = f"a module built for {built_for} ({module.path})"
        elif flavour_of(module.license) not in (None, flavour):
            found[kernel] = f"the {flavour_of(module.license)} module ({module.path})"
    return found


def kernels_fault(unfit: Mapping[str, str], release: str, flavour: str, running: str) -> str:
    """What is wrong with the kernels that unfit_kernels has found, for a message."""
    rows = "; ".join(
        f"{kernel}{' (running)' if kernel == running else ''} has {what}" for kernel, what in unfit.items()
    )
    return f"kernels without the {flavour} NVIDIA module {release}: {rows}. A boot into one would come up without GPUs"


def differing_parameters(wanted: Mapping[str, str], loaded: Mapping[str, str]) -> dict[str, tuple[str, str, str]]:
    """Options of the loaded module that are not as wanted: option -> (name in params, wanted, loaded).

    Options that /proc/driver/nvidia/params does not list cannot be judged and are left out.
    """
    found = {}
    for option, value in wanted.items():
        name = _PARAMETER.get(option, option[len("NVreg_") :] if option.startswith("NVreg_") else option)
        have = loaded.get(name)
        if have is not None and _number(have) != _number(value):
            found[option] = (name, value, have)
    return found


def _number(text: str) -> str:
    try:
        return str(int(text, 0))
    except ValueError:
        return text.strip('"')


def reboot_need(
    loaded: LoadedDriver | None,
    modules: Mapping[str, KernelModule | None],
    running: str,
    differing: Mapping[str, tuple[str, str, str]],
    nouveau_loaded: bool,
) -> Need | None:
    """Why only a boot (or a reload) brings what is installed, or None."""
    if nouveau_loaded:
        return Need(
            "nouveau is loaded and holds the GPUs; from the next boot on it is kept from loading", NOUVEAU_STILL_LOADED
        )
    if loaded is None:
        return None
    if running not in modules:
        return Need(
            f"the running kernel {running} is no longer installed (installed: {', '.join(modules)}); NVIDIA driver "
            f"{loaded.version} is loaded, but none of its modules can be loaded any more",
            KERNEL_STILL_GONE,
        )
    module = modules[running]
    if module is not None:
        flavour = flavour_of(module.license) or loaded.flavour
        if (module.version, flavour) != (loaded.version, loaded.flavour):
            return Need(
                f"NVIDIA driver {loaded.version} ({loaded.flavour}) is loaded, {module.version} ({flavour}) is "
                f"installed for the running kernel {running}",
                MODULE_STILL_DIFFERS,
            )
    for option, (name, value, have) in differing.items():
        return Need(
            f"module nvidia is loaded with {option}={have}, wanted is {value}", (*PARAMETER_STILL_DIFFERS, name, value)
        )
    return None


def unseen_gpus(on_bus: Sequence[str], seen: int, said: str, reasons: Sequence[LogReason]) -> DriverError | None:
    """The error where the driver sees fewer GPUs than the PCI bus has, or none where there must be some.

    on_bus: PCI addresses. said: what nvidia-smi printed. reasons: of the kernel log since the module was loaded.
    """
    if on_bus and seen >= len(on_bus):
        return None
    if not on_bus:
        return DriverError(
            "the PCI bus has no NVIDIA GPU, although the profile describes GPUs (platform.gpu)",
            "look at lspci -nn -d 10de: on the node; are the GPUs powered (iDRAC), is this the right profile?",
        )
    why = "; ".join(f"{WHAT[reason.kind]} ({reason.text})" for reason in reasons) or "the kernel log does not say why"
    return DriverError(
        f"the driver sees {seen} of {len(on_bus)} GPUs on the PCI bus ({', '.join(on_bus)}): {why}. nvidia-smi -L "
        f"said: {said}",
        "see dmesg on the node; node_health tells faults of single GPUs apart",
    )
