# SPDX-License-Identifier: Apache-2.0
"""Lookup: the profile of the host at hand, merged with the site's override layers."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpufleet_profile
author: The gpufleet authors
short_description: The profile of a node, merged with the inventory's override layers
description:
  - Reads C(profiles/<node_profile>.yml) and merges the variables C(node_profile_overrides_<layer>) over it, in the
    order of C(node_profile_layers). Dicts are merged key by key, lists are replaced.
  - Plays do not call it. They use the variable C(profile), which the vars plugin C(gpufleet_profile) gives every
    host and which holds this lookup.
  - It does not check the profile against the schema. The role C(preflight) does, for all hosts at once.
options:
  node_profile:
    description: Name of the profile. A variable of the host, not an argument.
    type: str
    required: true
    vars:
      - name: node_profile
  node_profile_dir:
    description: Folder of the profiles; the repository's C(profiles/) where it is not set.
    type: path
    vars:
      - name: node_profile_dir
  node_profile_layers:
    description: Names of the layers, the last one wins.
    type: list
    elements: str
    default: [fleet, group, host]
    vars:
      - name: node_profile_layers
"""

EXAMPLES = r"""
- name: Show how many GPUs the profile of this node asks for
  ansible.builtin.debug:
    msg: "{{ profile.devices.gpu.count }}"
"""

RETURN = r"""
_raw:
  description: A list of one dict, the merged profile.
  type: list
  elements: dict
"""

from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

_OWN = str(Path(__file__).resolve().parents[1] / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)

from ansible.module_utils.gpufleet_controller.profile_files import DEFAULT_DIR, load_profile
from ansible.module_utils.gpufleet_controller.profile_merge import (
    DEFAULT_LAYERS,
    ProfileError,
    layer_variables,
    merge_layers,
)


class LookupModule(LookupBase):
    """``lookup('gpufleet_profile')``: no terms, everything comes from the variables of the host."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[dict[str, Any]]:
        """:raises AnsibleError: the profile is not set, does not exist or a layer is no dict."""
        variables = variables or {}
        host = variables.get("inventory_hostname", "this host")

        def value(name: str, default: Any = None) -> Any:
            return self._templar.template(variables[name]) if name in variables else default

        try:
            name = value("node_profile")
            if name is None:
                raise ProfileError("the variable node_profile is not set; set it in the inventory, e.g. for gpu_nodes")
            layers = layer_variables(value("node_profile_layers", DEFAULT_LAYERS))
            base = load_profile(value("node_profile_dir", DEFAULT_DIR), name)
            return [merge_layers(base, [(layer, value(layer)) for layer in layers])]
        except ProfileError as error:
            raise AnsibleError(f"No profile for {host}: {error}") from error
