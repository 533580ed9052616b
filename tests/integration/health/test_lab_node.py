# SPDX-License-Identifier: Apache-2.0
"""The health check on the virtual node: its real lspci, sysfs, kernel log, pool and clock, and faults made for real.

No GPU is emulated: a stand-in for nvidia-smi answers from recordings of the real program.
"""

import copy
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.conftest import LabNode
from tests.playbook import run_playbook

pytestmark = pytest.mark.lab

REPOSITORY = Path(__file__).resolve().parents[3]
# Root ports of QEMU redirect from the start. These lead to the stand-ins for GPUs and HCAs (inventories/lab).
ROOT_PORTS = ("00:05.0", "00:06.0", "00:07.0", "00:08.0")
HCAS = ("0b:00.0", "0d:00.0", "11:00.0")
# What one look at the node must have really seen.
SEEN = {
    "pcie.devices", "pcie.max_read_request", "iommu", "kernel.xid", "kernel.file_systems", "clock.skew", "clock.source",
    "zfs.pool", "file_systems", "node_exporter", "reboot.requests", "driver.modules", "driver.holds", "rdma.stack",
    "rdma.holds", "docker.engine", "docker.holds", "containers.rights",
}  # fmt: skip


def lab_profile() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((REPOSITORY / "profiles" / "lab.yml").read_text())
    return data


