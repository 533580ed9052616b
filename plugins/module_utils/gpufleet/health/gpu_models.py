# SPDX-License-Identifier: Apache-2.0
"""Limits by GPU model: what a profile leaves open is judged by these (keys as in limits.gpu of a profile)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .gpu_facts import Absent, Gpu


class GpuModel(NamedTuple):
    """name: as NVIDIA sells it. row_remap: it replaces rows by spare ones, so that N/A there is odd. limits: by key."""

    name: str
    row_remap: bool
    limits: Mapping[str, float]


# For every model. A key that is neither here nor at the model has no limit: nothing is judged by it.
COMMON: Mapping[str, float] = {
    # NVIDIA GPU Memory Error Management: 512 remapped rows in all are the end
    "uncorrectable_remapped_rows": 512,
    # scitix/sichek, spec of H100: more than this many corrected SRAM errors are a warning
    "correctable_sram_errors": 10_000_000,
    # Azure/azurehpc-health-checks, azure_gpu_ecc
    "correctable_dram_errors": 20_000_000,
    # Azure/azurehpc-health-checks, azure_gpu_pageretirement: 62 of the 64 places of the table
    "retired_pages": 62,
    # Below this many degrees to T.Limit a GPU is about to slow down; H100 at full load keeps 20 and more (driver 590).
    "temperature_margin_c": 5,
    # Eight equal GPUs under one load lie within a few degrees; a loose heat sink or dead fan shows by more than this.
    "temperature_above_peers_c": 15,
    # From here on a GPU counts as busy: nvidia-smi's figure is the part of the last second with any kernel running.
    "busy_utilization_percent": 50,
    # scitix/sichek: SM clock of a busy GPU that hangs low
    "busy_sm_clock_mhz": 800,
    # The context that a monitoring agent holds takes less; a leak of a job's memory is far more
    "idle_memory_mib": 500,
    # Healthy H100 nodes show 9 to 120 (utkuozdemir/nvidia_gpu_exporter and leptonai/gpud, recorded outputs)
    "pcie_replays": 1000,
}

# T.Limit of an H100 is at 86 C (recorded: 36 C with 50 to go); scitix/sichek warns at 95 C of its memory
_HBM3 = {"temperature_c": 86, "memory_temperature_c": 95}

MODELS: Mapping[str, GpuModel] = {
    "2330": GpuModel(
        "H100 SXM5 80 GB",
        True,
        # driver 590.48.01 (utkuozdemir/nvidia_gpu_exporter, recorded output)
        {**_HBM3, "memory_mib": 81559, "nvlink_links": 18, "nvlink_link_gbytes_per_s": 26.562},
    ),
    # device 2331 has 12 usable links of 18 (Azure/azurehpc-health-checks#162), none without bridges
    "2331": GpuModel("H100 PCIe 80 GB", True, {"memory_mib": 81559}),
    "2335": GpuModel(
        "H200 SXM5 141 GB",
        True,
        # driver 590.48.01 (same source)
        {**_HBM3, "memory_mib": 143771, "nvlink_links": 18, "nvlink_link_gbytes_per_s": 26.562},
    ),
    # driver 510.47.03 (netdata/netdata, recorded output); 12 links of 25 GB/s
    "20b0": GpuModel(
        "A100 SXM4 40 GB", True, {"memory_mib": 40960, "nvlink_links": 12, "nvlink_link_gbytes_per_s": 25}
    ),
    "20b2": GpuModel(
        "A100 SXM4 80 GB", True, {"memory_mib": 81920, "nvlink_links": 12, "nvlink_link_gbytes_per_s": 25}
    ),
    # driver 535.129.03 (leptonai/gpud, recorded output)
    "2236": GpuModel("A10", True, {"memory_mib": 23028}),
}


def model_of(gpu: Gpu) -> GpuModel | None:
    """Its model by the PCI device id (2330); None for one that is not known, or not readable."""
    return None if isinstance(gpu.device_id, Absent) else MODELS.get(gpu.device_id)


def expected_of(profile: Mapping[str, Any], gpu: Gpu, key: str) -> float | None:
    """What a value is judged by: the profile's limits.gpu, else the model's, else the common one; None = by nothing."""
    value = ((profile.get("limits") or {}).get("gpu") or {}).get(key)
    if value is None:
        model = model_of(gpu)
        value = (model.limits if model else {}).get(key, COMMON.get(key))
    return None if value is None else float(value)
