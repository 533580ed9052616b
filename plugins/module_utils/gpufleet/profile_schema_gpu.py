# SPDX-License-Identifier: Apache-2.0
"""What a profile says of the GPUs: how they are set (platform.gpu), and the limits that measured values are judged by
(limits.gpu). Format: profile_schema.py."""

from __future__ import annotations

from typing import Any


def _mode(description: str) -> dict[str, Any]:
    return {
        "type": "str",
        "nullable": True,
        "choices": ["enabled", "disabled"],
        "description": f"{description}; null = not judged.",
    }


PLATFORM_GPU: dict[str, Any] = {
    "type": "section",
    "nullable": True,
    "description": "How the GPUs are set; null = not judged.",
    "keys": {
        "ecc": _mode("Error correction of the memory, now and after the next reset"),
        "persistence": _mode("Persistence mode: the driver stays loaded without a client"),
        "compute_mode": {
            "type": "str",
            "nullable": True,
            "choices": ["Default", "Exclusive_Process", "Prohibited"],
            "description": "Who may use a GPU, as nvidia-smi spells it; null = not judged.",
        },
        "mig": _mode("Multi-instance GPU, now and after the next reset"),
        "confidential_compute": _mode("Confidential computing"),
        "power_limit_w": {
            "type": "number",
            "nullable": True,
            "min": 50,
            "max": 2000,
            "description": "Power limit in W; null = the board's default.",
        },
    },
}


def _count(description: str) -> dict[str, Any]:
    return {"type": "int", "nullable": True, "min": 0, "description": f"{description}; null = default of the model."}


def _number(description: str, low: float, high: float) -> dict[str, Any]:
    return {
        "type": "number",
        "nullable": True,
        "min": low,
        "max": high,
        "description": f"{description}; null = default of the model.",
    }


# The defaults are data of health/gpu_models.py.
LIMITS_GPU: dict[str, Any] = {
    "type": "section",
    "nullable": True,
    "description": "For each GPU; null = the node has none.",
    "keys": {
        "memory_mib": {
            "type": "int",
            "nullable": True,
            "min": 1,
            "description": "Memory as nvidia-smi reports it, MiB; null = default of the model.",
        },
        "nvlink_links": {
            "type": "int",
            "nullable": True,
            "min": 0,
            "max": 64,
            "description": "Active NVLink links; null = default of the model.",
        },
        "nvlink_link_gbytes_per_s": _number("Speed of one link as the driver reports it, GB/s", 0, 1000),
        "uncorrectable_remapped_rows": {
            "type": "int",
            "nullable": True,
            "min": 0,
            "max": 512,
            "description": "Rows remapped for uncorrectable errors from which on the GPU is replaced; null = default "
            "of the model.",
        },
        "correctable_sram_errors": _count("Corrected SRAM errors since the driver was loaded that are too many"),
        "correctable_dram_errors": _count("Corrected DRAM errors since the driver was loaded that are too many"),
        "retired_pages": _count("Retired pages (GPUs before Ampere) from which on the GPU is replaced"),
        "temperature_c": _number("Degrees Celsius from which on the GPU is too hot", 20, 120),
        "memory_temperature_c": _number("Degrees Celsius from which on the GPU's memory is too hot", 20, 120),
        "temperature_margin_c": _number("Degrees below the slowdown limit that must be left", 0, 60),
        "temperature_above_peers_c": _number("Degrees by which a GPU may be hotter than the others", 1, 100),
        "busy_utilization_percent": _number("Utilization from which on a GPU counts as busy, percent", 1, 100),
        "busy_sm_clock_mhz": _count("SM clock in MHz below which a busy GPU is stuck"),
        "idle_memory_mib": _count("Memory in MiB that may be in use without a process"),
        "pcie_replays": _count("PCIe replays since the reset that are too many"),
    },
}
