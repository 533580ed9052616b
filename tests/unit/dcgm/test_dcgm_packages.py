# SPDX-License-Identifier: Apache-2.0
"""Which packages make up DCGM: by the driver's CUDA, beside what is installed."""

import pytest
from ansible.module_utils.gpufleet.dcgm_packages import (
    CudaMajor,
    DcgmError,
    apt_arguments,
    choose_cuda_major,
    cuda_major_of_driver,
    names,
    older_release,
    parse_cuda_of_nvidia_smi,
    warnings,
)

UNKNOWN = CudaMajor(None, "the node has no driver", None)
DRIVER_580 = CudaMajor(13, "driver 580.105.08", "580.105.08")


@pytest.mark.parametrize(
    ("version", "major"),
    [("580.105.08", 13), ("610.43.02", 13), ("575.57.08", 12), ("525.60.13", 12), ("470.256.02", 11), ("580", 13)],
)
def test_the_cuda_of_a_driver(version: str, major: int) -> None:
    assert cuda_major_of_driver(version) == major


@pytest.mark.parametrize("version", ["418.67", "900.10", "", "unknown"])
def test_a_branch_outside_the_table_says_nothing(version: str) -> None:
    assert cuda_major_of_driver(version) is None


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ("| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.0     |", 13),
        # bug 015: branch 610 renamed it
        ("| NVIDIA-SMI 610.43.02  KMD Version: 610.43.02  CUDA UMD Version: 13.3 |", 13),
        ("CUDA Version: N/A", None),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", None),
    ],
)
def test_the_banner_of_nvidia_smi(text: str, major: "int | None") -> None:
    assert parse_cuda_of_nvidia_smi(text) == major


def test_four_packages_of_one_version() -> None:
    asked = apt_arguments(13, "4.5.3", {}, False, False, False)
    assert (
        [package["name"] for package in asked["packages"]]
        == names(13)
        == [
            "datacenter-gpu-manager-4-core",
            "datacenter-gpu-manager-4-cuda13",
            "datacenter-gpu-manager-4-proprietary",
            "datacenter-gpu-manager-4-proprietary-cuda13",
        ]
    )
    assert {package["upstream"] for package in asked["packages"]} == {"4.5.3"}
    assert (asked["upgrade"], asked["downgrade"], asked["may_remove"]) == (False, [], [])
    assert all("upstream" not in package for package in apt_arguments(12, None, {}, False, False, False)["packages"])


def test_an_upgrade_and_a_downgrade_go_by_request_only() -> None:
    assert apt_arguments(13, "4.5.3", {}, False, True, False)["upgrade"] is True
    back = apt_arguments(13, "4.5.3", {}, False, False, True)
    assert back["upgrade"] is True and "datacenter-gpu-manager-4-*" in back["downgrade"]


def test_dcgm_of_the_generation_before_is_told_apart_and_goes_by_request_only() -> None:
    installed = {"datacenter-gpu-manager": "1:3.3.9"}
    with pytest.raises(
        DcgmError, match=r"another major release is installed \(datacenter-gpu-manager 1:3\.3\.9\)"
    ) as e:
        older_release(installed, False)
    assert "dcgm_replace_older_release" in e.value.next_step
    assert "datacenter-gpu-manager" in older_release(installed, True)
    assert older_release({"datacenter-gpu-manager-4-core": "1:4.5.3-1"}, False) == []


def test_the_cuda_comes_from_the_driver_unless_the_profile_says_it() -> None:
    assert choose_cuda_major(None, DRIVER_580) == 13
    assert choose_cuda_major(12, DRIVER_580) == 12
    assert choose_cuda_major(12, UNKNOWN) == 12
    with pytest.raises(DcgmError, match="cannot be told: the node has no driver"):
        choose_cuda_major(None, UNKNOWN)
    with pytest.raises(DcgmError, match=r"cuda_major is 13, but the driver \(driver 550\.90\.07\) has CUDA 12"):
        choose_cuda_major(13, CudaMajor(12, "driver 550.90.07", "550.90.07"))


def test_what_works_in_part_only_is_a_warning() -> None:
    assert warnings(None, 13, DRIVER_580, {}) == []
    ((reason, step),) = warnings(12, 12, DRIVER_580, {})
    assert "DCGM#254" in reason and "cuda_major to null" in step
    installed = {"datacenter-gpu-manager-4-cuda12": "1:4.4.2-1"}
    ((reason, step),) = warnings(None, 13, DRIVER_580, installed)
    assert "for another CUDA (datacenter-gpu-manager-4-cuda12)" in reason and "apt-get remove" in step
    # Both together are what diagnostics on driver 580 want (NVIDIA/DCGM#254): no news.
    assert warnings(None, 13, DRIVER_580, {**installed, "datacenter-gpu-manager-4-cuda13": "1:4.4.2-1"}) == []
