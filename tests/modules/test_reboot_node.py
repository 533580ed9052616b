# SPDX-License-Identifier: Apache-2.0
"""reboot_node: no reboot without a reason, nor over GPU processes, a guard's no, or missing evidence."""

import json
import os
from pathlib import Path

import pytest

from tests.modules.conftest import load_module

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
SMI = "nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader"


@pytest.fixture
def node(tmp_path, commands, run_module, monkeypatch):
    """A node with one open request; nothing speaks against its reboot yet."""
    commands.answer("systemctl is-system-running", "running\n")
    module = load_module("reboot_node")
    real_exists = os.path.exists
    monkeypatch.setattr(module.os.path, "exists", lambda path: "container" not in str(path) and real_exists(path))

    class Node:
        records = tmp_path / "records"
        folder = tmp_path / "reboot.d"

        def request(self, name="one", folder=None, boot_id=BOOT_ID, still_needed=("/bin/true",)):
            folder = folder or self.folder
            folder.mkdir(mode=0o755, exist_ok=True)
            content = {
                "name": name,
                "reason": f"reason of {name}",
                "still_needed": still_needed and list(still_needed),
                "requested_by": "test",
                "boot_id": boot_id,
                "when": "2026-11-29T12:00:00Z",
            }
            (folder / f"{name}.json").write_text(json.dumps(content))

        def run(self, phase="decide", **more):
            return run_module(
                module,
                phase=phase,
                directory=str(self.folder),
                records=str(self.records),
                os_request=str(tmp_path / "reboot-required"),
                **more,
            )

    return Node()


def test_a_request_that_nothing_speaks_against_is_recorded_before_the_reboot(node):
    node.request()
    result = node.run()
    assert (result["refusals"], result["reasons"], result["boot_id"]) == ([], ["reason of one"], BOOT_ID)
    assert json.loads((node.records / "one.json").read_text())["boot_id"] == BOOT_ID


def test_check_mode_records_nothing(node):
    node.request()
    assert node.run(check=True)["refusals"] == []
    assert not node.records.exists()


def test_without_a_request_there_is_no_reason(node):
    result = node.run()
    assert (result["refusals"], result["reasons"]) == ([], [])


def test_a_reason_that_has_gone_meanwhile_is_none(node):
    node.request(still_needed=("/bin/false",))
    assert node.run()["reasons"] == []


@pytest.fixture
def users(monkeypatch):
    """Processes that have a device file of the driver open; None: that cannot be seen."""
    from ansible.module_utils.gpufleet import gpu_processes
    from ansible.module_utils.gpufleet.nvidia_gpu_users import GpuUser

    found = []

    def gpu_users(_proc):
        if None in found:
            raise PermissionError(13, "Permission denied", "/proc/1/fd")
        return [GpuUser(*user) for user in found]

    monkeypatch.setattr(gpu_processes, "gpu_users", gpu_users)
    return found


# After an upgrade of the driver, without a GPU, with a dead one; the last ends with 0.
NO_ANSWER = [
    ("Failed to initialize NVML: Driver/library version mismatch\n", 18),
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 9),
    ("Unable to determine the device handle for GPU0000:9B:00.0: GPU is lost.\n", 0),
]


def test_gpus_in_use_keep_the_node_up(node, commands):
    node.request()
    commands.answer(SMI, "4711, /usr/bin/python3\n4712, [Not Found]\n")
    for more in ({}, {"without_gpu_evidence": True}):
        assert "GPU processes are running: 4711 /usr/bin/python3, 4712" in node.run(**more)["refusals"][0]
    assert not node.records.exists()


@pytest.mark.parametrize(("out", "rc"), NO_ANSWER)
def test_where_nvidia_smi_gives_no_answer_open_device_files_do(node, commands, users, out, rc):
    """Bug 098: the reboot that an upgrade of the driver needs must not wait for an nvidia-smi that works."""
    node.request()
    commands.answer(SMI, out, rc=rc)
    users[:] = [(7, "nvidia-persiste", "nvidia-persistenced.service"), (8, "nvidia-smi", None)]
    assert node.run()["refusals"] == []
    users.append((4711, "python3", "docker.service"))
    assert node.run()["refusals"] == ["GPU processes are running: 4711 python3"]


