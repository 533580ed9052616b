# SPDX-License-Identifier: Apache-2.0
"""Action plugin: checks controller, inventory, profiles and role variables of all hosts, in one task for all of them.

It runs on the controller only and touches no node. What is judged, and how, is in
plugins/module_utils/gpufleet_controller/preflight_*.py; this file gathers the values.
"""

from __future__ import annotations

import importlib.util
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
    preflight_downloads,
    preflight_inventory,
    preflight_profiles,
    preflight_roles,
)
from ansible.module_utils.gpufleet_controller.preflight_findings import Finding, Findings
from ansible.module_utils.gpufleet_controller.preflight_sharing import identifiers, signature
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
        groups, hostvars = task_vars["groups"], task_vars["hostvars"]
        nodes = list(groups.get(preflight_inventory.GROUP, []))
        # With --limit the play holds the limited nodes only; a play over localhost alone stands for all nodes.
        in_play = set(task_vars.get("ansible_play_hosts_all", []))
        checked = [node for node in nodes if node in in_play] or nodes
        variables = {host: hostvars.raw_get(host) for host in groups["all"]}

        findings = Findings()
        findings.extend(preflight_controller.controller_findings(core_version, sys.version_info, _can_import))
        findings.extend(preflight_inventory.group_findings(groups))
        self._check_inventory(variables, set(nodes), findings)
        checked_variables = {node: variables[node] for node in checked}
        self._check_downloads(checked_variables, findings)
        profiles = self._check_nodes(checked_variables, findings)

        if len(findings):
            result.update(
                failed=True,
                msg=findings.message(),
                next_step="correct what is listed, then run the same command again",
                problems=findings.as_data(),
            )
        else:
            named = ", ".join(f"{name} ({count})" for name, count in sorted(profiles.items()))
            result.update(msg=f"{len(checked)} hosts checked, profiles: {named}")
        result.update(
            changed=False, hosts_checked=len(checked), profiles=dict(profiles), gpufleet={"on_controller": True}
        )
        return result

    def _check_inventory(self, variables: dict[str, dict[str, Any]], nodes: set[str], findings: Findings) -> None:
        """Names and addresses, over the whole inventory whatever the limit."""
        addresses: list[preflight_inventory.Address] = []
        networks: dict[str, str] = {}
        for host, host_variables in variables.items():
            names = [name for name in preflight_inventory.VARIABLES if name in host_variables]
            values, unevaluated = self._template(host_variables, names)
            findings.extend(unevaluated, host)
            if host in nodes:
                findings.extend(preflight_inventory.host_findings(host, values), host)
            own_addresses, wrong = preflight_inventory.host_addresses(host, values)
            addresses += own_addresses
            findings.extend(wrong, host)
            networks.update(preflight_inventory.host_networks(values, networks))
        if _can_import("netaddr"):  # otherwise a finding already
            preflight_inventory.address_findings(addresses, networks, findings)

    def _check_downloads(self, variables: dict[str, dict[str, Any]], findings: Findings) -> None:
        """How the nodes of this run download."""
        values: dict[str, dict[str, Any]] = {}
        for host, host_variables in variables.items():
            names = [name for name in preflight_downloads.VARIABLES if name in host_variables]
            values[host], unevaluated = self._template(host_variables, names) if names else ({}, [])
            findings.extend(unevaluated, host)
        preflight_downloads.download_findings(variables, values, findings)

    def _check_nodes(self, variables: dict[str, dict[str, Any]], findings: Findings) -> Counter[str]:
        """Profiles and role variables; returns how many nodes use each profile."""

        def load_yaml(path: str) -> Any:
            return self._loader.load_from_file(path, trusted_as_template=True)

        roles, wrong = preflight_roles.load_roles(C.DEFAULT_ROLES_PATH, load_yaml)
        findings.extend(wrong)
        defaults = {name: value for role in roles for name, value in role.defaults.items()}
        role_names = {name for role in roles for name in role.options}
        role_names |= {name for role in roles for rule in role.rules for name in identifiers(rule["that"])}

        judged: dict[str, tuple[Any, list[Finding]]] = {}
        used: Counter[str] = Counter()
        for host, host_variables in variables.items():
            known = {**defaults, **host_variables}
            profile_names = [name for name in known if name.startswith("node_profile")]
            values_from = signature(
                known, role_names.union(profile_names, ["profile"]), {PROFILE_TEMPLATE: profile_names}
            )
            # The names of the variables count as well: an unknown one is a finding.
            key = values_from and f"{sorted(host_variables)} {values_from}"
            if key is None or key not in judged:
                result = self._judge_node(host_variables, known, roles)
                judged[key or host] = result
            profile, node_findings = judged[key or host]
            used[str(profile)] += 1
            findings.extend(node_findings, host)
        return used

    def _judge_node(
        self, host_variables: dict[str, Any], known: dict[str, Any], roles: list[preflight_roles.RoleVariables]
    ) -> tuple[Any, list[Finding]]:
        """The name of a node's profile, and all that is wrong with its profile and role variables.

        :arg known: the role defaults with the host's variables over them.
        """
        findings = preflight_roles.name_findings(roles, host_variables)
        name, profile, wrong = self._judge_profile(host_variables)
        findings += wrong
        if profile is not None:
            known = {**known, "profile": profile}
        for role in roles:
            # What comes from a profile that is wrong, or missing, would be wrong a second time.
            present = [option for option in role.options if option in known]
            wanted = [option for option in present if not (wrong and option in role.profile_keys)]
            values, unevaluated = self._template(known, wanted)
            if profile is None:
                unevaluated = [finding for finding in unevaluated if "gpufleet_profile" not in finding.found]
            role_findings = unevaluated + preflight_roles.value_findings(
                role, values, unjudged=set(present) - set(values)
            )
            if not role_findings and not wrong:
                role_findings = self._judge_rules(role, {**known, **values})
            findings += role_findings
        return name, findings

    def _judge_profile(self, variables: dict[str, Any]) -> tuple[Any, dict[str, Any] | None, list[Finding]]:
        """(name of the profile, merged profile or None, what is wrong with it)."""
        findings = preflight_profiles.variable_findings(variables, PROFILE_TEMPLATE)
        names = [name for name in preflight_profiles.VARIABLES if name in variables]
        values, unevaluated = self._template(variables, names)
        findings += unevaluated
        name = values.get("node_profile")
        try:
            layers = layer_variables(values.get("node_profile_layers", list(DEFAULT_LAYERS)))
        except ProfileError as error:
            expected = f"names of layers such as {list(DEFAULT_LAYERS)}"
            return name, None, [*findings, Finding("node_profile_layers", str(error), expected, "correct it")]
        findings += preflight_profiles.name_findings(variables, layers)
        overrides, unevaluated = self._template(variables, [layer for layer in layers if layer in variables])
        findings += unevaluated
        if unevaluated or "node_profile" not in values:
            return name, None, findings
        directory = str(values.get("node_profile_dir", DEFAULT_DIR))
        profile, wrong = preflight_profiles.profile_findings(directory, name, list(overrides.items()))
        return name, profile, findings + wrong

    def _judge_rules(self, role: preflight_roles.RoleVariables, variables: dict[str, Any]) -> list[Finding]:
        """The role's own rules, once its variables are right by themselves."""
        findings = []
        templar = Templar(loader=self._loader, variables=variables)
        for rule in role.rules:
            where = f"variables of the role {role.name}"
            try:
                if not templar.evaluate_conditional(rule["that"]):
                    findings.append(Finding(where, rule["fail_msg"], rule["that"], rule["next_step"]))
            except AnsibleError as error:
                found = f"the rule {rule['that']!r} cannot be evaluated: {error}"
                findings.append(Finding(where, found, "a condition", f"correct roles/{role.name}/meta/preflight.yml"))
        return findings

    def _template(self, variables: dict[str, Any], names: list[str]) -> tuple[dict[str, Any], list[Finding]]:
        """The values of the named variables; those that cannot be evaluated are left out and reported."""
        templar = Templar(loader=self._loader, variables=variables)
        values, findings = {}, []
        for name in names:
            value = variables[name]
            if value is None or isinstance(value, (bool, int, float)):
                values[name] = value
                continue
            try:
                values[name] = templar.template(value)
            except Exception as error:  # filters and lookups raise anything
                found = f"it cannot be evaluated: {error}"
                next_step = f"correct {name}, or the variables that it uses"
                findings.append(Finding(name, found, "a template that this host's variables can fill", next_step))
        return values, findings


def _can_import(library: str) -> bool:
    return importlib.util.find_spec(library) is not None
