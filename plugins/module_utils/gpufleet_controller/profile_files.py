# SPDX-License-Identifier: Apache-2.0
"""Profiles as files: finds and reads ``profiles/<name>.yml``, each file once per process."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.gpufleet.profile_schema import did_you_mean

from .profile_merge import ProfileError

# The repository's own folder: plugins/module_utils/gpufleet_controller/ is three below its root.
DEFAULT_DIR = str(Path(__file__).resolve().parents[3] / "profiles")

# libyaml where PyYAML was built with it: ten times faster.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):
    """A YAML loader that refuses a key given twice: YAML itself would silently keep the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _value in node.value:
            key = self.construct_object(key_node, deep=deep)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise ProfileError(f"{node.start_mark.name} line {line}: the key {key!r} is there twice")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def profile_names(directory: str) -> list[str]:
    """The names of the profiles in a directory, sorted; none when there is no such directory."""
    try:
        files = os.listdir(directory)
    except OSError:
        return []
    return sorted(name[: -len(".yml")] for name in files if name.endswith(".yml"))


@cache
def load_profile(directory: str, name: Any) -> dict[str, Any]:
    """The data of ``<directory>/<name>.yml`` (shared: do not change it).

    :raises ProfileError: no such profile, or the file is not a YAML mapping.
    """
    known = profile_names(directory)
    if name not in known:
        there = f"profiles in {directory}: {', '.join(known)}" if known else f"there are no profiles in {directory}"
        hint = did_you_mean(name, known)
        raise ProfileError(
            f"node_profile is {name!r}, but there is no such profile; {there}" + f"; {hint}" * bool(hint)
        )
    path = os.path.join(directory, f"{name}.yml")
    try:
        with open(path, encoding="utf-8") as file:
            data = yaml.load(file, Loader=_StrictLoader)  # noqa: S506 - derived from the safe loader
    except (OSError, yaml.YAMLError) as error:
        raise ProfileError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ProfileError(f"{path} must be a YAML mapping, found {type(data).__name__}")
    return data
