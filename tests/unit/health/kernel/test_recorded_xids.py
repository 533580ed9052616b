# SPDX-License-Identifier: Apache-2.0
"""The recordings that hold an Xid: NVML told the number, and nvidia-smi printed nothing of it.

Their other outputs equal those of a healthy node, so the fault is in the kernel log or nowhere. The number of each is
put into a line as the driver writes it.
"""

import json

import pytest
from ansible.module_utils.gpufleet.health.evaluation import choose, evaluate
from ansible.module_utils.gpufleet.health.registry import CHECKS, PROBES

from tests.health_node import healthy_node, profile
from tests.nvidia_smi_recordings import recordings

# Status and action by number, as the recordings' manifest concludes: an application's fault is nobody's order to
# reset; 63 waits for the reset that the row remap check asks for; 149 and 154 say nothing without their words.
CONCLUSIONS = {
    13: ("warn", "observe"),
    43: ("warn", "observe"),
    48: ("fail", "reset_gpu"),
    63: ("warn", "observe"),
    74: ("fail", "reset_gpu"),
    79: ("fail", "reboot"),
    94: ("warn", "observe"),
    95: ("fail", "reset_gpu"),
    109: ("fail", "reset_gpu"),
    119: ("fail", "reset_gpu"),
    120: ("fail", "reset_gpu"),
    140: ("fail", "reset_gpu"),
    149: ("warn", "observe"),
    154: ("warn", "observe"),
}
HEALTHY = healthy_node()
LINES = {"kernel.dmesg": "kern  :err   : [ 5000.000000] {}\n", "kernel.journal": "[ 5000.000000] kernel: {}\n"}


def recorded_numbers() -> dict[str, set[int]]:
    """Xids that NVML told, by the name of the recording."""
    numbers: dict[str, set[int]] = {}
    for state, commands in recordings().items():
        lines = commands["nvml-events"].stdout.splitlines() if "nvml-events" in commands else []
        told = [json.loads(line) for line in lines if line.startswith("{")]
        found = {int(line["event"]["xid"]) for line in told if "event" in line}
        if found:
            numbers[state] = found
    return numbers


NUMBERS = recorded_numbers()


def test_all_recordings_that_are_named_for_an_xid_hold_it() -> None:
    assert set().union(*NUMBERS.values()) == set(CONCLUSIONS)


@pytest.mark.parametrize("recording", sorted(NUMBERS))
def test_the_kernel_log_tells_what_nvidia_smi_does_not(recording: str) -> None:
    for number in NUMBERS[recording]:
        line = f"NVRM: Xid (PCI:0000:9b:00): {number}, pid=1234, name=python3, as recorded"
        results = {**HEALTHY}
        for probe, form in LINES.items():
            results[probe] = HEALTHY[probe]._replace(stdout=HEALTHY[probe].stdout + form.format(line))
        (finding,) = evaluate(choose(CHECKS, ["kernel.xid"]), PROBES, results, profile(), {})
        assert (finding.status, finding.action) == CONCLUSIONS[number], finding
        assert finding.component == "GPU 0000:9b:00.0"
