# SPDX-License-Identifier: Apache-2.0
"""Action plugin: checks controller, inventory, profiles and role variables of all hosts, in one task for all of them.

It runs on the controller only and touches no node. What is judged, and how, is in
plugins/module_utils/gpufleet_controller/preflight_*.py; this file gathers the values.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible import __version__ as core_version
from ansible import constants as C
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.template import Templar

_OWN = str(Path(__file__).resolve().parents[1] / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)

from ansible.module_utils.gpufleet_controller import (
    preflight_controller,
    preflight_inventory,
    preflight_profiles,
    preflight_roles,
)
from ansible.module_utils.gpufleet_controller.preflight_findings import Finding, Findings
from ansible.module_utils.gpufleet_controller.profile_files import DEFAULT_DIR
from ansible.module_utils.gpufleet_controller.profile_merge import DEFAULT_LAYERS, ProfileError, layer_variables

# What plugins/vars/gpufleet_profile.py gives every host.
PROFILE_TEMPLATE = "{{ lookup('gpufleet_profile') }}"


class ActionModule(ActionBase):
    """``gpufleet_preflight``: no arguments, one result for all hosts."""

    TRANSFERS_FILES = False
    BYPASS_HOST_LOOP = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Fails with one message that lists every problem; else says what was checked."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        self.validate_argument_spec(argument_spec={})
        self._findings = Findings()
        groups, hostvars = task_vars["groups"], task_vars["hostvars"]
        nodes = list(groups.get(preflight_inventory.GROUP, []))
        # With --limit the play holds the limited nodes only; a play over localhost alone stands for all nodes.
        in_play = set(task_vars.get("ansible_play_hosts_all", []))
        checked = [node for node in nodes if node in in_play] or nodes

        self._findings.extend(
            preflight_controller.controller_findings(core_version, sys.version_info, _can_import)
        )
        self._findings.extend(preflight_inventory.group_findings(groups))
        self._check_inventory({host: hostvars.raw_get(host) for host in groups["all"]}, set(nodes))
        profiles = self._check_hosts({host: hostvars.raw_get(host) for host in checked})

        if len(self._findings):
            result.update(
                failed=True,
                msg=self._findings.message(),
                next_step="correct what is listed, then run the same command again",
                problems=self._findings.as_data(),
            )
        else:
            named = ", ".join(f"{name} ({count})" for name, count in sorted(profiles.items()))
            result.update(msg=f"{len(checked)} hosts checked, profiles: {named}")
        result.update(changed=False, hosts_checked=len(checked), profiles=dict(profiles))
        return result

    def _check_inventory(self, variables: dict[str, dict[str, Any]], nodes: set[str]) -> None:
        """Names and addresses, over the whole inventory."""
        addresses: list[preflight_inventory.Address] = []
        networks: dict[str, str] = {}
        for host, host_variables in variables.items():
            names = [name for name in preflight_inventory.VARIABLES if name in host_variables]
            values = self._template(host, host_variables, names)
            if host in nodes:
                self._findings.extend(preflight_inventory.host_findings(host, values))
            own_addresses, wrong = preflight_inventory.host_addresses(host, values)
            addresses += own_addresses
            self._findings.extend(wrong, host)
            for name in ("host_network", "bmc_network"):
                if name in values:
                    networks.setdefault(_network_name(networks, name, values[name]), values[name])
            fabric = values.get("fabric_networks")
            for name, value in fabric.items() if isinstance(fabric, dict) else ():
                full_name = f"fabric_networks.{name}"
                networks.setdefault(_network_name(networks, full_name, value), value)
        if _can_import("netaddr"):  # otherwise a finding already
            preflight_inventory.address_findings(addresses, networks, self._findings)

    def _check_hosts(self, variables: dict[str, dict[str, Any]]) -> Counter[str]:
        """Profiles and role variables of the nodes; returns how many nodes use each profile."""
        load_yaml = lambda path: self._loader.load_from_file(path, trusted_as_template=True)  # noqa: E731
        roles, wrong = preflight_roles.load_roles(C.DEFAULT_ROLES_PATH, load_yaml)
        self._findings.extend(wrong)
        defaults = {name: value for role in roles for name, value in role.defaults.items()}
        # Most nodes are alike: each distinct profile and set of values is judged once.
        profile_cache: dict[str, tuple[dict[str, Any] | None, list[Finding]]] = {}
        value_cache: dict[str, list[Finding]] = {}
        used: Counter[str] = Counter()
        for host, host_variables in variables.items():
            self._findings.extend(preflight_roles.name_findings(roles, host_variables), host)
            name, profile, profile_ok = self._check_profile(host, host_variables, profile_cache)
            used[str(name)] += 1
            known = {**defaults, **host_variables}
            if profile is not None:
                known["profile"] = profile
            for role in roles:
                wanted = [
                    option
                    for option in role.options
                    if option in known and (profile_ok or option not in role.profile_keys)
                ]
                values = self._template(host, known, wanted, without_profile=profile is None)
                key = json.dumps([role.name, values], default=repr, sort_keys=True)
                if key not in value_cache:
                    value_cache[key] = preflight_roles.value_findings(role, values)
                self._findings.extend(value_cache[key], host)
                if profile_ok and not value_cache[key] and len(values) == len(wanted):
                    self._check_rules(host, {**known, **values}, role)
        return used

    def _check_profile(
        self,
        host: str,
        variables: dict[str, Any],
        cache: dict[str, tuple[dict[str, Any] | None, list[Finding]]],
    ) -> tuple[Any, dict[str, Any] | None, bool]:
        """(name, merged profile or None, whether it is valid)."""
        if variables.get("profile") != PROFILE_TEMPLATE:
            self._findings.add(
                Finding(
                    "profile",
                    "the inventory or the command line sets it",
                    "only the vars plugin gpufleet_profile sets it",
                    "remove it and use node_profile and node_profile_overrides_<layer>",
                ),
                host,
            )
        if "node_profile" not in variables:
            hint = preflight_roles.did_you_mean("node_profile", variables)
            self._findings.add(
                Finding(
                    "node_profile",
                    "it is not set" + f"; {hint}" * bool(hint),
                    "the name of a file in profiles/, without .yml",
                    "set it for the group gpu_nodes, e.g. node_profile: xe9680-h100",
                ),
                host,
            )
            return None, None, False
        values = self._template(host, variables, [name for name in preflight_profiles.VARIABLES if name in variables])
        try:
            layers = layer_variables(values.get("node_profile_layers", list(DEFAULT_LAYERS)))
        except ProfileError as error:
            self._findings.add(
                Finding("node_profile_layers", str(error), f"e.g. {list(DEFAULT_LAYERS)}", "correct it"), host
            )
            return values.get("node_profile"), None, False
        self._findings.extend(preflight_profiles.name_findings(variables, layers), host)
        present = [layer for layer in layers if layer in variables]
        overrides = self._template(host, variables, present)
        if len(overrides) < len(present) or "node_profile" not in values:
            return values.get("node_profile"), None, False  # a template error, reported already
        name, directory = values["node_profile"], values.get("node_profile_dir", DEFAULT_DIR)
        key = json.dumps([directory, name, overrides], default=repr)
        if key not in cache:
            cache[key] = preflight_profiles.profile_findings(str(directory), name, list(overrides.items()))
        profile, wrong = cache[key]
        self._findings.extend(wrong, host)
        return name, profile, not wrong

    def _check_rules(self, host: str, variables: dict[str, Any], role: preflight_roles.RoleVariables) -> None:
        """The role's own rules, once its variables are right by themselves."""
        for rule in role.rules:
            where = f"variables of the role {role.name}"
            try:
                holds = Templar(loader=self._loader, variables=variables).evaluate_conditional(rule["that"])
            except AnsibleError as error:
                finding = Finding(where, f"the rule {rule['that']!r} fails: {error}", "a condition", "correct the rule")
                self._findings.add(finding, host)
                continue
            if not holds:
                self._findings.add(Finding(where, rule["fail_msg"], rule["that"], rule["next_step"]), host)

    def _template(
        self, host: str, variables: dict[str, Any], names: list[str], without_profile: bool = False
    ) -> dict[str, Any]:
        """The values of the named variables; those that cannot be templated are reported and left out."""
        templar = Templar(loader=self._loader, variables=variables)
        values = {}
        for name in names:
            value = variables[name]
            if value is None or isinstance(value, (bool, int, float)):
                values[name] = value
                continue
            try:
                values[name] = templar.template(value)
            except Exception as error:  # noqa: BLE001 - filters and lookups raise anything
                if without_profile and "gpufleet_profile" in str(error):
                    continue  # why there is no profile is a finding already
                self._findings.add(
                    Finding(
                        name,
                        f"it cannot be evaluated: {error}",
                        "a template that this host's variables can fill",
                        f"correct {name}, or the variables that it uses",
                    ),
                    host,
                )
        return values


def _can_import(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _network_name(known: dict[str, str], name: str, value: Any) -> str:
    """A name under which a network is listed once: groups of hosts may have networks of their own."""
    return name if known.get(name, value) == value else f"{name} {value}"
