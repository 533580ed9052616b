# SPDX-License-Identifier: Apache-2.0
"""What a profile says of containers and of what watches the GPUs: the engine (packages.docker, platform.docker), the
toolkit (packages.container_toolkit), DCGM and its exporter (packages.dcgm, packages.dcgm_exporter). Format:
profile_schema.py."""

from __future__ import annotations

from typing import Any

from .profile_problem import Problem
from .profile_schema_gpu_stack import repository, source_and_repository

_CUDA_REPOSITORY = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/"

_MANAGE = {
    "type": "bool",
    "description": "False: it is somebody else's or not there; nothing is installed, and nothing of it is judged.",
}

_VERSION = {
    "type": "str",
    "nullable": True,
    "pattern": r"\d[A-Za-z0-9.+~]*",
    "pattern_help": "a version without epoch and package revision, in quotes",
}


def _source(vendor: str, *more: str) -> dict[str, Any]:
    described = {"distro": "distro = Debian's or Ubuntu's packages"}
    return {
        "type": "str",
        "choices": ["vendor", "mirror", *more],
        "description": "; ".join(
            [f"vendor = {vendor}, mirror = the same packages from a server of one's own", *(described[x] for x in more)]
        )
        + ".",
    }


DOCKER: dict[str, Any] = {
    "type": "section",
    "rule": "container_packages_have_a_source",
    "description": "The container engine.",
    "keys": {
        "manage": _MANAGE,
        "source": _source("Docker's own repository (docker-ce)", "distro"),
        "version": {
            **_VERSION,
            "description": 'Exact version of the engine, e.g. "28.3.3"; null = not judged: what is installed is kept, '
            "else the newest is installed, then held.",
        },
        "repository": repository("Docker", "https://download.docker.com/linux/ubuntu"),
    },
}

CONTAINER_TOOLKIT: dict[str, Any] = {
    "type": "section",
    "rule": "container_packages_have_a_source",
    "description": "NVIDIA Container Toolkit: GPUs in containers.",
    "keys": {
        "manage": _MANAGE,
        "source": _source("NVIDIA's repository of the toolkit"),
        "version": {
            **_VERSION,
            "description": 'Exact version of all four packages, e.g. "1.17.8"; null = not judged: what is installed is '
            "kept, else the newest is installed, then held.",
        },
        "repository": repository("the toolkit", "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"),
    },
}

DCGM: dict[str, Any] = {
    "type": "section",
    "rule": "container_packages_have_a_source",
    "description": "NVIDIA Data Center GPU Manager, release 4 or later: host engine and diagnostics.",
    "keys": {
        "manage": _MANAGE,
        "source": _source("NVIDIA's CUDA network repository"),
        "version": {
            **_VERSION,
            "pattern": r"[4-9]\.\d+\.\d+",
            "pattern_help": 'a version of three numbers from release 4 on, in quotes, e.g. "4.2.3"',
            "description": "Exact version; null = not judged: what is installed is kept, else the newest is installed, "
            "then held.",
        },
        "cuda_major": {
            "type": "int",
            "nullable": True,
            "min": 11,
            "max": 99,
            "description": "Major version of CUDA that the packages are for (datacenter-gpu-manager-4-cuda12); null = "
            "what the driver on the node supports.",
        },
        "watches": {
            "type": "list",
            "description": "What the host engine watches all the time (dcgmi health). Empty = nothing.",
            "items": {
                "type": "str",
                "choices": ["pcie", "memory", "inforom", "thermal", "nvlink"],
                "description": "One subsystem.",
            },
        },
        "repository": repository("DCGM", _CUDA_REPOSITORY),
    },
}

DCGM_EXPORTER: dict[str, Any] = {
    "type": "section",
    "rule": "exporter_can_be_run",
    "description": "DCGM exporter: the GPUs' metrics for Prometheus. The package comes from packages.dcgm.repository.",
    "keys": {
        "manage": _MANAGE,
        "run_as": {
            "type": "str",
            "choices": ["service", "container"],
            "description": "service = NVIDIA's package under systemd, container = an image under Docker.",
        },
        "version": {
            **_VERSION,
            "description": 'Exact version of the package, e.g. "4.1.3"; null = not judged: what is installed is kept, '
            "else the newest is installed, then held. null with run_as container, where the image says it.",
        },
        "image": {
            "type": "str",
            "nullable": True,
            "pattern": r"[a-z0-9][A-Za-z0-9._/:-]*(:[A-Za-z0-9_][A-Za-z0-9._-]*|@sha256:[0-9a-f]{64})",
            "pattern_help": "an image with a tag or a digest, e.g. "
            "nvcr.io/nvidia/k8s/dcgm-exporter:4.2.3-4.1.3-ubuntu22.04",
            "description": "Image with run_as container; null with run_as service.",
        },
        "profiling_metrics": {
            "type": "bool",
            "description": "True: also the profiling metrics (DCGM_FI_PROF_*). They take the GPUs' performance "
            "counters, which a profiler in a job then cannot have.",
        },
    },
}

