# SPDX-License-Identifier: Apache-2.0
"""The section `limits` of a profile: numbers that measured values are judged by (format: profile_schema.py)."""

from __future__ import annotations

from typing import Any

_GPU: dict[str, Any] = {
    "type": "section",
    "nullable": True,
    "description": "For each GPU; null = the node has none.",
    "keys": {
        "memory_mib": {"type": "int", "min": 1, "description": "Memory as nvidia-smi reports it, MiB."},
        "nvlink_links": {"type": "int", "min": 0, "max": 64, "description": "Active NVLink links."},
        "nvlink_link_gbytes_per_s": {
            "type": "number",
            "min": 0,
            "description": "Speed of one link as the driver reports it, GB/s.",
        },
        "uncorrectable_remapped_rows": {
            "type": "int",
            "min": 0,
            "max": 512,
            "description": "Rows remapped for uncorrectable errors above which the GPU is replaced.",
        },
    },
}

LIMITS: dict[str, Any] = {
    "type": "section",
    "description": "Numbers that measured values are judged by.",
    "keys": {
        "gpu": _GPU,
        "infiniband": {
            "type": "section",
            "nullable": True,
            "description": "For each InfiniBand port; null = the node has none.",
            "keys": {
                "rate_gbit_per_s": {
                    "type": "int",
                    "choices": [40, 56, 100, 200, 400, 800],
                    "description": "Rate as ibstat reports it, Gb/s.",
                },
            },
        },
        "file_system_used_percent": {
            "type": "int",
            "min": 1,
            "max": 100,
            "description": "Use of a file system, in percent, from which on it counts as full.",
        },
    },
}
