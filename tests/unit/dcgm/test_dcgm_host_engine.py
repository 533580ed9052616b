# SPDX-License-Identifier: Apache-2.0
"""What dcgmi prints: versions, GPUs, watches; and who can reach the host engine."""

import pytest
from ansible.module_utils.gpufleet.dcgm_host_engine import (
    DcgmParseError,
    Versions,
    differing_watches,
    foreign_listener,
    parse_gpu_count,
    parse_versions,
    parse_watches,
    set_watches_command,
)

# NVIDIA/DCGM#314
BOTH = """
Local build info:
Version : 4.7.0
Build ID : 24637
Build Platform : Linux 7.0.0-31-generic #31~24.04.1-Ubuntu SMP

Hostengine build info:
Version : 4.6.1
Build ID : 24000
"""
TABLE = """Health monitor systems report
+--------------------+--------------------------------------------------------+
| PCIe               | On                                                     |
| NVLINK             | Off                                                    |
| Memory             | On                                                     |
| InfoROM            | Off                                                    |
| Thermal            | On                                                     |
| Power              | On                                                     |
| NvSwitch NF        | Off                                                    |
+--------------------+--------------------------------------------------------+
"""


def test_both_versions_and_a_host_engine_that_did_not_answer() -> None:
    assert parse_versions(BOTH) == Versions("4.7.0", "4.6.1")
    assert parse_versions(BOTH.partition("Hostengine")[0]) == Versions("4.7.0", None)


@pytest.mark.parametrize("text", ["", "dcgmi  version: 2.0.13", "error while loading shared libraries: libdcgm.so.4"])
def test_anything_else_is_no_version(text: str) -> None:
    with pytest.raises(DcgmParseError):
        parse_versions(text)


def test_the_number_of_gpus() -> None:
    assert parse_gpu_count("8 GPUs found.\n+--------+\n") == 8
    assert parse_gpu_count("1 GPU found.\n") == 1
    with pytest.raises(DcgmParseError, match="API version mismatch"):
        parse_gpu_count("Error: Cannot get devices from remote node. Return: API version mismatch")


def test_watches_are_read_back_and_compared() -> None:
    seen = parse_watches(TABLE)
    assert seen["PCIe"] and not seen["NVLINK"] and seen["Power"] and not seen["NvSwitch NF"]
    assert differing_watches(["pcie", "memory", "thermal"], seen) == []
    assert differing_watches(["pcie", "memory", "nvlink"], seen) == [
        "Thermal is watched",
        "Power is watched",
        "NVLINK is not watched",
    ]
    with pytest.raises(DcgmParseError):
        parse_watches("Error: Unable to get health watches. Return: The Group is not found")


def test_the_command_that_sets_them() -> None:
    assert set_watches_command(["nvlink", "pcie"]) == ["dcgmi", "health", "--set", "pn"]
    assert set_watches_command([]) == ["dcgmi", "health", "--clear"]


@pytest.mark.parametrize(
    ("address", "foreign"),
    [
        ("0100007F:15B3", False),
        ("00000000:15B3", True),
        ("0500A8C0:15B3", True),
        ("00000000:15B4", False),
        ("00000000000000000000000001000000:15B3", False),
        ("00000000000000000000000000000000:15B3", True),
    ],
)
def test_an_address_that_others_reach(address: str, foreign: bool) -> None:
    row = f"   0: {address} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n"
    assert bool(foreign_listener("  sl  local_address rem_address\n" + row, 5555)) is foreign
    assert foreign_listener("header\n" + row.replace(" 0A ", " 01 "), 5555) == []
