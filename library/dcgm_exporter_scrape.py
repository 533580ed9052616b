#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: scrape the DCGM exporter as Prometheus would, and judge the answer."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dcgm_exporter_scrape
short_description: Verify the DCGM exporter by scraping it
description:
  - Asks the exporter on this node for its metrics until it serves every metric that was promised, or O(timeout_s) is
    over. An exporter that answers without them is no success; it does so where the host engine, the driver or the
    profiling module fail it (bug 094). Its log is part of the error.
  - Does nothing on a node without a GPU, where the exporter is not started.
author: The gpufleet authors
attributes:
  check_mode:
    description: Looks once, reports what it sees as RV(fault) and never fails, since the run that would mend it has not
      happened.
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
  metrics:
    description: The metrics, each with C(field), C(type) and, where it need not be served, C(optional).
    type: list
    elements: dict
    required: true
  gpus:
    description: Number of GPUs on the PCI bus. 0 means that nothing is asked.
    type: int
    required: true
  unit:
    description: Unit whose log is shown where the answer is wrong.
    type: str
    required: true
  timeout_s:
    description: Seconds to wait for the right answer. The exporter collects every 30 s.
    type: int
    default: 90
"""

EXAMPLES = r"""
- name: Verify the exporter
  dcgm_exporter_scrape:
    port: 9400
    metrics: [{field: DCGM_FI_DEV_GPU_TEMP, type: gauge}]
    gpus: 8
    unit: nvidia-dcgm-exporter.service
"""

RETURN = r"""
samples:
  description: Number of samples of each metric.
  type: dict
  returned: when it answered
absent:
  description: Optional metrics that are not served.
  type: list
  elements: str
  returned: when it answered
fault:
  description: In check mode, why it would not pass.
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
from ansible.module_utils.gpufleet.dcgm_metrics import ScrapeError, missing_metrics, parse_scrape, reasons_in_log
from ansible.module_utils.gpufleet.local_scrape import metrics_url, scrape

PAUSE_S, SCRAPE_LIMIT_S, LOG_LIMIT_S = 1, 15, 30


def look(url, metrics):
    """One scrape: (what it says, fault)."""
    try:
        found = parse_scrape(scrape(url, SCRAPE_LIMIT_S))
    except ScrapeError as error:
        return None, f"{url} is no DCGM exporter: {error}"
    except (OSError, ValueError) as error:
        return None, f"{url} does not answer: {error}"
    missing = missing_metrics(metrics, found.samples)
    if not found.samples:
        return found, f"{url} answers without a single metric: the exporter sees no GPU"
    if missing:
        return found, f"{url} does not serve {', '.join(missing)}"
    return found, None


def say(unit):
    """What systemd and the unit's log say of it, for a message."""
    names = "--property=ActiveState,SubState,Result,ExecMainStatus"
    shown = run_bounded(["systemctl", "show", names, unit], LOG_LIMIT_S)
    state = f" {unit}: {', '.join(shown.stdout.split())}." if shown.outcome == "done" else ""
    # The last lines are of the last start, where the unit has been started again and again.
    log = run_bounded(["journalctl", "--unit", unit, "--boot", "--lines", "200", "--output", "cat"], LOG_LIMIT_S)
    lines = reasons_in_log(log.stdout)
    return f"{state} Its log says: {' | '.join(lines)}" if lines else state


def attention(found, gpus):
    """Lines for what the exporter serves and should not, or serves for too few GPUs."""
    lines = []
    temperatures = found.samples.get("DCGM_FI_DEV_GPU_TEMP")
    if temperatures is not None and temperatures < gpus:
        lines.append(
            {
                "reason": f"DCGM exporter: metrics of {temperatures} GPUs, the PCI bus has {gpus}",
                "next_step": "see dcgmi discovery -l and nvidia-smi -L",
                "severity": "warn",
            }
        )
    if found.blank:
        lines.append(
            {
                "reason": f"DCGM exporter: {', '.join(found.blank)} is DCGM's 'no value', as a number",
                "next_step": "take it off dcgm_exporter_metrics: this GPU does not have it",
                "severity": "warn",
            }
        )
    return lines


def main():
    module = AnsibleModule(
        argument_spec={
            "address": {"type": "str", "default": ""},
            "port": {"type": "int", "required": True},
            "metrics": {"type": "list", "elements": "dict", "required": True},
            "gpus": {"type": "int", "required": True},
            "unit": {"type": "str", "required": True},
            "timeout_s": {"type": "int", "default": 90},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    if wanted["gpus"] == 0:
        module.exit_json(changed=False)
    url = metrics_url(wanted["address"], wanted["port"])
    end = time.monotonic() + wanted["timeout_s"]
    while True:
        found, fault = look(url, wanted["metrics"])
        if fault is None or module.check_mode or time.monotonic() >= end:
            break
        time.sleep(PAUSE_S)
    result = {"changed": False}
    if found is not None:
        optional = [{**metric, "optional": False} for metric in wanted["metrics"] if metric.get("optional")]
        result.update(samples=found.samples, absent=missing_metrics(optional, found.samples))
    if fault is not None and not module.check_mode:
        module.fail_json(
            msg=f"{fault}, after {wanted['timeout_s']} s.{say(wanted['unit'])}",
            next_step=f"see journalctl -u {wanted['unit']}; a metric that this GPU does not have is taken off "
            "dcgm_exporter_metrics, or marked optional there",
            **result,
        )
    if fault is not None:
        result["fault"] = fault
    elif attention(found, wanted["gpus"]):
        result["gpufleet"] = {"attention": attention(found, wanted["gpus"])}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
