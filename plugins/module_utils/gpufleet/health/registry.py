# SPDX-License-Identifier: Apache-2.0
"""All probes and checks, by explicit import: Ansible ships to a node only the modules that it sees imported."""

from __future__ import annotations

from .check import Check
from .probe import Probe

PROBES: tuple[Probe, ...] = ()
CHECKS: tuple[Check, ...] = ()
