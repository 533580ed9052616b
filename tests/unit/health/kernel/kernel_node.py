# SPDX-License-Identifier: Apache-2.0
"""A node whose kernel log is given: what the checks kernel.* find in it."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.gpufleet.health import pci_tree
from ansible.module_utils.gpufleet.health.evaluation import evaluate, matches
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.kernel_checks import CHECKS, PROBES
from ansible.module_utils.gpufleet.health.kernel_log_normal_form import read_kernel_log
from ansible.module_utils.gpufleet.health.probe import ProbeResult

REPOSITORY = Path(__file__).resolve().parents[4]
FIXTURES = REPOSITORY / "tests" / "fixtures" / "kernel"
LSPCI = REPOSITORY / "tests" / "fixtures" / "pci" / "xe9680-h100.lspci.txt"
FIRST = "[    0.000000] Linux version 6.5.0-1007-nvidia (build@host) #1 SMP\n"
WHEN = 1_780_000_000.0
UPTIME_S = 20_000.0
ALL_PROBES = (*PROBES, *pci_tree.PROBES)
XID = "[  100.000000] NVRM: Xid (PCI:0000:9b:00): "


@functools.cache
def _profile(name: str) -> dict[str, Any]:
    return yaml.safe_load((REPOSITORY / "profiles" / f"{name}.yml").read_text())


def profile(name: str = "xe9680-h100", **limits: Any) -> dict[str, Any]:
    """A profile of the repository; limits: keys of limits.kernel_log to be replaced."""
    found = copy.deepcopy(_profile(name))
    found["limits"]["kernel_log"].update(limits)
    return found


def boot(uptime_s: float = UPTIME_S, when: float = WHEN) -> ProbeResult:
    text = f"/proc/sys/kernel/random/boot_id:0b1c2d3e-0000-4000-8000-000000000001\n/proc/uptime:{uptime_s:.2f} 1.00\n"
    return done("kernel.boot", text, when)


def done(probe: str, stdout: str, when: float = WHEN) -> ProbeResult:
    return ProbeResult(probe, "done", 0, stdout, "", 1.0, when, True)


def node(
    journal: str, dmesg: str | None = None, uptime_s: float = UPTIME_S, when: float = WHEN
) -> dict[str, ProbeResult]:
    """Results of a node with these logs; dmesg: None = the same text as the journal's."""
    return {
        "kernel.journal": done("kernel.journal", journal, when),
        "kernel.dmesg": done("kernel.dmesg", journal if dmesg is None else dmesg, when),
        "kernel.boot": boot(uptime_s, when),
        "pci.lspci": done("pci.lspci", LSPCI.read_text(), when),
    }


def judge(results: dict[str, ProbeResult], check: str = "kernel", given: dict[str, Any] | None = None) -> list[Finding]:
    """The findings of the checks of this id or prefix."""
    chosen = [one for one in CHECKS if matches(one.id, check)]
    return evaluate(chosen, ALL_PROBES, results, given or profile(), {})


def judge_log(text: str, check: str = "kernel", given: dict[str, Any] | None = None) -> list[Finding]:
    """The findings on a log since the boot, read shortly after its last record, whatever form its times have."""
    log = read_kernel_log(text, WHEN)
    when, uptime_s = WHEN, UPTIME_S
    if log.last is not None and log.first is not None:
        if log.clock == "boot":
            uptime_s = log.last + 60
        else:
            when, uptime_s = log.last + 60, log.last - log.first + 3600
    return judge(node(FIRST + text, uptime_s=uptime_s, when=when), check, given)


def troubles(findings: list[Finding]) -> list[tuple[str, str, str, str]]:
    """(check, component, status, action) of what is not right; skipped ones are left out."""
    return [
        (one.check, one.component, one.status, one.action) for one in findings if one.status not in ("ok", "skipped")
    ]
