# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU is held back: reasons for lower clocks, clocks, temperature, power limit."""

from __future__ import annotations

from collections.abc import Iterator

from .check import Check, Profile
from .finding import Finding
from .gpu_facts import Absent, Gpu, GpuReport
from .gpu_findings import judge_each, known, no_gpus, printed, rows, skipped, value_of, wanted
from .gpu_models import expected_of
from .node_evidence import NodeEvidence
from .nvidia_smi_query import QUERY
from .probe import NoEvidence

# Up to 525 the row T.Limit reads 0 C whatever the temperature (recording 525.147.05-h100-healthy: 0 C to go at 34 C).
_MARGIN_TRUE_SINCE = 535


def is_busy(gpu: Gpu, profile: Profile) -> bool | None:
    """Whether kernels run on it; None where the driver does not say (with MIG). Raises NoEvidence."""
    utilization = known(gpu, "utilization")
    least = expected_of(profile, gpu, "busy_utilization_percent")
    if isinstance(utilization, Absent) or least is None:
        return None
    return bool(utilization >= least)


def _load(gpu: Gpu, profile: Profile) -> bool | None:
    """As is_busy, None also where that cannot be read: such a GPU is compared with its like only."""
    try:
        return is_busy(gpu, profile)
    except NoEvidence:
        return None


