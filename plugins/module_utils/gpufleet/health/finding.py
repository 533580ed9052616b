# SPDX-License-Identifier: Apache-2.0
"""What a check says about one component of the node."""

from __future__ import annotations

from typing import NamedTuple

# From best to worst. `unknown` is never healthy; `skipped` says nothing about the node (unless the check is required).
STATUSES = ("skipped", "ok", "warn", "unknown", "fail")

# From mildest to hardest. A fault that comes back after its action has been carried out climbs to the next one.
ACTIONS = (
    "none",
    "observe",
    "restart_service",
    "reset_gpu",
    "reboot",
    "power_cycle",
    "reseat",
    "inspect",
    "replace",
)

# An excerpt is for a person: the lines that decided, not the whole output.
EXCERPT_CHARACTERS = 400


class Evidence(NamedTuple):
    """Where a statement comes from: the id of a probe, and the lines of its output that decided ("" = all of it)."""

    probe: str
    excerpt: str = ""


class Finding(NamedTuple):
    """One statement.

    component: "GPU 3 (0000:9b:00.0)", "pool data", "node"; the PCI address in lower case with a domain of four digits.
    status: one of STATUSES. observed, expected: in words with units ("" = nothing to say). action: one of ACTIONS.
    advice: what to do, as a sentence for the operator. reference: where the rule comes from (document, URL without
    a scheme, bug number). check: id of the check; the engine sets it.
    """

    component: str
    status: str
    observed: str
    expected: str = ""
    action: str = "none"
    advice: str = ""
    evidence: tuple[Evidence, ...] = ()
    reference: str = ""
    check: str = ""


def worst(statuses: list[str]) -> str:
    """The worst of several statuses; `unknown` for none, since nothing was shown."""
    return max(statuses, key=STATUSES.index, default="unknown")


def hardest(actions: list[str]) -> str:
    """The hardest of several actions; `none` for none."""
    return max(actions, key=ACTIONS.index, default="none")
