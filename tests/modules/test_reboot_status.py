# SPDX-License-Identifier: Apache-2.0
"""reboot_status: what is pending, what is stuck, and files that are no licence to reboot."""

import json
import os
from pathlib import Path

import pytest

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def node(tmp_path, run_module):
    """Folders of a node, and functions to put requests and records there."""

    class Node:
        arguments = {
            "directory": str(tmp_path / "reboot.d"),
            "records": str(tmp_path / "records"),
            "os_request": str(tmp_path / "reboot-required"),
        }

        def put(self, folder, name, boot_id, reason="why not", still_needed=("/bin/true",), mode=0o644):
            os.makedirs(self.arguments[folder], mode=0o755, exist_ok=True)
            path = os.path.join(self.arguments[folder], name + ".json")
            with open(path, "w") as file:
                json.dump(
                    {
                        "name": name,
                        "reason": reason,
                        "still_needed": still_needed and list(still_needed),
                        "requested_by": "test",
                        "boot_id": boot_id,
                        "when": "2026-11-29T12:00:00Z",
                    },
                    file,
                )
            os.chmod(path, mode)
            return path

        def status(self, **more):
            return run_module("reboot_status", **{**self.arguments, **more})

    return Node()


def names(entries):
    return [entry["name"] for entry in entries]


def test_nothing_there(node):
    result = node.status()
    assert (result["requests"], result["stuck"], result["problems"], result["os_request"]) == ([], [], [], "")
    assert (result["changed"], result["boot_id"]) == (False, BOOT_ID)


def test_open_requests_are_listed_and_one_whose_reason_is_gone_is_cleared(node, tmp_path):
    node.put("directory", "one", BOOT_ID)
    node.put("directory", "two", BOOT_ID, still_needed=None)
    gone = node.put("directory", "gone", BOOT_ID, still_needed=("/bin/false",))
    assert names(node.status(check=True)["requests"]) == ["one", "two"]
    assert os.path.exists(gone)
    assert names(node.status()["requests"]) == ["one", "two"]
    assert not os.path.exists(gone)


@pytest.mark.parametrize(
    "command", [["/nonexistent/command"], ["/bin/sh", "-c", "exit 127"], ["/bin/sh", "-c", "kill -9 $$"]]
)
def test_a_command_that_proves_nothing_leaves_the_reason_standing(node, command):
    node.put("directory", "one", BOOT_ID, still_needed=command)
    assert names(node.status()["requests"]) == ["one"]


@pytest.mark.parametrize("asked_again", [True, False])
def test_a_reason_that_stands_after_its_reboot_is_stuck(node, asked_again):
    node.put("records", "one", "the-boot-before")
    if asked_again:
        node.put("directory", "one", BOOT_ID)
    result = node.status()
    assert (names(result["stuck"]), result["requests"]) == (["one"], [])
    # It stays stuck: a second look is no second chance.
    assert names(node.status()["stuck"]) == ["one"]


def test_without_a_command_asking_again_means_stuck_and_silence_means_served(node):
    record = node.put("records", "one", "the-boot-before", still_needed=None)
    request = node.put("directory", "one", BOOT_ID, still_needed=None)
    assert names(node.status()["stuck"]) == ["one"]
    os.unlink(request)
    assert node.status()["stuck"] == []
    assert not os.path.exists(record)


def test_a_served_record_is_forgotten_so_that_the_same_reason_may_come_again(node):
    record = node.put("records", "one", "the-boot-before", still_needed=("/bin/false",))
    assert node.status()["stuck"] == []
    assert not os.path.exists(record)


def test_another_reason_is_another_request(node):
    node.put("records", "one", "the-boot-before", reason="old arguments")
    node.put("directory", "one", BOOT_ID, reason="new arguments")
    result = node.status()
    assert (names(result["requests"]), result["stuck"]) == (["one"], [])


def test_a_reboot_that_was_tried_and_did_not_happen_may_be_tried_again(node):
    node.put("records", "one", BOOT_ID)
    node.put("directory", "one", BOOT_ID)
    assert names(node.status()["requests"]) == ["one"]


def spoil_json(path):
    text = Path(path).read_text()
    with open(path, "w") as file:
        file.write(text[: len(text) // 2])


def spoil_link(path):
    os.rename(path, path + ".real")
    os.symlink(path + ".real", path)


def spoil_fifo(path):
    os.unlink(path)
    os.mkfifo(path)


def spoil_size(path):
    with open(path, "a") as file:
        file.write(" " * 70000)


def spoil_command(path):
    content = json.loads(Path(path).read_text())
    with open(path, "w") as file:
        json.dump({**content, "still_needed": "rm -rf /"}, file)


def spoil_type(path):
    with open(path, "w") as file:
        file.write("[]")


def spoil_bytes(path):
    with open(path, "wb") as file:
        file.write(b"\xff\xfe")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (spoil_json, "cut short"),
        (spoil_link, "Too many levels of symbolic links"),
        (spoil_fifo, "is no regular file"),
        (spoil_size, "is larger than"),
        (spoil_command, "still_needed must be null or a command"),
        (spoil_type, "not a JSON object"),
        (spoil_bytes, "is not UTF-8"),
        (lambda path: os.chmod(path, 0o666), "may be written by others"),
        (lambda path: os.chown(path, 1234, 0), "belongs to user id 1234"),
        (lambda path: os.rename(path, path.replace("one", "two")), "says that it is the request one"),
        (lambda path: os.rename(path, path.replace("one.json", "one.txt")), "is not named <name>.json"),
    ],
)
def test_a_file_that_is_no_valid_request_is_reported_and_leads_to_nothing(node, spoil, expected):
    if expected.startswith("belongs") and os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    path = node.put("directory", "one", BOOT_ID)
    node.put("directory", "good", BOOT_ID)
    spoil(path)
    result = node.status()
    assert names(result["requests"]) == ["good"]
    assert any(expected in problem for problem in result["problems"]), result["problems"]


def test_a_folder_that_others_may_write_to_holds_no_requests(node, tmp_path):
    node.put("directory", "one", BOOT_ID)
    (tmp_path / "reboot.d").chmod(0o775)
    result = node.status()
    assert result["requests"] == []
    assert "may be written by others (mode 0775)" in result["problems"][0]


def test_the_operating_systems_request_is_reported_with_its_packages(node, tmp_path):
    (tmp_path / "reboot-required").touch()
    assert "does not say why" in node.status()["os_request"]
    (tmp_path / "reboot-required.pkgs").write_text("linux-image-amd64\nlibc6\nlibc6\n")
    assert node.status()["os_request"] == "updated packages: libc6, linux-image-amd64"
