# SPDX-License-Identifier: Apache-2.0
"""A capture without what tells whose it is: same shape, same equalities, nothing of the original left."""

import re

import pytest
from ansible.module_utils.gpufleet.health.capture_anonymous import anonymous
from ansible.module_utils.gpufleet.health.evaluation import evaluate
from ansible.module_utils.gpufleet.health.probe import ProbeResult
from ansible.module_utils.gpufleet.health.registry import CHECKS, PROBES

from tests.health_node import healthy_node, nvidia_smi, profile


def result(probe: str, stdout: str, stderr: str = "", outcome: str = "done") -> ProbeResult:
    return ProbeResult(probe, outcome, 0, stdout, stderr, 0.1, 1_796_000_000.0, True)


def replaced(text: str, profile: object = None, names: tuple[str, ...] = ()) -> str:
    return anonymous({"a": result("a", text)}, profile or {}, names)["a"].stdout


SECRETS = [
    ("    Serial Number                         : 1562821083900", "1562821083900"),
    ("<serial>1653922027286</serial>", "1653922027286"),
    ('{"name": "nvme0n1", "serial": "S6CXNX0T123456"}', "S6CXNX0T123456"),
    ("NVRM: GPU Board Serial Number: 1653922027286", "1653922027286"),
    ("\t\t\t[SN] Serial number: MT2242XZ09AB", "MT2242XZ09AB"),
    ("\tCapabilities: [1b0 v1] Device Serial Number 94-6d-ae-03-00-a1-b2-c3", "03-00-a1-b2-c3"),
    ("    nvme-Dell_Ent_NVMe_P5600_MU_U.2_1.6TB_S6CXNX0T123456-part1  ONLINE 0 0 0", "S6CXNX0T123456"),
    ("  wwn-0x5002538c409a1b2c ONLINE", "8c409a1b2c"),
    ("GPU 0: NVIDIA H100 (UUID: GPU-1d7fb1a1-8f4e-4f0c-9a65-7e3e1d4fb6aa)", "1d7fb1a1-8f4e-4f0c-9a65-7e3e1d4fb6aa"),
    ("link/ether b8:3f:d2:1a:2b:3c brd ff:ff:ff:ff:ff:ff", "1a:2b:3c"),
    ("link/infiniband 00:00:10:28:fe:80:00:00:00:00:00:00:94:6d:ae:03:00:a1:b2:c3", "94:6d:ae:03:00:a1:b2:c3"),
    ("/sys/class/infiniband/mlx5_0/node_guid:946d:ae03:00a1:b2c3", "00a1:b2c3"),
    ("Node GUID: 0x946dae0300a1b2c3", "0300a1b2c3"),
    ("fe80:0000:0000:0000:946d:ae03:00a1:b2c3", "946d:ae03:00a1:b2c3"),
    ("inet6 fe80::ba3f:d2ff:fe1a:2b3c/64", "ba3f:d2ff:fe1a:2b3c"),
    ("^,*,10.20.30.40,2,6,377,22,0.000012", "10.20.30.40"),
    ("Nov 30 01:02:03 gpu-017 kernel: NVRM: Xid (PCI:0000:9b:00): 79", "gpu-017"),
    ("2026-11-30T01:02:03+0000 rack kernel: ok", "rack"),
    ('node_uname_info{nodename="gpu-017.example.com"} 1', "gpu-017"),
    ("systemd[1]: Hostname set to <gpu-017>.", "gpu-017"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS, ids=lambda case: case[:40])
def test_a_secret_is_replaced_by_one_of_its_shape(text: str, secret: str) -> None:
    made = replaced(text)
    assert secret not in made
    assert made != text
    changes_length = "gpu-017" in text or "rack" in text or "fe80::" in text or secret.count(".") == 3
    assert changes_length or len(made) == len(text)


KEPT = [
    "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "Driver Version: 535.129.03    CUDA Version: 12.2    VBIOS Version : 96.00.99.00.01",
    "Image Version : G520.0200.00.05",
    "LnkCap: Port #0, Speed 32GT/s, Width x16",
    "00000000-0000-0000-0000-000000000000",
    "link/ether 00:00:00:00:00:00 brd ff:ff:ff:ff:ff:ff",
    "12:34:56 2026-11-30T01:02:03.456789+00:00",
    "listen 127.0.0.1:9100 0.0.0.0:22 [::1]:323",
    "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090 ADDR 1f2a4b3c00",
    "Serial: 8250/16550 driver, 32 ports, IRQ sharing enabled",
    "2a:00.0 Non-Volatile memory controller [0108]: Samsung [144d:a80a]",
    "Memory at 21bf00000000 (64-bit, prefetchable) [size=128G]",
    "0 1 2 3  64 32 16 8  1.2.3",
]


@pytest.mark.parametrize("text", KEPT, ids=lambda text: text[:40])
def test_what_checks_judge_by_is_kept(text: str) -> None:
    assert replaced(text) == text


def test_one_value_has_one_placeholder_everywhere() -> None:
    made = anonymous(
        {
            "smi": result("smi", "<serial>1653922027286</serial>", "GPU-1d7fb1a1-8f4e-4f0c-9a65-7e3e1d4fb6aa\n"),
            "log": result("log", "board 1653922027286 is GPU-1D7FB1A1-8F4E-4F0C-9A65-7E3E1D4FB6AA\n", "1653922027287"),
        },
        {},
    )
    serial = made["smi"].stdout.removeprefix("<serial>").removesuffix("</serial>")
    assert made["log"].stdout == f"board {serial} is {made['smi'].stderr}"
    assert made["log"].stderr == "1653922027287", "a number that nothing calls a serial is a number"


def test_different_values_stay_different() -> None:
    made = replaced("".join(f"<serial>16539220272{number}</serial>\n" for number in range(10, 60)))
    assert len(set(made.splitlines())) == 50


def test_a_boot_id_with_and_without_hyphens_stays_one() -> None:
    made = replaced("1d7fb1a1-8f4e-4f0c-9a65-7e3e1d4fb6aa 1d7fb1a18f4e4f0c9a657e3e1d4fb6aa").split()
    assert made[0].replace("-", "") == made[1]


def test_the_beginning_of_a_serial_stays_for_the_profiles_patterns() -> None:
    assert replaced("serial: S6CXNX0T123456").startswith("serial: S6CX")


def test_what_the_profile_names_is_kept() -> None:
    profile = {"platform": {"clock": {"servers": [{"address": "10.0.2.2"}]}}}
    assert replaced("10.0.2.2 10.0.2.3", profile) == "10.0.2.2 198.18.0.1"


def test_the_hosts_own_name_is_replaced_anywhere_if_it_is_no_plain_word() -> None:
    assert "gpu-017" not in replaced("reached gpu-017.example.com and gpu-017", names=("gpu-017.example.com",))
    assert replaced("kernel: node is up", names=("node",)) == "kernel: node is up"


def test_placeholders_do_not_depend_on_the_order_of_the_probes() -> None:
    results = {"b": result("b", "10.0.0.1"), "a": result("a", "10.0.0.2")}
    assert anonymous(results, {}) == anonymous(dict(reversed(list(results.items()))), {})


def test_outcome_and_times_stay() -> None:
    before = result("a", "serial: S6CXNX0T123456", outcome="timeout")
    assert anonymous({"a": before}, {})["a"]._replace(stdout="") == before._replace(stdout="")


STATES = ["550.163.01-h100-healthy", "550.163.01-h100-gpu3-remap-failure", "550.163.01-h100-gpu3-lost-handle"]


@pytest.mark.parametrize("state", STATES)
def test_the_same_verdict_for_the_same_reasons(state: str) -> None:
    """All real checks over a whole node: nothing that they judge by is lost."""
    node = {**healthy_node(), **nvidia_smi(state)}
    expected = profile()
    before, after = (
        evaluate(CHECKS, PROBES, results, expected, {}) for results in (node, anonymous(node, expected, ("gpu-017",)))
    )
    assert [finding[:2] for finding in after] == [finding[:2] for finding in before]
    assert any(finding.status == "ok" for finding in after)


def test_a_whole_node_keeps_no_serial_and_no_uuid() -> None:
    node = healthy_node()
    serials = set(re.findall(r"<serial>(\d+)</serial>", node["nvidia_smi.query"].stdout))
    uuids = set(re.findall(r"GPU-([0-9a-f-]{36})", node["nvidia_smi.query"].stdout))
    assert len(serials) == len(uuids) == 8
    text = "\n".join(result.stdout + result.stderr for result in anonymous(node, profile()).values())
    assert [secret for secret in serials | uuids if secret in text] == []
