# SPDX-License-Identifier: Apache-2.0
"""What apt_stack is asked for: faults that can be told without the node, and which version each package gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .apt_packages import PackageState
from .apt_plan import matches
from .apt_stack_error import AptStackError
from .apt_stack_pins import Blocker, Policy
from .apt_stack_versions import by_age
from .package_version import upstream_version

PACKAGE_NAME = r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]"  # Debian policy 5.6.1
VERSION = r"[A-Za-z0-9.+~:-]+"
ADDRESS = r"(https?://[^\s/]+|file:/)\S*"


def list_faults(arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the arguments by themselves, in sentences without a full stop."""
    faults = []
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", arguments["name"]):
        faults.append(f"name is {arguments['name']!r}, expected small letters, digits and '-' (it names files)")
    names = [package["name"] for package in arguments["packages"]] + list(arguments["first"])
    if not arguments["packages"]:
        faults.append("packages is empty, expected at least one")
    for name in names:
        if not re.fullmatch(PACKAGE_NAME, name):
            faults.append(f"{name!r} cannot be the name of a package")
        elif names.count(name) > 1 and f"{name} is named twice" not in faults:
            faults.append(f"{name} is named twice")
        if matches(name, arguments["keep_out"]):
            faults.append(f"{name} is wanted, and keep_out keeps it out")
    for package in arguments["packages"]:
        for key in ("version", "upstream"):
            if package[key] is not None and not re.fullmatch(VERSION, package[key]):
                faults.append(f"{package['name']}: {key} is {package[key]!r}, expected a version as apt spells it")
    words = [*arguments["keep_out"], *(word for pin in arguments["pins"] for word in pin["packages"])]
    words += [pin[key] for pin in arguments["pins"] for key in ("version", "origin") if pin[key]]
    faults += [f"{word!r} cannot stand in a pin, expected a word without blanks" for word in words if not _word(word)]
    for pattern in arguments["never_upgraded"]:
        try:
            re.compile(pattern)
        except re.error as error:
            faults.append(f"never_upgraded: {pattern!r} is no regular expression: {error}")
        if not pattern or '"' in pattern or "\n" in pattern:
            faults.append(f"never_upgraded: {pattern!r} cannot be written into a file of apt.conf.d")
    if arguments["lock_timeout_s"] < 0:
        faults.append(f"lock_timeout_s is {arguments['lock_timeout_s']}, expected 0 or more")
    if arguments["repository"]:
        faults += [f"repository.{fault}" for fault in _repository_faults(arguments["repository"])]
    return faults


def _word(text: str) -> bool:
    return re.fullmatch(r'[^\s"]+', text) is not None


def _repository_faults(repository: Mapping[str, Any]) -> list[str]:
    faults = []
    for key in ("uri", "key_url"):
        if not re.fullmatch(ADDRESS, repository[key]):
            faults.append(f"{key} is {repository[key]!r}, expected an address with https://, http:// or file:/")
    if not repository["suites"]:
        faults.append("suites is empty, expected at least one (/ for a flat repository)")
    flat = {suite.endswith("/") for suite in repository["suites"]}
    faults += [f"{key}: {word!r} cannot be one" for key in ("suites", "components") for word in repository[key]
               if not re.fullmatch(r"[^\s\[\]]+", word)]  # fmt: skip
    if len(flat) == 2:
        faults.append("suites mixes flat ones (that end in /) with others")
    elif flat == {True} and repository["components"]:
        faults.append("components is not empty, and a flat repository (suite ends in /) has none")
    elif flat == {False} and not repository["components"]:
        faults.append("components is empty, expected at least one, e.g. main")
    sha256 = repository["key_sha256"]
    if sha256 is None and not repository["key_url"].startswith("https://"):
        faults.append("key_sha256 is missing, and without https:// nothing else vouches for the key")
    if sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", sha256):
        faults.append(f"key_sha256 is {sha256!r}, expected 64 hexadecimal digits in small letters")
    return faults


def is_served(package: Mapping[str, Any], state: PackageState) -> bool:
    """Whether the installed version is one that the request allows."""
    if state.version is None:
        return False
    if package["version"] is not None:
        return state.version == package["version"]
    return package["upstream"] in (None, upstream_version(state.version))


