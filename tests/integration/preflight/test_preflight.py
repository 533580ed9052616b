# SPDX-License-Identifier: Apache-2.0
"""Preflight in the real ansible-playbook: good input passes, bad input is refused with one message."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from .conftest import GOOD_VARS, PREFLIGHT, REPOSITORY, Run


def test_good_inventory_passes_with_one_line(preflight: Callable[..., Run]) -> None:
    run = preflight({"gpu-1": {}, "gpu-2": {"node_profile": "xe9680-h100"}, "gpu-3": {}}, "--check")
    assert run.code == 0, run.said
    assert "3 hosts checked, profiles: lab (2), xe9680-h100 (1)" in run.said
    assert "changed=0" in run.said


def test_one_message_lists_all_that_is_wrong(preflight: Callable[..., Run]) -> None:
    run = preflight(
        {
            "gpu-1": {"ansible_host": "10.0.0.1", "web_port": "{{ undefined_here }}"},
            "gpu-2": {
                "ansible_host": "10.0.0.1",
                "node_profile_overrides_host": {"platform": {"clok": {}, "cpu": {"sockets": "2"}}},
            },
            "gpu-3": {"node_profile": "lba", "web_prot": 1},
            "gpu_4": {"ansible_connection": "local", "profile": {}},
            "gpu-5": {"bmc_address": "10.1.0.1", "node_profile_overrides_hots": {}},
            "gpu-6": {"web_port": 443, "web_memory": 5},
        },
        bmc_network="10.2.0.0/24",
        web_url="x",
    )
    assert run.code != 0
    problems = run.problems()
    expected = [
        ("web_port of gpu-1 |", "it cannot be evaluated:", "'undefined_here' is undefined"),
        ("address 10.0.0.1 |", "it is used 2 times: host address of gpu-[1-2]"),
        ("profile key platform.clok of gpu-2 |", "did you mean 'clock'?", "node_profile_overrides_host"),
        ("node_profile and its overrides of gpu-3 |", "profiles in", "did you mean 'lab'?"),
        ("web_prot of gpu-3 |", "did you mean 'web_port'?"),
        ("host name 'gpu_4' of gpu_4 |", "not a valid host name"),
        ("ansible_connection of gpu_4 |", "reboot, the controller itself"),
        ("profile of gpu_4 |", "the inventory or the command line sets it"),
        ("bmc_address of gpu-5 |", "10.1.0.1 is outside", "10.2.0.0/24"),
        ("node_profile_overrides_hots of gpu-5 |", "did you mean 'node_profile_overrides_host'?"),
        ("variables of the role web of gpu-6 |", "port 443 without https", "set web_mirror"),
        ("web_url of ", "gpu-[1-3,5-6]", "(6 hosts)", "no longer exists", "web_mirror"),
        # once, not again for the role variable that takes its value from there
        ("profile key platform.cpu.sockets of gpu-2 |", "the string '2'"),
        ("web_memory of gpu-6 |", "set platform.cpu.sockets in node_profile_overrides_fleet"),
    ]
    for parts in expected:
        matching = [problem for problem in problems if all(part in problem for part in parts)]
        assert len(matching) == 1, (parts, problems)
    assert len(problems) == len(expected), problems
    assert f"Preflight found {len(expected)} problems. No node was touched." in run.said
    assert all(len(problem.split(" | ")) == 4 for problem in problems), "where, found, expected and next step"


def test_inventory_without_gpu_nodes_is_refused(ansible: Callable[..., Run]) -> None:
    run = ansible("ansible-playbook", "-i", "gpu-1,", str(PREFLIGHT))
    assert run.code != 0
    assert run.problems()[0].startswith("group gpu_nodes of the inventory | no such group")


def test_nothing_runs_after_a_refusal(ansible: Callable[..., Run], tmp_path: Path) -> None:
    marker = tmp_path / "touched"
    play = {"hosts": "gpu_nodes", "gather_facts": False, "tasks": [{"ansible.builtin.raw": f"touch {marker}"}]}
    playbook = tmp_path / "site.yml"
    playbook.write_text(yaml.safe_dump([{"ansible.builtin.import_playbook": str(PREFLIGHT)}, play]))
    local = {"ansible_connection": "local", "preflight_allow_local_connection": True}
    hosts = {"gpu-1": local, "gpu-2": {**local, "web_port": 0}}
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": GOOD_VARS}}))
    command = ("ansible-playbook", "-i", str(inventory), str(playbook))

    refused = ansible(*command)
    assert refused.code != 0
    assert refused.problems() == [
        "web_port of gpu-2 | 0 | from 1 to 65535 | correct web_port in the inventory or on the command line"
    ]
    assert not marker.exists()

    # The limit leaves localhost and the bad host out; preflight runs all the same, and the play after it.
    limited = ansible(*command, "--limit", "gpu-1", "-v")
    assert limited.code == 0, limited.said
    assert "1 hosts checked" in limited.said
    assert marker.exists()


def test_limit_still_compares_addresses_of_all_hosts(preflight: Callable[..., Run]) -> None:
    hosts = {f"gpu-{number}": {"ansible_host": "10.0.0.9", "web_port": 0} for number in (1, 2, 3)}
    hosts["gpu-3"]["ansible_host"] = "10.0.0.3"
    run = preflight(hosts, "--limit", "gpu-3")
    assert [problem.split(" | ")[0] for problem in run.problems()] == ["address 10.0.0.9", "web_port of gpu-3"]
    # The summary too has the whole message: under --limit the result is gpu-3's by name, but it is about this machine.
    summary = run.said.partition("Summary of preflight.yml")[2]
    assert "Failed on this machine" in summary
    assert "found:     it is used 2 times: host address of gpu-[1-2]" in summary
    assert "not run: gpu-3" in summary


def test_strings_from_the_command_line_are_refused_and_json_passes(preflight: Callable[..., Run]) -> None:
    # --tags: preflight runs whatever part of the site is asked for
    run = preflight({"gpu-1": {}}, "-e", "web_manage=false web_port=81", "--tags", "time_sync")
    assert [problem.split(" | ")[:3] for problem in run.problems()] == [
        ["web_manage of gpu-1", "the string 'false'", "true or false"],
        ["web_port of gpu-1", "the string '81'", "a whole number"],
    ]
    assert "-e '{\"web_port\": ...}'" in run.said
    assert preflight({"gpu-1": {}}, "-e", json.dumps({"web_manage": False, "web_port": 81})).code == 0


def test_how_nodes_download_is_checked(preflight: Callable[..., Run]) -> None:
    good = {"downloads_at_once": 20, "proxy_environment": {"http_proxy": "{{ proxy }}", "no_proxy": "localhost"}}
    run = preflight({"gpu-1": {}, "gpu-2": {}}, **good, proxy="http://user:hunter2@proxy.example.com:3128")
    assert run.code == 0, run.said
    hosts: dict[str, dict[str, Any]] = {"gpu-1": {"downloads_at_once": 5}, "gpu-2": {"proxy_enviroment": {}}}
    run = preflight(hosts, "--limit", "gpu_nodes", **good, proxy="user:hunter2@proxy.example.com:3128")
    assert run.code != 0
    assert [problem.split(" | ")[:2] for problem in run.problems()] == [
        ["proxy_enviroment of gpu-2", "a variable that nothing reads; did you mean 'proxy_environment'?"],
        [
            "proxy_environment.http_proxy of gpu-[1-2] (2 hosts)",
            "an address with credentials in it (not shown), which does not say http://",
        ],
        ["downloads_at_once", "it differs: 5 for gpu-1; 20 for gpu-2"],
    ]
    assert "hunter2" not in run.said
    # The other node is not in this run.
    assert preflight(hosts, "--limit", "gpu-1", **good, proxy="http://proxy.example.com:3128").code == 0
    run = preflight({"gpu-1": {}}, "-e", "downloads_at_once=5")
    assert run.problems()[0].startswith("downloads_at_once of gpu-1 | the string '5' | a whole number of nodes")


def test_secret_is_not_printed(preflight: Callable[..., Run]) -> None:
    run = preflight({"gpu-1": {"web_password": ["hunter2"]}})
    assert run.problems()[0].startswith("web_password of gpu-1 | a value that is not shown | a string")
    assert "hunter2" not in run.said


def test_time_sync_without_servers_is_refused(preflight: Callable[..., Run]) -> None:
    hosts = {"gpu-1": {"node_profile_overrides_fleet": None}, "gpu-2": {}}
    run = preflight(hosts)
    (problem,) = run.problems()
    assert problem.startswith("variables of the role time_sync of gpu-1 | there are no NTP servers")
    assert preflight(hosts, time_sync_manage=False).code == 0


def test_layers_are_merged_in_order_and_may_be_named(
    preflight: Callable[..., Run], ansible: Callable[..., Run], tmp_path: Path
) -> None:
    def sockets(count: int) -> dict[str, object]:
        return {"platform": {"cpu": {"sockets": count}}}

    hosts = {
        "gpu-1": {},
        "gpu-2": {"node_profile_overrides_host": sockets(4)},
        "gpu-3": {"node_profile_overrides_host": sockets(4), "node_profile_layers": ["host", "fleet", "rack"]},
    }
    passed = preflight(
        hosts, node_profile_overrides_rack=sockets(8), node_profile_layers=["fleet", "group", "rack", "host"]
    )
    assert passed.code == 0, passed.said
    shown = ansible(
        "ansible", "-i", str(tmp_path / "hosts.yml"), "-c", "local", "-o", "gpu_nodes", "-m", "ansible.builtin.debug",
        "-a", "msg={{ profile.platform.cpu.sockets }}-{{ profile.platform.clock.servers[0].address }}",
    )  # fmt: skip
    answers = dict(re.findall(r'(gpu-\d) \| SUCCESS => .*"msg": "(\d-[\d.]+)"', shown.said))
    assert answers == {"gpu-1": "8-10.0.0.1", "gpu-2": "4-10.0.0.1", "gpu-3": "8-10.0.0.1"}, shown.said


def test_profiles_of_another_folder(preflight: Callable[..., Run], ansible: Callable[..., Run], tmp_path: Path) -> None:
    profile = yaml.safe_load((REPOSITORY / "profiles" / "lab.yml").read_text())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "spare.yml").write_text(yaml.safe_dump({**profile, "description": "spare parts"}))
    run = preflight({"gpu-1": {}}, node_profile="spare", node_profile_dir="{{ inventory_dir }}/mine")
    assert "1 hosts checked, profiles: spare (1)" in run.said, run.said
    debug = ("-m", "ansible.builtin.debug", "-a", "msg={{ profile.description }}")
    shown = ansible("ansible", "-i", str(tmp_path / "hosts.yml"), "-c", "local", "gpu_nodes", *debug)
    assert "spare parts" in shown.said


def test_profile_is_there_for_a_host_list_and_names_what_is_missing(
    ansible: Callable[..., Run], tmp_path: Path
) -> None:
    playbook = tmp_path / "play.yml"
    task = {"ansible.builtin.debug": {"msg": "sockets: {{ profile.platform.cpu.sockets }}"}}
    playbook.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    command = ("ansible-playbook", "-i", "gpu-1,", "-c", "local", str(playbook))
    assert "sockets: 2" in ansible(*command, "-e", "node_profile=lab").said
    assert "No profile for gpu-1: the variable node_profile is not set" in ansible(*command).said


def test_reference_fleet_of_511_nodes_passes_quickly(ansible: Callable[..., Run]) -> None:
    inventory = str(REPOSITORY / "inventories" / "example")
    listed = json.loads(ansible("ansible-inventory", "-i", inventory, "--list").said)
    groups = listed["gpu_nodes"]["children"]
    assert len(groups) == 16
    assert len({host for group in groups for host in listed[group]["hosts"]}) == 511
    start = time.monotonic()
    run = ansible("ansible-playbook", "-i", inventory, str(PREFLIGHT), "-v")
    elapsed = time.monotonic() - start
    assert "511 hosts checked, profiles: xe9680-h100 (511)" in run.said, run.said
    # About 5 s on two idle cores: one role whose arguments the hosts validate takes 12 s.
    assert elapsed < 40, f"{elapsed:.0f} s"
