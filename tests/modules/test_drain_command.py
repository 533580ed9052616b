# SPDX-License-Identifier: Apache-2.0
"""drain_command: what a command is told, what it may answer, and answers that say nothing of any node."""

import pytest
from ansible.module_utils.gpufleet.drain_answer import parse_answer

NODES = ["gpu-1", "gpu-2"]


@pytest.fixture
def drain(tmp_path, run_module):
    """drain(script, check=False, **arguments) -> result of the module with a shell script as the command."""

    def run(script, check=False, **arguments):
        file = tmp_path / "hook"
        file.write_text("#!/bin/sh\n" + script)
        file.chmod(0o755)
        more = {"nodes": NODES, "campaign": "c1", "timeout_s": 60, **arguments}
        return run_module("drain_command", check=check, argv=[str(file)], **more)

    return run


def test_what_a_command_is_told(drain, tmp_path):
    script = f"env | grep -E '^(GPUFLEET_(CAMPAIGN|NODES|REASON|TIMEOUT_S)|SITE)=' | sort > {tmp_path}/told"
    result = drain(script, environment={"SITE": 7})
    assert result["changed"] and (result["refused"], result["left"]) == ({}, {})
    assert (tmp_path / "told").read_text().splitlines() == [
        "GPUFLEET_CAMPAIGN=c1",
        "GPUFLEET_NODES=gpu-1 gpu-2",
        "GPUFLEET_REASON=gpufleet:c1",
        "GPUFLEET_TIMEOUT_S=60",
        "SITE=7",
    ]


def test_what_a_command_may_answer():
    text = "evicting\nrefused gpu-1 a pod stays\n  left gpu-2\nrefused gpu-9 not asked for\nrefusedgpu-1\nleft\n"
    answer = parse_answer(text, NODES)
    assert answer.refused == {"gpu-1": "a pod stays"}
    assert answer.left == {"gpu-2": "the command gave no reason"}


def test_a_command_that_fails_or_hangs_says_nothing_of_any_node(drain):
    result = drain("echo refused gpu-1 x; echo no way >&2; exit 3")
    assert result["failed"] and "ended with exit status 3: no way" in result["msg"] and result["next_step"]
    result = drain("sleep 60", timeout_s=0.3)
    assert result["failed"] and "timeout" in result["msg"]


def test_check_mode_and_no_nodes_call_nothing(drain, tmp_path):
    assert drain(f"touch {tmp_path}/called", check=True)["changed"]
    assert not drain(f"touch {tmp_path}/called", nodes=[])["changed"]
    assert not (tmp_path / "called").exists()
