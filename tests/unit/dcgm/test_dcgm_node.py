# SPDX-License-Identifier: Apache-2.0
"""GPUs by the PCI bus, and the CUDA of the driver by its library, nvidia-smi or the profile."""

from pathlib import Path

import pytest
from ansible.module_utils.gpufleet import dcgm_node
from ansible.module_utils.gpufleet.bounded_command import CommandResult


def device(bus: Path, address: str, vendor: str, kind: str) -> None:
    (bus / address).mkdir(parents=True)
    (bus / address / "vendor").write_text(f"{vendor}\n")
    (bus / address / "class").write_text(f"{kind}\n")


def test_gpus_are_nvidias_display_controllers(tmp_path: Path) -> None:
    assert dcgm_node.gpus_on_bus(str(tmp_path / "none")) == []
    device(tmp_path, "0000:19:00.0", "0x10de", "0x030200")
    device(tmp_path, "0000:07:00.0", "0x10de", "0x068000")  # an NVSwitch
    device(tmp_path, "0000:03:00.0", "0x102b", "0x030000")  # the BMC's graphics
    (tmp_path / "0000:ff:00.0").mkdir()  # a device that is going
    assert dcgm_node.gpus_on_bus(str(tmp_path)) == ["0000:19:00.0"]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No nvidia-smi."""
    monkeypatch.setattr(dcgm_node, "run_bounded", lambda *_arguments: CommandResult("missing", None, "", ""))


def test_the_library_of_the_driver_tells_without_gpu_and_module(tmp_path: Path, silent: None) -> None:
    (tmp_path / "libcuda.so.580.105.08").touch()
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.580.105.08")
    found = dcgm_node.driver_cuda_major("570", [str(tmp_path / "none"), str(tmp_path)])
    assert (found.major, found.source) == (13, "driver 580.105.08")


def test_nvidia_smi_tells_for_a_branch_beyond_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.900.10.01").touch()
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.900.10.01")
    answer = CommandResult("done", 0, "| KMD Version: 900.10.01  CUDA UMD Version: 15.1 |", "")
    monkeypatch.setattr(dcgm_node, "run_bounded", lambda *_arguments: answer)
    assert dcgm_node.driver_cuda_major(None, [str(tmp_path)]).major == 15
    monkeypatch.setattr(dcgm_node, "run_bounded", lambda *_arguments: CommandResult("timeout", None, "", ""))
    found = dcgm_node.driver_cuda_major("580", [str(tmp_path)])
    assert found.major is None and "900.10.01" in found.source, "the profile's branch says nothing about this driver"


def test_a_node_without_a_driver_has_the_profiles_branch_or_nothing(tmp_path: Path, silent: None) -> None:
    assert dcgm_node.driver_cuda_major("580", [str(tmp_path)]).major == 13
    found = dcgm_node.driver_cuda_major(None, [str(tmp_path)])
    assert found.major is None and "no driver" in found.source
