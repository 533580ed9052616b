# SPDX-License-Identifier: Apache-2.0
"""What a profile says of the software between GPU and network: the NVIDIA driver (packages.nvidia_driver), the RDMA
stack (packages.rdma) and how HCAs reach GPU memory (platform.gpu_peer_memory). Format: profile_schema.py."""

from __future__ import annotations

from typing import Any

from .profile_problem import Problem

# The option of module nvidia that profiling_for_all_users sets (NVIDIA, ERR_NVGPUCTRPERM).
PROFILING_OPTION = "NVreg_RestrictProfilingToAdminUsers"


def repository(of_whom: str, example: str) -> dict[str, Any]:
    """The description of a key that names an apt repository."""
    return {
        "type": "section",
        "nullable": True,
        "rule": "repository_can_be_read",
        "description": f"The apt repository of {of_whom}, the vendor's or one's own copy of it; null with source "
        "distro only.",
        "keys": {
            "uri": {
                "type": "str",
                "pattern": r"(https?://|file:/)\S+",
                "pattern_help": "an address that begins with https://, http:// or file:/",
                "description": f"Address, e.g. {example}.",
            },
            "suites": {
                "type": "list",
                "min_items": 1,
                "description": "Suites; one that ends in / is the path of a flat repository (sources.list(5)).",
                "items": {
                    "type": "str",
                    "pattern": r"[^\s\[\]]+",
                    "pattern_help": "one suite without blanks, e.g. stable, or / for a flat repository",
                    "description": "One suite.",
                },
            },
            "components": {
                "type": "list",
                "description": "Components; empty for a flat repository only.",
                "items": {
                    "type": "str",
                    "pattern": r"[^\s\[\]]+",
                    "pattern_help": "one component without blanks, e.g. main",
                    "description": "One component.",
                },
            },
            "key_url": {
                "type": "str",
                "pattern": r"(https?://|file:/)\S+",
                "pattern_help": "an address that begins with https://, http:// or file:/",
                "description": "Address of the OpenPGP key that signs the repository.",
            },
            "key_sha256": {
                "type": "str",
                "nullable": True,
                "pattern": "[0-9a-f]{64}",
                "pattern_help": "64 lower-case hexadecimal digits",
                "description": "SHA-256 of the file behind key_url; null = TLS alone vouches for it (https only).",
            },
        },
    }


NVIDIA_DRIVER: dict[str, Any] = {
    "type": "section",
    "rule": "driver_packages_fit_together",
    "description": "The NVIDIA driver: kernel module, library and GSP firmware are of one version, and the fabric "
    "manager (where devices.nvswitch.count is not 0) is of the same.",
    "keys": {
        "manage": {
            "type": "bool",
            "description": "False: the driver is somebody else's; nothing is installed, and versions alone are judged.",
        },
        "source": {
            "type": "str",
            "choices": ["vendor", "mirror", "distro"],
            "description": "vendor = NVIDIA's CUDA network repository, mirror = the same packages from a server of "
            "one's own, distro = Debian's or Ubuntu's packages.",
        },
        "branch": {
            "type": "str",
            "nullable": True,
            "pattern": r"\d{3,4}",
            "pattern_help": 'the first number of the driver\'s version, in quotes, e.g. "580"',
            "description": "Branch, which names of packages carry; null with source distro only.",
        },
        "version": {
            "type": "str",
            "nullable": True,
            "pattern": r"\d+\.\d+(\.\d+)?",
            "pattern_help": 'a version as nvidia-smi prints it, in quotes, e.g. "580.105.08"',
            "description": "Exact version; null = not judged: what is installed is kept, else the newest of the branch "
            "is installed, then held.",
        },
        "kernel_modules": {
            "type": "str",
            "choices": ["open", "proprietary"],
            "description": "Which of NVIDIA's two sets of kernel modules.",
        },
        "modules_from": {
            "type": "str",
            "choices": ["dkms", "prebuilt"],
            "description": "dkms = built on the node for each kernel, prebuilt = packages of one's own in the node's "
            "apt sources, one for each kernel (source distro only).",
        },
        "module_package": {
            "type": "str",
            "nullable": True,
            "description": "Name of the package with the modules of one kernel, {kernel} standing for the kernel's "
            "release, e.g. nvidia-modules-{kernel}. null with modules_from dkms only.",
        },
        "module_options": {
            "type": "map",
            "pattern": r"[A-Za-z][A-Za-z0-9_]*",
            "pattern_help": "the name of a parameter of module nvidia, e.g. NVreg_PreserveVideoMemoryAllocations",
            "description": "Options that module nvidia is loaded with (modinfo -p nvidia lists them).",
            "values": {
                "type": "str",
                "pattern": r"[^\s\"'\\#]+",
                "pattern_help": "a value without blanks and quotes, itself in quotes",
                "description": "Value of one option.",
            },
        },
        "profiling_for_all_users": {
            "type": "bool",
            "description": f"True: every user may read the GPUs' performance counters ({PROFILING_OPTION}=0), not "
            "root alone.",
        },
        "repository": repository(
            "the driver", "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/"
        ),
    },
}

