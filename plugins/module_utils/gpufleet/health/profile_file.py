# SPDX-License-Identifier: Apache-2.0
"""Read a profile on a node, where only the standard library is sure to be there: JSON, or YAML where PyYAML is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class ProfileFileError(Exception):
    """A profile that cannot be read; the message says where and why."""


def read_profile(path: str) -> Mapping[str, Any]:
    """The data of a profile file, not yet validated. Raises ProfileFileError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileFileError(f"profile {path} cannot be read: {error}") from error
    return parse_profile(text, f"profile {path}")


def parse_profile(text: str, name: str) -> Mapping[str, Any]:
    """The data of a profile. name: how messages call it. Raises ProfileFileError."""
    try:
        data = json.loads(text)
    except ValueError as error:
        data = _yaml(text, name, error)
    if not isinstance(data, dict):
        raise ProfileFileError(f"{name} must be a mapping of sections, found {type(data).__name__}")
    return data


def _yaml(text: str, name: str, json_error: ValueError) -> Any:
    try:
        import yaml
    except ImportError:
        raise ProfileFileError(
            f"{name} is no JSON ({json_error}), and PyYAML is not installed here. Build the program with the profile "
            "in it (make node-health PROFILE=...), or convert the file to JSON"
        ) from json_error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ProfileFileError(f"{name} is neither JSON nor YAML: {' '.join(str(error).split())}") from error
