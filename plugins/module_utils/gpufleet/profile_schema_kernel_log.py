# SPDX-License-Identifier: Apache-2.0
"""The section `limits.kernel_log` of a profile: how kernel messages are judged (format: profile_schema.py)."""

from __future__ import annotations

from typing import Any


def _many(description: str) -> dict[str, Any]:
    return {
        "type": "section",
        "description": description,
        "keys": {
            "count": {"type": "int", "min": 1, "description": "From so many on it is a warning."},
            "within_h": {"type": "number", "min": 0.1, "description": "Counted over this time, in hours."},
        },
    }


LIMITS_KERNEL_LOG: dict[str, Any] = {
    "type": "section",
    "description": "For the checks kernel.*, which judge what the kernel has logged since the boot.",
    "keys": {
        "known_messages": {
            "type": "list",
            "description": "Messages that are known here and no cause for a warning of kernel.unknown_messages or "
            "kernel.mlx5; a fault (fail) is never left out.",
            "items": {
                "type": "section",
                "description": "One kind of message.",
                "rule": "pattern_is_a_regular_expression",
                "keys": {
                    "pattern": {"type": "str", "description": "Regular expression, found anywhere in the message."},
                    "reason": {"type": "str", "description": "Why it is harmless here, and who says so."},
                },
            },
        },
        "max_unknown_messages_shown": {
            "type": "int",
            "min": 1,
            "max": 100,
            "description": "So many kinds of unknown messages are shown; the others are counted.",
        },
        "max_age_h": {
            "type": "number",
            "nullable": True,
            "min": 1,
            "description": "Warnings older than this many hours count no more; null = all since the boot do. A fault "
            "that needs a reset, a reboot or a part counts until the node has been booted.",
        },
        "repeated_fault": {
            "type": "section",
            "description": "When Xid 13 and 31, nearly always faults of a program, point to the hardware: faults of "
            "several jobs on the same unit of a GPU.",
            "keys": {
                "jobs": {"type": "int", "min": 2, "description": "So many jobs were hit on one unit."},
                "within_h": {"type": "number", "min": 0.1, "description": "Counted over this time, in hours."},
                "max_units_per_job": {
                    "type": "int",
                    "min": 1,
                    "description": "A job whose faults name more units than this hit all of them by its own fault: it "
                    "does not count.",
                },
                "job_gap_s": {
                    "type": "number",
                    "min": 1,
                    "description": "Faults further apart than this, in seconds, belong to different jobs.",
                },
            },
        },
        "stopped_channels": {
            "type": "section",
            "description": "A burst of Xid 45 followed by hung tasks: the driver is stuck, only a reboot helps.",
            "keys": {
                "count": {"type": "int", "min": 1, "description": "So many Xid 45 on one GPU are a burst."},
                "hung_task_within_s": {
                    "type": "number",
                    "min": 1,
                    "description": "A task reported as hung within this many seconds belongs to it.",
                },
            },
        },
        "start_up_s": {
            "type": "number",
            "min": 0,
            "description": "SXid 22013 is no fault within this many seconds of the boot or of loading the driver.",
        },
        "standstills": {
            "type": "section",
            "description": "Hung tasks, lockups and RCU stalls: few are a warning, with many the node must not train.",
            "keys": {
                "count": {"type": "int", "min": 1, "description": "From so many on the node must not train."},
                "apart_s": {
                    "type": "number",
                    "min": 1,
                    "description": "Messages within this many seconds count as one standstill.",
                },
            },
        },
        "corrected_memory_errors": _many("Corrected errors that EDAC reports for one memory module."),
        "corrected_pcie_errors": _many("Corrected errors that AER reports for one PCIe device."),
    },
}
