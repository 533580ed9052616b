# SPDX-License-Identifier: Apache-2.0
"""511 nodes of which three in a hundred are bad: the brake stops within the batch in which the first bad one is."""

from pathlib import Path

from .conftest import Fleet

# The reference fleet: 16 leaf groups of 32, the last one without its last node.
NAMES = [f"gpu-{number:03d}" for number in range(1, 512)]
RACKS = {f"rack_{number // 32 + 1:02d}": NAMES[number : number + 32] for number in range(0, 511, 32)}
BAD = NAMES[16::34]


def test_the_brake_stops_within_one_batch(tmp_path: Path) -> None:
    assert len(BAD) == 15 and round(100 * len(BAD) / len(NAMES)) == 3
    fleet = Fleet(tmp_path, RACKS)
    for name in BAD:
        fleet.put(name, fault="sick")
    fleet.variables.update(upgrade_batch_size=16, upgrade_group_size=16)
    # Preflight over the whole fleet has a test of its own.
    run = fleet.run("--skip-tags", "always", ANSIBLE_FORKS="8")
    assert run.code == 2, run.output

    # The canary is well, and the first batch has the first bad node: nobody else was touched.
    first, second = NAMES[:1], NAMES[1:17]
    assert fleet.touched() == first + second
    assert [name for name in second if name in BAD] == ["gpu-017"]
    assert list(fleet.drained()) == ["gpu-017"], "who is well was given back"
    assert run.report["totals"]["outcomes"]["not_run"] == 511 - 17
    assert "stopped after batch 2 of 33: 1 of 16 nodes failed" in run.summary

    # What the campaign itself costs: one task for each node to measure it, and a node that is upgraded seven more with
    # the one of the role's double. Drain and journal are one task for the batch.
    tasks = {name: host["host_tasks"] for name, host in run.report["hosts"].items()}
    assert {tasks[name] for name in NAMES[17:]} == {1}
    assert {tasks[name] for name in second} <= {8, 9}
    assert len([call for call in fleet.scontrol_calls() if call[0] == "update"]) == 4, "two batches, drained and back"