class HealthCheck:
    """The command node-health on the node, installed nowhere: one file below /root."""

    def __init__(self, node: LabNode, work: Path) -> None:
        self.node, self.work = node, work
        subprocess.run(["make", "node-health"], cwd=REPOSITORY, check=True, capture_output=True, timeout=300)
        self._copy(REPOSITORY / "build" / "node-health")

    def _copy(self, path: Path) -> None:
        config = json.loads(self.node.lab("status", "--json").stdout)["ssh_config"]
        command = ["scp", "-q", "-F", config, str(path), f"{self.node.name}:/root/{path.name}"]
        subprocess.run(command, check=True, timeout=300, stdin=subprocess.DEVNULL)

    def send_profile(self, profile: dict[str, Any]) -> None:
        """Put it on the node as /root/profile.json."""
        path = self.work / "profile.json"
        path.write_text(json.dumps(profile))
        self._copy(path)

    def run(self, profile: dict[str, Any], *arguments: str) -> dict[str, Any]:
        """The report of one run with this profile."""
        self.send_profile(profile)
        words = " ".join(arguments)
        said = self.node.run(f"/root/node-health run --json --profile /root/profile.json {words}", check=False)
        report: dict[str, Any] = json.loads(said)
        return report

    def troubles(self, profile: dict[str, Any], *arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
        """The findings that are not ok, by check and component."""
        findings = self.run(profile, *arguments)["findings"]
        return {
            (finding["check"], finding["component"]): finding
            for finding in findings
            if finding["status"] not in ("ok", "skipped")
        }


@pytest.fixture(scope="module")
def health(lab_node: LabNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthCheck]:
    yield HealthCheck(lab_node, tmp_path_factory.mktemp("health"))
    lab_node.run("rm -f /root/node-health /root/profile.json /root/capture.tar.gz")


def test_a_good_node_is_ok_by_the_playbook_and_by_the_command(health: HealthCheck, tmp_path: Path) -> None:
    done = run_playbook("playbooks/validate.yml", tmp_path)
    assert done.code == 0, done.output
    entry = done.host(health.node.name)
    assert entry["facts"]["health"]["verdict"] == "ok" and entry["changed"] == 0, done.output
    report = health.run(lab_profile())
    assert report["verdict"] == "ok", [
        finding for finding in report["findings"] if finding["status"] not in ("ok", "skipped")
    ]
    assert {finding["check"] for finding in report["findings"] if finding["status"] == "ok"} >= SEEN


def test_a_capture_is_judged_the_same_elsewhere(health: HealthCheck, tmp_path: Path) -> None:
    node = health.node
    health.send_profile(lab_profile())
    node.run("/root/node-health capture --anonymous --profile /root/profile.json /root/capture.tar.gz")
    config = json.loads(node.lab("status", "--json").stdout)["ssh_config"]
    command = ["scp", "-q", "-F", config, f"{node.name}:/root/capture.tar.gz", str(tmp_path)]
    subprocess.run(command, check=True, timeout=300, stdin=subprocess.DEVNULL)
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(lab_profile()))
    program = [str(REPOSITORY / "build" / "node-health"), "replay", "--json", "--profile", str(profile)]
    done = subprocess.run(
        [*program, str(tmp_path / "capture.tar.gz")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and json.loads(done.stdout)["verdict"] == "ok", done.stdout + done.stderr
    assert node.name not in done.stdout


def test_faults_made_for_real_are_found_each_where_it_is(health: HealthCheck) -> None:
    """A lost GPU in the kernel log, ACS redirection on one bridge, one HCA translated, all HCAs with small reads.

    QEMU refuses to change the read request size (128 bytes), so the profile is what wants more.
    """
    node = health.node
    profile = copy.deepcopy(lab_profile())
    profile["platform"]["acs_redirect"] = "off"
    off = "; ".join(f"setpci -s {port} ECAP_ACS+6.w=0:1c" for port in ROOT_PORTS)
    group = node.run("basename $(readlink /sys/bus/pci/devices/0000:0b:00.0/iommu_group)").strip()
    retype = (
        "echo 0000:0b:00.0 > /sys/bus/pci/drivers/e1000e/unbind; echo {} > /sys/kernel/iommu_groups/" + group + "/type;"
        " echo 0000:0b:00.0 > /sys/bus/pci/drivers/e1000e/bind"
    )
    try:
        node.run(off)
        assert health.troubles(profile, "--check pcie", "--check iommu") == {}
        node.run(
            'echo "<3>NVRM: Xid (PCI:0000:0a:00): 79, pid=1234, name=python3, GPU has fallen off the bus." > /dev/kmsg;'
            " setpci -s 00:06.0 ECAP_ACS+6.w=1c:1c"
        )
        profile["devices"]["hca"]["max_read_request_bytes"] = 512
        node.run(retype.format("DMA"))
        found = health.troubles(profile)
        assert set(found) == {
            ("kernel.xid", "GPU 0000:0a:00.0"),
            ("pcie.acs", "bridge 0000:00:06.0"),
            ("iommu", "NIC 0000:0b:00.0"),
            *(("pcie.max_read_request", f"NIC 0000:{hca}") for hca in HCAS),
        }, found
        assert "Xid 79" in found["kernel.xid", "GPU 0000:0a:00.0"]["observed"]
        assert "ReqRedir+" in found["pcie.acs", "bridge 0000:00:06.0"]["observed"]
        assert "128 bytes" in found["pcie.max_read_request", "NIC 0000:0d:00.0"]["observed"]
    finally:
        node.run(retype.format("identity"))
        # The kernel's ring buffer keeps the Xid until the next boot, and so does the check: that is the point of it.


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("550.163.01-h100-healthy", set()),
        (
            "550.163.01-h100-multi-fault",
            {
                ("gpu.persistence", "GPU 0"),
                ("gpu.row_remap", "GPU 1"),
                ("gpu.ecc", "GPU 3"),
                ("nvlink.links", "GPU 5"),
                ("gpu.pcie_link", "GPU 6"),
            },
        ),
    ],
)
def test_the_stand_in_answers_from_the_recordings(
    health: HealthCheck, state: str, expected: set[tuple[str, str]]
) -> None:
    profile: dict[str, Any] = yaml.safe_load((REPOSITORY / "profiles" / "xe9680-h100.yml").read_text())
    profile["limits"]["gpu"]["memory_mib"] = 81920  # the mocked GPUs have this
    profile["firmware"]["gpu_vbios"] = {"version": None}
    profile["required_checks"] = []
    # Not those that also ask PCI, the fabric manager or the driver, which the node does not have.
    names = [
        "gpu.ecc", "gpu.ecc_mode", "gpu.row_remap", "gpu.reset_required", "gpu.persistence", "gpu.pcie_link",
        "gpu.processes", "gpu.throttle", "gpu.versions", "nvlink.links", "nvlink.errors", "fabric.state",
    ]  # fmt: skip
    health.node.fault("gpu", state)
    try:
        found = health.troubles(profile, *(f"--check {name}" for name in names))
    finally:
        health.node.fault("gpu", "none")
    assert {(check, component.partition(" (")[0]) for check, component in found} == expected, found