def check_throttle(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """Nothing holds the clocks down that should not.

    Idle is no fault, nor is the power cap under load: it is how a GPU is meant to run. Hardware slowdown, its thermal
    form and the power brake are: the brake is a signal from the node, so on all GPUs it means power supply or rack.
    Both spellings are read (throttle reasons up to 525, event reasons from 535 on).

    Source: NVML API, clocks event reasons; bug 012; recordings gpu4-throttle-*, all-throttle-hw-power-brake.
    """

    def judge(gpu: Gpu) -> Iterator[Finding]:
        reasons = {name: known(gpu, f"clock_reasons.{name}") for name in gpu.clock_reasons._fields}
        if all(isinstance(value, Absent) for value in reasons.values()):
            yield skipped(gpu, f"Clocks Event Reasons: {reasons['idle'].reason}")
            return
        active = {name for name, value in reasons.items() if value == "Active"}
        if "hw_power_brake_slowdown" in active:
            yield _held(
                gpu,
                "fail",
                "the node's power brake holds it down (HW Power Brake Slowdown)",
                "inspect",
                "the node asks its GPUs to save power: look at the power supplies and their cables in the iDRAC, and "
                "at the feed and power budget of the rack",
                "hw_power_brake_slowdown",
            )
        elif "hw_thermal_slowdown" in active:
            yield _held(
                gpu,
                "fail",
                "the hardware slows it down because of heat (HW Thermal Slowdown)",
                "inspect",
                "look at fans, air flow and inlet temperature of the node; if only this GPU is hot, at its heat sink",
                "hw_thermal_slowdown",
            )
        elif "hw_slowdown" in active:
            yield _held(
                gpu,
                "fail",
                "the hardware slows it down (HW Slowdown: heat, power brake, or power drawn too fast)",
                "inspect",
                "compare temperature and power of this GPU with the others, look at fans and power supplies in the "
                "iDRAC; reset the GPU once and have it inspected if the slowdown comes back",
                "hw_slowdown",
            )
        if "sw_thermal_slowdown" in active:
            yield _held(
                gpu,
                "warn",
                "the driver slows it down because of heat (SW Thermal Slowdown)",
                "inspect",
                "look at fans, air flow and inlet temperature of the node before the hardware has to slow it down",
                "sw_thermal_slowdown",
            )
        if "applications_clocks_setting" in active:
            yield _held(
                gpu,
                "warn",
                "clocks that somebody set hold it down (Applications Clocks Setting)",
                "observe",
                f"put them back with 'nvidia-smi -i {gpu.index} -rac' and find out who set them",
                "applications_clocks_setting",
            )
        if "sw_power_cap" in active and is_busy(gpu, profile) is False:
            yield _held(
                gpu,
                "warn",
                f"the power cap holds it down (SW Power Cap) while it is idle: {gpu.utilization} % busy, "
                f"{gpu.power.draw} W of {gpu.power.limit} W",
                "observe",
                "look again in a minute; if it stays, compare the power limit with the other GPUs and reset the GPU",
                "sw_power_cap",
            )

    yield from judge_each(
        evidence,
        profile,
        judge,
        lambda gpus: f"not held back, {sum(gpu.clock_reasons.idle == 'Active' for gpu in gpus)} of them idle",
        "clock_reasons.idle",
        "clock_reasons.hw_slowdown",
        "clock_reasons.sw_power_cap",
    )


def _held(gpu: Gpu, status: str, observed: str, action: str, advice: str, reason: str) -> Finding:
    shown = (rows(gpu, f"clock_reasons.{reason}"),)
    reference = "NVML API, clocks event reasons"
    return Finding(gpu.component, status, observed, "Not Active", action, advice, shown, reference)


def check_clocks(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """A busy GPU runs at working clocks, and nobody has set its clocks lower.

    Source: scitix/sichek (SM clock below 800 MHz while busy); facebookresearch/gcm (application clocks).
    """

    def judge(gpu: Gpu) -> Iterator[Finding]:
        sm, busy = known(gpu, "clocks.sm"), is_busy(gpu, profile)
        if isinstance(sm, Absent):
            yield skipped(gpu, f"clocks: {sm.reason}")
            return
        least = expected_of(profile, gpu, "busy_sm_clock_mhz")
        held = any(printed(gpu, f"clock_reasons.hw_{reason}") == "Active" for reason in _HARDWARE)
        if busy and least is not None and sm < least and not held:  # what holds it is gpu.throttle's finding
            advice = (
                "look again in a minute; if the clock stays low under load, drain the node and reset the GPU; "
                "reboot where that does not help"
            )
            text = f"SM clock {sm} MHz while {gpu.utilization} % busy"
            expected = f"at least {least:.0f} MHz (limits.gpu.busy_sm_clock_mhz)"
            yield _slow(gpu, text, expected, "reset_gpu", advice, "clocks.sm", "utilization")
        for kind in ("graphics", "memory"):
            set_to, default = (known(gpu, f"clocks.{word}applications_{kind}") for word in ("", "default_"))
            if not isinstance(set_to, Absent) and not isinstance(default, Absent) and set_to < default:
                advice = f"put them back with 'nvidia-smi -i {gpu.index} -rac' and find out who set them"
                text = f"application clock of {kind} is {set_to} MHz"
                facts = (f"clocks.applications_{kind}", f"clocks.default_applications_{kind}")
                yield _slow(gpu, text, f"{default} MHz, the board's default", "observe", advice, *facts)

    yield from judge_each(
        evidence, profile, judge, lambda gpus: "clocks as they should be for their load", "clocks.sm", "utilization"
    )


_HARDWARE = ("slowdown", "thermal_slowdown", "power_brake_slowdown")


def _slow(gpu: Gpu, observed: str, expected: str, action: str, advice: str, *facts: str) -> Finding:
    reference = "scitix/sichek; facebookresearch/gcm"
    return Finding(gpu.component, "warn", observed, expected, action, advice, (rows(gpu, *facts),), reference)


def check_temperature(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """No GPU is at its limit of temperature, or much hotter than the others under the same load.

    Newer drivers print the degrees that are left (T.Limit), older ones the limits.

    Source: nvidia-smi(1), Temperature; recordings gpu4-hot-no-throttle; limits: health/gpu_models.py.
    """
    nothing = no_gpus(profile)
    if nothing is not None:
        yield nothing
        return
    report: GpuReport = evidence.facts(QUERY)
    cores = {
        gpu.index: (_load(gpu, profile), gpu.temperature.core)
        for gpu in report.gpus
        if isinstance(gpu.temperature.core, int)
    }

    def judge(gpu: Gpu) -> Iterator[Finding]:
        core, memory = value_of(gpu, "temperature.core"), known(gpu, "temperature.memory")
        slowing = _at_slowdown(gpu, report.driver_branch)
        load = is_busy(gpu, profile)
        others = [degrees for index, (busy, degrees) in cores.items() if index != gpu.index and busy == load]
        said = f"{core} C" + ("" if isinstance(memory, Absent) else f", memory {memory} C")
        why = list(_too_hot(gpu, profile, report.driver_branch))
        above = expected_of(profile, gpu, "temperature_above_peers_c")
        # the median, without the module statistics: to import that takes as long as all the checks of the GPUs
        usual = sorted(others)[len(others) // 2] if len(others) > 1 else core
        if above is not None and core - usual > above:
            why.append(f"the others under the same load are at {usual} C")
        if slowing or why:
            yield Finding(
                gpu.component,
                "fail" if slowing else "warn",
                f"{said}; {slowing or '; '.join(why)}",
                "below its limits (limits.gpu.temperature_c and following)",
                "inspect",
                "look at fans, air flow and inlet temperature of the node; if only this GPU is hot, at its heat sink",
                (
                    rows(
                        gpu,
                        "temperature.core",
                        "temperature.memory",
                        "temperature.margin",
                        "temperature.slowdown_margin",
                    ),
                ),
                "nvidia-smi(1), Temperature",
            )

    yield from judge_each(
        evidence,
        profile,
        judge,
        lambda gpus: f"at most {max(value_of(gpu, 'temperature.core') for gpu in gpus)} C",
        "temperature.core",
        "temperature.memory",
        "temperature.margin",
    )


def _margin(gpu: Gpu, branch: int) -> int | None:
    margin = known(gpu, "temperature.margin")
    return None if isinstance(margin, Absent) or branch < _MARGIN_TRUE_SINCE else margin


def _at_slowdown(gpu: Gpu, branch: int) -> str:
    """Why it is about to slow down, "" where it is not."""
    margin, threshold = _margin(gpu, branch), known(gpu, "temperature.slowdown_margin")
    if margin is not None and not isinstance(threshold, Absent) and margin <= threshold:
        return f"{margin} C to its limit, it slows down at {threshold}"
    core, limit = value_of(gpu, "temperature.core"), known(gpu, "temperature.slowdown")
    if not isinstance(limit, Absent) and core >= limit:
        return f"it slows down at {limit} C"
    return ""


def _too_hot(gpu: Gpu, profile: Profile, branch: int) -> Iterator[str]:
    margin, least = _margin(gpu, branch), expected_of(profile, gpu, "temperature_margin_c")
    if margin is not None and least is not None and margin < least:
        yield f"{margin} C to its limit, {least:.0f} should be left"
    for part, key, own in (
        ("core", "temperature_c", "operating"),
        ("memory", "memory_temperature_c", "memory_operating"),
    ):
        degrees, limit = known(gpu, f"temperature.{part}"), expected_of(profile, gpu, key)
        operating = known(gpu, f"temperature.{own}")
        if limit is None and not isinstance(operating, Absent):
            limit = operating
        if not isinstance(degrees, Absent) and limit is not None and degrees >= limit:
            yield f"{part} limit {limit:.0f} C"


def check_power_limit(evidence: NodeEvidence, profile: Profile) -> Iterator[Finding]:
    """The power limit in force is the profile's, or the board's default: a lower one makes the whole job slow.

    Source: nvidia-smi(1), Power Readings; recordings all-power-limit-500.
    """
    profiled = wanted(profile, "power_limit_w")

    def judge(gpu: Gpu) -> Iterator[Finding]:
        limit, default = known(gpu, "power.limit"), known(gpu, "power.default")
        if isinstance(limit, Absent):
            yield skipped(gpu, f"power limit: {limit.reason}")
            return
        expected = value_of(gpu, "power.default") if profiled is None else float(profiled)
        if limit != expected:
            low = limit < expected
            yield Finding(
                gpu.component,
                "warn",
                f"power limit {limit:.0f} W, default of the board {default} W",
                f"{expected:.0f} W ({'default of the board' if profiled is None else 'platform.gpu.power_limit_w'})",
                "observe",
                f"{'the GPU computes slower' if low else 'the rack may not be laid out for it'}: if nobody wants it, "
                f"run 'nvidia-smi -i {gpu.index} -pl {expected:.0f}'; if it is wanted, set platform.gpu.power_limit_w",
                (rows(gpu, "power.limit", "power.default"),),
                "recordings all-power-limit-500",
            )

    yield from judge_each(
        evidence,
        profile,
        judge,
        lambda gpus: f"power limit {value_of(gpus[0], 'power.limit'):.0f} W",
        "power.limit",
        "power.default",
    )


CHECKS: tuple[Check, ...] = (
    Check("gpu.throttle", check_throttle, needs=(QUERY,)),
    Check("gpu.clocks", check_clocks, needs=(QUERY,)),
    Check("gpu.temperature", check_temperature, needs=(QUERY,)),
    Check("gpu.power_limit", check_power_limit, needs=(QUERY,)),
)
