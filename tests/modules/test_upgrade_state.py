# SPDX-License-Identifier: Apache-2.0
"""upgrade_state: a node is right by packages, by what is loaded and by what still waits, all three."""

import json
from pathlib import Path

import pytest
from ansible.module_utils.gpufleet.upgrade_evidence import Wanted, judge, packages_of

VENDOR = {
    "nvidia-open": "580.105.08-1ubuntu1",
    "nvidia-fabricmanager": "580.105.08-1",
    "nvidia-driver-pinning-580.105.08": "1-1",
    "libnvidia-container1": "1.17.8-1",
    "nvidia-container-toolkit": "1.17.8-1",
    "docker-ce": "5:28.3.3-1~ubuntu.24.04~noble",
    "docker-ce-cli": "5:28.3.3-1~ubuntu.24.04~noble",
    "datacenter-gpu-manager-4-core": "1:4.5.3-1",
    "datacenter-gpu-manager-4-cuda13": "1:4.5.3-1",
    "datacenter-gpu-manager-exporter": "4.8.2-1",
    "doca-ofed": "3.1.0-091000",
    "rdma-core": "2507mlnx58-1",
}
RIGHT = {
    "driver": "580.105.08",
    "toolkit": "1.17.8",
    "docker": "28.3.3",
    "dcgm": "4.5.3",
    "exporter": "4.8.2",
    "rdma": "3.1.0",
}


@pytest.mark.parametrize("part", RIGHT)
def test_packages_of_the_wanted_version_are_right(part):
    found = judge(part, Wanted(RIGHT[part], "vendor"), VENDOR)
    assert (found.found, found.right, found.why) == (RIGHT[part], True, "")
    other = judge(part, Wanted("9.9", "vendor"), VENDOR)
    assert not other.right and other.why == f"installed: {RIGHT[part]}"
    assert judge(part, Wanted("9.9", "vendor"), {}).found == "none"


def test_half_an_upgrade_is_not_right():
    half = {**VENDOR, "nvidia-fabricmanager": "550.163.01-1"}
    found = judge("driver", Wanted("580.105.08", "vendor"), half)
    assert (found.found, found.right) == ("550.163.01 and 580.105.08", False)


def test_what_is_loaded_and_what_waits_count():
    wanted = Wanted("580.105.08", "vendor")
    assert judge("driver", wanted, VENDOR, loaded="580.105.08").right
    found = judge("driver", wanted, VENDOR, loaded="550.163.01")
    assert not found.right and found.found == "580.105.08, 550.163.01 loaded" and "loaded: 550.163.01" in found.why
    found = judge("rdma", Wanted("3.1.0", "vendor"), VENDOR, reboots=["mlx5_core is older"])
    assert not found.right and "waits for a reboot: mlx5_core is older" in found.why


def test_the_distributions_packages():
    debian = {"nvidia-smi": "535.261.03-1~deb12u1", "libcuda1": "535.261.03-1", "nvidia-persistenced": "535.171.04-1"}
    assert judge("driver", Wanted("535.261.03", "distro"), debian).right
    assert packages_of("rdma", "distro", {"rdma-core": "44.0-2", "doca-ofed": "3.1"}) == {"rdma-core": "44.0-2"}
    assert packages_of("docker", "distro", {"docker.io": "20.10.24+dfsg1-1+b3", "dockerXio": "1"}) == {
        "docker.io": "20.10.24+dfsg1-1+b3"
    }


def test_an_image():
    wanted = Wanted("registry/dcgm-exporter:4.5.3-4.8.2", "vendor", image=True)
    assert judge("exporter", wanted, {}, image="registry/dcgm-exporter:4.5.3-4.8.2").right
    assert judge("exporter", wanted, {}).found == "none"


@pytest.fixture
def state(commands, run_module, tmp_path):
    """state(version, **arguments): the module on a node with that version of the driver."""

    def run(version, loaded=None, **arguments):
        commands.answer("dpkg-query *", f"nvidia-open|hi |{version}-1\nnvidia-smi|rc |1-1\nfoo|iF |1\n")
        if loaded:
            (tmp_path / "version").write_text(loaded + "\n")
        wanted = {"driver": {"version": "580.105.08", "source": "vendor"}}
        places = {"requests": str(tmp_path / "reboot.d"), "driver_version": str(tmp_path / "version")}
        return run_module("upgrade_state", wanted=wanted, **places, **arguments)

    return run


def test_a_node_that_is_right(state):
    result = state("580.105.08", "580.105.08", demanded=True)
    assert result["right"] and result["parts"]["driver"]["found"] == "580.105.08" and not result["changed"]


def test_a_node_that_is_not_is_told_or_fails(state):
    assert not state("550.163.01")["right"]
    result = state("550.163.01", demanded=True)
    assert result["failed"] and "driver: installed: 550.163.01, wanted 580.105.08" in result["msg"]
    assert result["next_step"] and result["parts"]["driver"]["found"] == "550.163.01"


@pytest.mark.parametrize(("command", "right"), [("/bin/true", False), ("/bin/false", True)])
def test_an_open_request_for_a_reboot(state, tmp_path, command, right):
    folder = tmp_path / "reboot.d"
    folder.mkdir(mode=0o755)
    request = {
        "name": "nvidia_driver", "reason": "another driver is loaded", "still_needed": [command],
        "requested_by": "nvidia_driver", "when": "2026-11-30T12:00:00Z",
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }  # fmt: skip
    (folder / "nvidia_driver.json").write_text(json.dumps(request))
    (folder / "nvidia_driver.json").chmod(0o644)
    assert state("580.105.08")["right"] is right


def test_unknown_parts_and_a_dpkg_that_cannot_say(run_module, commands):
    assert "unknown parts: drivers" in run_module("upgrade_state", wanted={"drivers": {"version": "1"}})["msg"]
    commands.answer("dpkg-query *", rc=2, err="database is locked")
    result = run_module("upgrade_state", wanted={})
    assert result["failed"] and "database is locked" in result["msg"]
