# SPDX-License-Identifier: Apache-2.0
"""What apt_stack is asked for: faults of the arguments, and the version that each package gets."""

from typing import Any

import pytest
from ansible.module_utils.gpufleet.apt_packages import PackageState
from ansible.module_utils.gpufleet.apt_stack_error import AptStackError
from ansible.module_utils.gpufleet.apt_stack_pins import Blocker, Policy
from ansible.module_utils.gpufleet.apt_stack_request import (
    choose_versions,
    is_served,
    list_faults,
    versions_of_companions,
)

REPOSITORY = {
    "uri": "https://mirror.example.com/cuda/",
    "suites": ["/"],
    "components": [],
    "key_url": "https://mirror.example.com/key.asc",
    "key_sha256": None,
}
PLAIN: dict[str, Any] = {
    "name": "nvidia-driver",
    "repository": REPOSITORY,
    "packages": [{"name": "nvidia-open", "version": None, "upstream": "580.95.05"}],
    "first": [],
    "keep_out": [],
    "pins": [],
    "never_upgraded": ["nvidia-"],
    "lock_timeout_s": 0,
}
ABSENT = PackageState(None, False)


def package(name: str = "a", version: str | None = None, upstream: str | None = None) -> dict[str, Any]:
    return {"name": name, "version": version, "upstream": upstream}


def test_the_profiles_request_is_sound() -> None:
    assert list_faults(PLAIN) == []
    assert list_faults({**PLAIN, "repository": None}) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"name": "../x"}, "name is '../x'"),
        ({"packages": []}, "packages is empty"),
        ({"packages": [package("a b")]}, "'a b' cannot be the name of a package"),
        ({"packages": [package("--yes")]}, "'--yes' cannot be the name"),
        ({"first": ["nvidia-open"]}, "nvidia-open is named twice"),
        ({"keep_out": ["nvidia-*"]}, "nvidia-open is wanted, and keep_out keeps it out"),
        ({"packages": [package(version="1 2")]}, "a: version is '1 2'"),
        ({"packages": [package(upstream="1*")]}, "a: upstream is '1*'"),
        ({"keep_out": ["mft*", "a\nb"]}, "'a\\nb' cannot stand in a pin"),
        ({"pins": [{"packages": ["x"], "version": "1 2", "origin": None}]}, "'1 2' cannot stand in a pin"),
        ({"never_upgraded": ["("]}, "'(' is no regular expression"),
        ({"never_upgraded": ['x"; evil']}, "cannot be written into a file of apt.conf.d"),
        ({"lock_timeout_s": -1}, "lock_timeout_s is -1"),
    ],
)
def test_faults_of_the_request(change: dict[str, Any], expected: str) -> None:
    assert any(expected in fault for fault in list_faults({**PLAIN, **change})), list_faults({**PLAIN, **change})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"uri": "mirror.example.com"}, "repository.uri is 'mirror.example.com'"),
        ({"key_url": "ftp://x/k"}, "repository.key_url is 'ftp://x/k'"),
        ({"suites": []}, "repository.suites is empty"),
        ({"suites": ["/", "stable"]}, "mixes flat ones"),
        ({"components": ["main"]}, "a flat repository (suite ends in /) has none"),
        ({"suites": ["stable"]}, "components is empty"),
        ({"suites": ["[trusted=yes]"]}, "suites: '[trusted=yes]' cannot be one"),
        ({"key_url": "http://x/k"}, "key_sha256 is missing"),
        ({"key_url": "file:/x/k"}, "key_sha256 is missing"),
        ({"key_sha256": "ABC"}, "key_sha256 is 'ABC'"),
    ],
)
def test_faults_of_the_repository(change: dict[str, Any], expected: str) -> None:
    faults = list_faults({**PLAIN, "repository": {**REPOSITORY, **change}})
    assert any(expected in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("wanted", "installed", "expected"),
    [
        (package(), None, False),
        (package(), "1.0-1", True),
        (package(version="1.0-1"), "1.0-1", True),
        (package(version="1.0-1"), "1.0-2", False),
        (package(upstream="1.0"), "1:1.0-7", True),
        (package(upstream="1.0"), "1.0.1-1", False),
    ],
)
def test_served(wanted: dict[str, Any], installed: str | None, expected: bool) -> None:
    assert is_served(wanted, PackageState(installed, False)) == expected


