# SPDX-License-Identifier: Apache-2.0
"""What a node says about its NVIDIA kernel module, from text alone: for the role nvidia_driver and the health checks.

Where the texts come from: NVIDIA/open-gpu-kernel-modules (kernel-open/nvidia: nv.c, nv-pci.c, nv-procfs.c), mokutil(1),
the kernel's module loader (kernel/module), and the reports that are named beside each.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# One folder for each GPU that the driver has taken, named by PCI address.
PROC_GPUS = "/proc/driver/nvidia/gpus"
PROC_PARAMETERS = "/proc/driver/nvidia/params"
SYS_MODULE = "/sys/module/nvidia"
# UEFI specification, 3.3 and 8.2: four bytes of attributes in front of the one byte of value.
SECURE_BOOT_VARIABLE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def parse_parameters(text: str) -> dict[str, str]:
    """/proc/driver/nvidia/params: names without NVreg_ -> values, such as RmProfilingAdminOnly -> 1."""
    return {key: value.strip().strip('"') for key, value in re.findall(r"^(\w+):[ \t]*(.*)$", text, re.MULTILINE)}


def parse_sb_state(text: str) -> bool | None:
    """Whether Secure Boot is on, by what `mokutil --sb-state` printed; None where it does not say."""
    lower = text.lower()
    if "secureboot enabled" in lower:
        return True
    # A node that was booted without UEFI: "EFI variables are not supported on this system".
    off = ("secureboot disabled", "doesn't support secure boot", "efi variables are not supported")
    return False if any(part in lower for part in off) else None


def parse_secure_boot_variable(content: bytes) -> bool | None:
    """Whether Secure Boot is on, by the UEFI variable SecureBoot with its attributes; None for another length."""
    return None if len(content) != 5 else content[4] == 1


def parse_test_key(text: str) -> bool | None:
    """Whether the firmware trusts a key, by what `mokutil --test-key <file>` printed; None where it does not say.

    A key in the enrolment request is not trusted before somebody has confirmed it at the console.
    """
    lower = text.lower()
    if "is not enrolled" in lower or "enrollment request" in lower:
        return False
    return True if "is already enrolled" in lower else None


class LogReason(NamedTuple):
    """One thing that the kernel log says against the driver.

    kind: a key of WHAT. text: the sentence of the log. client, module: the versions of an api_mismatch, else None.
    """

    kind: str
    text: str
    client: str | None = None
    module: str | None = None


# Most telling first: "No NVIDIA GPU found" is also printed where another driver has them.
_REASONS: tuple[tuple[str, str], ...] = (
    # Both wordings: up to 545 "the client has the version", later "the client '<program>' (pid <n>) has the version"
    (
        "api_mismatch",
        r"API mismatch: the client .{0,80}?has the version (\S+), but this kernel module has the version \S+",
    ),
    ("key_rejected", r"Loading of (?:module with unavailable key|unsigned module) is rejected"),
    ("key_rejected", r"Key was rejected by service"),
    ("key_rejected", r"Lockdown: \S+ unsigned module loading is restricted"),
    ("other_kernel", r"nvidia\S*: version magic '[^']*' should be '[^']*'"),
    ("unknown_symbol", r"nvidia\S*: (?:Unknown symbol \S+|disagrees about version of symbol \S+)"),
    ("other_driver", r"GPU \S+ is already bound to \S+"),
    ("other_driver", r"The NVIDIA probe routine was not called for \d+ device"),
    ("needs_open", r"requires use of the NVIDIA open kernel modules"),
    ("not_supported", r"installed in this system is (?:not supported by|supported through) the .{0,60}"),
    ("no_firmware", r"(?:Direct firmware load for nvidia/\S+ failed with error -?\d+|No firmware image found)"),
    ("bar", r"This PCI I/O region assigned to your NVIDIA device is invalid"),
    ("off_the_bus", r"(?:GPU has )?fallen off the bus"),
    ("init_failed", r"(?:RmInitAdapter|rm_init_adapter) failed"),
    ("init_failed", r"The NVIDIA probe routine failed for \d+ device"),
    ("no_gpu", r"No NVIDIA GPU found|No NVIDIA (?:graphics adapter|devices) (?:found|probed)"),
)
WHAT = {
    "api_mismatch": "user space and the loaded kernel module are of different versions",
    "key_rejected": "the kernel rejects the module's signature (Secure Boot)",
    "other_kernel": "the module was built for another kernel",
    "unknown_symbol": "the module does not fit this kernel, or another module that it was built with",
    "other_driver": "another driver (nouveau, vfio-pci) holds the GPU",
    "needs_open": "this GPU works with the open kernel modules only",
    "not_supported": "this driver does not support the GPU",
    "no_firmware": "the GPU firmware (GSP) of this driver version is not installed",
    "bar": "the firmware has given the GPU no address space: memory-mapped I/O above 4 GB is off",
    "off_the_bus": "the GPU no longer answers on the PCI bus",
    "init_failed": "the driver could not initialise the GPU",
    "no_gpu": "the driver found no GPU",
}
# In front of a record: "[   12.345678] ", "[Sat Apr 13 23:38:47 2024] ", "Jun 30 11:07:05 gpu-0 kernel: "
_PREFIX = re.compile(r"^(?:<\d+>)?(?:[^\[\]]{0,80}?kernel: )?(?:\[[^\]]{1,40}\] )?")
# The driver's first words each time it is loaded (nvlink_linux.c).
_LOADING = "Nvlink Core is being initialized"


def flattened(text: str) -> str:
    """A kernel log as one line: sentences that were broken over records are whole again.

    rsyslog writes the line breaks of one record as "#012", the journal and dmesg as further lines, each with the
    driver's own "NVRM: " in front (bug 099, NVIDIA/nvidia-docker#182).
    """
    parts = []
    for line in text.replace("#012", "\n").splitlines():
        record = _PREFIX.sub("", line.strip(), count=1)
        parts.append(re.sub(r"^NVRM: *", "", record).strip())
    return re.sub(r"\s+", " ", " ".join(parts))


def since_last_load(log: str) -> str:
    """The part of a kernel log that is about the last time the module was loaded; all of it where none is seen."""
    return log.rpartition(_LOADING)[2]


def read_reasons(log: str) -> list[LogReason]:
    """What a kernel log says against the driver, the most telling first, each kind once with its last sentence."""
    whole = flattened(log)
    reasons: dict[str, LogReason] = {}
    for kind, pattern in _REASONS:
        found = None
        for found in re.finditer(pattern, whole, re.IGNORECASE):  # noqa: B007 the last one counts
            pass
        if found is None or kind in reasons:
            continue
        client = module = None
        if kind == "api_mismatch":
            client = found.group(1)
            module = found.group(0).rpartition(" ")[2].rstrip(".")
        reasons[kind] = LogReason(kind, found.group(0).rstrip("., "), client, module)
    return list(reasons.values())


def parse_nv_fabricmanager_version(text: str) -> str | None:
    """Version of the fabric manager by `nv-fabricmanager --version` ("Fabric Manager version is : 580.105.08")."""
    found = re.search(r"version is *: *(\d+\.\d+(?:\.\d+)?)\b", text, re.IGNORECASE)
    return found.group(1) if found else None
