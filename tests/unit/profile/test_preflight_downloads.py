# SPDX-License-Identifier: Apache-2.0
"""Preflight's checks of downloads_at_once and proxy_environment."""

from typing import Any

import pytest
from ansible.module_utils.gpufleet_controller.preflight_downloads import (
    at_once_findings,
    download_findings,
    environment_findings,
)
from ansible.module_utils.gpufleet_controller.preflight_findings import Findings

PROXY = "http://proxy.example.com:3128"


def judge(hosts: dict[str, dict[str, Any]]) -> list[str]:
    """All findings about the hosts, each as one line."""
    findings = Findings()
    download_findings(hosts, hosts, findings)
    return [f"{item['where']}: {item['found']} {item['hosts']}" for item in findings.as_data()]


@pytest.mark.parametrize("value", [1, 20, 511])
def test_a_number_of_nodes_passes(value: int) -> None:
    assert at_once_findings(value) == []


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (0, "0"),  # Ansible's own "no limit", and a slip of the pen all the same
        (-1, "-1"),
        (2.5, "2.5"),
        (20.0, "20.0"),
        (True, "True"),
        (None, "null"),
        ("20", "the string '20'"),
        ([20], "[20]"),
    ],
)
def test_anything_else_is_refused(value: Any, found: str) -> None:
    (finding,) = at_once_findings(value)
    assert finding.found == found and finding.expected == "a whole number of nodes, at least 1"
    assert ("use JSON: -e '{\"downloads_at_once\": ...}'" in finding.next_step) == isinstance(value, str)


def test_all_nodes_of_a_run_have_the_same_number() -> None:
    assert judge({"gpu-1": {"downloads_at_once": 5}, "gpu-2": {"downloads_at_once": 5}}) == []
    assert judge({"gpu-1": {}, "gpu-2": {}}) == []
    hosts = {f"gpu-{number}": {"downloads_at_once": 5 if number < 3 else 20} for number in range(1, 5)}
    assert judge({**hosts, "gpu-5": {}}) == [
        "downloads_at_once: it differs: 5 for gpu-[1-2]; 20 for gpu-[3-4]; not set for gpu-5 []"
    ]


def test_a_wrong_number_is_one_finding() -> None:
    assert judge({"gpu-1": {"downloads_at_once": 5}, "gpu-2": {"downloads_at_once": 0}}) == [
        "downloads_at_once: 0 ['gpu-2']"
    ]
    # one that could not be evaluated is a finding elsewhere
    findings = Findings()
    download_findings({"a": ["downloads_at_once"], "b": ["downloads_at_once"]}, {"a": {}, "b": {AT: 3}}, findings)
    assert len(findings) == 0


AT = "downloads_at_once"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("download_at_once", "downloads_at_once"),
        ("downlaods_at_once", "downloads_at_once"),
        ("proxy_enviroment", "proxy_environment"),
    ],
)
def test_a_misspelt_name_is_refused(name: str, meant: str) -> None:
    (line,) = judge({"gpu-1": {name: 1}, "gpu-2": {name: 1}})
    assert line == f"{name}: a variable that nothing reads; did you mean {meant!r}? ['gpu-[1-2]']"


def test_other_names_are_nobodys_business() -> None:
    assert judge({"a": {"environment": 1, "proxy": 1, "downloads": 1, "vault_proxy": 1, "http_proxy": 1}}) == []


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"http_proxy": PROXY},
        {"http_proxy": PROXY, "https_proxy": PROXY, "no_proxy": "localhost,127.0.0.1,.example.com"},
        {"http_proxy": PROXY, "HTTP_PROXY": PROXY, "no_proxy": "", "NO_PROXY": ""},
        {"http_proxy": "http://10.0.0.1/"},
        {"http_proxy": "http://[fd00::1]:3128"},
        {"http_proxy": "http://user:p%40ss@proxy_1.example.com:3128"},
    ],
)
def test_a_proxy_passes(value: dict[str, str]) -> None:
    assert environment_findings(value) == []


@pytest.mark.parametrize(
    ("value", "where", "found", "next_step"),
    [
        ({"htp_proxy": PROXY}, "htp_proxy", "did you mean 'http_proxy'?", "rename"),
        ({"Http_Proxy": PROXY}, "Http_Proxy", "did you mean 'http_proxy'?", "rename"),
        ({"ftp": PROXY}, "ftp", "a name that no download reads", "rename"),
        ({1: PROXY}, "1", "a name that no download reads", "rename"),
        ({"HTTPS_PROXY": PROXY}, "HTTPS_PROXY", "https_proxy is not set, and apt does not read", "write https_proxy"),
        ({"NO_PROXY": "a"}, "NO_PROXY", "no_proxy is not set, and apt does not read", "write no_proxy"),
        ({"no_proxy": ["a", "b"]}, "no_proxy", "list, not shown", "correct"),
        ({"http_proxy": None}, "http_proxy", "null", "correct"),
        ({"http_proxy": 3128}, "http_proxy", "int, not shown", "correct"),
        ({"http_proxy": ""}, "http_proxy", "an empty string, which means no proxy", "GPUFLEET_PROXY"),
        ({"http_proxy": "proxy.example.com:3128"}, "http_proxy", "does not say http://", "put http:// before it"),
        ({"https_proxy": "https://proxy.example.com"}, "https_proxy", "begins with https://", "about https sources"),
        ({"http_proxy": "socks5h://proxy:1080"}, "http_proxy", "begins with socks5h://", "write http://"),
        ({"http_proxy": "http://proxy:31z8"}, "http_proxy", "cannot be taken apart", "correct it"),
        ({"http_proxy": "http://proxy:99999"}, "http_proxy", "cannot be taken apart", "correct it"),
        ({"http_proxy": "http://proxy:0"}, "http_proxy", "host name or port is wrong", "correct it"),
        ({"http_proxy": "http://:3128"}, "http_proxy", "host name or port is wrong", "correct it"),
        ({"http_proxy": "http://{{ proxy }}:1"}, "http_proxy", "has blanks in it", "correct it"),
        ({"http_proxy": "http://pro$xy"}, "http_proxy", "host name or port is wrong", "correct it"),
        ({"http_proxy": "http://cacher:3142/debian"}, "http_proxy", "goes on after the port", "uri in the profile"),
        ({"http_proxy": "http://[fd00::1"}, "http_proxy", "cannot be taken apart", "correct it"),
    ],
)
def test_a_faulty_proxy_is_refused(value: dict[Any, Any], where: str, found: str, next_step: str) -> None:
    (finding,) = environment_findings(value)
    assert finding.where == f"proxy_environment.{where}"
    assert found in finding.found and next_step in finding.next_step


@pytest.mark.parametrize("value", ["http://user:hunter2@proxy", ["hunter2"], None, 5])
def test_only_a_section_will_do(value: Any) -> None:
    (finding,) = environment_findings(value)
    assert finding.where == "proxy_environment" and "not shown" in finding.found


@pytest.mark.parametrize(
    "address",
    [
        "user:hunter2@proxy:3128",
        "https://user:hunter2@proxy:3128",
        "http://user:hunter2@proxy:31z8",
        "http://user:hunter2@proxy:3128/x",
        "http://user:hun/ter2@proxy:3128",
        "http://user:hun#ter2@proxy:3128",
        "http://user:hunter2@pro xy",
        "http://user:hunter2@:1",
    ],
)
def test_credentials_are_not_shown(address: str) -> None:
    (finding,) = environment_findings({"http_proxy": address})
    assert "hun" not in str(finding) and "not shown" in finding.found