PLATFORM_DOCKER: dict[str, Any] = {
    "type": "section",
    "description": "How the container engine runs.",
    "keys": {
        "storage_driver": {
            "type": "str",
            "nullable": True,
            "choices": ["overlay2", "zfs"],
            "description": "Where images and containers lie: overlay2, or file systems of the pool (zfs; the data root "
            "must lie on ZFS); null = the engine's own choice, not judged.",
        },
        "data_root": {
            "type": "str",
            "pattern": r"/[^\s]*[^\s/]",
            "pattern_help": "an absolute path without blanks that does not end in /",
            "description": "Folder of images and containers, e.g. /var/lib/docker.",
        },
        "live_restore": {
            "type": "bool",
            "description": "True: containers go on while the engine restarts.",
        },
        "log_max_size": {
            "type": "str",
            "pattern": r"[1-9]\d*[kmg]",
            "pattern_help": "a size with its unit, e.g. 100m",
            "description": "Greatest size of one log file of a container.",
        },
        "log_max_files": {"type": "int", "min": 1, "max": 1000, "description": "Log files kept for each container."},
        "cgroup_version": {
            "type": "int",
            "nullable": True,
            "choices": [1, 2],
            "description": "Version of the kernel's control groups; null = not judged.",
        },
        "default_runtime": {
            "type": "str",
            "choices": ["runc", "nvidia"],
            "description": "Runtime of containers that ask for none. nvidia: they see the GPUs that "
            "NVIDIA_VISIBLE_DEVICES of their image names.",
        },
    },
}


def container_packages_have_a_source(path: str, section: dict[str, Any]) -> list[Problem]:
    """Source and repository name one installation."""
    return source_and_repository(path, section)


def exporter_can_be_run(path: str, section: dict[str, Any]) -> list[Problem]:
    """An image for a container, none for a service; the image says its version itself."""
    way, image, version = (section.get(key, "") for key in ("run_as", "image", "version"))
    if way == "container" and image is None and section.get("manage") is True:
        hint = "name it with the registry that your nodes reach"
        return [Problem(f"{path}.image", f"an image, since {path}.run_as is container", "null", hint)]
    if way == "container" and isinstance(version, str) and version:
        hint = f"the tag of {path}.image says the version"
        return [Problem(f"{path}.version", f"null, since {path}.run_as is container", version, hint)]
    if way == "service" and isinstance(image, str) and image:
        return [Problem(f"{path}.image", f"null, since {path}.run_as is service", image)]
    return []


def containers_fit_together(profile: dict[str, Any]) -> list[Problem]:
    """What runs in, or beside, something else needs that to be there."""
    packages, platform = profile.get("packages"), profile.get("platform")
    if not isinstance(packages, dict) or not isinstance(platform, dict):
        return []

    def managed(name: str) -> bool:
        section = packages.get(name)
        return isinstance(section, dict) and section.get("manage") is True

    def absent(name: str) -> bool:
        section = packages.get(name)
        return isinstance(section, dict) and section.get("manage") is False

    problems = []
    docker = platform.get("docker")
    if isinstance(docker, dict) and docker.get("default_runtime") == "nvidia" and absent("container_toolkit"):
        problems.append(
            Problem(
                "platform.docker.default_runtime",
                "runc, since packages.container_toolkit.manage is false",
                "nvidia",
                "only the toolkit brings the runtime nvidia",
            )
        )
    exporter = packages.get("dcgm_exporter")
    if managed("dcgm_exporter") and isinstance(exporter, dict):
        in_container = exporter.get("run_as") == "container"
        needed = ("docker", "container_toolkit") if in_container else ("dcgm",)
        problems += [
            Problem(
                "packages.dcgm_exporter.manage",
                f"false, since packages.{name}.manage is false",
                "true",
                f"packages.dcgm_exporter.run_as {exporter.get('run_as')} needs packages.{name}",
            )
            for name in needed
            if absent(name)
        ]
    return problems
