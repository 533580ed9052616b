# SPDX-License-Identifier: Apache-2.0
"""What role rdma_stack asks of apt_stack for each source, filled in as Ansible does."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROLE = Path(__file__).resolve().parents[3] / "roles" / "rdma_stack"
REPOSITORY = {
    "uri": "https://user@mirror.example.com:8443/doca/3.1.0/debian12/x86_64/",
    "suites": ["./"],
    "components": [],
    "key_url": "https://mirror.example.com/key.pub",
    "key_sha256": "0" * 64,
}


def trusted(value: Any) -> Any:
    """The same content, whose texts Ansible takes for templates."""
    if isinstance(value, dict):
        return {key: trusted(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [trusted(entry) for entry in value]
    return trust_as_template(value) if isinstance(value, str) else value


def arguments(source: str, repository: dict[str, Any] | None, version: str | None = None) -> dict[str, Any]:
    """Arguments of the task that installs."""
    rdma = {"manage": True, "source": source, "version": version, "repository": repository, "device_names": "kernel"}
    variables: dict[str, Any] = {"profile": {"packages": {"rdma": rdma}, "devices": {}}, "omit": "<omitted>"}
    for file in ("defaults/main.yml", "vars/main.yml"):
        variables |= trusted(yaml.safe_load((ROLE / file).read_text()))
    (task,) = yaml.safe_load((ROLE / "tasks/install.yml").read_text())
    templar = Templar(DataLoader(), variables=variables)
    found: dict[str, Any] = templar.template(trusted(task["apt_stack"]))
    return found


@pytest.mark.parametrize("source", ["vendor", "mirror"])
def test_doca_ofed(source):
    asked = arguments(source, REPOSITORY, "3.1.0")
    assert asked["packages"] == [{"name": "doca-ofed", "upstream": "3.1.0"}]
    assert asked["repository"] == REPOSITORY
    assert asked["headers"] is True
    assert "openmpi-bin" in asked["keep_out"]
    preference = asked["pins"][0]
    assert (preference["origin"], preference["priority"]) == ("mirror.example.com", 990)
    assert {"rdma-core", "libib*", "mft*"} <= set(preference["packages"])
    assert {"mlnx-", "doca-", "rdma-core"} <= set(asked["never_upgraded"])


def test_docas_own_dkms_is_pinned_out_with_its_own_repository_only():
    pins = [pin for pin in arguments("vendor", REPOSITORY)["pins"] if pin["packages"] == ["dkms"]]
    assert pins == [{"packages": ["dkms"], "origin": "mirror.example.com", "priority": -1}]
    assert all(pin["packages"] != ["dkms"] for pin in arguments("mirror", REPOSITORY)["pins"])


def test_a_local_repository_has_no_host():
    assert arguments("mirror", {**REPOSITORY, "uri": "file:/srv/doca/"})["pins"][0]["origin"] == ""


def test_the_distributions_packages():
    asked = arguments("distro", None)
    assert [package["name"] for package in asked["packages"]] == [
        "rdma-core",
        "ibverbs-providers",
        "ibverbs-utils",
        "infiniband-diags",
    ]
    assert {package["upstream"] for package in asked["packages"]} == {None}
    assert (asked["repository"], asked["headers"], asked["keep_out"], asked["pins"]) == ("<omitted>", False, [], [])
    assert "mlnx-" not in asked["never_upgraded"]
    assert {package["upstream"] for package in arguments("distro", None, "44.0")["packages"]} == {"44.0"}
