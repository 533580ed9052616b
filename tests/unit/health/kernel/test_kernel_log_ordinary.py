# SPDX-License-Identifier: Apache-2.0
"""Leaving out ordinary records first changes nothing but the time that it takes."""

from __future__ import annotations

import random
import re

import pytest
from ansible.module_utils.gpufleet.health import kernel_log_normal_form
from ansible.module_utils.gpufleet.health.kernel_log_ordinary import without_ordinary

from tests.unit.health.kernel.kernel_node import FIXTURES, WHEN

BOOT = (FIXTURES / "lab-node-boot.dmesg.txt").read_text().splitlines()
FAULTS = [
    "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
    "frobnicator 12: fatal error in unit 7",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Channel#0_DIMM#0",
    "nvme nvme3: pci function 0000:5e:00.0",
]


def a_log(form: str, seed: int) -> list[str]:
    """A boot, thousands of ordinary lines, and faults in between, in one of the probes' forms."""
    chosen = random.Random(seed)
    lines = []
    faults = iter(FAULTS)
    for number in range(4000):
        text = (
            f"mlx5_core 0000:{number % 7:02x}:00.0: ring {chosen.choice('abcdefgh')} done in {number} us at {number:#x}"
        )
        priority = "info  "
        if number % 500 == 250:
            text, priority = next(faults), "err   "
        if number % 777 == 0:
            text, priority = f"frobnicator {number}: gave up", "err   "
        lines.append(f"kern  :{priority}: [{100 + number / 10:12.6f}] {text}")
    whole = [*BOOT, *lines]
    if form == "dmesg":
        return whole
    return [re.sub(r"^\w+ *:\w+ *: (\[ *[\d.]+\]) ", r"\1 kernel: ", line) for line in whole]


def facts(text: str, monkeypatch: pytest.MonkeyPatch | None = None):
    if monkeypatch is not None:
        monkeypatch.setattr(kernel_log_normal_form, "without_ordinary", lambda text: (text, 0))
    return kernel_log_normal_form.read_kernel_log(text, WHEN)


CHANGES = {
    "as it is": lambda lines: lines,
    "a sentence and a table over several lines": lambda lines: [*lines[:2000], "               goes on", *lines[2000:]],
    "blank lines": lambda lines: [*lines[:2000], "", *lines[2000:], ""],
    "two boots": lambda lines: [*lines, *lines],
    "a short boot before": lambda lines: [*lines[: len(BOOT)], *lines],
    "two boots, the second without its beginning": lambda lines: [*lines, *lines[100:]],
    "a mark of the journal": lambda lines: [*lines[:3000], "-- Reboot --", *lines[3000:]],
    "lines in another form": lambda lines: [*lines[:2000], "2026-05-28T21:00:00,5+00:00 other form", *lines[2000:]],
    "other characters": lambda lines: [*lines[:2000], lines[2000] + " \u00fc\u2026", *lines[2001:]],
    "without a beginning": lambda lines: lines[1500:],
}


@pytest.mark.parametrize("form", ["dmesg", "journal"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_facts_are_the_same(form: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(CHANGES[change](a_log(form, seed=1))) + "\n"
    shortened = facts(text)
    assert shortened == facts(text, monkeypatch)
    assert shortened.messages and shortened.error_like and shortened.records > 900


def test_most_lines_are_left_out() -> None:
    text = "\n".join(a_log("dmesg", seed=2)) + "\n"
    kept, left_out = without_ordinary(text)
    assert left_out > 4500 and len(kept.splitlines()) + left_out == len(text.splitlines())


def test_logs_in_other_forms_and_of_few_lines_are_left_alone() -> None:
    for text in (
        "",
        "\n",
        "x\n",
        "[    1.000000] one\n",
        "\n".join(f"Jan 21 02:11:33 n1 kernel: {n}" for n in range(999)),
    ):
        assert without_ordinary(text) == (text, 0)
