#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: DCGM's host engine answers, is the installed one, and watches what it should."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dcgm_host_engine
short_description: Verify DCGM's host engine by asking it, and restart it where it is not the installed one
description:
  - Asks the host engine with commands that are all bounded, so that one that hangs is an error that says so.
  - Restarts it where another version runs than is installed, where it runs with another command line than its unit
    says, and where it sees no GPU although the driver has some, as one does that was started before the driver
    (NVIDIA/gpu-operator#2854). For no other reason.
  - Reads back which health systems are watched, since they are lost with each end of the host engine, and starts the
    unit that sets them again where they differ.
  - Does nothing on a node without a GPU, where the unit is skipped.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says whether the host engine would be restarted and the watches set. A host engine that is not there or
      does not answer is told as RV(fault).
    support: full
  diff_mode:
    description: Shows running version and watches before and after.
    support: full
options:
  watches:
    description: What the host engine must watch, and nothing else of these.
    type: list
    elements: str
    choices: [pcie, memory, inforom, thermal, nvlink]
    default: []
  watches_unit:
    description: Unit that sets the watches.
    type: str
    required: true
  timeout_s:
    description: Seconds that a host engine which was just started has to answer.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Verify the host engine
  dcgm_host_engine:
    watches: [pcie, memory]
    watches_unit: gpufleet-dcgm-watches.service
"""

RETURN = r"""
gpus:
  description: Number of GPUs that the host engine sees; null where it was not asked.
  type: int
  returned: success
running:
  description: Version of the running host engine.
  type: str
  returned: success
restarted:
  description: Why it was restarted, or would be in check mode; null where it was not.
  type: str
  returned: success
fault:
  description: In check mode, what would be an error.
  type: str
  returned: in check mode, when something is wrong
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.dcgm_host_engine import (
    PORT,
    UNIT,
    WATCHES,
    DcgmParseError,
    differing_watches,
    foreign_listener,
    parse_gpu_count,
    parse_versions,
    parse_watches,
)
from ansible.module_utils.gpufleet.dcgm_node import gpus_of_driver, gpus_on_bus
from ansible.module_utils.gpufleet.dcgm_packages import DcgmError
from ansible.module_utils.gpufleet.listening_port import find_listeners

PROC = "/proc"
# Seconds. dcgmi answers within one where all is well; NVIDIA/NVSentinel takes 45 for a sign of a hang.
QUERY_LIMIT_S, UNIT_LIMIT_S, PAUSE_S = 45, 120, 1
RESTART = f"systemctl restart {UNIT}"
HUNG = f"see journalctl -u {UNIT} and dmesg (a GPU that no longer answers holds it up), then {RESTART}"


class HostEngine:
    """The host engine of this node."""

    def __init__(self, module):
        self.module, self.wanted = module, module.params
        self.on_bus, self.of_driver = gpus_on_bus(), gpus_of_driver()
        self.versions, self.gpus, self.watches = None, None, {}
        self.restarted, self.changes = None, []

    def dcgmi(self, *arguments):
        """What dcgmi printed; raises DcgmError where it cannot be run, or does not end."""
        result = run_bounded(["dcgmi", *arguments], QUERY_LIMIT_S)
        line = " ".join(["dcgmi", *arguments])
        if result.outcome == "missing":
            raise DcgmError(
                f"{line} cannot be run: {result.stderr}",
                "reinstall datacenter-gpu-manager-4-core and what it depends on; from release 4.7 on dcgmi comes with "
                "a package of its own",
            )
        if result.outcome == "timeout":
            raise DcgmError(f"DCGM's host engine hangs: {line} had no answer within {QUERY_LIMIT_S} s", HUNG)
        return f"{result.stdout}\n{result.stderr}"

    def property(self, name, unit=UNIT):
        result = run_bounded(["systemctl", "show", f"--property={name}", "--value", unit], UNIT_LIMIT_S)
        return result.stdout.strip() if result.outcome == "done" else ""

    def ask(self):
        """Wait for an answer that names the running version; raises DcgmError where none comes."""
        end = time.monotonic() + self.wanted["timeout_s"]
        while True:
            self.versions = parse_versions(self.dcgmi("-v"))
            if self.versions.running is not None:
                self.gpus = parse_gpu_count(self.dcgmi("discovery", "-l"))
                return
            if time.monotonic() >= end or self.module.check_mode:
                break
            time.sleep(PAUSE_S)
        listeners = find_listeners(PORT)
        waited = f"for {self.wanted['timeout_s']} s" if not self.module.check_mode else "now"
        if listeners:
            raise DcgmError(
                f"DCGM's host engine hangs: {', '.join(map(str, listeners))} listens on port {PORT} and did not answer "
                f"{waited}",
                HUNG,
            )
        raise DcgmError(
            f"DCGM's host engine does not run: nothing listens on port {PORT} {waited}; {UNIT} is "
            f"{self.property('ActiveState') or 'unknown'} ({self.property('Result') or 'no result'})",
            f"see journalctl -u {UNIT}",
        )

    def restart_reason(self):
        running, local = self.versions.running, self.versions.local
        if running != local:
            return f"version {running} runs, {local} is installed"
        wanted, pid = self.property("ExecStart"), self.property("MainPID")
        argv = wanted.partition("argv[]=")[2].partition(" ; ")[0].strip()
        try:
            with open(f"{PROC}/{pid}/cmdline", "rb") as file:
                has = file.read().rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            has = ""
        # Behind an interpreter the line is longer at its beginning.
        if has and argv and not has.endswith(argv):
            return f"it runs as '{has}', its unit says '{argv}'"
        if self.gpus == 0 and self.of_driver:
            return f"it sees no GPU, the driver has {self.of_driver}: it was started before the driver"
        return None

    def restart(self, reason):
        self.restarted = reason
        self.changes.append((f"running: {self.versions.running}\n", f"restarted, since {reason}\n"))
        if self.module.check_mode:
            return
        result = run_bounded(["systemctl", "restart", UNIT], UNIT_LIMIT_S)
        if result.outcome != "done" or result.rc != 0:
            raise DcgmError(f"{RESTART} failed: {result.said()}", f"see journalctl -u {UNIT}")
        self.ask()
        still = self.restart_reason()
        if still:
            raise DcgmError(
                f"DCGM's host engine was restarted since {reason}; and still {still}", f"see systemctl cat {UNIT}"
            )

    def verify_address(self):
        """Raise where another machine could reach the host engine: whoever can may set clocks and power limits."""
        for table in ("tcp", "tcp6"):
            try:
                with open(f"{PROC}/net/{table}", encoding="ascii") as file:
                    foreign = foreign_listener(file.read(), PORT)
            except OSError:
                continue
            if foreign:
                raise DcgmError(
                    f"DCGM's host engine listens on port {PORT} of more than the loopback address",
                    f"see systemctl cat {UNIT} for a drop-in that sets --bind-interface, or what else has the port",
                )

    def wait_for_unit(self):
        """The unit of the watches starts with the host engine, and may still be at it."""
        unit = self.wanted["watches_unit"]
        end = time.monotonic() + self.wanted["timeout_s"]
        while time.monotonic() < end:
            if self.property("ActiveState", unit) != "activating" and self.property("Job", unit) in ("", "0"):
                return
            time.sleep(PAUSE_S)

    def read_watches(self):
        self.watches = parse_watches(self.dcgmi("health", "--fetch"))
        return differing_watches(self.wanted["watches"], self.watches)

    def set_watches(self, differing):
        unit = self.wanted["watches_unit"]
        self.changes.append(("".join(f"{line}\n" for line in differing), f"set by {unit}\n"))
        if self.module.check_mode:
            return
        result = run_bounded(["systemctl", "restart", unit], UNIT_LIMIT_S + self.wanted["timeout_s"])
        said = "" if result.outcome == "done" and result.rc == 0 else f" (its start said: {result.said()})"
        still = self.read_watches()
        if still:
            raise DcgmError(
                f"DCGM's health watches could not be set: {', '.join(still)}{said}", f"see journalctl -u {unit}"
            )

    def work(self):
        if not self.on_bus:
            return
        self.ask()
        reason = self.restart_reason()
        if reason:
            self.restart(reason)
        self.verify_address()
        self.wait_for_unit()
        # In check mode a restart that was only announced has lost no watches.
        differing = self.read_watches()
        if differing:
            self.set_watches(differing)

    def result(self):
        found = {
            "changed": bool(self.changes),
            "gpus": self.gpus,
            "running": self.versions.running if self.versions else None,
            "restarted": self.restarted,
            "diff": [{"before": before, "after": after} for before, after in self.changes],
        }
        if self.gpus is not None and self.gpus != len(self.on_bus):
            found["gpufleet"] = {
                "attention": [
                    {
                        "reason": f"DCGM sees {self.gpus} GPUs, the PCI bus has {len(self.on_bus)}",
                        "next_step": "see dcgmi discovery -l and nvidia-smi -L; after an upgrade of the driver reboot",
                        "severity": "warn",
                    }
                ]
            }
        return found


def main():
    module = AnsibleModule(
        argument_spec={
            "watches": {"type": "list", "elements": "str", "choices": list(WATCHES), "default": []},
            "watches_unit": {"type": "str", "required": True},
            "timeout_s": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    engine = HostEngine(module)
    try:
        engine.work()
    except (DcgmError, DcgmParseError) as error:
        step = getattr(error, "next_step", f"see whether another DCGM is installed, and journalctl -u {UNIT}")
        if module.check_mode:
            # The run that would install or start it has not happened.
            module.exit_json(**engine.result(), fault=f"{error}")
        module.fail_json(msg=f"{error}.", next_step=step)
    module.exit_json(**engine.result())


if __name__ == "__main__":
    main()
