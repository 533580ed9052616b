# SPDX-License-Identifier: Apache-2.0
"""What the tests of the GPU checks share: the recordings of nvidia-smi, unpacked once, and a profile that fits them."""

import copy
import csv
import re
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpufleet.health import (
    gpu_bad_memory_checks,
    gpu_clock_checks,
    gpu_ecc_checks,
    gpu_identity_checks,
    gpu_link_checks,
    gpu_mode_checks,
    gpu_presence_checks,
    gpu_process_checks,
    gpu_reset_checks,
    nvidia_driver_version,
    nvidia_smi_list,
    nvidia_smi_query,
    pci_tree,
)
from ansible.module_utils.gpufleet.health.evaluation import evaluate
from ansible.module_utils.gpufleet.health.finding import Finding
from ansible.module_utils.gpufleet.health.probe import ProbeResult

REPOSITORY = Path(__file__).resolve().parents[4]
FIXTURES = REPOSITORY / "tests" / "fixtures" / "nvidia-smi"
PROBES = (*nvidia_smi_query.PROBES, *nvidia_smi_list.PROBES, *nvidia_driver_version.PROBES, *pci_tree.PROBES)
CHECKS = (
    *gpu_presence_checks.CHECKS,
    *gpu_reset_checks.CHECKS,
    *gpu_ecc_checks.CHECKS,
    *gpu_bad_memory_checks.CHECKS,
    *gpu_mode_checks.CHECKS,
    *gpu_identity_checks.CHECKS,
    *gpu_clock_checks.CHECKS,
    *gpu_process_checks.CHECKS,
    *gpu_link_checks.CHECKS,
)


def manifest() -> dict[str, dict[str, str]]:
    """Rows of the recordings' MANIFEST by folder."""
    with (FIXTURES / "MANIFEST.tsv").open() as file:
        return {row["folder"]: row for row in csv.DictReader(file, delimiter="\t")}


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The states in a temporary folder: nvidia-smi -q, -q -x and -L of each."""
    folder = tmp_path_factory.mktemp("nvidia-smi")
    with tarfile.open(FIXTURES / "recordings.tar.xz") as archive:
        wanted = [member for member in archive if Path(member.name).parent.name in ("q", "q-x", "L")]
        archive.extractall(folder, wanted, filter="data")
    return folder


@pytest.fixture(scope="session")
def xe9680() -> dict[str, Any]:
    """The profile of the repository, with the figures of the mocked GPUs that differ from real ones."""
    profile: dict[str, Any] = yaml.safe_load((REPOSITORY / "profiles" / "xe9680-h100.yml").read_text())
    profile["firmware"]["gpu_vbios"]["version"] = None
    profile["limits"]["gpu"]["memory_mib"] = 81920
    return profile


def profile_of(base: Mapping[str, Any], device: str, memory_mib: int, speed_gts: float = 32) -> dict[str, Any]:
    """The profile of a node with eight GPUs of another kind."""
    profile = copy.deepcopy(dict(base))
    profile["devices"]["gpu"]["match"] = [{"vendor": "10de", "device": device}]
    profile["devices"]["gpu"]["link"]["speed_gts"] = speed_gts
    profile["limits"]["gpu"]["memory_mib"] = memory_mib
    return profile


def result(probe: str, stdout: str, rc: int | None = 0, outcome: str = "") -> ProbeResult:
    outcome = outcome or ("done" if rc == 0 else "failed")
    return ProbeResult(probe, outcome, rc, stdout, "", 0.1, 1.0, True)


def of_recording(folder: Path, form: str = "q-x") -> dict[str, ProbeResult]:
    """The results of a node in a recorded state. form: "q-x" (XML) or "q" (text)."""

    def recorded(probe: str, command: str) -> ProbeResult:
        return result(probe, (folder / command / "stdout").read_text(), int((folder / command / "rc").read_text()))

    query = recorded("nvidia_smi.query", form)
    return {
        "nvidia_smi.query": query,
        "nvidia_smi.list": recorded("nvidia_smi.list", "L"),
        "pci.lspci": result("pci.lspci", lspci_of(query.stdout)),
    }


# The buses of the mocked node, for states in which nvidia-smi says nothing.
BUSES = ("1A", "1B", "4A", "4B", "8A", "8B", "CA", "CB")


def lspci_of(query: str) -> str:
    """lspci with the functions that the output of nvidia-smi -q -x (or -q) names."""
    buses = re.findall(r'(?m)^\s*(?:<gpu id="|GPU )[0-9A-F]{8}:([0-9A-F]{2}):00\.0', query) or list(BUSES)
    ids = re.findall(r"(?:pci_device_id>|Device Id +: 0x)([0-9A-F]{4})10DE", query) or ["2330"] * len(buses)
    return "".join(
        f"0000:{bus.lower()}:00.0 3D controller [0302]: NVIDIA Corporation GPU [10de:{number.lower()}] (rev a1)\n"
        f"\tSubsystem: NVIDIA Corporation Device [10de:16c1]\n\tCapabilities: [60] Express (v2) Endpoint, MSI 00\n\n"
        for bus, number in zip(buses, ids, strict=True)
    )


Judge = Callable[..., list[Finding]]


def judge(results: Mapping[str, ProbeResult], profile: Mapping[str, Any], prefix: str = "") -> list[Finding]:
    """All findings; of one check where its id is given."""
    checks = [check for check in CHECKS if check.id.startswith(prefix)]
    profile = {**profile, "required_checks": []}
    return evaluate(checks, PROBES, results, profile, {})


def bad(findings: list[Finding]) -> set[tuple[str, str, str, str]]:
    """(check, component, status, action) of everything that is not well; PCI addresses left out of the component."""
    return {
        (finding.check, re.sub(r" \(.*\)", "", finding.component), finding.status, finding.action)
        for finding in findings
        if finding.status not in ("ok", "skipped")
    }
