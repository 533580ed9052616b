# SPDX-License-Identifier: Apache-2.0
"""The stand-in for nvidia-smi prints and exits as the real program did, and never makes an answer up."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.gpu_stand_in import STAND_IN, pack, states


def unpacked(state: str, place: Path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(pack(state))) as archive:
        archive.extractall(place, filter="data")
    return place


def ask(recording: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GPUFLEET_NVIDIA_SMI_RECORDING": str(recording)}
    return subprocess.run(
        [str(STAND_IN), *arguments], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def test_it_answers_as_recorded(tmp_path: Path) -> None:
    recording = unpacked("550.163.01-h100-healthy-busy", tmp_path)
    assert ask(recording, "-q", "-x").stdout == (recording / "q-x/stdout").read_text()
    assert ask(recording, "topo", "-m").stdout == (recording / "topo-m/stdout").read_text()
    processes = ask(recording, "--query-compute-apps=pid,process_name", "--format=csv,noheader").stdout.splitlines()
    assert len(processes) == 8 and all(line.partition(", ")[0].isdigit() for line in processes)


def test_it_fails_as_recorded(tmp_path: Path) -> None:
    recording = unpacked("550.163.01-h100-no-nvml-library", tmp_path)
    done = ask(recording, "-q", "-x")
    assert done.returncode == 12 and "libnvidia-ml.so" in done.stdout
    assert ask(recording, "--query-compute-apps=pid,process_name", "--format=csv,noheader").returncode == 12


def test_what_was_not_recorded_is_refused(tmp_path: Path) -> None:
    recording = unpacked("550.163.01-h100-healthy", tmp_path)
    done = ask(recording, "-r", "-i", "3")
    assert done.returncode == 2 and "has no recording of: nvidia-smi -r -i 3" in done.stderr and not done.stdout


def test_a_state_that_nobody_recorded() -> None:
    assert len(states()) > 100
    with pytest.raises(LabError, match=r"no state '550\.163\.01-h100-helthy' was recorded; near it: .*h100-healthy"):
        pack("550.163.01-h100-helthy")
