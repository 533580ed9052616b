# SPDX-License-Identifier: Apache-2.0
"""From a result to a reason and a next step. The messages of ssh are those of OpenSSH 9."""

from typing import Any

import pytest
from ansible.module_utils.gpufleet_controller.failure_reason import Failure, describe, grouping_key, unreachable_step


def _describe(result: dict[str, Any], kind: str = "failed", **more: Any) -> Failure:
    return describe(result, **{"kind": kind, "task": "Do", "role": "r", "path": "p:1", "tasks_before": 0, **more})


def test_failed_command_tells_its_own_words() -> None:
    told = _describe({"msg": "Task failed: Module failed: non-zero return code", "rc": 3, "stderr": "bla\nno disk\n"})
    assert told.reason == "non-zero return code (rc 3): no disk"
    assert "bla" in told.message


def test_message_of_many_lines() -> None:
    told = _describe({"msg": ["first", "second"]})
    assert (told.reason, told.message) == ("first", "first\nsecond")


def test_message_is_missing() -> None:
    assert _describe({}).reason == "the task failed without a message"
    assert _describe({"msg": None, "exception": "Traceback"}).reason == "Traceback"


def test_loop_tells_the_item() -> None:
    assert _describe({"msg": "One or more items failed"}, failed_item="item sdb: busy").reason == "item sdb: busy"


def test_timed_out() -> None:
    told = _describe({"msg": "Timed out after 900 second(s).", "timedout": {"period": 900}}, "timed_out")
    assert told.reason == "the task did not end within 900 s"
    assert "ps, dmesg" in told.next_step


def test_own_next_step_wins() -> None:
    for kind in ("failed", "timed_out", "unreachable"):
        assert _describe({"msg": "x", "next_step": "turn it off and on"}, kind).next_step == "turn it off and on"


def test_no_log_hides_everything() -> None:
    for kind in ("failed", "timed_out", "unreachable"):
        result = {"censored": "hidden", "msg": "secret", "stderr": "secret", "rc": 1}
        told = _describe(result, kind, failed_item="secret")
        assert "secret" not in repr(told)


def test_very_long_message_is_cut() -> None:
    assert len(_describe({"msg": "x" * 100_000}).message) == 20_000


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("ssh: connect to host 10.0.0.7 port 22: Connection refused", "no sshd does"),
        ("ssh: connect to host 10.0.0.7 port 22: Connection timed out", "check power and console through its BMC"),
        ("ssh: connect to host 10.0.0.7 port 22: No route to host", "check power and console through its BMC"),
        ("root@10.0.0.7: Permission denied (publickey).", "ssh key"),
        ("ssh: Could not resolve hostname gpu-7: Name or service not known", "ansible_host"),
        ("Host key verification failed.", "ssh-keygen -R"),
        ("client_loop: send disconnect: Broken pipe", "crashed or rebooted"),
        ("Timeout, server 10.0.0.7 not responding.", "crashed or rebooted"),
        ("Timed out waiting for become success or become password prompt", "check power"),
        ("Missing sudo password", "may become root"),
        ("something never seen", "by hand"),
    ],
)
def test_next_step_for_what_ssh_says(said: str, step: str) -> None:
    assert step in unreachable_step(said)


def test_unreachable_picks_the_telling_line() -> None:
    message = (
        "Task failed: Failed to connect to the host via ssh: Warning: Permanently added '10.0.0.7' (ED25519).\n"
        "*** authorized use only ***\n"
        "ssh: connect to host 10.0.0.7 port 22: Connection refused"
    )
    told = _describe({"msg": message}, "unreachable")
    assert told.reason == "ssh: connect to host 10.0.0.7 port 22: Connection refused"


def test_a_module_that_could_not_be_sent() -> None:
    message = (
        "Data could not be sent to remote host '10.0.0.7'. Make sure this host can be reached over SSH: [Errno 32] "
        "Broken pipe"
    )
    assert _describe({"msg": message}, "unreachable").reason == "[Errno 32] Broken pipe"


def test_lost_in_the_middle() -> None:
    told = _describe({"msg": "Failed to connect to the host via ssh: x"}, "unreachable", tasks_before=12)
    assert told.reason == "connection lost in the middle (after 12 results): x"


def test_reasons_of_two_nodes_are_the_same() -> None:
    def key(node: str, address: str) -> str:
        return grouping_key(f"ssh: connect to host {address} port 22: refused by {node}", node)

    assert key("gpu-1", "10.0.0.1") == key("gpu-2", "10.0.0.2")
    assert key("gpu-1", "gpu-1.example.com") == key("gpu-2", "gpu-2.example.com")
    assert key("gpu-1", "fe80::1:2:3") == key("gpu-2", "fe80::9:2:3")
    assert grouping_key("disk 1 is dead", "gpu-1") != grouping_key("disk 2 is dead", "gpu-2")
    for text in ("bridge 0000:00:05.0: redirects", "GPU 3 (0000:9b:00.0) is lost", "Xid (PCI:0000:9b:00): 79"):
        assert grouping_key(text, "gpu-1") == text, "a PCI address is no address of a node"
    assert grouping_key("2001:db8:0:0:0:0:0:9b refused", "gpu-1") == "<node> refused"
