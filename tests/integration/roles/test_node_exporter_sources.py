# SPDX-License-Identifier: Apache-2.0
"""The role node_exporter from one source to the other and back, with a real binary, systemd and apt.

The vendor's tarball is out of reach of tests; the mirror serves one made from the distribution's binary.
"""

import json
from pathlib import Path

import pytest

from tests.integration.roles.conftest import Containers
from tests.playbook import PlaybookRun, run_playbook

MIRROR = (
    "set -e; mkdir -p /srv/mirror/node_exporter-{0}.linux-amd64; cd /srv/mirror; "
    "cp /usr/bin/prometheus-node-exporter node_exporter-{0}.linux-amd64/node_exporter; "
    "tar czf node_exporter-{0}.linux-amd64.tar.gz node_exporter-{0}.linux-amd64; "
    "systemd-run --unit=mirror python3 -m http.server --bind 127.0.0.1 --directory /srv/mirror 8080 >&2; "
    "sha256sum node_exporter-{0}.linux-amd64.tar.gz | cut -d' ' -f1"
)
VERSION = "/usr/bin/prometheus-node-exporter --version 2>&1 | sed -n 's/^node_exporter, version \\([0-9.]*\\).*/\\1/p'"
PLAY = {
    "name": "Run the node exporter",
    "hosts": "gpu_nodes",
    "gather_facts": False,
    "tasks": [{"name": "Run it", "ansible.builtin.import_role": {"name": "node_exporter", "rolespec_validate": False}}],
}


@pytest.mark.container
def test_from_the_package_to_a_mirror_and_back(containers: Containers, tmp_path: Path) -> None:
    containers.start(["node"])
    (tmp_path / "play.yml").write_text(json.dumps([PLAY]))
    runs = iter(range(100))

    def apply(**variables: object) -> PlaybookRun:
        options = ["-i", str(containers.inventory), "-e", json.dumps(variables)]
        return run_playbook(str(tmp_path / "play.yml"), tmp_path / str(next(runs)), *options)

    run = apply()
    assert run.code == 0, run.output
    version = containers.run("node", VERSION).strip()
    sha256 = containers.run("node", MIRROR.format(version)).strip()
    mirror = {
        "node_exporter_source": "mirror",
        "node_exporter_version": version,
        "node_exporter_sha256": sha256,
        "node_exporter_mirror_url": "http://127.0.0.1:8080/",
    }

    # What is wrong is refused, and the running exporter is not touched.
    before = containers.run("node", "systemctl show --property=MainPID node_exporter")
    for spoiled, expected in (
        ({"node_exporter_sha256": "0" * 64}, "expected " + "0" * 64),
        ({"node_exporter_collectors_enabled": ["proceses"]}, "did you mean processes?"),
        ({"node_exporter_port": 8080}, "port 8080 is in use by python3 (pid "),
    ):
        run = apply(**{**mirror, **spoiled})
        assert run.code != 0 and expected in json.dumps(run.report), run.output
    assert containers.run("node", "systemctl show --property=MainPID node_exporter") == before

    run = apply(**mirror)
    assert run.code == 0, run.output
    command = "systemctl cat node_exporter | grep ^ExecStart; dpkg-query -W prometheus-node-exporter 2>&1"
    assert "/usr/local/bin/node_exporter" in containers.run("node", command, check=False)
    assert "Status: install" not in containers.run("node", "dpkg -s prometheus-node-exporter 2>&1 || true")
    assert apply(**mirror).host("node")["changed"] == 0

    run = apply()
    assert run.code == 0, run.output
    assert containers.run("node", "ls /usr/local/bin") == ""
    assert apply().host("node")["changed"] == 0

    # Whatever the source, the port has one listener, and it runs without privileges.
    assert len(containers.run("node", "ss --no-header --listening --tcp 'sport = :9100'").splitlines()) == 1
    user = containers.run("node", "ps -o user= -p $(systemctl show --property=MainPID --value node_exporter)")
    assert user.strip() == "node_exporter"
