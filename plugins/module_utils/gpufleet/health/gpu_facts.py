# SPDX-License-Identifier: Apache-2.0
"""What `nvidia-smi -q` says about the GPUs of a node, typed. A value that is not there says why."""

from __future__ import annotations

import re
from typing import NamedTuple, Union

# Why there is no value. not_applicable: the driver answers that this GPU has no such thing (N/A). not_in_driver: this
# branch of the driver has no such row. missing: the row should be there and is not (cut or garbled output).
# error: the driver could not read it (GPU is lost, Unknown Error), or the text is not a value of this row.
ABSENT_KINDS = ("not_applicable", "not_in_driver", "missing", "error")


class Absent(NamedTuple):
    """No value. kind: one of ABSENT_KINDS. reason: what stands there instead, or why nothing does."""

    kind: str
    reason: str

    def __str__(self) -> str:
        return self.reason


# typing.Union, since Python 3.9 evaluates these aliases
Text = Union[str, Absent]  # noqa: UP007
Count = Union[int, Absent]  # noqa: UP007
Number = Union[float, Absent]  # noqa: UP007


class Inforom(NamedTuple):
    """Versions of the objects in the InfoROM, the configuration memory on the board."""

    image: Text
    ecc: Text


class PcieLink(NamedTuple):
    """The GPU's own view of its PCIe link. Generations 1 to 6, widths in lanes; replays since the last reset."""

    generation: Count
    max_generation: Count
    width: Count
    max_width: Count
    replays: Count
    rollovers: Count


class ClockReasons(NamedTuple):
    """Why clocks are not at their highest: "Active" or "Not Active" (throttle reasons, event reasons from 535 on)."""

    idle: Text
    applications_clocks_setting: Text
    sw_power_cap: Text
    hw_slowdown: Text
    hw_thermal_slowdown: Text
    hw_power_brake_slowdown: Text
    sync_boost: Text
    sw_thermal_slowdown: Text
    display_clock_setting: Text


class Memory(NamedTuple):
    """Frame buffer in MiB. protected_total: memory under confidential computing."""

    total: Count
    used: Count
    protected_total: Count


class EccErrors(NamedTuple):
    """Counts of errors. Up to driver 525 uncorrectable SRAM errors are one number, later they are two.

    single_bit, double_bit: totals of GPUs before Ampere, which have no rows by kind of memory.
    """

    sram_correctable: Count
    sram_uncorrectable: Count
    sram_uncorrectable_parity: Count
    sram_uncorrectable_secded: Count
    dram_correctable: Count
    dram_uncorrectable: Count
    single_bit: Count
    double_bit: Count


class Ecc(NamedTuple):
    """Mode ("Enabled", "Disabled"), errors since the driver was loaded (volatile) and in the GPU's life (aggregate).

    sram_threshold_exceeded and the repair rows: "Yes" or "No".
    """

    current: Text
    pending: Text
    volatile: EccErrors
    aggregate: EccErrors
    sram_threshold_exceeded: Text
    sram_l2: Count
    sram_sm: Count
    sram_microcontroller: Count
    sram_pcie: Count
    sram_other: Count
    channel_repair_pending: Text
    tpc_repair_pending: Text
    unrepairable_memory: Text


class RetiredPages(NamedTuple):
    """Pages taken out of use (GPUs before Ampere). pending: "Yes" or "No"."""

    single_bit: Count
    double_bit: Count
    pending: Text


class RowRemap(NamedTuple):
    """Rows replaced by spare ones (Ampere and later). pending, failure: "Yes" or "No".

    banks_*: number of banks by how many spare rows they have left.
    """

    correctable: Count
    uncorrectable: Count
    pending: Text
    failure: Text
    banks_max: Count
    banks_high: Count
    banks_partial: Count
    banks_low: Count
    banks_none: Count


class Temperature(NamedTuple):
    """Degrees Celsius. margin: degrees left to the limit (T.Limit); slowdown_margin: the value of margin at which
    the GPU slows down. Older GPUs have the limits themselves
    (slowdown, operating). memory, memory_operating: of the memory."""

    core: Count
    memory: Count
    margin: Count
    slowdown_margin: Count
    slowdown: Count
    operating: Count
    memory_operating: Count


class Power(NamedTuple):
    """Watts. limit: in force; requested: what was asked for; default: of the board."""

    draw: Number
    limit: Number
    requested: Number
    default: Number


class Clocks(NamedTuple):
    """MHz. applications_*: the clocks that an administrator may set; none since driver 580 or so."""

    sm: Count
    memory: Count
    max_sm: Count
    max_memory: Count
    applications_graphics: Count
    applications_memory: Count
    default_applications_graphics: Count
    default_applications_memory: Count


class Fabric(NamedTuple):
    """Registration with the NVLink fabric, as printed: state "Completed", status "Success"; later drivers add rows."""

    state: Text
    status: Text
    clique_id: Text
    cluster_uuid: Text
    summary: Text
    bandwidth: Text
    route_recovery_in_progress: Text
    route_unhealthy: Text
    access_timeout_recovery: Text
    incorrect_configuration: Text


class GpuProcess(NamedTuple):
    """A process that uses the GPU. type: C (compute), G, M+C ...; memory: MiB."""

    pid: Count
    type: Text
    name: Text
    memory: Count


class Unreadable(NamedTuple):
    """A row that is printed, but whose value the driver could not read."""

    row: str
    text: str


class Gpu(NamedTuple):
    """One GPU. index: its number in nvidia-smi. address: dddd:bb:dd.f in lower case. device_id: "2330".

    processes: Absent where the list itself is. mig_devices: number of MIG devices.
    """

    index: int  # type: ignore[assignment]  # in place of the method of tuples
    address: str
    name: Text
    architecture: Text
    serial: Text
    uuid: Text
    device_id: Text
    vbios: Text
    gsp_firmware: Text
    persistence: Text
    compute_mode: Text
    mig_current: Text
    mig_pending: Text
    reset_required: Text
    drain_and_reset: Text
    recovery_action: Text
    performance_state: Text
    utilization: Count
    inforom: Inforom
    link: PcieLink
    clock_reasons: ClockReasons
    memory: Memory
    ecc: Ecc
    retired_pages: RetiredPages
    row_remap: RowRemap
    temperature: Temperature
    power: Power
    clocks: Clocks
    fabric: Fabric
    mig_devices: int
    processes: tuple[GpuProcess, ...] | Absent
    unreadable: tuple[Unreadable, ...]

    @property
    def component(self) -> str:
        """How findings name this GPU."""
        return f"GPU {self.index} ({self.address})"


class GpuReport(NamedTuple):
    """The whole output. notes: lines around the log itself, such as "WARNING: infoROM is corrupted at gpu ..."."""

    driver_version: Text
    cuda_version: Text
    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...]

    @property
    def driver_branch(self) -> int:
        """535 of 535.183.01; 0 where the version is not known."""
        return branch_of(self.driver_version)


def branch_of(driver_version: Text) -> int:
    """The number in front of a driver version; 0 where there is none."""
    found = re.match(r"(\d+)\.", driver_version) if isinstance(driver_version, str) else None
    return int(found.group(1)) if found else 0


def normalized_address(text: str) -> str | None:
    """dddd:bb:dd.f of 00000000:9B:00.0 or 0000:9b:00.0; None for anything else."""
    found = re.fullmatch(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", text)
    if not found:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()
