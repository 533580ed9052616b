# SPDX-License-Identifier: Apache-2.0
"""The roles dcgm and dcgm_exporter over a node's life, with real apt and systemd on stand-ins of NVIDIA's packages.

One test, since each step needs what the one before left, and a run of a role costs seconds. The scenarios
molecule/dcgm and molecule/dcgm_exporter have the dry run on a fresh node and the second run on nodes with GPUs.
"""

import json
import re

import pytest

from tests.integration.dcgm.conftest import DcgmNodes
from tests.vendor_repository.dcgm_stand_ins import BEFORE, EXPORTER_NEW, EXPORTER_OLD, NEW, OLD, SPLIT

pytestmark = pytest.mark.container
URL = "http://127.0.0.1:{}/metrics"
SCRAPE = f"python3 -c 'import urllib.request as u; print(u.urlopen(\"{URL.format(9400)}\").read().decode())'"
RUNNING = "dcgmi -v | sed -n '/Hostengine/,$s/^Version : //p'"
WATCHED = "dcgmi health --fetch | sed -n 's/^| \\([A-Za-z]*\\) *| On .*/\\1/p' | xargs"
EXPORTER_PID = "systemctl show -P MainPID nvidia-dcgm-exporter"
# Debian 12 has promtool in its package prometheus.
PROMTOOL = (
    "mv /root/sources.list /etc/apt/; apt-get update >&2; "
    "DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends curl promtool >&2"
)
# Stands in for Docker's client: it has every image that was pulled, and "runs" one by the package's program.
DOCKER = """#!/bin/sh
echo "$*" >>/run/docker-calls
case $1 in
image) test -e /run/docker-image;;
pull) touch /run/docker-image;;
run)
  while [ "$1" != "$DOCKER_IMAGE" ]; do shift; done
  shift
  exec /usr/bin/dcgm-exporter "$@";;
esac
"""
IMAGE = f"registry.example.com/k8s/dcgm-exporter:{NEW}-{EXPORTER_NEW}-ubuntu22.04"


def version(nodes: DcgmNodes, package: str, host: str) -> str:
    """Installed version; "" where there is none."""
    form = "--showformat='${db:Status-Status} ${Version}'"
    status, _blank, found = nodes.sh(f"dpkg-query --show {form} {package} 2>/dev/null", host, False).partition(" ")
    return found if status == "installed" else ""


def without_a_gpu(nodes: DcgmNodes) -> None:
    """Installed, and skipped: no failed unit, and a second run changes nothing."""
    old = {"version": OLD}
    assert nodes.apply(dcgm=old) > 0
    assert nodes.apply(dcgm=old) == 0
    # As a boot starts them, all at once.
    nodes.says("systemctl start nvidia-dcgm nvidia-dcgm-exporter gpufleet-dcgm-watches")
    assert nodes.says("systemctl --failed --no-legend") == ""
    assert nodes.says("systemctl is-active nvidia-dcgm nvidia-dcgm-exporter", check=False) == "inactive\ninactive"


def with_gpus(nodes: DcgmNodes) -> None:
    """Both start; the exporter is the one for this DCGM, and runs under its own account."""
    nodes.gpus(2)
    assert nodes.apply(dcgm={"version": OLD}) > 0
    for host in nodes.hosts:
        assert version(nodes, "datacenter-gpu-manager-exporter", host) == f"{EXPORTER_OLD}-1"
    assert nodes.says(WATCHED) == "PCIe Thermal Power"
    assert nodes.says(f"stat -c %U /proc/$({EXPORTER_PID})") == "dcgm-exporter"
    told = nodes.sh(SCRAPE, nodes.hosts[0])
    assert len(re.findall(r"^DCGM_EXP_XID_ERRORS_COUNT\{", told, re.MULTILINE)) == 2


def refusals(nodes: DcgmNodes) -> None:
    """What cannot work is refused by name, and the running exporter is not touched."""
    host = nodes.hosts[0]
    pid = nodes.sh(EXPORTER_PID, host)
    words = {"roles": ("dcgm_exporter",), "dcgm": {"version": OLD}, "limit": host}
    nodes.refused(
        f"built for DCGM {NEW}, and the node has the older {OLD}", exporter={"version": EXPORTER_NEW}, **words
    )
    nodes.refused(
        "does not know DCGM_FI_DEV_GPU_TEMPS (did you mean DCGM_FI_DEV_GPU_TEMP?)",
        dcgm_exporter_extra_metrics=[{"field": "DCGM_FI_DEV_GPU_TEMPS", "type": "gauge", "help": "x"}],
        **words,
    )
    nodes.sh("systemd-run --quiet --unit=taker python3 -m http.server --bind 127.0.0.1 9500", host)
    nodes.sh("until ss --no-header -ltn 'sport = :9500' | grep -q .; do sleep 0.2; done", host)
    nodes.refused("port 9500 is in use by python3 (pid ", dcgm_exporter_port=9500, **words)
    assert nodes.sh(EXPORTER_PID, host) == pid


