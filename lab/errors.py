# SPDX-License-Identifier: Apache-2.0
"""The one exception type that ends a lab command with a message for the operator."""


class LabError(Exception):
    """Something the operator can act on; the text says what, where and what to do next."""
