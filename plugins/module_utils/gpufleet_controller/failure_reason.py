# SPDX-License-Identifier: Apache-2.0
"""From the result of a failed task to a reason and a next step that a person can act on.

Results are taken as callbacks get them: under no_log they are already emptied by Ansible, and
nothing here looks anywhere else for the hidden text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .screen_text import clean_text, first_line

# A report keeps the whole message, but not a whole log that some module put into it.
MESSAGE_LIMIT = 20_000

_HIDDEN = "the output is hidden by no_log"

# What ssh says before the line that matters.
_SSH_NOISE = re.compile(r"^(Warning: Permanently added|\*\*|@|Connection to .* closed\.|Shared connection|mux_client)")

# First match wins. Sources: messages of OpenSSH 9 and of ansible-core 2.21's ssh connection plugin.
_UNREACHABLE_STEPS = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed",
        "compare the node's host key with what you expect; after a re-installation: ssh-keygen -R <address>",
    ),
    (
        r"Permission denied|Authentication failed|Too many authentication",
        "check ansible_user and the ssh key: ssh <node> true",
    ),
    (r"Could not resolve hostname|Name or service not known", "correct ansible_host or the name service"),
    (
        r"Connection refused",
        "the address answers but no sshd does: is the node still booting? See its console (BMC); check ansible_port",
    ),
    (
        r"Connection reset|Broken pipe|closed by remote host|Connection closed|not responding|Data could not be sent",
        "the connection was lost: ping the node and look at its console (BMC); it may have crashed or rebooted",
    ),
    (
        r"timed out|No route to host|unreachable",
        "ping the node; no answer: check power and console through its BMC, then its network port",
    ),
    (r"privilege|sudo|become", "check that ansible_user may become root: ssh <node> sudo -n true"),
)
_UNREACHABLE_DEFAULT = "ping the node and try ssh by hand; no answer: check power and console through its BMC"


@dataclass(frozen=True)
class Failure:
    """One failed or unreachable result of one node.

    ``kind`` is failed, timed_out or unreachable; ``reason`` one line; ``message`` all of it. ``explained``: notes of
    the same result (``gpufleet.attention``) tell more than the message.
    """

    kind: str
    reason: str
    next_step: str
    message: str
    task: str
    role: str
    path: str
    explained: bool = False


def describe(
    result: Mapping[str, Any],
    *,
    kind: str,
    task: str,
    role: str,
    path: str,
    tasks_before: int,
    failed_item: str | None = None,
) -> Failure:
    """Describe one result.

    ``tasks_before``: how many results the node had before (tells a dead node from a lost one).
    ``failed_item``: reason of the first failed item of a loop, where the task had one.
    """
    where = f"{role} : {task}" if role else task
    hidden = "censored" in result
    message = _HIDDEN if hidden else full_message(result)
    if failed_item and not hidden:
        message = f"{failed_item}\n{message}".strip()
    own_step = clean_text(result.get("next_step") or "").strip()
    if kind == "unreachable":
        said = _HIDDEN if hidden else _unreachable_line(message)
        reason = said if tasks_before == 0 else f"connection lost in the middle (after {tasks_before} results): {said}"
        step = own_step or unreachable_step(message)
    elif kind == "timed_out":
        period = (result.get("timedout") or {}).get("period")
        limit = f" within {period} s" if period else ""
        reason = f"the task did not end{limit}"
        step = own_step or (
            "log in and see what hangs (ps, dmesg): the task's process may still run on the node; "
            "then run again, with a longer 'timeout' of the task where it is only slow"
        )
    else:
        reason = first_line(message) or "the task failed without a message"
        step = own_step or "mend the cause (the whole message: 'failures' in report.json), then run again"
        if hidden and not own_step:
            step = f"the message is hidden by no_log: do by hand on the node what '{where}' does, to see it"
    told = result.get("gpufleet")
    explained = isinstance(told, Mapping) and bool(told.get("attention"))
    return Failure(kind, reason, step, message[:MESSAGE_LIMIT], task, role, path, explained)


def full_message(result: Mapping[str, Any]) -> str:
    """Return the message of a result; a failed command's own words are added to its 'non-zero return code'."""
    message = result.get("msg")
    if isinstance(message, (list, tuple)):
        message = "\n".join(str(line) for line in message)
    text = clean_text(message if message is not None else "").strip()
    # ansible-core puts these before the words of a module or of an exception; they say nothing
    text = re.sub(r"^((Task|Module|Action) failed: )+", "", text)
    if "rc" in result and result.get("rc") not in (0, None):
        said = clean_text(result.get("stderr") or result.get("stdout") or result.get("module_stderr") or "").strip()
        lines = [line for line in said.splitlines() if line.strip()]
        if lines and said not in text:
            # The last line of a command is most often the one that says why.
            text = f"{text or 'command failed'} (rc {result['rc']}): {lines[-1].strip()}"
            if len(lines) > 1:
                text += "\n" + said
    if not text:
        text = clean_text(result.get("reason") or result.get("exception") or "").strip()
    return text


def unreachable_step(message: str) -> str:
    """Name the next step for what ssh said."""
    for pattern, step in _UNREACHABLE_STEPS:
        if re.search(pattern, message, re.IGNORECASE):
            return step
    return _UNREACHABLE_DEFAULT


def _unreachable_line(message: str) -> str:
    """Pick the line of ssh's output that says why; banners and mux noise come before it."""
    preamble = r"^(Failed to connect to the host via|Data could not be sent .* over) ssh: ?"
    text = re.sub(preamble, "", message, flags=re.IGNORECASE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not _SSH_NOISE.match(line)]
    return telling[-1] if telling else first_line(text) or "no connection"


def grouping_key(reason: str, node: str) -> str:
    """Make reasons of different nodes comparable: the node's name and all its addresses become '<node>'.

    A PCI address (0000:9b:00.0) is none of these: it tells one device of a node from another.
    """
    text = reason.replace(node, "<node>")
    text = re.sub(r"\b\d{1,3}(\.\d{1,3}){3}\b", "<node>", text)
    pci = r"(?![0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?(?![0-9a-f:]))"
    text = re.sub(rf"\b{pci}(?:[0-9a-f]{{1,4}}:){{2,7}}[0-9a-f]{{0,4}}\b", "<node>", text, flags=re.IGNORECASE)
    # "ssh: connect to host gpu7.example.com port 22": the address of the inventory, which is not the node's name
    return re.sub(r"(connect to host|hostname|Connection to|Connection closed by) \S+", r"\1 <node>", text)
