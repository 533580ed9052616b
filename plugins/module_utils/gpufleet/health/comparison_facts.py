# SPDX-License-Identifier: Apache-2.0
"""What should be equal on all nodes of a fleet, also where the profile says nothing of it."""

from __future__ import annotations

from typing import Any

from .check import Profile
from .node_evidence import NodeEvidence


def comparison(evidence: NodeEvidence, profile: Profile) -> dict[str, Any]:
    """kind: nodes of one kind are compared with each other (the profile's description). values: text by name."""
    return {"kind": str(profile.get("description", "")), "values": {}}
