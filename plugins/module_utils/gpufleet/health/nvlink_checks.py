# SPDX-License-Identifier: Apache-2.0
"""The NVLinks of each GPU: how many are up, and how fast they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .check import Check, Profile
from .finding import Evidence, Finding
from .gpu_findings import no_gpus
from .gpu_models import expected_of
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .nvlink_evidence import STATUS, GpuNvlinks, fully_listed, gpu_nvlinks, lines_of, not_printed, numbers

# nvidia-smi prints three decimals.
_SPEED_TOLERANCE = 0.001
_LINK_ADVICE = (
    "drain the node and reset its GPUs (nvidia-smi --gpu-reset, fabric manager running), then look again; if the same "
    "links stay down after a reboot, the GPU or its seat on the baseboard is to be inspected"
)


def check_links(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Every GPU has all of its NVLinks: one that is down halves collective bandwidth or hangs the job.

    Links that a GPU has no use for by design (H100 NVL: 6 of 18 positions) are no fault: the expected number counts,
    from limits.gpu.nvlink_links or the GPU model. The same links down on all GPUs are one NVSwitch, not eight GPUs.

    Source: bugs 023 and 024; leptonai/gpud#1085; imbue-ai/cluster-health, NvlinkStatusHealthCheck.
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    seen = gpu_nvlinks(evidence, profile)
    found = list(not_printed(seen))
    told = [one for one in seen if not one.gap and one.links]
    found += _in_mig_mode(told)
    down = {one.gpu.index: one for one in told if _is_short(one)}
    common = _common_links(told, down)
    if common is None:
        found += [_links_down(evidence, one) for one in down.values()]
    else:
        found.append(_same_on_all(evidence, told, common))
    found += [_too_many(one) for one in told if one.links and one.expected and len(one.links.active) > one.expected]
    yield from found
    good = [one for one in told if _is_good(one)]
    if good and all(finding.status == "skipped" for finding in found):
        yield _all_up(good)
    elif not found:
        observed = "no NVLink is expected (limits.gpu.nvlink_links is 0)"
        yield Finding("node", "skipped", observed, evidence=(Evidence(STATUS),))


def _in_mig_mode(told: Iterable[GpuNvlinks]) -> Iterator[Finding]:
    for one in told:
        if one.links and one.links.answer == "mig":
            observed = "the driver answers no NVLink question about a GPU in MIG mode"
            yield Finding(one.gpu.component, "skipped", observed, evidence=(Evidence(STATUS),))


def _is_short(one: GpuNvlinks) -> bool:
    return one.links is not None and one.links.answer != "mig" and len(one.links.active) < (one.expected or 0)


def _is_good(one: GpuNvlinks) -> bool:
    return one.links is not None and 0 < len(one.links.active) == one.expected


def _down(one: GpuNvlinks) -> tuple[int, ...]:
    """Numbers of the links that are down; () where all of them are, and none is listed."""
    return one.links.inactive if one.links and one.links.active else ()


def _common_links(told: list[GpuNvlinks], down: dict[int, GpuNvlinks]) -> tuple[int, ...] | None:
    """The links that are down on all GPUs alike (() = all links); None where the GPUs differ, or there is only one."""
    sets = {_down(one) for one in down.values()}
    if len(down) < 2 or len(down) < len(told) or len(sets) != 1:
        return None
    common = sets.pop()
    any_active = any(one.links and one.links.active for one in down.values())
    # no list of links that are down, though some are up: the positions do not exist, which is another matter
    return None if any_active and not common else common


def _same_on_all(evidence: NodeEvidence, told: list[GpuNvlinks], common: tuple[int, ...]) -> Finding:
    first = told[0]
    expected = f"{first.expected} active links on each of {len(told)} GPUs"
    if not common:
        return Finding(
            "node",
            "fail",
            f"no active NVLink on any of {len(told)} GPUs",
            expected,
            "reboot",
            "look at the fabric manager (systemctl status nvidia-fabricmanager) and at the count of NVSwitches "
            "(nvlink.nvswitches): one of them explains it; start the service, else reboot the node",
            (Evidence(STATUS, lines_of(evidence, STATUS, first.gpu.index, "inactive")),),
            "leptonai/gpud#1085",
        )
    return Finding(
        "node",
        "fail",
        f"link {numbers(common)} down on all {len(told)} GPUs: these lead to one NVSwitch",
        expected,
        "reboot",
        "one NVSwitch is gone, no GPU is at fault: look for SXid lines in the kernel log and count the NVSwitches by "
        "lspci; reboot the node, and if it stays away after a power cycle, have the baseboard inspected",
        (Evidence(STATUS, lines_of(evidence, STATUS, first.gpu.index, "inactive")),),
        "NVIDIA HGX H100: each GPU has 4 or 5 links to each of 4 NVSwitches",
    )


def _links_down(evidence: NodeEvidence, one: GpuNvlinks) -> Finding:
    assert one.links is not None
    active, listed = len(one.links.active), _down(one)
    if one.links.answer == "all inactive":
        observed = "no active NVLink: the driver says that all links are inactive"
    elif not one.links.links:
        observed = "no NVLink is listed below the GPU's name"
    elif listed:
        observed = f"{active} of {one.expected} NVLinks active; link {numbers(listed)} inactive"
    else:
        observed = f"{active} of {one.expected} NVLinks active; the GPU lists no others"
    return Finding(
        one.gpu.component,
        "fail",
        observed,
        f"{one.expected} active links",
        "reset_gpu",
        _LINK_ADVICE,
        (Evidence(STATUS, lines_of(evidence, STATUS, one.gpu.index, "inactive")),),
        "bug 023: a GPU without link lines is a fault of that GPU",
    )


def _too_many(one: GpuNvlinks) -> Finding:
    assert one.links is not None
    return Finding(
        one.gpu.component,
        "warn",
        f"{len(one.links.active)} active NVLinks",
        f"{one.expected} active links",
        "observe",
        "the profile (limits.gpu.nvlink_links) does not fit this GPU, or the GPU is another than the profile's",
        (Evidence(STATUS),),
    )


def _all_up(good: list[GpuNvlinks]) -> Finding:
    counts = sorted({len(one.links.active) for one in good if one.links})
    unused = sorted({len(one.links.inactive) for one in good if one.links and one.links.inactive})
    remark = f"; {' or '.join(map(str, unused))} positions without a link by design" if unused else ""
    observed = f"{len(good)} GPUs: {' or '.join(map(str, counts))} active NVLinks each{remark}"
    return Finding("node", "ok", observed, evidence=(Evidence(STATUS),))


def check_speed(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Every active NVLink runs at its speed: one that trained lower slows down every collective.

    The expected speed of one direction of a link, as the driver reports it, is limits.gpu.nvlink_link_gbytes_per_s or
    that of the GPU model.

    Source: recordings of nvidia-smi with links at half speed; NVIDIA: H100 26.562 GB/s, A100 25 GB/s.
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    seen = fully_listed(gpu_nvlinks(evidence, profile))
    found = [finding for finding in not_printed(seen) if finding.status == "unknown"]
    active = [one for one in seen if not one.gap and one.links and one.links.active]
    if not active and not found:
        yield Finding("node", "skipped", "no active NVLink whose speed could be judged", evidence=(Evidence(STATUS),))
        return
    expected = {one.gpu.index: expected_of(profile, one.gpu, "nvlink_link_gbytes_per_s") for one in active}
    slow = [(one, _slow(one, expected[one.gpu.index])) for one in active]
    slow = [(one, links) for one, links in slow if links]
    if len(slow) == len(active) > 1 and all(len(links) == len(one.links.active) for one, links in slow if one.links):
        speeds = sorted({speed for _, links in slow for speed in links.values()})
        observed = f"all NVLinks of all {len(slow)} GPUs at {speeds_in_words(speeds)}"
        found.append(_too_slow("node", observed, expected[active[0].gpu.index], "reboot"))
    else:
        for one, links in slow:
            observed = f"link {numbers(sorted(links))} at {speeds_in_words(sorted(set(links.values())))}"
            found.append(_too_slow(one.gpu.component, observed, expected[one.gpu.index], "reset_gpu"))
    yield from found
    unknown_speed = sorted({str(one.gpu.name) for one in active if expected[one.gpu.index] is None})
    if found:
        return
    speeds = sorted({link.gbytes_per_s for one in active if one.links for link in one.links.links if link.gbytes_per_s})
    if unknown_speed:
        observed = (
            f"nobody says how fast the NVLinks of {', '.join(unknown_speed)} are; they run at {speeds_in_words(speeds)}"
        )
        yield Finding("node", "skipped", observed, evidence=(Evidence(STATUS),))
    else:
        total = sum(len(one.links.active) for one in active if one.links)
        observed = f"{total} NVLinks of {len(active)} GPUs at {speeds_in_words(speeds)} each"
        yield Finding("node", "ok", observed, evidence=(Evidence(STATUS),))


def _slow(one: GpuNvlinks, expected: float | None) -> dict[int, float]:
    """Speed of the links that are too slow, by their number; where no speed is known, slower than the fastest."""
    assert one.links is not None
    speeds = {link.number: link.gbytes_per_s for link in one.links.links if link.gbytes_per_s is not None}
    least = max(speeds.values()) if expected is None else expected
    return {number: speed for number, speed in speeds.items() if speed < least - _SPEED_TOLERANCE}


def _too_slow(component: str, observed: str, expected: float | None, action: str) -> Finding:
    return Finding(
        component,
        "warn",
        observed,
        "the same speed for all links of a GPU" if expected is None else f"{expected:g} GB/s for each link",
        action,
        "links train when the driver is loaded: reset the GPUs or reboot when the node is drained, and compare the "
        "speed again (nvidia-smi nvlink -s); one that stays slow is to be inspected",
        (Evidence(STATUS),),
        "samples/nvidia-smi: all-nvlink-half-speed",
    )


def speeds_in_words(speeds: Iterable[float]) -> str:
    return " or ".join(f"{speed:g} GB/s" for speed in speeds)


CHECKS: tuple[Check, ...] = (
    Check("nvlink.links", check_links, needs=(STATUS, QUERY)),
    Check("nvlink.speed", check_speed, needs=(STATUS, QUERY)),
)
