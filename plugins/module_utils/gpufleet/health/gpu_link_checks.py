# SPDX-License-Identifier: Apache-2.0
"""The GPU's own view of its PCIe link."""

from __future__ import annotations

from collections.abc import Iterator

from .check import Check, Profile
from .finding import Finding
from .gpu_clock_checks import is_busy
from .gpu_facts import Absent, Gpu
from .gpu_findings import judge_each, known, no_gpus, rows, skipped, value_of
from .gpu_models import expected_of
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY

# PCI Express Base Specification: transfer rate of each generation, GT/s.
_GENERATIONS = {2.5: 1, 5: 2, 8: 3, 16: 4, 32: 5, 64: 6}


def check_pcie_link(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """The link has its full width always, and its full generation while the GPU works.

    An idle GPU may lower the generation, never the width. In P0 a lower generation is odd, and a fault when busy.

    Source: bugs 066, 067; recordings gpu1-pcie-gen3, gpu1-pcie-x8.
    """
    link = ((profile.get("devices") or {}).get("gpu") or {}).get("link")
    if link is None:
        reason = "the profile does not say how wide the link is (devices.gpu.link)"
        yield no_gpus(profile) or Finding("node", "skipped", reason)
        return

    def judge(gpu: Gpu) -> Iterator[Finding]:
        width, generation = known(gpu, "link.width"), known(gpu, "link.generation")
        if isinstance(width, Absent) or isinstance(generation, Absent):
            yield skipped(gpu, "the driver shows no PCIe link")
            return
        lanes, full = int(link["width"]), _GENERATIONS[link["speed_gts"]]
        advice = (
            "drain the node, reset the GPU, then power-cycle the node; if the link stays narrow, have the GPU reseated"
        )
        if width < lanes:
            yield _link(gpu, "fail", f"PCIe x{width}", f"x{lanes}", "reseat", advice, "link.width", "link.max_width")
        if generation < full and is_busy(gpu, profile):
            text = f"PCIe generation {generation} while {gpu.utilization} % busy"
            yield _link(
                gpu, "fail", text, f"generation {full}", "reseat", advice, "link.generation", "link.max_generation"
            )
        elif generation < full and value_of(gpu, "performance_state") == "P0":
            advice = (
                "look again under load (dcgmi diag -r 2): if the generation stays low, power-cycle the node, then "
                "have the GPU reseated"
            )
            text = f"PCIe generation {generation} in performance state P0"
            shown = ("link.generation", "link.max_generation", "performance_state")
            yield _link(gpu, "warn", text, f"generation {full}", "observe", advice, *shown)

    yield from judge_each(
        evidence,
        profile,
        judge,
        lambda gpus: f"PCIe x{gpus[0].link.width}",
        "link.width",
        "link.generation",
        "performance_state",
    )


def _link(gpu: Gpu, status: str, observed: str, expected: str, action: str, advice: str, *facts: str) -> Finding:
    return Finding(gpu.component, status, observed, expected, action, advice, (rows(gpu, *facts),), "bugs 066, 067")


def check_pcie_replays(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Few packets had to be sent again on PCIe: many mean a bad contact, long before the link fails.

    Source: recordings gpu1-pcie-replays; healthy H100 nodes show up to some hundred (leptonai/gpud, recorded output).
    """

    def judge(gpu: Gpu) -> Iterator[Finding]:
        replays, rollovers = known(gpu, "link.replays"), known(gpu, "link.rollovers")
        if isinstance(replays, Absent) or isinstance(rollovers, Absent):
            yield skipped(gpu, "the driver shows no PCIe replays")
            return
        most = expected_of(profile, gpu, "pcie_replays")
        if rollovers or (most is not None and replays > most):
            yield Finding(
                gpu.component,
                "warn",
                f"{replays} PCIe replays since the reset, {rollovers} rollovers",
                "" if most is None else f"at most {most:.0f} (limits.gpu.pcie_replays)",
                "observe",
                "look again in an hour: if the number grows under load, have the GPU reseated at the next maintenance",
                (rows(gpu, "link.replays", "link.rollovers"),),
                "recordings gpu1-pcie-replays",
            )

    yield from judge_each(
        evidence,
        profile,
        judge,
        lambda gpus: f"at most {max(value_of(gpu, 'link.replays') for gpu in gpus)} PCIe replays",
        "link.replays",
        "link.rollovers",
    )


CHECKS: tuple[Check, ...] = (
    Check("gpu.pcie_link", check_pcie_link, needs=(QUERY,)),
    Check("gpu.pcie_replays", check_pcie_replays, needs=(QUERY,)),
)
