# SPDX-License-Identifier: Apache-2.0
"""Checks of the two inventory variables that say how nodes download: downloads_at_once and proxy_environment.

They are explained in ``inventories/example/group_vars/gpu_nodes/downloads.yml`` and in docs/operations.md.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ansible.module_utils.gpufleet.profile_schema import did_you_mean

from .node_names import fold_names
from .preflight_findings import Finding, Findings

AT_ONCE, ENVIRONMENT = "downloads_at_once", "proxy_environment"
VARIABLES = (AT_ONCE, ENVIRONMENT)

_PROXIES = ("http_proxy", "https_proxy")
# apt reads the names in small letters only (tried with apt 2.6 and 3.0); Python and Docker read both.
_SMALL = (*_PROXIES, "no_proxy")
_KEYS = (*_SMALL, *(name.upper() for name in _SMALL))
_PROXY = "the address of a proxy, such as http://proxy.example.com:3128"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9a-f:.]+")


def download_findings(
    names: Mapping[str, Iterable[str]], values: Mapping[str, Mapping[str, Any]], findings: Findings
) -> None:
    """Misspelt names, wrong values, and nodes that differ in how many may download at once.

    :arg names: the names of all variables of each host.
    :arg values: those of ``VARIABLES`` that a host has and that could be evaluated, for each host.
    """
    spellings: dict[str, set[str]] = defaultdict(set)
    for host, own in names.items():
        for name in own:
            spellings[name].add(host)
    for name, hosts in spellings.items():
        if name not in VARIABLES and (close := difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.85)):
            findings.add(
                Finding(
                    name,
                    f"a variable that nothing reads; did you mean {close[0]!r}?",
                    f"one of {', '.join(VARIABLES)}",
                    "rename or remove it",
                ),
                *hosts,
            )
    limits: dict[int | None, list[str]] = defaultdict(list)
    for host, own_values in values.items():
        wrong = at_once_findings(own_values[AT_ONCE]) if AT_ONCE in own_values else []
        if not wrong and (AT_ONCE in own_values or AT_ONCE not in names[host]):
            limits[own_values.get(AT_ONCE)].append(host)
        if ENVIRONMENT in own_values:
            wrong += environment_findings(own_values[ENVIRONMENT])
        findings.extend(wrong, host)
    if len(limits) > 1:
        findings.add(_difference(limits))


def at_once_findings(value: Any) -> list[Finding]:
    """Faults of downloads_at_once by itself."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return []
    next_step = f"correct {AT_ONCE}, or remove it: without it, forks of ansible.cfg is the only limit"
    if isinstance(value, str):
        next_step = (
            "write it without quotes; on the command line, where name=value always gives a string, use JSON: "
            f"-e '{{\"{AT_ONCE}\": ...}}'"
        )
    found = f"the string {value!r}" if isinstance(value, str) else "null" if value is None else repr(value)
    return [Finding(AT_ONCE, found, "a whole number of nodes, at least 1", next_step)]


def _difference(limits: Mapping[int | None, list[str]]) -> Finding:
    said = []
    for limit, hosts in sorted(limits.items(), key=lambda item: (item[0] is None, item[0])):
        value = "not set" if limit is None else str(limit)
        said.append(f"{value} for {', '.join(fold_names(hosts))}")
    return Finding(
        AT_ONCE,
        f"it differs: {'; '.join(said)}",
        # The strategy plugins template `throttle` for each host and compare it with the workers of all.
        "one value for all nodes of a run: Ansible counts all nodes against the limit of the node whose turn it is",
        "set it once, in group_vars/gpu_nodes or on the command line; parts of the fleet with uplinks of their own are "
        "run one after the other with --limit",
    )


def environment_findings(value: Any) -> list[Finding]:
    """Faults of proxy_environment. No finding shows an address that has credentials in it."""
    if not isinstance(value, Mapping):
        found = f"{type(value).__name__}, not shown since it may hold credentials"
        expected = f"a section with some of {', '.join(_SMALL)}"
        return [Finding(ENVIRONMENT, found, expected, f"correct {ENVIRONMENT} (inventories/example shows it)")]
    findings = []
    for key, text in value.items():
        where = f"{ENVIRONMENT}.{key}"
        small = str(key).lower()
        if key not in _KEYS:
            hint = did_you_mean(key, _SMALL)
            found = "a name that no download reads" + f"; {hint}" * bool(hint)
            findings.append(Finding(where, found, f"one of {', '.join(_SMALL)}", "rename or remove it"))
        elif not isinstance(text, str):
            words = "null" if text is None else f"{type(text).__name__}, not shown since it may hold credentials"
            expected = _PROXY if small in _PROXIES else "names and addresses with commas between them, in one string"
            findings.append(Finding(where, words, expected, f"correct {where}"))
        elif key not in _SMALL and small not in value:
            expected = f"{small} beside it or in its place"
            next_step = f"write {small}, which everything here reads"
            findings.append(Finding(where, f"{small} is not set, and apt does not read {key}", expected, next_step))
        elif small in _PROXIES and (fault := _proxy_fault(text)):
            findings.append(Finding(where, fault[0], _PROXY, fault[1]))
    return findings


def _proxy_fault(text: str) -> tuple[str, str] | None:
    """(what is wrong with the address of a proxy, what to do); None where it can be used."""
    correct = f"correct it in {ENVIRONMENT}"
    if not text:
        return (
            "an empty string, which means no proxy",
            "name the proxy, or leave the variable out; where it comes from the environment of the controller "
            "(vault.example.yml: GPUFLEET_PROXY), set that",
        )
    shown = "an address with credentials in it (not shown)" if "@" in text else repr(text)
    if re.search(r"\s", text):
        return f"{shown}, which has blanks in it", correct
    if "://" not in text:
        return f"{shown}, which does not say http://", f"put http:// before it (in {ENVIRONMENT})"
    if not text.startswith("http://"):
        # Python's urllib sends CONNECT to a proxy in clear text whatever its address says; it has no SOCKS either.
        return (
            f"{shown}, which begins with {text.split('://', 1)[0]}://",
            "write http://: that is how nodes talk to the proxy, about https sources too",
        )
    credentials = "; %-encode special characters of user name and password" if "@" in text else ""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return f"{shown}, which cannot be taken apart (host name and port)", correct + credentials
    if not _HOST.fullmatch(host) or port == 0:
        return f"{shown}, in which host name or port is wrong", correct + credentials
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        return (
            f"{shown}, which goes on after the port",
            "end it after the port; the address of a server that stands in for a repository belongs into the "
            f"repository's uri in the profile (source: mirror){credentials}",
        )
    return None
