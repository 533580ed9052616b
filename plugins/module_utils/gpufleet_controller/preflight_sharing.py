# SPDX-License-Identifier: Apache-2.0
"""Tells which hosts need not be evaluated one by one: most nodes of a fleet have the same variables.

Two hosts with the same signature get the same values from their templates, so preflight judges one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

# Reach variables by other ways than by their name in the text, or give another result each time.
OPAQUE = frozenset({"lookup", "query", "q", "hostvars", "vars", "now", "random", "shuffle"})
# These lookups give every host the same: they read nothing but what their text names.
_ALIKE_LOOKUP = re.compile(r"\b(?:lookup|query|q)\(\s*(['\"])(?:ansible\.builtin\.)?(?:env|file)\1")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@cache
def identifiers(text: str) -> frozenset[str]:
    """Every name in an expression or template; too many rather than too few (attributes and strings count too)."""
    return frozenset(_IDENTIFIER.findall(_ALIKE_LOOKUP.sub("", text)))


def signature(
    variables: Mapping[str, Any], names: Iterable[str], known_templates: Mapping[str, Iterable[str]]
) -> str | None:
    """What the values of the named variables depend on, as one text; None where a template is opaque.

    :arg variables: all variables of a host, untemplated.
    :arg names: the variables wanted; those that the host does not have are skipped.
    :arg known_templates: {template that is opaque by its text: names of the variables that it reads}.
    """
    used: dict[str, str] = {}
    pending = [name for name in names if name in variables]
    while pending:
        name = pending.pop()
        if name in used:
            continue
        value = variables[name]
        used[name] = repr(value)
        for text in _templates(value):
            found = known_templates.get(text)
            if found is None:
                found = identifiers(text)
                if found & OPAQUE:
                    return None
            pending += [other for other in found if other in variables and other not in used]
    return repr(sorted(used.items()))


def _templates(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        if "{{" in value or "{%" in value:
            yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _templates(key)
            yield from _templates(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _templates(item)
