# SPDX-License-Identifier: Apache-2.0
"""What a proposed profile says of containers and DCGM: how the node's engine runs, and that all is left alone."""

from __future__ import annotations

import re
from typing import Any

from .dcgm_checks import HEALTH
from .docker_engine import ENGINE, Engine
from .node_evidence import NodeEvidence
from .probe import NoEvidence

# Of other sources and versions than the node's nothing is known: whoever wants them managed names them.
_PACKAGE = {"manage": False, "version": None, "repository": None}


def container_packages(evidence: NodeEvidence) -> dict[str, Any]:
    """packages.docker, container_toolkit, dcgm and dcgm_exporter."""
    try:
        watches = sorted(evidence.facts(HEALTH).watches)
    except NoEvidence:
        watches = []
    return {
        "docker": {**_PACKAGE, "source": "distro"},
        "container_toolkit": {**_PACKAGE, "source": "vendor"},
        "dcgm": {**_PACKAGE, "source": "vendor", "cuda_major": None, "watches": watches},
        "dcgm_exporter": {
            "manage": False,
            "run_as": "service",
            "version": None,
            "image": None,
            "profiling_metrics": False,
        },
    }


def docker_platform(evidence: NodeEvidence) -> dict[str, Any]:
    """platform.docker: as the node's engine runs, else what the shipped profiles have."""
    wanted: dict[str, Any] = {
        "storage_driver": None,
        "data_root": "/var/lib/docker",
        "live_restore": True,
        "log_max_size": "100m",
        "log_max_files": 5,
        "cgroup_version": None,
        "default_runtime": "runc",
    }
    try:
        engine = evidence.facts(ENGINE)
    except NoEvidence:
        return wanted
    if not isinstance(engine, Engine):
        return wanted
    wanted["live_restore"], wanted["data_root"] = engine.live_restore, engine.data_root
    if engine.storage_driver in ("overlay2", "zfs"):
        wanted["storage_driver"] = engine.storage_driver
    if engine.cgroup_version in ("1", "2"):
        wanted["cgroup_version"] = int(engine.cgroup_version)
    size, files = engine.log_options.get("max-size", ""), engine.log_options.get("max-file", "")
    if re.fullmatch(r"[1-9]\d*[kmg]", size):
        wanted["log_max_size"] = size
    if re.fullmatch(r"[1-9]\d{0,2}", files):
        wanted["log_max_files"] = int(files)
    return wanted