def choose(wanted: dict[str, Any], policy: Policy | None, installed: str | None = None, newest: bool = False) -> str:
    blocked = {"a": [Blocker("/etc/apt/preferences.d/x", 1, "a", "version *")]}
    policies = {} if policy is None else {"a": policy}
    states = {"a": PackageState(installed, False)}
    return choose_versions([wanted], states, policies, blocked, newest=newest, doubts=" Doubts.")["a"]


OFFERED = Policy("3.0-1", {"3.0-1": 500, "2.0-2": 500, "2.0-10": 500, "1.0-1": 500})


@pytest.mark.parametrize(
    ("wanted", "installed", "newest", "expected"),
    [
        (package(), None, False, "3.0-1"),
        (package(), "1.0-1", False, "1.0-1"),
        (package(), "1.0-1", True, "3.0-1"),
        (package(version="1.0-1"), None, False, "1.0-1"),
        (package(version="1.0-1"), "3.0-1", True, "1.0-1"),
        (package(upstream="2.0"), None, False, "2.0-10"),
        # an installed revision is kept
        (package(upstream="2.0"), "2.0-2", True, "2.0-2"),
        # one that the vendor has withdrawn too
        (package(version="0.9-1"), "0.9-1", False, "0.9-1"),
    ],
)
def test_the_version_that_is_chosen(wanted: dict[str, Any], installed: str | None, newest: bool, expected: str) -> None:
    assert choose(wanted, OFFERED, installed, newest) == expected


@pytest.mark.parametrize(
    ("wanted", "policy", "expected"),
    [
        (package(), None, "package a is not known to the node's package sources. Nothing was changed. Doubts."),
        (package(), Policy(None, {}), "is not known"),
        (package(version="9-1"), OFFERED, "a 9-1 is not offered (offered: 3.0-1, 2.0-10, 2.0-2, 1.0-1). Nothing was"),
        (package(upstream="2"), OFFERED, "a 2 is not offered"),
        (package(), Policy(None, {"1-1": -1}), "every version is pinned below zero by /etc/apt/preferences.d/x"),
        (package(version="1-1"), Policy(None, {"1-1": -1}), "1-1 is pinned below zero by /etc/apt/preferences.d/x"),
        (package(upstream="1"), Policy("2-1", {"1-1": -10, "2-1": 500}), "1-1 is pinned below zero"),
    ],
)  # fmt: skip
def test_what_cannot_be_had(wanted: dict[str, Any], policy: Policy | None, expected: str) -> None:
    with pytest.raises(AptStackError) as caught:
        choose(wanted, policy)
    assert expected in str(caught.value) and caught.value.next_step


def test_companions_go_where_the_package_of_their_version_goes() -> None:
    states = {"a": PackageState("1.0-1", True), "lib": PackageState("1.0-4", True), "tool": PackageState("7-1", True)}
    offers = {"1.0-4": 500, "2.0-1": 500, "2.0-2": 500, "2.0-3": -1, "3.0-1": 500}
    policies = {"lib": Policy(None, offers), "tool": Policy(None, {"2.0-1": 500})}
    assert versions_of_companions(["lib", "tool"], {"a": "2.0-1"}, states, policies) == {"lib": "2.0-2"}
    assert versions_of_companions(["lib"], {"a": "1.0-1"}, states, policies) == {}
    assert versions_of_companions(["lib"], {"a": "4.0-1"}, states, policies) == {}
    assert versions_of_companions(["lib"], {"a": "2.0-1"}, states, {}) == {}
    # two packages of one release that part: nothing says with which a companion goes
    states["b"] = PackageState("1.0-1", True)
    assert versions_of_companions(["lib"], {"a": "2.0-1", "b": "3.0-1"}, states, policies) == {}
