# SPDX-License-Identifier: Apache-2.0
"""Where each fact stands in the two forms of `nvidia-smi -q`, and of what kind its value is.

Read off outputs of drivers 460 to 590: the project's recordings (525, 535, 550, 555), Azure/azhpc-diagnostics (460),
netdata/netdata and influxdata/telegraf (470 to 535), leptonai/gpud (535), utkuozdemir/nvidia_gpu_exporter (590).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from .gpu_facts import Absent

NEVER_EXPECTED = 10**6  # a branch that no driver has: the row is printed for some GPUs only

# Any value may be replaced by these, with or without square brackets.
_NOT_APPLICABLE = ("n/a", "not supported", "requested functionality has been deprecated", "not available")
_ERRORS = (
    "unknown error",
    "gpu is lost",
    "err!",
    "gpu requires reset",
    "insufficient permissions",
    "no permission",
    "timeout",
    "in use by another client",
)

# NVML's and DCGM's mark for "no value" in an integer (NVIDIA/gpu-monitoring-tools#152): none of our counts comes near.
_BLANK = 0x7FFFFFF0


def absent(text: str) -> Absent | None:
    """Absent where the text stands for "no value", None where it may be one."""
    plain = text.strip().strip("[]").strip().lower().rstrip(".")
    if not plain:
        return Absent("error", "nothing is printed")
    if plain in _NOT_APPLICABLE:
        return Absent("not_applicable", text.strip())
    return Absent("error", text.strip()) if plain in _ERRORS else None


Convert = Callable[[str], Any]


def _text(text: str) -> Any:
    return text


def _is_one_of(*words: str) -> Convert:
    def convert(text: str) -> Any:
        return text if text in words else Absent("error", f"{text!r} is none of {', '.join(words)}")

    return convert


def _matches(pattern: str) -> Convert:
    def convert(text: str) -> Any:
        return text if re.fullmatch(pattern, text) else Absent("error", f"{text!r} is no value of this row")

    return convert


def _count(unit: str = "") -> Convert:
    """A whole number with its unit. Another unit is an error: nothing is converted by guess."""
    pattern = re.compile(rf"(-?\d+){re.escape(unit)}")

    def convert(text: str) -> Any:
        found = pattern.fullmatch(text)
        if not found:
            return Absent("error", f"{text!r} is no number{unit and ' of'}{unit}")
        number = int(found.group(1))
        return number if abs(number) < _BLANK else Absent("error", f"{text} is the mark for no value")

    return convert


def _watts(text: str) -> Any:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) W", text)
    return float(found.group(1)) if found else Absent("error", f"{text!r} is no number of W")


def _device_id(text: str) -> Any:
    """Both forms print device and vendor in one word: 0x233010DE."""
    found = re.fullmatch(r"(?:0x)?([0-9A-Fa-f]{4})10[dD][eE]", text)
    return found.group(1).lower() if found else Absent("error", f"{text!r} is no device of vendor 10de")


_MODE = _is_one_of("Enabled", "Disabled")
_YES_NO = _is_one_of("Yes", "No")
_ACTIVE = _is_one_of("Active", "Not Active")
_VERSION = _matches(r"[0-9A-Za-z][0-9A-Za-z._-]*")
_MIB = _count(" MiB")
_MHZ = _count(" MHz")
_CELSIUS = _count(" C")
_BANKS = _count(" bank(s)")


class Field(NamedTuple):
    """One fact. fact: its path in Gpu. xml, text: paths of the row, the first that is printed counts.

    since: branch of the driver from which on every GPU's output has the row. until: last branch that has it.
    """

    fact: str
    convert: Convert
    xml: tuple[str, ...]
    text: tuple[str, ...]
    since: int = 0
    until: int = NEVER_EXPECTED

    @property
    def label(self) -> str:
        """How a person finds the row in `nvidia-smi -q`."""
        return self.text[0].replace("/", " > ")


def _reason(fact: str, tag: str, row: str) -> Field:
    return Field(
        f"clock_reasons.{fact}",
        _ACTIVE,
        (f"clocks_event_reasons/clocks_event_reason_{tag}", f"clocks_throttle_reasons/clocks_throttle_reason_{tag}"),
        (f"Clocks Event Reasons/{row}", f"Clocks Throttle Reasons/{row}"),
    )


def _ecc(scope: str, fact: str, row: str, since: int = 0) -> Field:
    title = scope.capitalize()
    return Field(
        f"ecc.{scope}.{fact}", _count(), (f"ecc_errors/{scope}/{fact}",), (f"ECC Errors/{title}/{row}",), since
    )


def _old_ecc(scope: str, fact: str, row: str) -> Field:
    path = f"ECC Errors/{scope.capitalize()}/{row}/Total"
    return Field(f"ecc.{scope}.{fact}", _count(), (f"ecc_errors/{scope}/{fact}/total",), (path,), NEVER_EXPECTED)


def _ecc_scope(scope: str) -> tuple[Field, ...]:
    return (
        # V100 and older have rows by single and double bit instead
        _ecc(scope, "sram_correctable", "SRAM Correctable", NEVER_EXPECTED),
        _ecc(scope, "sram_uncorrectable", "SRAM Uncorrectable", NEVER_EXPECTED),
        # driver 535.129 still has the one row, 535.183 has these two
        _ecc(scope, "sram_uncorrectable_parity", "SRAM Uncorrectable Parity", NEVER_EXPECTED),
        _ecc(scope, "sram_uncorrectable_secded", "SRAM Uncorrectable SEC-DED", NEVER_EXPECTED),
        _ecc(scope, "dram_correctable", "DRAM Correctable", NEVER_EXPECTED),
        _ecc(scope, "dram_uncorrectable", "DRAM Uncorrectable", NEVER_EXPECTED),
        _old_ecc(scope, "single_bit", "Single Bit"),
        _old_ecc(scope, "double_bit", "Double Bit"),
    )


def _source(fact: str, row: str) -> Field:
    path = f"ECC Errors/Aggregate Uncorrectable SRAM Sources/{row}"
    return Field(f"ecc.{fact}", _count(), (f"ecc_errors/aggregate_uncorrectable_sram_sources/{fact}",), (path,), 550)


def _banks(fact: str, row: str) -> Field:
    return Field(
        f"row_remap.banks_{fact}",
        _BANKS,
        (f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{fact}",),
        (f"Remapped Rows/Bank Remap Availability Histogram/{row}",),
        525,
    )


def _power(fact: str, xml: tuple[str, ...], text: tuple[str, ...]) -> Field:
    return Field(f"power.{fact}", _watts, xml, text)


def _temperature(fact: str, tag: str, row: str, since: int = NEVER_EXPECTED) -> Field:
    return Field(f"temperature.{fact}", _CELSIUS, (f"temperature/{tag}",), (f"Temperature/{row}",), since)


def _clock(fact: str, section: str, tag: str, title: str, row: str) -> Field:
    return Field(f"clocks.{fact}", _MHZ, (f"{section}/{tag}",), (f"{title}/{row}",))


def _fabric(fact: str, tag: str, row: str, since: int) -> Field:
    return Field(f"fabric.{fact}", _text, (f"fabric/{tag}",), (f"Fabric/{row}",), since)


_GEN = "GPU Link Info/PCIe Generation"
_WIDTH = "GPU Link Info/Link Width"

FIELDS: tuple[Field, ...] = (
    Field("name", _text, ("product_name",), ("Product Name",)),
    Field("architecture", _text, ("product_architecture",), ("Product Architecture",), 470),
    Field("serial", _text, ("serial",), ("Serial Number",)),
    Field("uuid", _matches(r"GPU-[0-9a-f-]{36}"), ("uuid",), ("GPU UUID",)),
    Field("device_id", _device_id, ("pci/pci_device_id",), ("PCI/Device Id",)),
    Field("vbios", _VERSION, ("vbios_version",), ("VBIOS Version",)),
    Field("gsp_firmware", _VERSION, ("gsp_firmware_version",), ("GSP Firmware Version",), 510),
    Field("persistence", _MODE, ("persistence_mode",), ("Persistence Mode",)),
    Field(
        "compute_mode",
        _is_one_of("Default", "Exclusive_Process", "Exclusive_Thread", "Prohibited"),
        ("compute_mode",),
        ("Compute Mode",),
    ),
    Field("mig_current", _MODE, ("mig_mode/current_mig",), ("MIG Mode/Current",), 450),
    Field("mig_pending", _MODE, ("mig_mode/pending_mig",), ("MIG Mode/Pending",), 450),
    Field(
        "reset_required",
        _YES_NO,
        ("gpu_reset_status/reset_required",),
        ("GPU Reset Status/Reset Required",),
        535,
        555,
    ),
    Field(
        "drain_and_reset",
        _YES_NO,
        ("gpu_reset_status/drain_and_reset_recommended",),
        ("GPU Reset Status/Drain and Reset Recommended",),
        535,
        555,
    ),
    # 575 is the first branch with this row that was seen
    Field("recovery_action", _text, ("gpu_recovery_action",), ("GPU Recovery Action",), 575),
    Field("performance_state", _matches(r"P\d{1,2}"), ("performance_state",), ("Performance State",)),
    Field("utilization", _count(" %"), ("utilization/gpu_util",), ("Utilization/GPU",)),
    Field("inforom.image", _VERSION, ("inforom_version/img_version",), ("Inforom Version/Image Version",)),
    Field("inforom.ecc", _VERSION, ("inforom_version/ecc_object",), ("Inforom Version/ECC Object",)),
    Field("link.generation", _count(), ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",), (f"PCI/{_GEN}/Current",)),
    Field("link.max_generation", _count(), ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",), (f"PCI/{_GEN}/Max",)),
    Field(
        "link.width", _count("x"), ("pci/pci_gpu_link_info/link_widths/current_link_width",), (f"PCI/{_WIDTH}/Current",)
    ),
    Field("link.max_width", _count("x"), ("pci/pci_gpu_link_info/link_widths/max_link_width",), (f"PCI/{_WIDTH}/Max",)),
    Field("link.replays", _count(), ("pci/replay_counter",), ("PCI/Replays Since Reset",)),
    Field("link.rollovers", _count(), ("pci/replay_rollover_counter",), ("PCI/Replay Number Rollovers",)),
    _reason("idle", "gpu_idle", "Idle"),
    _reason("applications_clocks_setting", "applications_clocks_setting", "Applications Clocks Setting"),
    _reason("sw_power_cap", "sw_power_cap", "SW Power Cap"),
    _reason("hw_slowdown", "hw_slowdown", "HW Slowdown"),
    _reason("hw_thermal_slowdown", "hw_thermal_slowdown", "HW Slowdown/HW Thermal Slowdown"),
    _reason("hw_power_brake_slowdown", "hw_power_brake_slowdown", "HW Slowdown/HW Power Brake Slowdown"),
    _reason("sync_boost", "sync_boost", "Sync Boost"),
    _reason("sw_thermal_slowdown", "sw_thermal_slowdown", "SW Thermal Slowdown"),
    _reason("display_clock_setting", "display_clocks_setting", "Display Clock Setting"),
    Field("memory.total", _MIB, ("fb_memory_usage/total",), ("FB Memory Usage/Total",)),
    Field("memory.used", _MIB, ("fb_memory_usage/used",), ("FB Memory Usage/Used",)),
    Field(
        "memory.protected_total",
        _MIB,
        ("cc_protected_memory_usage/total",),
        ("Conf Compute Protected Memory Usage/Total",),
        535,
    ),
    Field("ecc.current", _MODE, ("ecc_mode/current_ecc",), ("ECC Mode/Current",)),
    Field("ecc.pending", _MODE, ("ecc_mode/pending_ecc",), ("ECC Mode/Pending",)),
    *_ecc_scope("volatile"),
    *_ecc_scope("aggregate"),
    Field(
        "ecc.sram_threshold_exceeded",
        _YES_NO,
        ("ecc_errors/aggregate/sram_threshold_exceeded",),
        ("ECC Errors/Aggregate/SRAM Threshold Exceeded",),
        550,
    ),
    _source("sram_l2", "SRAM L2"),
    _source("sram_sm", "SRAM SM"),
    _source("sram_microcontroller", "SRAM Microcontroller"),
    _source("sram_pcie", "SRAM PCIE"),
    _source("sram_other", "SRAM Other"),
    Field(
        "ecc.channel_repair_pending",
        _YES_NO,
        ("ecc_errors/channel_repair_pending",),
        ("ECC Errors/Channel Repair Pending",),
        590,
    ),
    Field(
        "ecc.tpc_repair_pending", _YES_NO, ("ecc_errors/tpc_repair_pending",), ("ECC Errors/TPC Repair Pending",), 590
    ),
    Field(
        "ecc.unrepairable_memory",
        _YES_NO,
        ("ecc_errors/unrepairable_memory",),
        ("ECC Errors/Unrepairable Memory",),
        590,
    ),
    Field(
        "retired_pages.single_bit",
        _count(),
        ("retired_pages/multiple_single_bit_retirement/retired_count",),
        ("Retired Pages/Single Bit ECC",),
    ),
    Field(
        "retired_pages.double_bit",
        _count(),
        ("retired_pages/double_bit_retirement/retired_count",),
        ("Retired Pages/Double Bit ECC",),
    ),
    Field(
        "retired_pages.pending",
        _YES_NO,
        ("retired_pages/pending_blacklist",),
        ("Retired Pages/Pending Page Blacklist",),
    ),
    Field(
        "row_remap.correctable", _count(), ("remapped_rows/remapped_row_corr",), ("Remapped Rows/Correctable Error",)
    ),
    Field(
        "row_remap.uncorrectable", _count(), ("remapped_rows/remapped_row_unc",), ("Remapped Rows/Uncorrectable Error",)
    ),
    Field("row_remap.pending", _YES_NO, ("remapped_rows/remapped_row_pending",), ("Remapped Rows/Pending",)),
    Field(
        "row_remap.failure",
        _YES_NO,
        ("remapped_rows/remapped_row_failure",),
        ("Remapped Rows/Remapping Failure Occurred",),
    ),
    _banks("max", "Max"),
    _banks("high", "High"),
    _banks("partial", "Partial"),
    _banks("low", "Low"),
    _banks("none", "None"),
    _temperature("core", "gpu_temp", "GPU Current Temp", 0),
    _temperature("memory", "memory_temp", "Memory Current Temp", 0),
    _temperature("margin", "gpu_temp_tlimit", "GPU T.Limit Temp", 525),
    _temperature("slowdown_margin", "gpu_temp_slow_tlimit_threshold", "GPU Slowdown T.Limit Temp"),
    _temperature("slowdown", "gpu_temp_slow_threshold", "GPU Slowdown Temp"),
    _temperature("operating", "gpu_temp_max_gpu_threshold", "GPU Max Operating Temp"),
    _temperature("memory_operating", "gpu_temp_max_mem_threshold", "Memory Max Operating Temp"),
    _power(
        "draw",
        ("gpu_power_readings/average_power_draw", "gpu_power_readings/power_draw", "power_readings/power_draw"),
        ("GPU Power Readings/Average Power Draw", "GPU Power Readings/Power Draw", "Power Readings/Power Draw"),
    ),
    _power(
        "limit",
        ("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit"),
        ("GPU Power Readings/Current Power Limit", "Power Readings/Enforced Power Limit"),
    ),
    _power(
        "requested",
        ("gpu_power_readings/requested_power_limit", "power_readings/power_limit"),
        ("GPU Power Readings/Requested Power Limit", "Power Readings/Power Limit"),
    ),
    _power(
        "default",
        ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
        ("GPU Power Readings/Default Power Limit", "Power Readings/Default Power Limit"),
    ),
    _clock("sm", "clocks", "sm_clock", "Clocks", "SM"),
    _clock("memory", "clocks", "mem_clock", "Clocks", "Memory"),
    _clock("max_sm", "max_clocks", "sm_clock", "Max Clocks", "SM"),
    _clock("max_memory", "max_clocks", "mem_clock", "Max Clocks", "Memory"),
    _clock("applications_graphics", "applications_clocks", "graphics_clock", "Applications Clocks", "Graphics"),
    _clock("applications_memory", "applications_clocks", "mem_clock", "Applications Clocks", "Memory"),
    _clock(
        "default_applications_graphics",
        "default_applications_clocks",
        "graphics_clock",
        "Default Applications Clocks",
        "Graphics",
    ),
    _clock(
        "default_applications_memory",
        "default_applications_clocks",
        "mem_clock",
        "Default Applications Clocks",
        "Memory",
    ),
    _fabric("state", "state", "State", 525),
    _fabric("status", "status", "Status", 525),
    _fabric("clique_id", "cliqueId", "CliqueId", 550),
    _fabric("cluster_uuid", "clusterUuid", "ClusterUUID", 550),
    _fabric("summary", "health/summary", "Health/Summary", 590),
    _fabric("bandwidth", "health/bandwidth", "Health/Bandwidth", 550),
    _fabric(
        "route_recovery_in_progress",
        "health/route_recovery_in_progress",
        "Health/Route Recovery in progress",
        575,
    ),
    _fabric("route_unhealthy", "health/route_unhealthy", "Health/Route Unhealthy", 575),
    _fabric("access_timeout_recovery", "health/access_timeout_recovery", "Health/Access Timeout Recovery", 575),
    _fabric("incorrect_configuration", "health/incorrect_configuration", "Health/Incorrect Configuration", 590),
)

LABELS = {field.fact: field.label for field in FIELDS}

# Rows that no fact is made of, where the two forms name them differently. Needed to name them when they are unreadable.
_SAME_ROW = {
    "utilization > memory util": "utilization > memory",
    "clocks > graphics clock": "clocks > graphics",
    "clocks > video clock": "clocks > video",
    "gpu power readings > instant power draw": "gpu power readings > instantaneous power draw",
}


def row_label(path: str) -> str:
    """A name for a row without a fact, by its path of tags or headings in lower case."""
    label = path.replace("_", " ").replace("/", " > ")
    return _SAME_ROW.get(label, label)
