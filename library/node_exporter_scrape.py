#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: scrape the node exporter as Prometheus would, and judge the answer."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_exporter_scrape
short_description: Verify the node exporter by scraping it
description:
  - Asks the exporter on this node for its metrics until it answers with the expected version and reads its text
    files without an error, or O(timeout_s) is over.
  - A collector that was switched on by O(collectors_enabled) and has nothing to report needs attention, and does not
    fail the task, since the hardware may be what is missing.
  - Changes nothing.
author: The gpufleet authors
attributes:
  check_mode:
    description: Looks once, reports what it sees as RV(fault) and never fails, since the run that would mend it has
      not happened.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
options:
  address:
    description: Address that the exporter listens on. Empty, C(0.0.0.0) and C(::) are asked at the loopback address.
    type: str
    default: ""
  port:
    description: TCP port.
    type: int
    required: true
  version:
    description: Version that the exporter must report.
    type: str
    required: true
  collectors_enabled:
    description: Collectors that must report success.
    type: list
    elements: str
    default: []
  timeout_s:
    description: Seconds to wait for the right answer.
    type: float
    default: 30
"""

EXAMPLES = r"""
- name: Verify the node exporter
  node_exporter_scrape:
    port: 9100
    version: 1.11.1
"""

RETURN = r"""
version:
  description: The version that the running exporter reports.
  type: str
  returned: when it answered
fault:
  description: In check mode, why it would not pass.
  type: str
  returned: in check mode, when something is wrong
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.local_scrape import metrics_url, scrape
from ansible.module_utils.gpufleet.node_exporter import ExporterParseError, parse_scrape

PAUSE_S = 1


def look(url, version, limit_s):
    """One scrape: (what it says, fault)."""
    try:
        found = parse_scrape(scrape(url, limit_s))
    except (OSError, ValueError) as error:
        if isinstance(error, ExporterParseError):
            return None, f"{url} is no node exporter: {error}"
        return None, f"{url} does not answer: {error}"
    if found.version != version:
        return found, f"{url} reports version {found.version}, expected {version}"
    if found.textfile_error is None:
        return found, f"{url} reports no node_textfile_scrape_error: the textfile collector is off"
    if found.textfile_error:
        return found, f"{url} could not read all files of its textfile directory"
    return found, None


def main():
    module = AnsibleModule(
        argument_spec={
            "address": {"type": "str", "default": ""},
            "port": {"type": "int", "required": True},
            "version": {"type": "str", "required": True},
            "collectors_enabled": {"type": "list", "elements": "str", "default": []},
            "timeout_s": {"type": "float", "default": 30},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    url = metrics_url(wanted["address"], wanted["port"])
    end = time.monotonic() + wanted["timeout_s"]
    while True:
        found, fault = look(url, wanted["version"], max(wanted["timeout_s"], 1))
        if fault is None or module.check_mode or time.monotonic() >= end:
            break
        time.sleep(PAUSE_S)
    result = {"changed": False}
    if found is not None:
        result["version"] = found.version
    if fault is not None and not module.check_mode:
        module.fail_json(
            msg=f"{fault}, after {wanted['timeout_s']:g} s.",
            next_step="look at the exporter's log on the node: journalctl -u node_exporter",
            **result,
        )
    if fault is not None:
        result["fault"] = fault
    else:
        failed = sorted(set(found.failed_collectors) & set(wanted["collectors_enabled"]))
        if failed:
            result["gpufleet"] = {
                "attention": [
                    {
                        "reason": f"node exporter: collector {', '.join(failed)} has nothing to report",
                        "next_step": "look at its log (journalctl -u node_exporter), or take it off "
                        "node_exporter_collectors_enabled",
                        "severity": "warn",
                    }
                ]
            }
    module.exit_json(**result)


if __name__ == "__main__":
    main()
