# SPDX-License-Identifier: Apache-2.0
"""The section `limits` of a profile: numbers that measured values are judged by (format: profile_schema.py)."""

from __future__ import annotations

from typing import Any

from .profile_schema_gpu import LIMITS_GPU
from .profile_schema_kernel_log import LIMITS_KERNEL_LOG

LIMITS: dict[str, Any] = {
    "type": "section",
    "description": "Numbers that measured values are judged by.",
    "keys": {
        "gpu": LIMITS_GPU,
        "nvlink": {
            "type": "section",
            "nullable": True,
            "description": "For each NVLink; null = the node has none.",
            "keys": {
                "max_errors_per_link": {
                    "type": "int",
                    "min": 1,
                    "description": "Errors of one kind on one link since the driver was loaded above which the GPU is "
                    "taken out of service; fewer are a warning.",
                },
            },
        },
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
        "kernel_log": LIMITS_KERNEL_LOG,
        "file_system_used_percent": {
            "type": "int",
            "min": 1,
            "max": 100,
            "description": "Use of a file system, in percent, from which on it counts as full.",
        },
    },
}
