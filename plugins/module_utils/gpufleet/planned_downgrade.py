# SPDX-License-Identifier: Apache-2.0
"""Whether a stack may go back to an older version: only to the one that the profile names, so that nobody does by
mistake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def goes_back(
    wanted: Mapping[str, Any], error: Callable[[str, str], Exception], what: str, key: str, variable: str
) -> bool:
    """Whether `downgrade_to` of a module's parameters is set; it must be their `version`, or the error is raised.

    :arg error: makes the exception from its message and the next step.
    :arg what: the stack in words, e.g. the driver.
    :arg key: the profile's key of the version; `variable` is the role's variable of the downgrade.
    """
    if wanted["downgrade_to"] is None:
        return False
    if wanted["downgrade_to"] != wanted["version"]:
        raise error(
            f"{what} may go back to {wanted['downgrade_to']}, but the profile wants "
            f"{wanted['version'] or 'no version'}. Nothing was changed",
            f"name the same version in {key} and {variable}",
        )
    return True
