# SPDX-License-Identifier: Apache-2.0
"""A campaign that is drained by real Slurm; only the nodes themselves are files (tests/integration/upgrade)."""

import json
import time
from collections.abc import Callable

import pytest

from tests.integration.upgrade.conftest import Fleet

from .conftest import Cluster


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.5)


@pytest.mark.container
def test_jobs_are_waited_for_and_a_colleagues_drain_stays(cluster: Cluster, fleet: Fleet) -> None:
    """One campaign: a free node, one whose job ends, one whose job does not, and one that a colleague has drained."""
    cluster.run("scontrol update nodename=node4 state=drain reason='bad fan'")
    short, long = cluster.submit("node2"), cluster.submit("node3")
    run = fleet.start("--skip-tags", "always", "-e", json.dumps({"drain_timeout": 20}))
    try:
        wait_for(lambda: "node3" in cluster.drained(), "the batch is being drained")
        # Both jobs run on, and nothing was touched.
        assert set(cluster.running()) == {short, long} and fleet.touched() == []
        cluster.run("touch /run/end-node2")
        output, _ = run.communicate(timeout=300)
    finally:
        run.kill()
    assert run.returncode == 2, output
    summary = output[output.rindex("Summary of ") :]

    assert fleet.upgraded() == ["gpu-1", "gpu-2"]
    assert fleet.touched() == ["gpu-1", "gpu-2"]
    mark = "gpufleet:" + fleet.records()[0]["campaign"]
    assert cluster.drained() == {"node3": mark, "node4": "bad fan"}
    # No job was ended: one came to its end before its node was touched, the other still runs.
    assert cluster.running() == [long]
    assert cluster.run(f"scontrol show job {short} | grep -o JobState=.*[A-Z] | cut -d' ' -f1") == "JobState=COMPLETED"
    assert f"not free within 20 s: job {long} of root on node3" in summary
    assert "Slurm says IDLE+DRAIN (bad fan by root@" in summary
    assert "  failed: gpu-3" in summary and "  attention: gpu-4" in summary

    # The job ends, and the colleague takes gpu-4 back into service: the next run does the rest.
    cluster.run("touch /run/end-node3; scontrol update nodename=node4 state=resume")
    again = fleet.run("--skip-tags", "always")
    assert again.code == 0, again.output
    assert fleet.upgraded() == fleet.names
    assert cluster.drained() == {}
    assert all(fleet.node(name)["upgrades"] == 1 for name in fleet.names)
    assert fleet.steps()[-1] == "campaign_completed"

    # A node that Slurm does not know is an error of the inventory, before anything is drained.
    fleet.put("gpu-1")
    fleet.racks["rack_1"]["hosts"]["gpu-1"] = {"drain_node_name": "node9"}
    refused = fleet.run("--skip-tags", "always")
    assert refused.code == 2 and "Slurm does not know node9" in refused.output, refused.output
    assert cluster.drained() == {}