def upgrade(nodes: DcgmNodes) -> None:
    """Asked for; the host engine runs the new one with its watches, the exporter follows, all of it held."""
    assert nodes.apply(dcgm={"version": NEW}, dcgm_upgrade=True, dcgm_exporter_upgrade=True) > 0
    assert nodes.says(RUNNING) == NEW and nodes.says(WATCHED) == "PCIe Thermal Power"
    for host in nodes.hosts:
        assert version(nodes, "datacenter-gpu-manager-exporter", host) == f"{EXPORTER_NEW}-1"
    assert len(nodes.says("apt-mark showhold").split()) == 5


def a_hung_host_engine(nodes: DcgmNodes) -> None:
    """Is an error that says so."""
    nodes.says("touch /run/dcgm-stand-in-hangs")
    run = nodes.run(roles=("dcgm",), dcgm={"version": NEW}, dcgm_timeout_s=5)
    assert run.code != 0 and "host engine hangs: nv-hostengine (pid " in json.dumps(run.report), run.output
    nodes.says("rm /run/dcgm-stand-in-hangs; systemctl restart nvidia-dcgm")


def as_a_container(nodes: DcgmNodes) -> None:
    """The unit of the container, with a stand-in for Docker's client: fetched once, and gone when it is stopped."""
    host = nodes.hosts[0]
    nodes.sh(
        f"cat >/usr/bin/docker <<'END'\n{DOCKER.replace('$DOCKER_IMAGE', IMAGE)}END\nchmod 755 /usr/bin/docker", host
    )
    nodes.sh("printf '[Service]\\nExecStart=/bin/sleep inf\\n' >/etc/systemd/system/docker.service", host)
    words = {
        "dcgm": {"version": NEW},
        "exporter": {"run_as": "container", "image": IMAGE},
        "limit": host,
        "roles": ("dcgm_exporter",),
    }
    assert nodes.apply(**words) > 0
    assert "DCGM_EXP_XID_ERRORS_COUNT{" in nodes.sh(SCRAPE, host)
    nodes.sh("systemctl stop nvidia-dcgm-exporter", host)
    calls = nodes.sh("cat /run/docker-calls", host).splitlines()
    assert calls[1] == f"pull --quiet {IMAGE}" and calls[-1] == "rm --force gpufleet-dcgm-exporter"
    (started,) = [call for call in calls if call.startswith("run ")]
    assert "--gpus all" in started and "--cap-drop ALL" in started and "SYS_ADMIN" not in started
    assert f"{IMAGE} -f /etc/gpufleet/dcgm-exporter.csv -a :9400 -r localhost:5555" in started
    assert nodes.sh("systemctl --failed --no-legend", host) == ""


def test_a_nodes_life(nodes: DcgmNodes) -> None:
    without_a_gpu(nodes)
    with_gpus(nodes)
    refusals(nodes)
    upgrade(nodes)
    a_hung_host_engine(nodes)
    as_a_container(nodes)
    the_generation_before(nodes)


def the_generation_before(nodes: DcgmNodes) -> None:
    """DCGM 3 is refused by name and goes by request only, here for a release whose -core has no payload."""
    host = nodes.hosts[1]
    nodes.sh(
        "systemctl stop nvidia-dcgm-exporter nvidia-dcgm; names=$(dpkg-query --show --showformat='${Package} ' "
        "'datacenter-gpu-manager*'); apt-mark unhold $names >&2; dpkg --purge $names >&2; apt-get install --yes "
        f"/srv/vendor/datacenter-gpu-manager_1%3a{BEFORE}_all.deb >&2; systemctl start nvidia-dcgm",
        host,
    )
    words = {"roles": ("dcgm",), "dcgm": {"version": SPLIT}, "limit": host}
    nodes.refused(f"datacenter-gpu-manager 1:{BEFORE}", "dcgm_replace_older_release", **words)
    assert nodes.apply(dcgm_replace_older_release=True, **words) > 0
    assert version(nodes, "datacenter-gpu-manager", host) == ""
    # The process of DCGM 3 was still running under the same unit: it is not the installed one.
    assert nodes.sh(RUNNING, host) == SPLIT and "nv-hostengine" in nodes.sh("apt-mark showhold", host)


def test_curl_and_promtool_take_both_exporters(nodes: DcgmNodes) -> None:
    """What promtool has to say beyond that is style, of names that are the vendor's (exit status 3)."""
    host = nodes.hosts[1]
    nodes.gpus(2)
    nodes.sh(PROMTOOL, host)
    roles = ("node_exporter", "dcgm", "dcgm_exporter")
    assert nodes.apply(roles=roles, dcgm={"version": NEW}, limit=host) > 0
    for port in (9400, 9100):
        answer = f"curl --silent --show-error --write-out '%{{http_code}}' --output /tmp/told {URL.format(port)}"
        assert nodes.sh(answer, host) == "200"
        assert promtool(nodes, "cat /tmp/told", host) in (0, 3)
    assert promtool(nodes, "echo 'DCGM_FI_DEV_GPU_TEMP{gpu='", host) == 1


def promtool(nodes: DcgmNodes, source: str, host: str) -> int:
    """Exit status of `promtool check metrics`: 0 = good, 3 = read, with lint, 1 = Prometheus could not read it."""
    return int(nodes.sh(f"{source} | promtool check metrics >/tmp/said 2>&1; echo $?", host))