RDMA: dict[str, Any] = {
    "type": "section",
    "rule": "rdma_packages_fit_together",
    "description": "The RDMA stack: kernel drivers of the HCAs and the libraries over them.",
    "keys": {
        "manage": {
            "type": "bool",
            "description": "False: the stack is somebody else's; nothing is installed, and versions alone are judged.",
        },
        "source": {
            "type": "str",
            "choices": ["vendor", "mirror", "distro"],
            "description": "vendor = NVIDIA's DOCA-OFED, mirror = the same packages from a server of one's own, distro "
            "= the kernel's own drivers with the distribution's rdma-core.",
        },
        "version": {
            "type": "str",
            "nullable": True,
            "pattern": r"\d[A-Za-z0-9.+~:]*",
            "pattern_help": 'a version without the package\'s revision, in quotes, e.g. "3.1.0"',
            "description": "Version of package doca-ofed (vendor, mirror) or rdma-core (distro), without the revision; "
            "null = not judged: what is installed is kept, else the newest is installed, then held.",
        },
        "repository": repository("DOCA", "https://linux.mellanox.com/public/repo/doca/3.1.0/ubuntu24.04/x86_64/"),
        "device_names": {
            "type": "str",
            "choices": ["kernel", "pci"],
            "description": "Names of the HCAs: kernel = in the order found (mlx5_0), pci = by PCI address "
            "(rocep27s0, ibp27s0), which a card that is missing does not shift (rdma-core, rdma_rename).",
        },
    },
}

GPU_PEER_MEMORY: dict[str, Any] = {
    "type": "str",
    "choices": ["nvidia_peermem", "dma_buf", "none"],
    "description": "How HCAs read and write GPU memory: by module nvidia_peermem, by the kernel's DMA-BUF (open kernel "
    "modules only), or not at all.",
}


def repository_can_be_read(path: str, section: dict[str, Any]) -> list[Problem]:
    """apt takes the suites and components together, and something vouches for the key."""
    problems = []
    suites, components = section.get("suites"), section.get("components")
    if isinstance(suites, list) and isinstance(components, list) and suites:
        flat = {str(suite).endswith("/") for suite in suites}
        if len(flat) == 2:
            problems.append(
                Problem(f"{path}.suites", "suites that all end in / or that all do not", ", ".join(map(str, suites)))
            )
        elif flat == {True} and components:
            problems.append(
                Problem(
                    f"{path}.components",
                    "an empty list, since the suite ends in /",
                    ", ".join(map(str, components)),
                    "apt refuses components of a flat repository",
                )
            )
        elif flat == {False} and not components:
            problems.append(
                Problem(
                    f"{path}.components",
                    "at least one component, since the suite does not end in /",
                    "an empty list",
                    "for a flat repository end the suite in /",
                )
            )
    key_url = section.get("key_url")
    if isinstance(key_url, str) and not key_url.startswith("https://") and section.get("key_sha256", "") is None:
        problems.append(
            Problem(
                f"{path}.key_sha256",
                "the SHA-256 of the key, since key_url is no https address",
                "null",
                "nothing else vouches for the key",
            )
        )
    return problems


