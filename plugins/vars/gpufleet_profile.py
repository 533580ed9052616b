# SPDX-License-Identifier: Apache-2.0
"""Vars plugin: gives every host the variable ``profile``, at no task of its own."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpufleet_profile
author: The gpufleet authors
version_added: "2.21"
short_description: The variable profile for every host
description:
  - Gives the group C(all) one variable, C(profile), a template that calls the lookup C(gpufleet_profile). It is
    evaluated where a play uses it, for the host at hand, so it costs no task.
requirements:
  - Enabled in C(ansible.cfg), C(vars_plugins_enabled).
options:
  stage:
    description: Templates cost nothing until they are used, so both stages get it.
    default: all
    choices: [all, inventory, task]
    type: str
    ini:
      - section: vars_gpufleet_profile
        key: stage
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.inventory.group import Group
from ansible.plugins.loader import lookup_loader
from ansible.plugins.vars import BaseVarsPlugin

_OWN = str(Path(__file__).resolve().parents[1] / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)

from ansible.module_utils.gpufleet_controller.profile_files import DEFAULT_DIR, load_profile, profile_names
from ansible.module_utils.gpufleet_controller.profile_merge import ProfileError

try:
    from ansible.template import trust_as_template
except ImportError:  # ansible-core before 2.19, which trusts any string; preflight then refuses its version

    def trust_as_template(value: str) -> str:
        return value


PROFILE_TEMPLATE = "{{ lookup('gpufleet_profile') }}"


class VarsModule(BaseVarsPlugin):
    """One variable for the group ``all``, wherever Ansible looks for group variables."""

    REQUIRES_ENABLED = True
    is_stateless = True

    def __init__(self) -> None:
        super().__init__()
        # Each host-task runs in a fork of this process: what is imported and read here, no fork does again.
        lookup_loader.get("gpufleet_profile", class_only=True)
        for name in profile_names(DEFAULT_DIR):
            with suppress(ProfileError):  # told where the profile is used
                load_profile(DEFAULT_DIR, name)

    def get_vars(self, loader: Any, path: str, entities: Any, cache: bool = True) -> dict[str, Any]:
        """``profile`` for the group all, nothing for any other group or host."""
        entities = entities if isinstance(entities, list) else [entities]
        if any(isinstance(entity, Group) and entity.name == "all" for entity in entities):
            return {"profile": trust_as_template(PROFILE_TEMPLATE)}
        return {}
