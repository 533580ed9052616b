# SPDX-License-Identifier: Apache-2.0
"""Check of a host's profile: it exists, its override layers are known, and what they give together is valid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils.gpufleet.health.health_run import known_names
from ansible.module_utils.gpufleet.health.registry import CHECKS
from ansible.module_utils.gpufleet.profile_schema import Problem, did_you_mean, validate

from .preflight_findings import Finding
from .profile_files import load_profile
from .profile_merge import OVERRIDES_PREFIX, ProfileError, merge_layers, unknown_layers

# Variables beside the override layers that the lookup gpufleet_profile reads.
VARIABLES = ("node_profile", "node_profile_dir", "node_profile_layers")


def variable_findings(variables: Mapping[str, Any], template: str) -> list[Finding]:
    """The variable ``profile`` is the vars plugin's, and ``node_profile`` is set.

    :arg variables: the host's variables, untemplated.
    :arg template: what the vars plugin gives as ``profile``.
    """
    findings = []
    if variables.get("profile") != template:
        findings.append(
            Finding(
                "profile",
                "the inventory or the command line sets it" if "profile" in variables else "it is not there",
                "the vars plugin gpufleet_profile alone sets it (ansible.cfg, vars_plugins_enabled)",
                "use node_profile and node_profile_overrides_<layer>, and the repository's ansible.cfg",
            )
        )
    if "node_profile" not in variables:
        hint = did_you_mean("node_profile", variables)
        findings.append(
            Finding(
                "node_profile",
                "it is not set" + f"; {hint}" * bool(hint),
                "the name of a file in profiles/, without .yml",
                "set it for the group gpu_nodes, e.g. node_profile: xe9680-h100",
            )
        )
    return findings


def name_findings(variables: Iterable[str], layers: list[str]) -> list[Finding]:
    """Variables of a host that look like part of the profile and are none.

    :arg variables: names of the host's variables.
    :arg layers: names of the override variables that are merged.
    """
    names = list(variables)
    findings = []
    for name, hint in unknown_layers(names, layers).items():
        layer = name.removeprefix(OVERRIDES_PREFIX)
        findings.append(
            Finding(
                name,
                "an override layer that nothing merges" + f"; {hint}" * bool(hint),
                f"one of {', '.join(layers)}",
                f"rename it, or add {layer!r} to node_profile_layers",
            )
        )
    for name in names:
        if name.startswith("node_profile_") and name not in VARIABLES and not name.startswith(OVERRIDES_PREFIX):
            known = [*VARIABLES, *layers]
            hint = did_you_mean(name, known)
            findings.append(
                Finding(
                    name,
                    "a variable that nothing reads" + f"; {hint}" * bool(hint),
                    f"one of {', '.join(known)}",
                    "rename or remove it",
                )
            )
    return findings


def profile_findings(
    directory: str, name: Any, layers: list[tuple[str, Any]]
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The merged profile (None if it cannot be put together) and what is wrong with it.

    :arg layers: (name of the override variable, its value), in the order in which they are merged.
    """
    try:
        profile = merge_layers(load_profile(directory, name), layers)
    except ProfileError as error:
        return None, [
            Finding(
                "node_profile and its overrides",
                str(error),
                "a profile that can be put together",
                "correct the variable or file that it names",
            )
        ]
    return profile, [_finding(problem, name, layers) for problem in validate(profile, known_names(CHECKS))]


def _finding(problem: Problem, name: str, layers: list[tuple[str, Any]]) -> Finding:
    source = _origin(problem.path, layers) or f"profiles/{name}.yml"
    found = problem.found + f"; {problem.hint}" * bool(problem.hint)
    return Finding(f"profile key {problem.path}", found, problem.expected, f"correct it in {source}")


def _origin(path: str, layers: list[tuple[str, Any]]) -> str:
    """The override variable that a key's value comes from; an empty string where it is the profile's own."""
    parts = path.split("[")[0].split(".")
    return next((variable for variable, value in reversed(layers) if _has(value, parts)), "")


def _has(value: Any, parts: list[str]) -> bool:
    """Whether nested sections lead to a key; a key of a map may have dots of its own (skip_checks.gpu.ecc)."""
    if not parts:
        return True
    if not isinstance(value, dict):
        return False
    joined = (".".join(parts[: count + 1]) for count in range(len(parts)))
    return any(key in value and _has(value[key], parts[count + 1 :]) for count, key in enumerate(joined))
