# SPDX-License-Identifier: Apache-2.0
"""The reboot stage over several nodes: it stops at the first that does not come back, and never on a local connection.

A container that is shut down is a node that does not come back. Its mark as a container is removed, since the stage
rightly leaves containers alone.
"""

import json
from pathlib import Path

import pytest

from tests.integration.roles.conftest import Containers
from tests.playbook import run_playbook

REQUEST = {
    "name": "test",
    "reason": "the test wants it",
    "still_needed": ["/bin/true"],
    "requested_by": "test",
    "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    "when": "2026-11-29T12:00:00Z",
}
ASK = f"mkdir -p /run/gpufleet/reboot.d && echo '{json.dumps(REQUEST)}' > /run/gpufleet/reboot.d/test.json"
# The images have no logind, which shutdown(8) asks; RTMIN+4 tells systemd to power off.
SHUTDOWN = "rm /usr/sbin/shutdown; printf '#!/bin/sh\\nkill -38 1\\n' > /usr/sbin/shutdown; chmod +x /usr/sbin/shutdown"
SETTINGS = {"reboot_allowed": True, "reboot_batch": [1, 2], "reboot_timeout": 30, "reboot_settle_timeout": 0}


@pytest.mark.container
def test_the_roll_out_stops_at_a_node_that_does_not_come_back(containers: Containers, tmp_path: Path) -> None:
    containers.start(["node1", "node2", "node3", "idle"])
    for host in ("node1", "node2", "node3"):
        containers.run(host, f"{ASK}; rm /run/systemd/container; {SHUTDOWN}")
    run = run_playbook(
        "playbooks/reboot.yml", tmp_path / "reports", "-i", str(containers.inventory), "-e", json.dumps(SETTINGS)
    )
    assert run.code != 0
    assert run.host("node1")["outcome"] == "failed", run.output
    assert "did not come back within 30 s" in run.output and "the test wants it" in run.output
    # The second batch was never begun, and the report says so.
    for host in ("node2", "node3"):
        assert run.host(host)["outcome"] == "not_run", run.output
        assert containers.run(host, "systemctl is-system-running || true").strip() in ("running", "degraded")
        assert "no such" not in containers.run(host, "ls /run/gpufleet/reboot.d/test.json")
        assert containers.run(host, "ls /var/lib/gpufleet 2>/dev/null || true") == ""
    # A node without a request costs one host-task.
    assert run.host("idle")["outcome"] == "ok"
    assert run.host("idle")["host_tasks"] == 1


@pytest.mark.container
def test_what_may_not_be_rebooted_is_left_alone_and_reported(containers: Containers, tmp_path: Path) -> None:
    containers.start(["container", "busy", "guarded", "waiting"])
    for host in containers.names:
        containers.run(host, ASK)
    for host in ("busy", "guarded", "waiting"):
        containers.run(host, "rm /run/systemd/container")
    smi = "printf '#!/bin/sh\\necho 4711, python3\\n' > /usr/bin/nvidia-smi; chmod +x /usr/bin/nvidia-smi"
    containers.run("busy", smi)
    guard = ["/bin/sh", "-c", "test $(hostname) != guarded || { echo 2 jobs run here; exit 1; }"]
    options = ["-i", str(containers.inventory), "-e", json.dumps({**SETTINGS, "reboot_guard": guard})]

    # Not allowed: nothing is tried, the run ends well, and the summary says what waits.
    run = run_playbook("playbooks/reboot.yml", tmp_path / "1", *options, "-e", '{"reboot_allowed": false}')
    assert run.code == 0, run.output
    assert {run.host(host)["outcome"] for host in containers.names} == {"attention"}
    assert "reboot pending: the test wants it" in run.output and '{"reboot_allowed": true}' in run.output
    assert {run.host(host)["host_tasks"] for host in containers.names} == {1}

    # Check mode over all, "waiting" included: it would be rebooted.
    run = run_playbook("playbooks/reboot.yml", tmp_path / "2", *options, "--check")
    assert run.code == 0, run.output
    assert run.host("waiting")["outcome"] == "changed"

    run = run_playbook("playbooks/reboot.yml", tmp_path / "3", *options, "--limit", "container,busy,guarded")
    assert run.code == 0, run.output
    for host, why in (
        ("container", "it is a container"),
        ("busy", "GPU processes are running: 4711 python3"),
        ("guarded", "2 jobs run here"),
    ):
        assert run.host(host)["outcome"] == "attention", run.output
        assert why in json.dumps(run.host(host)["attention"])
        assert containers.run(host, "ls /var/lib/gpufleet 2>/dev/null || true") == ""


def test_over_a_local_connection_the_need_is_reported_and_nothing_is_rebooted(tmp_path: Path) -> None:
    folder = tmp_path / "reboot.d"
    folder.mkdir(mode=0o755)
    (folder / "test.json").write_text(json.dumps(REQUEST))
    (folder / "test.json").chmod(0o644)
    where = {"directory": str(folder), "records": str(tmp_path / "records"), "os_request": str(tmp_path / "none")}
    play = {
        "name": "The reboot stage on folders of its own",
        "hosts": "gpu_nodes",
        "gather_facts": False,
        "tasks": [
            {"name": "Look", "reboot_status": {"allowed": True, **where}},
            {"name": "Serve", "reboot_node": where},
        ],
    }
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    (tmp_path / "inventory.yml").write_text(
        json.dumps({"gpu_nodes": {"hosts": {"me": {"ansible_connection": "local"}}, "vars": {"node_profile": "lab"}}})
    )
    run = run_playbook(str(tmp_path / "play.yml"), tmp_path / "reports", "-i", str(tmp_path / "inventory.yml"))
    assert run.code == 0, run.output
    assert run.host("me")["outcome"] == "attention"
    assert "local connection" in run.output and "the test wants it" in run.output
