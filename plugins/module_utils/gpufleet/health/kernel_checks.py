# SPDX-License-Identifier: Apache-2.0
"""All checks of the kernel log, and the probes that they read."""

from __future__ import annotations

from .check import Check
from .kernel_device_checks import CHECKS as OF_DEVICES
from .kernel_log_window import PROBES as OF_THE_LOG
from .kernel_sxid_checks import CHECKS as OF_SWITCHES
from .kernel_system_checks import CHECKS as OF_THE_SYSTEM
from .kernel_xid_checks import CHECKS as OF_GPUS
from .probe import Probe

PROBES: tuple[Probe, ...] = OF_THE_LOG
CHECKS: tuple[Check, ...] = (*OF_GPUS, *OF_SWITCHES, *OF_DEVICES, *OF_THE_SYSTEM)