@pytest.mark.parametrize(("out", "rc"), NO_ANSWER)
def test_without_evidence_the_node_is_kept_up_unless_told_otherwise(node, commands, users, out, rc):
    node.request()
    commands.answer(SMI, out, rc=rc)
    users.append(None)
    assert "cannot be told" in node.run()["refusals"][0] and "/proc/1/fd cannot be read" in node.run()["refusals"][0]
    assert not node.records.exists()
    assert node.run(without_gpu_evidence=True)["refusals"] == []


def test_idle_gpus_are_fine(node, commands):
    node.request()
    commands.answer(SMI, "")
    assert node.run()["refusals"] == []


def test_a_hanging_nvidia_smi_is_no_evidence(node, commands, users, monkeypatch):
    from ansible.module_utils.gpufleet import gpu_processes

    commands.answer(SMI)
    (commands.folder / "nvidia-smi").write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr(gpu_processes, "LIMIT_S", 0.5)
    node.request()
    users.append(None)
    assert "no answer within 0.5 s" in node.run()["refusals"][0]
    users[:] = [(4711, "python3", None)]
    assert node.run()["refusals"] == ["GPU processes are running: 4711 python3"]


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        (["/bin/sh", "-c", "echo 3 jobs run here; exit 1"], "(ended with exit status 1): 3 jobs run here"),
        (["/nonexistent/guard"], "(missing)"),
        (["/bin/sleep", "60"], "(timeout): no answer within 0.5 s"),
    ],
)
def test_a_guard_that_does_not_say_yes_keeps_the_node_up(node, guard, expected):
    node.request()
    result = node.run(guard=guard, guard_timeout_s=0.5)
    assert expected in result["refusals"][0]
    assert not node.records.exists()


def test_a_guard_that_says_yes(node, tmp_path):
    node.request()
    assert node.run(guard=["/bin/sh", "-c", f"touch {tmp_path}/asked"])["refusals"] == []
    assert (tmp_path / "asked").exists()


def test_the_guard_is_not_asked_where_the_node_stays_up_anyhow(node, commands, tmp_path):
    node.request()
    commands.answer(SMI, "4711, python3\n")
    node.run(guard=["/bin/sh", "-c", f"touch {tmp_path}/asked"])
    assert not (tmp_path / "asked").exists()


def test_a_node_that_is_going_down_is_left_alone(node, commands):
    commands.table.clear()
    commands.answer("systemctl is-system-running", "stopping\n", rc=1)
    node.request()
    assert node.run()["refusals"] == ["it is shutting down already"]


def test_a_reason_that_stands_after_its_reboot_is_not_tried_again(node):
    node.request()
    node.request(folder=node.records, boot_id="the-boot-before")
    assert "although the node was rebooted" in node.run()["refusals"][0]


@pytest.mark.parametrize("include", [True, False])
def test_the_operating_systems_request_counts_only_where_it_is_told_to(node, tmp_path, include):
    (tmp_path / "reboot-required").touch()
    assert bool(node.run(include_os_requests=include)["reasons"]) is include


def test_the_same_boot_is_no_reboot(node):
    result = node.run(phase="prove", boot_id=BOOT_ID)
    assert result["failed"] and "same boot as before" in result["msg"]


def test_reasons_that_are_gone_after_the_boot_are_forgotten(node):
    node.request(folder=node.records, boot_id="the-boot-before", still_needed=("/bin/false",))
    result = node.run(phase="prove", boot_id="the-boot-before")
    assert (result["changed"], result["rebooted"], result["stuck"]) == (True, True, [])
    assert list(node.records.iterdir()) == []


def test_a_reason_that_stands_is_named_and_its_record_kept(node):
    node.request(folder=node.records, boot_id="the-boot-before")
    result = node.run(phase="prove", boot_id="the-boot-before", settle_timeout_s=0)
    assert [entry["reason"] for entry in result["stuck"]] == ["reason of one"]
    assert (node.records / "one.json").exists()


def test_a_reason_may_take_a_moment_to_go(node, tmp_path, monkeypatch):
    # The second look finds the file that the first one leaves.
    waits = ("/bin/sh", "-c", f"test ! -e {tmp_path}/seen && touch {tmp_path}/seen")
    node.request(folder=node.records, boot_id="the-boot-before", still_needed=waits)
    assert node.run(phase="prove", boot_id="the-boot-before", settle_timeout_s=30)["stuck"] == []


def test_without_its_action_plugin_it_does_nothing(run_module):
    assert "action plugin" in run_module("reboot_node")["msg"]
