# SPDX-License-Identifier: Apache-2.0
"""Checks of role variables against what each role states about itself.

Three files of a role are read:

``meta/argument_specs.yml``  names, types, choices (Ansible's own format)
``defaults/main.yml``        a default that is an expression on ``profile`` marks a variable that only a profile sets
``meta/preflight.yml``       what Ansible's format cannot say; all three keys may be left out:

    ranges:                  # numbers, both ends included
      reboot_timeout: {min: 60, max: 7200}
    removed:                 # variables of former versions, and what to use now
      time_sync_server: time_sync_servers, a list
    rules:                   # what no single variable can tell: expressions as in ansible.builtin.assert
      - that: time_sync_servers | length > 0 or not time_sync_manage
        fail_msg: there are no NTP servers
        next_step: set platform.clock.servers in node_profile_overrides_fleet
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.gpufleet.profile_schema import did_you_mean

from .preflight_findings import Finding

# The first dotted path after "profile": {{ profile.platform.clock.servers | default([]) }}
_PROFILE_KEY = re.compile(r"\bprofile((?:\.[a-z][a-z0-9_]*)+)")
_PREFLIGHT_KEYS = {"ranges", "removed", "rules"}
_HIDDEN = "a value that is not shown"

# Python types that a value must have so that a role can use it as it is. ArgumentSpecValidator alone would accept
# "false" for a bool and "5" for an int, but it converts its own copy: the role would still see the string.
# The other way round a whole number does as a string; 1.10 does not, since it has become 1.1 already.
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str, int),
    "path": (str,),
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "list": (list, tuple),
    "dict": (dict,),
}
_TYPE_WORDS = {
    "str": "a string",
    "path": "a path",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "list": "a list",
    "dict": "a section of keys",
}


@dataclass(frozen=True)
class RoleVariables:
    """What a role states about its variables."""

    name: str
    options: dict[str, dict[str, Any]]
    defaults: dict[str, Any]  # untemplated
    ranges: dict[str, dict[str, float]] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    rules: list[dict[str, str]] = field(default_factory=list)

    @property
    def profile_keys(self) -> dict[str, str]:
        """The variables that only a profile sets: {variable: dotted profile key}."""
        keys = {}
        for variable, default in self.defaults.items():
            match = _PROFILE_KEY.search(default) if isinstance(default, str) else None
            if match and variable in self.options:
                keys[variable] = match[1].removeprefix(".")
        return keys


def load_roles(role_paths: Iterable[str], load_yaml: Callable[[str], Any]) -> tuple[list[RoleVariables], list[Finding]]:
    """All roles with argument specs in the folders that Ansible searches for roles, and what is wrong with their files.

    :arg load_yaml: reads one file; strings in it are trusted templates.
    """
    roles: dict[str, RoleVariables] = {}
    findings = []
    for folder in role_paths:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            base = os.path.join(folder, name)
            spec_file = os.path.join(base, "meta", "argument_specs.yml")
            if name in roles or not os.path.isfile(spec_file):
                continue
            files = (os.path.join(base, "defaults", "main.yml"), os.path.join(base, "meta", "preflight.yml"))
            defaults, extra = (load_yaml(path) or {} if os.path.isfile(path) else {} for path in files)
            entry_points = (load_yaml(spec_file) or {}).get("argument_specs") or {}
            options: dict[str, dict[str, Any]] = {}
            for entry in entry_points.values():
                options.update(entry.get("options") or {})
            role = RoleVariables(
                name, options, defaults, *(extra.get(key) or default for key, default in _EXTRA.items())
            )
            findings += _file_findings(role, extra)
            roles[name] = role
    return list(roles.values()), findings


_EXTRA: dict[str, Any] = {"ranges": {}, "removed": {}, "rules": []}


def _file_findings(role: RoleVariables, extra: Mapping[str, Any]) -> list[Finding]:
    """A role's preflight.yml that names what the role does not have would check nothing: refused."""
    where = f"roles/{role.name}/meta/preflight.yml"
    wrong = [f"the key {key}" for key in extra if key not in _PREFLIGHT_KEYS]
    wrong += [
        f"a range for {name}, which is no variable of the role" for name in role.ranges if name not in role.options
    ]
    wrong += [f"{name} as removed, which is a variable of the role" for name in role.removed if name in role.options]
    wrong += [
        f"a rule without {key}" for rule in role.rules for key in ("that", "fail_msg", "next_step") if key not in rule
    ]
    return [
        Finding(where, text, "ranges, removed and rules as the head of preflight_roles.py describes them", "correct it")
        for text in wrong
    ]


