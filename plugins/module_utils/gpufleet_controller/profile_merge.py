# SPDX-License-Identifier: Apache-2.0
"""The merge of a profile with a site's override layers: pure functions, no files, no Ansible.

Ansible replaces a dict variable by one of higher precedence instead of merging the two, so each layer has a variable
of its own name: ``node_profile_overrides_fleet``, ``..._group``, ``..._host`` (``node_profile_layers`` names them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils.gpufleet.profile_schema import did_you_mean

OVERRIDES_PREFIX = "node_profile_overrides_"
DEFAULT_LAYERS = ("fleet", "group", "host")


class ProfileError(Exception):
    """A profile cannot be put together; the message names the variable or file and what to do."""


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """A new dict: dicts are merged key by key, anything else (lists too, and null) replaces what was there."""
    merged = dict(base)
    for key, value in override.items():
        there = merged.get(key)
        if isinstance(there, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(there, value)
        else:
            merged[key] = value
    return merged


def merge_layers(base: Mapping[str, Any], layers: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The profile with all layers merged over it, in their order.

    :arg layers: (name of the variable, its value); None as a value = the layer is empty.
    :raises ProfileError: a layer is not a dict.
    """
    merged = dict(base)
    for variable, value in layers:
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise ProfileError(
                f"{variable} must be a section of profile keys such as {{platform: {{clock: ...}}}}, "
                f"found {type(value).__name__} {value!r}"
            )
        merged = merge(merged, value)
    return merged


def layer_variables(layers: Any) -> list[str]:
    """The names of the override variables in the order in which they are merged.

    :arg layers: the value of ``node_profile_layers``.
    :raises ProfileError: it is not a list of names.
    """
    named = isinstance(layers, (list, tuple)) and all(isinstance(name, str) and name.isidentifier() for name in layers)
    if not named or len(set(layers)) != len(layers):
        raise ProfileError(
            f"node_profile_layers must be a list of different names such as {list(DEFAULT_LAYERS)}, found {layers!r}"
        )
    return [OVERRIDES_PREFIX + name for name in layers]


def unknown_layers(variables: Iterable[str], layers: list[str]) -> dict[str, str]:
    """Override variables that no layer reads: {variable: "did you mean ...?" or ""}.

    :arg variables: names of all variables of a host.
    :arg layers: what ``layer_variables`` gave.
    """
    return {
        name: did_you_mean(name, layers)
        for name in sorted(variables)
        if name.startswith(OVERRIDES_PREFIX) and name not in layers
    }
