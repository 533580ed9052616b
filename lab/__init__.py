# SPDX-License-Identifier: Apache-2.0
"""The virtual XE9680: builds, starts, breaks and stops lab nodes (`python -m lab --help`)."""
