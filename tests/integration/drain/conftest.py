# SPDX-License-Identifier: Apache-2.0
"""Real Slurm in a container: munge, slurmctld, and a slurmd for each of four virtual nodes."""

from pathlib import Path

import pytest

from tests.integration.roles.conftest import Containers
from tests.integration.roles.conftest import containers as containers  # the fixture
from tests.integration.upgrade.conftest import Fleet

TOOLS = Path(__file__).resolve().parents[3] / "tools"
NODES = ["node1", "node2", "node3", "node4"]

# Cluster of one machine: slurmd -N plays a node, each on a port of its own (slurm.conf(5), %n).
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=slurm
SlurmUser=slurm
AuthType=auth/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=0
StateSaveLocation=/var/spool/slurmctld
SlurmctldPidFile=/run/slurmctld.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdPidFile=/run/slurmd.%n.pid
SlurmdSpoolDir=/var/spool/slurmd.%n
SlurmdLogFile=/var/log/slurm/slurmd.%n.log
SlurmdParameters=config_overrides
NodeName=node[1-4] NodeHostname=slurm NodeAddr=127.0.0.1 Port=[17001-17004] CPUs=1
PartitionName=all Nodes=ALL Default=YES State=UP
"""
INSTALL = """\
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >&2
apt-get install -qq --yes --no-install-recommends slurmctld slurmd slurm-client munge >&2
"""
START = f"""\
install -d -o slurm -g slurm /etc/slurm /var/spool/slurmctld /var/log/slurm
cat > /etc/slurm/slurm.conf <<'END'
{CONFIGURATION}END
systemctl restart munge slurmctld
for node in {" ".join(NODES)}; do slurmd -N $node; done
for _ in $(seq 60); do [ "$(sinfo --noheader --states=idle --format=%D)" = {len(NODES)} ] && exit 0; sleep 0.5; done
sinfo; tail /var/log/slurm/*; exit 1
"""


class Cluster:
    """The container `slurm`, and ways of a test to its queue."""

    def __init__(self, containers: Containers) -> None:
        self._containers = containers
        containers.start(["slurm"])
        containers.run("slurm", INSTALL)
        containers.run("slurm", START)

    def run(self, command: str) -> str:
        return self._containers.run("slurm", command).strip()

    def submit(self, node: str) -> str:
        """Start a job on a node that ends when the test lets it, and wait until it runs; returns its id."""
        script = f"until [ -e /run/end-{node} ]; do sleep 0.2; done"
        job = self.run(f"sbatch --parsable --output=/dev/null --nodelist={node} --wrap '{script}'")
        self.run(f"for _ in $(seq 60); do squeue -h -j {job} -t running | grep -q . && exit 0; sleep 0.5; done; exit 1")
        return job

    def running(self) -> list[str]:
        """Ids of jobs that run."""
        return self.run("squeue --noheader --states=running --format=%A").split()

    def drained(self) -> dict[str, str]:
        """{node: reason} of drained nodes."""
        lines = self.run("sinfo --noheader --Node --states=drain --format='%N|%E'").splitlines()
        return dict(line.split("|", 1) for line in lines)

    def inventory_entry(self) -> dict[str, str]:
        """How Ansible reaches the host where scontrol is."""
        return {
            "ansible_host": self._containers.names["slurm"],
            "ansible_connection": "containers.podman.podman",
            "ansible_podman_executable": str(TOOLS / "podman"),
        }


@pytest.fixture
def cluster(containers: Containers) -> Cluster:
    return Cluster(containers)


@pytest.fixture
def fleet(cluster: Cluster, tmp_path: Path) -> Fleet:
    """Four nodes of files, gpu-1 to gpu-4, which Slurm knows as node1 to node4."""
    fleet = Fleet(tmp_path / "fleet", {"rack_1": [f"gpu-{number}" for number in range(1, 5)]})
    fleet.variables.update(
        drain_host="login",
        drain_node_name="{{ inventory_hostname | replace('gpu-', 'node') }}",
        upgrade_canary=0,
        upgrade_batch_size=4,
        upgrade_group_size=4,
    )
    fleet.others = {"schedulers": {"hosts": {"login": cluster.inventory_entry()}}}
    return fleet
