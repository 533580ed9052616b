# SPDX-License-Identifier: Apache-2.0
"""What is said where a reboot did not serve its purpose, right after it and in every later run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def reason_still_stands(stuck: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Keys of a failed result for the reasons (name, reason, why) that stand after a reboot."""
    parts = "; ".join(f"{one['reason']} ({one['why']})" for one in stuck)
    records = " ".join(f"/var/lib/gpufleet/reboot/{one['name']}.json" for one in stuck)
    return {
        "failed": True,
        "msg": f"the node was rebooted, and what it was rebooted for still stands: {parts}. It is not rebooted again.",
        "next_step": f"mend the cause by hand; to allow another reboot for this reason, remove {records} on the node",
    }
