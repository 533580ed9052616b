# SPDX-License-Identifier: Apache-2.0
"""What a profile may say, as data, and the check of one profile against it.

A profile (``profiles/<name>.yml``) says what a node must be. ``SCHEMA`` below describes every key: its type, its
range and what it means. Preflight checks every profile against it on the controller; ``node_health`` does so on the
node, hence Python 3.9 and the standard library only.

A key is described by a dict:

``type``         ``section`` (fixed keys, in ``keys``), ``map`` (free keys, all of them like ``values``), ``list``
                 (all items like ``items``), ``str``, ``int``, ``number`` or ``bool``
``description``  what the key means, with its unit
``nullable``     True where ``null`` is a meaning of its own (the description says which)
``optional``     True where the key may be left out; all others must be there, since roles read them
``choices``      the values allowed
``min``/``max``  the range of a number, both included
``pattern``      for a str: a regular expression it matches in full; for a map: one that its keys match;
                 ``pattern_help`` says it in words
``rule``         name of a function below for what no single key can tell (``RULES``)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from .profile_problem import Problem as Problem
from .profile_schema_containers import (
    CONTAINER_TOOLKIT,
    DCGM,
    DCGM_EXPORTER,
    DOCKER,
    PLATFORM_DOCKER,
    container_packages_have_a_source,
    containers_fit_together,
    exporter_can_be_run,
)
from .profile_schema_gpu import PLATFORM_GPU
from .profile_schema_gpu_stack import (
    GPU_PEER_MEMORY,
    NVIDIA_DRIVER,
    RDMA,
    driver_packages_fit_together,
    peer_memory_has_a_driver,
    rdma_packages_fit_together,
    repository_can_be_read,
)
from .profile_schema_limits import LIMITS
from .zfs_property_value import canonical

_HEX4 = {"pattern": "[0-9a-f]{4}", "pattern_help": 'four lower-case hexadecimal digits in quotes, e.g. "10de"'}

_CHECK = r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*"

_MATCH_RULE: dict[str, Any] = {
    "type": "section",
    "description": "A PCI function matches the rule when all keys given here are equal to its own.",
    "rule": "match_rule_is_not_empty",
    "keys": {
        "vendor": {"type": "str", "optional": True, "description": "PCI vendor id.", **_HEX4},
        "device": {"type": "str", "optional": True, "description": "PCI device id.", **_HEX4},
        "class": {
            "type": "str",
            "optional": True,
            "description": "PCI base class and subclass, e.g. 0108 for NVM Express.",
            **_HEX4,
        },
    },
}

_DEVICE_CLASS: dict[str, Any] = {
    "type": "section",
    "description": "One kind of device: how it is recognised, and how many of it a node has.",
    "keys": {
        "match": {
            "type": "list",
            "min_items": 1,
            "description": "A device that matches any of these rules is of this kind.",
            "items": _MATCH_RULE,
        },
        "count": {
            "type": "int",
            "min": 0,
            "max": 256,
            "description": "How many PCI functions of this kind a complete node has.",
        },
        "link": {
            "type": "section",
            "nullable": True,
            "description": "The PCIe link that each of them must have trained to; null = not judged.",
            "keys": {
                "speed_gts": {
                    "type": "number",
                    "choices": [2.5, 5, 8, 16, 32, 64],
                    "description": "Transfer rate in GT/s (32 = PCIe generation 5).",
                },
                "width": {"type": "int", "choices": [1, 2, 4, 8, 16], "description": "Number of lanes."},
            },
        },
        "max_read_request_bytes": {
            "type": "int",
            "nullable": True,
            "optional": True,
            "choices": [128, 256, 512, 1024, 2048, 4096],
            "description": "MaxReadReq that each of them must be set to at least, in bytes; null = not judged.",
        },
        "pair_with": {
            "type": "str",
            "nullable": True,
            "pattern": "[a-z][a-z0-9_]*",
            "pattern_help": "the name of another kind of device of this profile",
            "description": "The kind of device of which each of these has one of its own, nearer on PCIe than any "
            "other (below the same switch: GPUDirect RDMA takes that path); null = no pairing.",
        },
        "without_os_disk": {
            "type": "bool",
            "optional": True,
            "description": "True: a disk that the running system lives on does not count as one of this kind.",
        },
    },
}

_ZFS_PROPERTIES: dict[str, Any] = {
    "type": "map",
    "pattern": r"[a-z][a-z0-9_]*|[a-z0-9_.-]+:[a-z0-9:_.-]+",
    "pattern_help": "the name of a ZFS property, e.g. compression",
    "values": {"type": "str", "description": "Value as zfs or zpool takes it; on and off in quotes."},
}


def _patterns(of_what: str, example: str) -> dict[str, Any]:
    return {
        "type": "list",
        "description": f"Shell patterns (* ? [...]); {of_what} must match one of them. Empty = any.",
        "items": {"type": "str", "description": f"One pattern, e.g. {example}."},
    }


_POOL: dict[str, Any] = {
    "type": "section",
    "rule": "pool_is_one_that_zfs_takes",
    "description": "The ZFS pool over the data disks.",
    "keys": {
        "manage": {"type": "bool", "description": "False: the node has no such pool; its disks are left alone."},
        "name": {
            "type": "str",
            # zpool(8): these beginnings are reserved for kinds of vdevs
            "pattern": r"(?!c[0-9]|mirror|raidz|draid|spare|log$)[A-Za-z][A-Za-z0-9_.-]{0,62}",
            "pattern_help": "a name of letters, digits, '_', '.', '-' that ZFS has not reserved (mirror, raidz, spare, "
            "log ...)",
            "description": "Name of the pool.",
        },
        "layout": {
            "type": "str",
            "choices": ["raidz1", "raidz2", "raidz3", "mirror", "stripe"],
            "description": "Redundancy of each group of disks. stripe has none: one lost disk loses everything.",
        },
        "disks_per_group": {
            "type": "int",
            "nullable": True,
            "min": 1,
            "max": 64,
            "description": "Disks of each redundant group (vdev); null = all disks in one group. 2 with layout mirror "
            "gives a stripe over pairs.",
        },
        "disks": {
            "type": "section",
            "rule": "size_range_is_not_empty",
            "description": "Which disks, beside devices.data_disk.match; all of it must hold. Their number is "
            "devices.data_disk.count. Kernel names such as nvme0n1 say nothing: they change from boot to boot.",
            "keys": {
                "by_id": _patterns("one of the disk's names in /dev/disk/by-id", "nvme-Dell_*"),
                "serial": _patterns("the serial number", "S6CX*"),
                "model": _patterns("the model", "Dell Ent NVMe *"),
                "min_gb": {"type": "number", "nullable": True, "min": 0, "description": "Least size in GB (10^9)."},
                "max_gb": {"type": "number", "nullable": True, "min": 0, "description": "Greatest size in GB (10^9)."},
                "max_size_difference_percent": {
                    "type": "number",
                    "min": 0,
                    "max": 50,
                    "description": "By how much the smallest disk may be smaller than the largest: ZFS uses of each "
                    "as much as the smallest has.",
                },
            },
        },
        "ashift": {
            "type": "int",
            "min": 9,
            "max": 16,
            "description": "Sector size as a power of two (12 = 4096 bytes). Fixed when the pool is created.",
        },
        "properties": {**_ZFS_PROPERTIES, "description": "Properties of the pool, e.g. autotrim (zpoolprops(7))."},
        "file_system": {
            **_ZFS_PROPERTIES,
            "description": "Properties of the pool's top file system, inherited by all below, e.g. compression, "
            "recordsize (zfsprops(7)).",
        },
        "mountpoint": {
            "type": "str",
            "nullable": True,
            "pattern": r"/[^\s]*[^\s/]",
            "pattern_help": "an absolute path without blanks that does not end in /",
            "description": "Where the top file system is mounted; null = nowhere, only those below are.",
        },
        "datasets": {
            "type": "map",
            "pattern": r"[A-Za-z0-9][A-Za-z0-9_.:-]*(/[A-Za-z0-9][A-Za-z0-9_.:-]*)*",
            "pattern_help": "the name of a file system below the pool, e.g. docker or scratch/users",
            "description": "File systems below the top one. None is ever removed.",
            "values": {
                "type": "section",
                "description": "One file system.",
                "keys": {
                    "mountpoint": {
                        "type": "str",
                        "nullable": True,
                        "pattern": r"/[^\s]*[^\s/]",
                        "pattern_help": "an absolute path without blanks that does not end in /",
                        "description": "Where it is mounted; null = below its parent's place.",
                    },
                    "properties": {
                        **_ZFS_PROPERTIES,
                        "description": "Its own properties, e.g. quota, reservation, recordsize.",
                    },
                },
            },
        },
        "arc_max_gib": {
            "type": "number",
            "nullable": True,
            "min": 0.0625,  # OpenZFS ignores a zfs_arc_max below 64 MiB (zfs(4))
            "max": 65536,
            "description": "Greatest size of ZFS' cache in memory (ARC) in GiB; null = ZFS' own choice (half of the "
            "memory).",
        },
        "scrub": {
            "type": "str",
            "nullable": True,
            "pattern": r"[A-Za-z0-9*:,./~ -]+",
            "pattern_help": "a calendar expression of systemd.time(7), e.g. Sun *-*-01..07 02:00:00",
            "description": "When all data is read and verified: a calendar expression of systemd.time(7); null = "
            "never.",
        },
        "trim": {
            "type": "str",
            "nullable": True,
            "pattern": r"[A-Za-z0-9*:,./~ -]+",
            "pattern_help": "a calendar expression of systemd.time(7), e.g. Sun *-*-01..07 02:00:00",
            "description": "When free space is reported to the disks: a calendar expression of systemd.time(7); null = "
            "never.",
        },
        "max_delay_h": {
            "type": "number",
            "min": 0,
            "max": 168,
            "description": "Hours over which the nodes of a fleet spread scrub and trim, each by a delay of its own.",
        },
    },
}

SCHEMA: dict[str, Any] = {
    "type": "section",
    "rule": "sections_fit_together",
    "description": "What a node must be.",
    "keys": {
        "schema": {"type": "int", "choices": [1], "description": "Version of this schema."},
        "description": {"type": "str", "description": "One line: which nodes this profile is for."},
        "devices": {
            "type": "map",
            "pattern": "[a-z][a-z0-9_]*",
            "pattern_help": "a name in lower case, e.g. gpu",
            "rule": "pairs_name_a_device_class",
            "description": "Kinds of PCI devices by name (gpu, hca, nvswitch, ethernet, data_disk).",
            "values": _DEVICE_CLASS,
        },
        "platform": {
            "type": "section",
            "description": "The machine below the packages: system, clock, CPU, kernel, firmware settings.",
            "keys": {
                "system": {
                    "type": "section",
                    "description": "How the machine names itself (SMBIOS type 1).",
                    "keys": {
                        "manufacturer": {"type": "str", "description": "SMBIOS system manufacturer."},
                        "product": {"type": "str", "description": "SMBIOS product name."},
                    },
                },
                "clock": {
                    "type": "section",
                    "rule": "tracking_is_finer_than_stepping",
                    "description": "Time of day.",
                    "keys": {
                        "servers": {
                            "type": "list",
                            "description": "NTP servers. Site data: left empty in a profile and set by "
                            "node_profile_overrides_fleet. Must not be empty unless time_sync_manage is false.",
                            "items": {
                                "type": "section",
                                "description": "One NTP server.",
                                "keys": {
                                    "address": {
                                        "type": "str",
                                        "pattern": r"[A-Za-z0-9]([A-Za-z0-9.:_-]*[A-Za-z0-9])?",
                                        "pattern_help": "a host name or an IP address",
                                        "description": "Host name or IP address.",
                                    },
                                    "port": {
                                        "type": "int",
                                        "min": 1,
                                        "max": 65535,
                                        "optional": True,
                                        "description": "UDP port; 123 where left out.",
                                    },
                                    "options": {
                                        "type": "str",
                                        "optional": True,
                                        "pattern": r"[a-z0-9 .-]*",
                                        "pattern_help": 'chrony server options on one line, e.g. "iburst maxpoll 8"',
                                        "description": "chrony's options for this server.",
                                    },
                                },
                            },
                        },
                        "max_offset_s": {
                            "type": "number",
                            "min": 0.01,
                            "max": 300,
                            "description": "Seconds. A clock further off from the controller's is stepped before "
                            "anything that needs TLS or signed package lists.",
                        },
                        "max_tracking_offset_s": {
                            "type": "number",
                            "min": 0.0001,
                            "max": 10,
                            "description": "Seconds. The offset to its NTP servers that a node may show once it has "
                            "converged.",
                        },
                    },
                },
                "cpu": {
                    "type": "section",
                    "description": "Processors.",
                    "keys": {
                        "sockets": {"type": "int", "min": 1, "max": 8, "description": "Processors in sockets."},
                        "numa_nodes_per_socket": {
                            "type": "int",
                            "choices": [1, 2, 4],
                            "description": "NUMA nodes with CPUs for each socket: 1 = sub-NUMA clustering (SNC) off, "
                            "2 and 4 = SNC-2 and SNC-4.",
                        },
                        "governor": {
                            "type": "str",
                            "nullable": True,
                            "choices": ["performance", "powersave", "schedutil", "ondemand", "conservative"],
                            "description": "Frequency governor; null = not judged (no frequency scaling).",
                        },
                    },
                },
                "kernel": {
                    "type": "section",
                    "description": "The kernel and how it is started.",
                    "keys": {
                        "version": {
                            "type": "str",
                            "nullable": True,
                            "description": "Exact release as uname -r prints it; null = the distribution's.",
                        },
                        "arguments": {
                            "type": "list",
                            "description": "Arguments that the kernel must have been started with.",
                            "items": {
                                "type": "str",
                                "pattern": r"[^\s=]+(=\S*)?",
                                "pattern_help": "one argument without blanks, e.g. iommu=pt",
                                "description": "One argument.",
                            },
                        },
                    },
                },
                "iommu": {
                    "type": "str",
                    "choices": ["off", "passthrough", "translated"],
                    "description": "State of the IOMMU: off (none in /sys/class/iommu), passthrough (groups of type "
                    "identity) or translated.",
                },
                "acs_redirect": {
                    "type": "str",
                    "choices": ["off", "keep"],
                    "description": "PCIe ACS redirection on the bridges between paired devices: off (peer-to-peer "
                    "traffic stays below the switch), or keep as found (virtual machines need it).",
                },
                "gpu": PLATFORM_GPU,
                "gpu_peer_memory": GPU_PEER_MEMORY,
                "docker": PLATFORM_DOCKER,
                "bios": {
                    "type": "map",
                    "pattern": "[A-Za-z][A-Za-z0-9]*",
                    "pattern_help": "the name of a Redfish BIOS attribute",
                    "description": "BIOS attributes by their Redfish name. Attributes not named are not judged.",
                    "values": {"type": "str", "description": "Value as the BIOS registry spells it."},
                },
            },
        },
        "packages": {
            "type": "section",
            "description": "Versions and sources of software.",
            "keys": {
                "chrony": {
                    "type": "section",
                    "description": "The time daemon, from the distribution.",
                    "keys": {
                        "version": {
                            "type": "str",
                            "nullable": True,
                            "description": "Exact package version; null = the distribution's candidate, then held.",
                        },
                    },
                },
                "node_exporter": {
                    "type": "section",
                    "rule": "tarball_has_version_and_sha256",
                    "description": "Prometheus node exporter.",
                    "keys": {
                        "source": {
                            "type": "str",
                            "choices": ["distro", "vendor", "mirror"],
                            "description": "distro = the distribution's package, vendor = the project's release "
                            "tarball, mirror = the same tarball from a server of one's own.",
                        },
                        "version": {
                            "type": "str",
                            "nullable": True,
                            "pattern": r"\d+\.\d+\.\d+",
                            "pattern_help": 'a version of three numbers, e.g. "1.11.1"',
                            "description": "Version of the tarball (vendor and mirror); null with source distro only.",
                        },
                        "sha256": {
                            "type": "str",
                            "nullable": True,
                            "pattern": "[0-9a-f]{64}",
                            "pattern_help": "64 lower-case hexadecimal digits",
                            "description": "SHA-256 of the linux-amd64 tarball; null with source distro only.",
                        },
                        "distro_version": {
                            "type": "str",
                            "nullable": True,
                            "description": "Exact package version with source distro; null = the distribution's "
                            "candidate, then held.",
                        },
                    },
                },
                "nvidia_driver": NVIDIA_DRIVER,
                "rdma": RDMA,
                "docker": DOCKER,
                "container_toolkit": CONTAINER_TOOLKIT,
                "dcgm": DCGM,
                "dcgm_exporter": DCGM_EXPORTER,
                "zfs": {
                    "type": "section",
                    "rule": "prebuilt_modules_are_named_by_kernel",
                    "description": "OpenZFS: user land and kernel modules.",
                    "keys": {
                        "source": {
                            "type": "str",
                            "choices": ["distro", "dkms", "prebuilt"],
                            "description": "Where the kernel modules come from: distro = the distribution's kernel "
                            "packages contain them (Ubuntu), dkms = built on the node for each kernel, prebuilt = "
                            "packages of one's own in the node's apt sources.",
                        },
                        "version": {
                            "type": "str",
                            "nullable": True,
                            "description": "Exact version of package zfsutils-linux; null = the distribution's "
                            "candidate, then held.",
                        },
                        "module_package": {
                            "type": "str",
                            "nullable": True,
                            "description": "Name of the package with the modules of one kernel, {kernel} standing for "
                            "the kernel's release, e.g. zfs-modules-{kernel}. null with the other sources only.",
                        },
                    },
                },
            },
        },
        "storage": {
            "type": "section",
            "description": "The node's own disks beside the one that the system lives on.",
            "keys": {"pool": _POOL},
        },
        "firmware": {
            "type": "map",
            "pattern": "[a-z][a-z0-9_]*",
            "pattern_help": "a name in lower case, e.g. bios",
            "description": "The firmware manifest: components by name, e.g. bios, idrac, gpu_vbios, hca.",
            "values": {
                "type": "section",
                "description": "One firmware component.",
                "keys": {
                    "version": {
                        "type": "str",
                        "nullable": True,
                        "description": "Exact version of every part of this kind; null = all parts of a kind must be "
                        "equal, whichever version that is.",
                    },
                },
            },
        },
        "limits": LIMITS,
        "required_checks": {
            "type": "list",
            "description": "Health checks that must have been assessed: one of them skipped is unknown.",
            "items": {
                "type": "str",
                "pattern": _CHECK,
                "pattern_help": "the id of a check, e.g. gpu.ecc",
                "description": "One id, or a prefix of whole words: gpu stands for all gpu.* checks.",
            },
        },
        "skip_checks": {
            "type": "map",
            "optional": True,
            "pattern": rf"{_CHECK}(@\S.*)?",
            "pattern_help": "the id of a check, with @ and a pattern of components behind it if only these are meant, "
            'e.g. "pcie.link@*0000:9b:00.0*"',
            "description": "Health checks that are not judged, by id or prefix (see required_checks); behind @ a shell "
            "pattern of the components meant.",
            "values": {
                "type": "str",
                "nullable": True,
                "description": "The reason, which every report shows; null = judged after all, so that an override "
                "can take back what a wider layer skips.",
            },
        },
    },
}


# Rules that no single key can tell. Each gets the path and a section of the right type (but whose keys may still be
# wrong or missing: those are reported by themselves, so a rule says nothing about them).


def _match_rule_is_not_empty(path: str, section: dict[str, Any]) -> list[Problem]:
    if section:
        return []
    return [Problem(path, "at least one of vendor, device, class", "an empty rule", "it would match every device")]


def _pairs_name_a_device_class(path: str, section: dict[str, Any]) -> list[Problem]:
    problems = []
    for name, device in section.items():
        other = device.get("pair_with") if isinstance(device, dict) else None
        if isinstance(other, str) and (other not in section or other == name):
            others = [key for key in section if key != name]
            problems.append(
                Problem(
                    f"{path}.{name}.pair_with",
                    f"another kind of device of this profile ({', '.join(others) or 'there is none'})",
                    repr(other),
                    did_you_mean(other, others),
                )
            )
    return problems


def _tracking_is_finer_than_stepping(path: str, section: dict[str, Any]) -> list[Problem]:
    step: Any = section.get("max_offset_s")
    tracking: Any = section.get("max_tracking_offset_s")
    if _is_number(step) and _is_number(tracking) and tracking > step:
        return [
            Problem(
                f"{path}.max_tracking_offset_s",
                f"at most max_offset_s ({step})",
                str(tracking),
                "a clock within one limit and beyond the other would never be mended",
            )
        ]
    return []


def _tarball_has_version_and_sha256(path: str, section: dict[str, Any]) -> list[Problem]:
    if section.get("source") not in ("vendor", "mirror"):
        return []
    return [
        Problem(f"{path}.{key}", f"a value, since {path}.source is {section['source']}", "null")
        for key in ("version", "sha256")
        if key in section and section[key] is None
    ]


def _prebuilt_modules_are_named_by_kernel(path: str, section: dict[str, Any]) -> list[Problem]:
    name = section.get("module_package")
    if section.get("source") != "prebuilt" or (isinstance(name, str) and "{kernel}" in name):
        return []
    return [
        Problem(
            f"{path}.module_package",
            f"a package name with {{kernel}} in it, since {path}.source is prebuilt",
            _found(name),
            "each installed kernel needs modules of its own",
        )
    ]


def _size_range_is_not_empty(path: str, section: dict[str, Any]) -> list[Problem]:
    least: Any = section.get("min_gb")
    most: Any = section.get("max_gb")
    if _is_number(least) and _is_number(most) and least > most:
        return [Problem(f"{path}.min_gb", f"at most max_gb ({most})", str(least), "no disk has such a size")]
    return []


# What mount points and redundancy decide: set by the keys of their own, or fixed.
_POOL_KEYS_OF_THEIR_OWN = {
    "properties": {
        "ashift": "the key ashift",
        "cachefile": "nothing: the pool is imported at boot by its id, not from a file of names",
        "altroot": "nothing: it is for repair",
    },
    "file_system": {
        "mountpoint": "the key mountpoint",
        "canmount": "the key mountpoint",
        # zfs-import and the periodic jobs of Debian's package obey these; the role's timers replace them
        "org.debian:periodic-scrub": "the key scrub",
        "org.debian:periodic-trim": "the key trim",
    },
}


def _pool_is_one_that_zfs_takes(path: str, section: dict[str, Any]) -> list[Problem]:
    problems = _keys_of_their_own(path, section)
    places: dict[str, str] = {}
    datasets = {name: item for name, item in _dict(section, "datasets").items() if isinstance(item, dict)}
    mounts = [("mountpoint", section.get("mountpoint"))]
    mounts += [(f"datasets.{name}.mountpoint", dataset.get("mountpoint")) for name, dataset in datasets.items()]
    for where, place in mounts:
        if isinstance(place, str) and place in places:
            problems.append(Problem(f"{path}.{where}", "a place of its own", place, f"{path}.{places[place]} has it"))
        elif isinstance(place, str):
            places[place] = where
    for name in datasets:
        parent = str(name).rpartition("/")[0]
        if parent and parent not in datasets:
            problems.append(Problem(f"{path}.datasets.{name}", f"{parent} among the datasets", "no such key", "add it"))
    groups = [("file_system", _dict(section, "file_system"))]
    groups += [(f"datasets.{name}.properties", _dict(dataset, "properties")) for name, dataset in datasets.items()]
    for where, properties in groups:
        problems += _sizes(f"{path}.{where}", properties)
    return problems


def _dict(section: dict[str, Any], key: str) -> dict[str, Any]:
    value = section.get(key)
    return value if isinstance(value, dict) else {}


def _keys_of_their_own(path: str, section: dict[str, Any]) -> list[Problem]:
    """Properties that the profile sets by another key, or that the role needs for itself."""
    found = [(f"{key}.{name}", taken.get(name)) for key, taken in _POOL_KEYS_OF_THEIR_OWN.items() for name in
             _dict(section, key)]  # fmt: skip
    for name, dataset in _dict(section, "datasets").items():
        if isinstance(dataset, dict) and "mountpoint" in _dict(dataset, "properties"):
            found.append((f"datasets.{name}.properties.mountpoint", "the key mountpoint"))
    return [
        Problem(f"{path}.{where}", "a property without a key of its own", where.rpartition(".")[2], f"use {instead}")
        for where, instead in found
        if instead
    ]


def _sizes(path: str, properties: dict[str, Any]) -> list[Problem]:
    problems = []
    for name, value in properties.items():
        try:
            canonical(str(name), str(value))
        except ValueError as error:
            problems.append(Problem(f"{path}.{name}", "a value that ZFS takes", str(value), str(error)))
    return problems


def _data_disks_are_described(path: str, section: dict[str, Any]) -> list[Problem]:
    pool = _dict(_dict(section, "storage"), "pool")
    if pool.get("manage") is True and "data_disk" not in _dict(section, "devices"):
        hint = "describe the data disks, or set storage.pool.manage to false"
        return [
            Problem("devices.data_disk", "a kind of device, since storage.pool.manage is true", "no such key", hint)
        ]
    return []


def _sections_fit_together(path: str, section: dict[str, Any]) -> list[Problem]:
    return [
        *_data_disks_are_described(path, section),
        *peer_memory_has_a_driver(section),
        *containers_fit_together(section),
    ]


def _pattern_is_a_regular_expression(path: str, section: dict[str, Any]) -> list[Problem]:
    pattern = section.get("pattern")
    if not isinstance(pattern, str):
        return []
    try:
        re.compile(pattern)
    except re.error as error:
        return [Problem(f"{path}.pattern", "a regular expression", repr(pattern), str(error))]
    return []


RULES: dict[str, Callable[[str, dict[str, Any]], list[Problem]]] = {
    "pattern_is_a_regular_expression": _pattern_is_a_regular_expression,
    "match_rule_is_not_empty": _match_rule_is_not_empty,
    "pairs_name_a_device_class": _pairs_name_a_device_class,
    "tracking_is_finer_than_stepping": _tracking_is_finer_than_stepping,
    "tarball_has_version_and_sha256": _tarball_has_version_and_sha256,
    "prebuilt_modules_are_named_by_kernel": _prebuilt_modules_are_named_by_kernel,
    "size_range_is_not_empty": _size_range_is_not_empty,
    "sections_fit_together": _sections_fit_together,
    "repository_can_be_read": repository_can_be_read,
    "driver_packages_fit_together": driver_packages_fit_together,
    "rdma_packages_fit_together": rdma_packages_fit_together,
    "container_packages_have_a_source": container_packages_have_a_source,
    "exporter_can_be_run": exporter_can_be_run,
    "pool_is_one_that_zfs_takes": _pool_is_one_that_zfs_takes,
}

_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "section": ("a section of keys", (dict,)),
    "map": ("a section of keys", (dict,)),
    "list": ("a list", (list, tuple)),
    "str": ("a string", (str,)),
    "int": ("a whole number", (int,)),
    "number": ("a number", (int, float)),
    "bool": ("true or false", (bool,)),
}


def validate(profile: Any, checks: Collection[str] | None = None) -> list[Problem]:
    """All that is wrong with a profile (a merged one, as roles see it); an empty list when nothing is.

    :arg profile: the data of a profile file, deep-merged with its override layers.
    :arg checks: the ids of all health checks and their prefixes; None where nobody knows them.
    """
    problems = _check(SCHEMA, profile, "")
    if checks is not None and isinstance(profile, dict):
        problems += _unknown_checks(profile, checks)
    return problems


def _unknown_checks(profile: dict[str, Any], checks: Collection[str]) -> list[Problem]:
    required, skipped = profile.get("required_checks"), profile.get("skip_checks")
    named = []
    # what is of the wrong type is a problem already
    if isinstance(required, list):
        named += [(f"required_checks[{number}]", str(name)) for number, name in enumerate(required)]
    if isinstance(skipped, dict):
        named += [(f"skip_checks.{name}", str(name).partition("@")[0]) for name in skipped]
    return [
        Problem(where, "the id of a health check, or a prefix of one", repr(name), did_you_mean(name, sorted(checks)))
        for where, name in named
        if name not in checks
    ]


def did_you_mean(word: str, known: Any) -> str:
    """``did you mean 'x'?`` for the most similar known word; an empty string when none is near."""
    import difflib  # only a profile with a mistake needs it

    close = difflib.get_close_matches(str(word), [str(name) for name in known], n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def describe(path: str) -> dict[str, Any]:
    """The description of a key by its dotted path (list items and map entries by any name). Raises KeyError."""
    node = SCHEMA
    for part in path.split("."):
        if node["type"] == "map":
            node = node["values"]
        elif node["type"] == "list":
            node = node["items"]
        else:
            node = node["keys"][part]
    return node


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _expected(node: dict[str, Any]) -> str:
    """What a key must be, in words."""
    if "choices" in node:
        text = "one of " + ", ".join(str(choice) for choice in node["choices"])
    elif "pattern_help" in node and node["type"] == "str":
        text = node["pattern_help"]
    else:
        text = _TYPES[node["type"]][0]
        if "min" in node and "max" in node:
            text += f" from {node['min']} to {node['max']}"
        elif "min" in node:
            text += f" of at least {node['min']}"
        if node.get("min_items"):
            text += f" of at least {node['min_items']}"
    return text + (" or null" if node.get("nullable") else "")


def _found(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a section" if value else "an empty section"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    if isinstance(value, str):
        return f"the string {value!r}"
    return str(value)


def _check(node: dict[str, Any], value: Any, path: str) -> list[Problem]:
    kind = node["type"]
    if value is None and node.get("nullable"):
        return []
    wrong = Problem(path or "the profile", _expected(node), _found(value), _quoting_hint(kind, value))
    right_type = isinstance(value, _TYPES[kind][1]) and (kind == "bool" or not isinstance(value, bool))
    if not right_type:
        return [wrong]
    problems: list[Problem] = []
    if kind == "section":
        problems += _check_section(node, value, path)
    elif kind == "map":
        problems += _check_map(node, value, path)
    elif kind == "list":
        if len(value) < node.get("min_items", 0):
            return [wrong]
        for index, item in enumerate(value):
            problems += _check(node["items"], item, f"{path}[{index}]")
    elif "choices" in node:
        if value not in node["choices"]:
            return [wrong._replace(hint=did_you_mean(value, node["choices"]) if kind == "str" else "")]
    elif kind == "str":
        if not re.fullmatch(node.get("pattern", r"[^\n]*\S[^\n]*"), value):
            expected = wrong.expected if "pattern" in node else "a string that is not empty, on one line"
            return [wrong._replace(expected=expected)]
    elif _is_number(value) and not node.get("min", value) <= value <= node.get("max", value):
        return [wrong]
    if "rule" in node:
        problems += RULES[node["rule"]](path, value)
    return problems


def _check_section(node: dict[str, Any], value: dict[str, Any], path: str) -> list[Problem]:
    problems = []
    keys = node["keys"]
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in keys:
            hint = did_you_mean(key, [known for known in keys if known not in value] or keys)
            problems.append(Problem(where, "one of the keys " + ", ".join(keys), "an unknown key", hint))
        else:
            problems += _check(keys[key], item, where)
    for key, inner in keys.items():
        if key not in value and not inner.get("optional"):
            where = f"{path}.{key}" if path else key
            problems.append(Problem(where, _expected(inner), "nothing (the key is missing)"))
    return problems


def _check_map(node: dict[str, Any], value: dict[str, Any], path: str) -> list[Problem]:
    problems = []
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        if not (isinstance(key, str) and re.fullmatch(node["pattern"], key)):
            problems.append(Problem(where, node["pattern_help"], f"the key {key!r}"))
        else:
            problems += _check(node["values"], item, where)
    return problems


def _quoting_hint(kind: str, value: Any) -> str:
    """YAML reads 1.10 as a number and off as a boolean: the commonest reason for a wrong type."""
    if kind == "str" and isinstance(value, bool):
        return "YAML reads on, off, yes and no without quotes as true or false: put the value in quotes"
    if kind == "str" and _is_number(value):
        return "put the value in quotes"
    if kind in ("int", "number", "bool") and isinstance(value, str):
        return "write it without quotes (on the command line: -e with JSON, since key=value always gives strings)"
    return ""