def choose_versions(
    packages: Sequence[Mapping[str, Any]],
    states: Mapping[str, PackageState],
    policies: Mapping[str, Policy],
    blocked_by: Mapping[str, Sequence[Blocker]],
    *,
    newest: bool,
    doubts: str,
) -> dict[str, str]:
    """Version for each package of the request.

    `newest`: one without a version goes to the candidate though it is installed. `blocked_by`: stanzas that may put a
    package below zero. Raises AptStackError where a version is not offered, or is pinned out.
    """
    chosen: dict[str, str] = {}
    unknown = [p["name"] for p in packages if not is_served(p, states[p["name"]]) and _offered(policies, p) == {}]
    if unknown:
        raise AptStackError(
            f"package {', '.join(unknown)} is not known to the node's package sources. Nothing was changed.{doubts}",
            "correct the name, or the repository in the profile",
        )
    for package in packages:
        name, state = package["name"], states[package["name"]]
        offered = _offered(policies, package)
        policy = policies.get(name)
        free = package["version"] is None and package["upstream"] is None
        if is_served(package, state) and not (free and newest and policy and policy.candidate):
            assert state.version is not None
            chosen[name] = state.version
            continue
        if free:
            version = policy.candidate if policy else None
            if version is None:
                raise _pinned_out(name, "every version", offered, blocked_by)
        elif package["version"] is not None:
            version = package["version"] if package["version"] in offered else None
        else:
            fitting = [one for one in offered if upstream_version(one) == package["upstream"]]
            version = max(fitting, key=by_age) if fitting else None
        if version is None:
            raise AptStackError(
                f"package {name} {package['version'] or package['upstream']} is not offered (offered: "
                f"{', '.join(sorted(offered, key=by_age, reverse=True))}). Nothing was changed.{doubts}",
                "correct the version in the profile; a vendor may have withdrawn it: a mirror of one's own keeps it",
            )
        if offered.get(version, 0) < 0:
            raise _pinned_out(name, version, offered, blocked_by)
        chosen[name] = version
    return chosen


def versions_of_companions(
    companions: Sequence[str],
    chosen: Mapping[str, str],
    states: Mapping[str, PackageState],
    policies: Mapping[str, Policy],
) -> dict[str, str]:
    """Version for each installed companion that goes where a package of the request goes.

    A companion that has the upstream version which a package leaves takes the one that this gets, where it is offered.
    Dependencies alone do not see to it: nvidia-open 580 is content with the libraries of any newer driver.
    """
    moves: dict[str, set[str]] = {}
    for name, version in chosen.items():
        old = states[name].version
        if old is not None and old != version:
            moves.setdefault(upstream_version(old), set()).add(upstream_version(version))
    found = {}
    for name in companions:
        installed = states[name].version
        goals = moves.get(upstream_version(installed), set()) if installed else set()
        policy = policies.get(name)
        if len(goals) == 1 and policy:
            fitting = [
                one for one, priority in policy.offered.items() if upstream_version(one) in goals and priority >= 0
            ]
            if fitting:
                found[name] = max(fitting, key=by_age)
    return found


def _offered(policies: Mapping[str, Policy], package: Mapping[str, Any]) -> dict[str, int]:
    policy = policies.get(package["name"])
    return policy.offered if policy else {}


def _pinned_out(
    name: str, what: str, offered: Mapping[str, int], blocked_by: Mapping[str, Sequence[Blocker]]
) -> AptStackError:
    files = sorted({blocker.path for blocker in blocked_by.get(name, [])})
    where = "; ".join(map(str, blocked_by.get(name, []))) or "a preferences file that gpufleet cannot name"
    return AptStackError(
        f"package {name} is offered ({', '.join(sorted(offered, key=by_age, reverse=True))}), but {what} is pinned "
        f"below zero by {where}. Nothing was changed",
        f"remove or correct {', '.join(files) or 'that file (apt-cache policy shows the priorities)'}; if a package "
        "brought it (dpkg --search), remove that package",
    )
