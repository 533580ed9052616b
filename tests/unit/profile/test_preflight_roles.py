# SPDX-License-Identifier: Apache-2.0
"""Preflight's checks of role variables: names, types, choices, ranges, and the files they come from."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpufleet_controller.preflight_roles import (
    RoleVariables,
    load_roles,
    name_findings,
    value_findings,
)

SPEC: dict[str, dict[str, Any]] = {
    "web_manage": {"type": "bool"},
    "web_port": {"type": "int"},
    "web_ratio": {"type": "float"},
    "web_mode": {"type": "str", "choices": ["a", "b"]},
    "web_version": {"type": "str"},
    "web_names": {"type": "list", "elements": "str"},
    "web_sections": {
        "type": "list",
        "elements": "dict",
        "options": {"address": {"type": "str", "required": True}, "port": {"type": "int"}},
    },
    "web_password": {"type": "str", "no_log": True},
    "web_key": {"type": "str", "required": True},
    "web_anything": {"type": "raw"},
}
DEFAULTS: dict[str, Any] = {
    "web_manage": True,
    "web_port": 80,
    "web_ratio": 0.5,
    "web_mode": "a",
    "web_version": "{{ profile.packages.web.version }}",
    "web_names": [],
    "web_sections": [],
    "web_password": None,
    "web_anything": None,
}
WEB = RoleVariables(
    "web",
    SPEC,
    DEFAULTS,
    ranges={"web_port": {"min": 1, "max": 65535}, "web_ratio": {"max": 1}},
    removed={"web_old": "web_names, a list"},
)
WEB_PROXY = RoleVariables("web_proxy", {"web_proxy_port": {"type": "int"}}, {"web_proxy_port": 1})
GOOD = {**DEFAULTS, "web_version": "1.2", "web_key": "k"}


def names(*variables: str) -> list[tuple[str, str, str]]:
    findings = name_findings([WEB, WEB_PROXY], variables)
    return [(finding.found, finding.expected, finding.next_step) for finding in findings]


def test_known_and_foreign_names_pass() -> None:
    assert names("web_port", "web_proxy_port", "website", "other_thing", "web") == []


def test_misspelt_name_is_refused() -> None:
    ((found, expected, _next),) = names("web_prot")
    assert found == "a variable that the role web does not have; did you mean 'web_port'?"
    assert expected == "one of those in roles/web/README.md"


def test_name_belongs_to_the_role_with_the_longest_prefix() -> None:
    ((found, _expected, _next),) = names("web_proxy_prot")
    assert "role web_proxy does not have; did you mean 'web_proxy_port'?" in found


def test_removed_name_is_answered_with_its_successor() -> None:
    assert names("web_old") == [("a variable that no longer exists", "web_names, a list", "rename or remove it")]


def test_private_name_is_refused() -> None:
    ((found, _expected, _next),) = names("__web_state")
    assert found == "a private variable of the role web"


def test_variable_that_the_profile_sets_is_refused_with_the_key() -> None:
    ((found, _expected, next_step),) = names("web_version")
    assert found == "it is set beside the profile"
    assert next_step == "remove it and set packages.web.version in node_profile_overrides_fleet, _group or _host"


def values(**changed: Any) -> list[tuple[str, str, str, str]]:
    findings = value_findings(WEB, {**GOOD, **changed})
    return [(finding.where, finding.found, finding.expected, finding.next_step) for finding in findings]


@pytest.mark.parametrize(
    "changed",
    [{}, {"web_port": 65535}, {"web_ratio": 1}, {"web_version": None}, {"web_version": 7}, {"web_anything": [1, "x"]}]
    + [{"web_sections": [{"address": "a", "port": 1}, {"address": "b", "port": None}]}, {"web_names": ["a"]}],
    ids=str,
)
def test_good_values_pass(changed: dict[str, Any]) -> None:
    assert values(**changed) == []


@pytest.mark.parametrize(
    ("changed", "where", "found", "expected"),
    [
        ({"web_manage": "false"}, "web_manage", "the string 'false'", "true or false"),
        ({"web_manage": 0}, "web_manage", "the number 0", "true or false"),
        ({"web_port": "80"}, "web_port", "the string '80'", "a whole number"),
        ({"web_port": True}, "web_port", "the truth value True", "a whole number"),
        ({"web_port": 8.5}, "web_port", "the number 8.5", "a whole number"),
        ({"web_port": None}, "web_port", "null", "a whole number"),
        ({"web_port": 0}, "web_port", "0", "from 1 to 65535"),
        ({"web_port": 65536}, "web_port", "65536", "from 1 to 65535"),
        ({"web_ratio": 1.5}, "web_ratio", "1.5", "at most 1"),
        ({"web_version": 1.1}, "web_version", "the number 1.1", "a string"),
        ({"web_names": "a"}, "web_names", "the string 'a'", "a list"),
        ({"web_names": ["a", 1.5]}, "web_names[1]", "the number 1.5", "a string"),
        ({"web_mode": True}, "web_mode", "the truth value True", "a string"),
        ({"web_sections": [{"address": "a", "port": "1"}]}, "web_sections[0].port", "the string '1'", "a whole number"),
        ({"web_sections": [["a"]]}, "web_sections[0]", "the list ['a']", "a section of keys"),
        (
            {"web_mode": "c"},
            "variables of the role web",
            "value of web_mode must be one of: a, b, got: c",
            "argument_specs",
        ),
        ({"web_sections": [{"port": 1}]}, "variables of the role web", "missing required arguments: address", ""),
        ({"web_sections": [{"address": "a", "prot": 1}]}, "variables of the role web", "web_sections.prot", ""),
    ],
    ids=str,
)
def test_bad_value_is_refused(changed: dict[str, Any], where: str, found: str, expected: str) -> None:
    ((where_found, what_found, what_expected, _next),) = values(**changed)
    assert where_found == where
    assert found in what_found
    assert expected in what_expected


def test_string_from_the_command_line_is_answered_with_json() -> None:
    ((_where, _found, _expected, next_step),) = values(web_manage="no")
    assert "-e '{\"web_manage\": ...}'" in next_step
    ((_where, _found, _expected, next_step),) = values(web_version=1.1)
    assert "put the value in quotes" in next_step


def test_missing_required_variable_is_refused() -> None:
    (finding,) = value_findings(WEB, {name: value for name, value in GOOD.items() if name != "web_key"})
    assert "missing required arguments: web_key" in finding.found
    ((where, found, _expected, _next),) = values(web_key=None)
    assert (where, found) == ("web_key", "null")


def test_secret_is_never_shown() -> None:
    spec = {"web_password": {"type": "str", "no_log": True, "choices": ["x", "y"]}}
    role = RoleVariables("web", spec, {"web_password": "x"})
    for secret in ("hunter2", 47.11, ["hunter2"]):
        (finding,) = value_findings(role, {"web_password": secret})
        assert "hunter2" not in str(finding) and "47.11" not in str(finding)
        assert "not shown" in finding.found


def write_role(folder: Path, name: str, **files: Any) -> None:
    for file, content in files.items():
        path = (
            folder
            / name
            / {"specs": "meta/argument_specs.yml", "defaults": "defaults/main.yml"}.get(file, f"meta/{file}.yml")
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content))


def load(*folders: Path) -> tuple[list[RoleVariables], list[str]]:
    roles, findings = load_roles(
        [str(folder) for folder in folders], lambda path: yaml.safe_load(Path(path).read_text())
    )
    return roles, [f"{finding.where}: {finding.found}" for finding in findings]


def test_roles_are_read_from_all_folders_and_the_first_wins(tmp_path: Path) -> None:
    specs = {
        "argument_specs": {"main": {"options": {"web_port": {"type": "int"}}}, "other": {"options": {"web_x": {}}}}
    }
    write_role(
        tmp_path / "one", "web", specs=specs, defaults={"web_port": 1}, preflight={"ranges": {"web_port": {"min": 1}}}
    )
    write_role(tmp_path / "two", "web", specs={"argument_specs": {}})
    write_role(tmp_path / "two", "bare", defaults={"bare_x": 1})
    roles, findings = load(tmp_path / "one", tmp_path / "two", tmp_path / "none")
    assert findings == []
    (web,) = roles
    assert set(web.options) == {"web_port", "web_x"}
    assert (web.defaults, web.ranges) == ({"web_port": 1}, {"web_port": {"min": 1}})


def test_preflight_file_that_would_check_nothing_is_refused(tmp_path: Path) -> None:
    write_role(
        tmp_path,
        "web",
        specs={"argument_specs": {"main": {"options": {"web_port": {"type": "int"}}}}},
        preflight={
            "range": {},
            "ranges": {"web_prot": {"min": 1}},
            "removed": {"web_port": "x"},
            "rules": [{"that": "true", "fail_msg": "m"}],
        },
    )
    _roles, findings = load(tmp_path)
    assert [finding.split(": ")[1] for finding in findings] == [
        "the key range",
        "a range for web_prot, which is no variable of the role",
        "web_port as removed, which is a variable of the role",
        "a rule without next_step",
    ]