def source_and_repository(path: str, section: dict[str, Any]) -> list[Problem]:
    """A repository is named where, and only where, packages come from one of its own."""
    source, repository = section.get("source"), section.get("repository", "")
    if section.get("manage") is True and source in ("vendor", "mirror") and repository is None:
        return [
            Problem(
                f"{path}.repository",
                f"an apt repository (uri, suites, components, key_url, key_sha256), since {path}.source is {source}",
                "null",
                "set it for the fleet in node_profile_overrides_fleet: it depends on the operating system",
            )
        ]
    if source == "distro" and isinstance(repository, dict):
        return [
            Problem(
                f"{path}.repository",
                f"null, since {path}.source is distro",
                "a section",
                f"for a server of one's own with the vendor's packages set {path}.source to mirror",
            )
        ]
    return []


def driver_packages_fit_together(path: str, section: dict[str, Any]) -> list[Problem]:
    """Source, branch, version and modules of packages.nvidia_driver name one installation."""
    problems = source_and_repository(path, section)
    source, branch, version = (section.get(key) for key in ("source", "branch", "version"))
    if section.get("manage") is True and source in ("vendor", "mirror") and "branch" in section and branch is None:
        problems.append(
            Problem(
                f"{path}.branch",
                f"the driver's branch, since {path}.source is {source}",
                "null",
                'the first number of its version, e.g. "580"',
            )
        )
    if isinstance(branch, str) and isinstance(version, str) and version.partition(".")[0] != branch:
        problems.append(
            Problem(
                f"{path}.version",
                f"a version of branch {branch} ({path}.branch), or null",
                version,
                "set both together",
            )
        )
    if section.get("manage") is True and source in ("vendor", "mirror") and section.get("modules_from") == "prebuilt":
        problems.append(
            Problem(
                f"{path}.modules_from",
                f"dkms, since {path}.source is {source}",
                "prebuilt",
                "NVIDIA's packages depend on their dkms package; prebuilt modules go with source distro",
            )
        )
    package = section.get("module_package")
    named_by_kernel = isinstance(package, str) and "{kernel}" in package
    if section.get("modules_from") == "prebuilt" and "module_package" in section and not named_by_kernel:
        problems.append(
            Problem(
                f"{path}.module_package",
                f"a package name with {{kernel}} in it, since {path}.modules_from is prebuilt",
                "null" if package is None else repr(package),
                "each installed kernel needs modules of its own",
            )
        )
    options = section.get("module_options")
    if isinstance(options, dict) and PROFILING_OPTION in options:
        problems.append(
            Problem(
                f"{path}.module_options.{PROFILING_OPTION}",
                "an option without a key of its own",
                str(options[PROFILING_OPTION]),
                f"use {path}.profiling_for_all_users",
            )
        )
    return problems


def rdma_packages_fit_together(path: str, section: dict[str, Any]) -> list[Problem]:
    """Source and repository of packages.rdma name one installation."""
    return source_and_repository(path, section)


def peer_memory_has_a_driver(profile: dict[str, Any]) -> list[Problem]:
    """What lends GPU memory to HCAs is a part of the NVIDIA driver.

    The driver is there where it is managed, or where the profile says how GPUs are set: somebody else installs it.
    """
    platform, packages = profile.get("platform"), profile.get("packages")
    driver = packages.get("nvidia_driver") if isinstance(packages, dict) else None
    if not isinstance(platform, dict) or not isinstance(driver, dict):
        return []
    way = platform.get("gpu_peer_memory")
    if way not in ("nvidia_peermem", "dma_buf"):
        return []
    path = "platform.gpu_peer_memory"
    if driver.get("manage") is False and platform.get("gpu", "") is None:
        return [
            Problem(
                path,
                "none, since packages.nvidia_driver.manage is false and platform.gpu describes no GPU",
                way,
                "without the NVIDIA driver there is no GPU memory to reach",
            )
        ]
    if way == "dma_buf" and driver.get("kernel_modules") == "proprietary":
        return [
            Problem(
                path,
                "nvidia_peermem or none, since packages.nvidia_driver.kernel_modules is proprietary",
                way,
                "only the open kernel modules export GPU memory as DMA-BUF",
            )
        ]
    return []
