# SPDX-License-Identifier: Apache-2.0
"""reboot_request: a file that is written whole, once, and trusted only where it lies safe."""

import json
import os
from pathlib import Path

import pytest


@pytest.fixture
def wanted(tmp_path):
    return {
        "name": "kernel_arguments",
        "reason": "iommu=pt takes effect at boot",
        "still_needed": ["/bin/true"],
        "requested_by": "kernel",
        "directory": str(tmp_path / "reboot.d"),
    }


def test_a_request_is_written_once(run_module, wanted):
    first = run_module("reboot_request", **wanted)
    assert first["changed"] and first["diff"]["before"] == ""
    content = json.loads(Path(first["path"]).read_text())
    with open("/proc/sys/kernel/random/boot_id") as file:
        assert content.pop("boot_id") == file.read().strip()
    assert content.pop("when").endswith("Z")
    assert content == {key: wanted[key] for key in ("name", "reason", "still_needed", "requested_by")}
    assert os.stat(first["path"]).st_mode & 0o7777 == 0o644
    assert run_module("reboot_request", **wanted)["changed"] is False
    assert run_module("reboot_request", **{**wanted, "reason": "another"})["changed"] is True


def test_check_mode_writes_nothing(run_module, wanted, tmp_path):
    assert run_module("reboot_request", check=True, **wanted)["changed"] is True
    assert not (tmp_path / "reboot.d").exists()


def test_a_request_is_withdrawn_once(run_module, wanted):
    run_module("reboot_request", **wanted)
    away = {"name": wanted["name"], "directory": wanted["directory"], "state": "absent"}
    assert run_module("reboot_request", check=True, **away)["changed"] is True
    assert run_module("reboot_request", **away)["changed"] is True
    assert run_module("reboot_request", **away)["changed"] is False
    assert os.listdir(wanted["directory"]) == []


def test_a_request_from_another_boot_is_written_anew(run_module, wanted):
    path = run_module("reboot_request", **wanted)["path"]
    content = json.loads(Path(path).read_text())
    with open(path, "w") as file:
        json.dump({**content, "boot_id": "an-earlier-one"}, file)
    assert run_module("reboot_request", **wanted)["changed"] is True


def test_a_damaged_request_is_replaced(run_module, wanted):
    path = run_module("reboot_request", **wanted)["path"]
    with open(path, "w") as file:
        file.write('{"name": "kern')
    assert run_module("reboot_request", **wanted)["changed"] is True
    assert run_module("reboot_request", **wanted)["changed"] is False


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        ({"name": "../etc/passwd"}, "is not made of"),
        ({"name": "Kernel"}, "is not made of"),
        ({"reason": " "}, "reason must not be empty"),
        ({"requested_by": ""}, "requested_by must not be empty"),
        ({"still_needed": []}, "still_needed must be a command"),
        ({"reason": None}, "reason"),
    ],
)
def test_bad_arguments_are_refused(run_module, wanted, spoil, expected):
    result = run_module("reboot_request", **{**wanted, **spoil})
    assert result["failed"] and expected in result["msg"]


def test_a_folder_that_others_may_write_to_is_refused(run_module, wanted, tmp_path):
    (tmp_path / "reboot.d").mkdir()
    (tmp_path / "reboot.d").chmod(0o777)
    result = run_module("reboot_request", **wanted)
    assert result["failed"] and "may be written by others" in result["msg"]