def name_findings(roles: list[RoleVariables], variables: Iterable[str]) -> list[Finding]:
    """Variables of a host that a role does not have, has no longer, or takes from the profile only.

    :arg variables: names of the host's variables from the inventory and the command line.
    """
    # The longest prefix owns a name: reboot_x of a role "reboot", unless there is a role "reboot_x".
    by_length = sorted(roles, key=lambda role: len(role.name), reverse=True)
    findings = []
    for name in variables:
        owner = next((role for role in by_length if name.removeprefix("__").startswith(role.name + "_")), None)
        if owner is None or name in owner.options and name not in owner.profile_keys:
            continue
        if name in owner.profile_keys:
            found, expected = "it is set beside the profile", "the profile alone says what a node must be"
            layers = "node_profile_overrides_fleet, _group or _host"
            next_step = f"remove it and set {owner.profile_keys[name]} in {layers}"
        elif name in owner.removed:
            found, expected = "a variable that no longer exists", owner.removed[name]
            next_step = "rename or remove it"
        elif name.startswith("__"):
            found, expected = f"a private variable of the role {owner.name}", "variables without leading underscores"
            next_step = "remove it"
        else:
            hint = did_you_mean(name, owner.options)
            found = f"a variable that the role {owner.name} does not have" + f"; {hint}" * bool(hint)
            expected = f"one of those in roles/{owner.name}/README.md"
            next_step = "rename or remove it"
        findings.append(Finding(name, found, expected, next_step))
    return findings


def value_findings(role: RoleVariables, values: Mapping[str, Any], unjudged: Iterable[str] = ()) -> list[Finding]:
    """Wrong types, choices, ranges and missing variables of one role.

    :arg values: the templated value of each variable (of its default, where the host does not set it).
    :arg unjudged: variables that have no value for a reason that is a finding already.
    """
    findings: list[Finding] = []
    for name, value in values.items():
        findings += _type_findings(role.options[name], value, name, nullable=_may_be_null(role, name))
    wrong = {re.split(r"[.\[]", finding.where)[0] for finding in findings}.union(unjudged)
    findings += _spec_findings(role, values, wrong)
    for name, limits in role.ranges.items():
        value = values.get(name)
        if name in wrong or value is None:
            continue
        low, high = limits.get("min"), limits.get("max")
        if (low is not None and value < low) or (high is not None and value > high):
            findings.append(Finding(name, str(value), _range_words(low, high), _correct(name)))
    return findings


def _range_words(low: float | None, high: float | None) -> str:
    if high is None:
        return f"at least {low}"
    return f"at most {high}" if low is None else f"from {low} to {high}"


def _correct(name: str) -> str:
    return f"correct {name} in the inventory or on the command line"


def _may_be_null(role: RoleVariables, name: str) -> bool:
    """Null is meant where the default is null, or comes from the profile (whose schema says where null is allowed)."""
    return not role.options[name].get("required") and (role.defaults.get(name) is None or name in role.profile_keys)


def _type_findings(option: Mapping[str, Any], value: Any, where: str, nullable: bool) -> list[Finding]:
    kind = option.get("type", "str")
    if kind not in _TYPES or (value is None and nullable):
        return []
    right_type = isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))
    if not right_type:
        found = _HIDDEN if option.get("no_log") else f"{_kind_of(value)} {value!r}" if value is not None else "null"
        return [Finding(where, found, _TYPE_WORDS[kind], _how_to_write(kind, value, where))]
    findings: list[Finding] = []
    nested = option.get("options") or {}
    if kind == "list" and option.get("elements"):
        inner = {"type": option["elements"], "options": nested, "no_log": option.get("no_log")}
        for index, item in enumerate(value):
            findings += _type_findings(inner, item, f"{where}[{index}]", nullable=False)
    elif kind == "dict":
        for key, item in value.items():
            if key in nested:
                may_be_null = not nested[key].get("required")
                findings += _type_findings(nested[key], item, f"{where}.{key}", nullable=may_be_null)
    return findings


def _kind_of(value: Any) -> str:
    for word, types in (
        ("the truth value", bool),
        ("the number", (int, float)),
        ("the string", str),
        ("the list", list),
    ):
        if isinstance(value, types):
            return word
    return "the section"


def _how_to_write(kind: str, value: Any, where: str) -> str:
    name = re.split(r"[.\[]", where)[0]
    if isinstance(value, str) and kind != "str":
        return (
            "write it without quotes; on the command line, where name=value always gives a string, use JSON: "
            f"-e '{{\"{name}\": ...}}'"
        )
    if kind == "str" and isinstance(value, (bool, int, float)):
        return "put the value in quotes (YAML reads 1.10 as the number 1.1, and off as false)"
    return _correct(name)


def _spec_findings(role: RoleVariables, values: Mapping[str, Any], wrong: set[str]) -> list[Finding]:
    """Choices, required ones, unknown keys of sections: by Ansible's own validator.

    :arg wrong: variables of the wrong type, which need no second finding.
    """
    options = {
        name: option
        for name, option in role.options.items()
        if name not in wrong and (name in values or option.get("required"))
    }
    known = {name: value for name, value in values.items() if name in options and value is not None}
    try:
        result = ArgumentSpecValidator(options).validate(known, validate_role_argument_spec=True)
        messages, secrets = list(result.error_messages), set(result._no_log_values)
    except (AnsibleError, TypeError, ValueError) as error:
        messages, secrets = [f"meta/argument_specs.yml cannot be used: {error}"], set()
    findings = []
    for message in messages:
        for secret in sorted(secrets, key=len, reverse=True):
            message = message.replace(secret, _HIDDEN)
        findings.append(
            Finding(
                f"variables of the role {role.name}",
                message.rstrip(". "),
                f"what roles/{role.name}/meta/argument_specs.yml says",
                "correct it in the inventory or on the command line",
            )
        )
    return findings
