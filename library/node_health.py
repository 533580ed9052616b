#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: may this node train, why not, and what to do."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_health
short_description: Judge whether a node may train
description:
  - Asks the node all that the health checks need (every question with a deadline, all at the same time), judges the
    answers by the profile, and returns findings, a verdict and what to do. Reads only, and needs nothing installed on
    the node.
  - Never fails because a node is sick; a play decides by RV(verdict). It fails, before it asks the node anything, for a
    profile that is wrong, and for a check that does not exist.
  - What could not be asked or understood is C(unknown), never C(ok).
  - docs/node-health.md tells how to use it, docs/health-checks.md lists the checks.
author: The gpufleet authors
attributes:
  check_mode:
    description: The same, but neither a capture nor the history is written.
    support: full
  diff_mode:
    description: Nothing to show.
    support: none
options:
  profile:
    description: What the node must be, as the variable C(profile) has it. C(node-health propose-profile) makes one from
      a capture of a good node.
    type: dict
    required: true
  checks:
    description: Ids of checks, or prefixes of whole words such as C(gpu). None means all.
    type: list
    elements: str
    default: []
  skip:
    description: Checks that are not judged, by id or prefix, each with the reason that the report shows. C(id@pattern)
      skips the components that fit a shell pattern, such as C(pcie.link@*0000:9b:00.0*). What the profile skips
      (C(skip_checks)) is skipped too.
    type: dict
    default: {}
  deadline:
    description: Seconds after which each question is given up, where its own deadline is longer.
    type: float
  capture_to:
    description: Path on the node where a capture is kept, a folder or C(.tar.gz). Nothing may be there yet.
    type: path
  replay_from:
    description: Path on the node of a capture that is judged instead of the node. Not with O(capture_to) or O(history).
    type: path
  history:
    description: Path on the node of the faults that it had in earlier boots. A fault that comes back asks for a harder
      action. The file is made where there is none.
    type: path
"""

EXAMPLES = r"""
- name: Judge the node
  node_health:
    profile: "{{ profile }}"
  register: health
  failed_when: health is failed or health.verdict in ["fail", "unknown"]

- name: Judge the GPUs only, without a card that is known to be bad, and keep what the node said
  node_health:
    profile: "{{ profile }}"
    checks: [gpu, nvlink]
    skip:
      gpu.ecc@GPU 3 *: replacement ordered, ticket 4711
    capture_to: /var/tmp/capture-4711.tar.gz

- name: Judge a capture again
  node_health:
    profile: "{{ profile }}"
    replay_from: /var/tmp/capture-4711.tar.gz
"""

RETURN = r"""
verdict:
  description: C(ok), C(warn) (may train, somebody must look), C(fail) or C(unknown) (must not train).
  type: str
  returned: always
action:
  description: The hardest action that a finding asks for, from C(none) over C(reboot) to C(replace).
  type: str
  returned: always
findings:
  description: What each check says. Those that are C(ok) or C(skipped) are short; the others have expected, action,
    advice, evidence (probe and excerpt) and reference as well.
  type: list
  elements: dict
  returned: always
  sample:
    - check: gpu.ecc
      component: GPU 3 (0000:9b:00.0)
      status: fail
      observed: 2 uncorrectable errors since the driver was loaded
probes:
  description: Outcome and seconds of each question, by its id, and what it said where it gave no answer.
  type: dict
  returned: always
elapsed:
  description: Seconds that it took.
  type: float
  returned: always
msg:
  description: The verdict and the worst finding in one line.
  type: str
  returned: always
gpufleet:
  description: What the summary of a run shows and compares (docs/architecture.md).
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.health.health_run import HealthInput, InputError, run_health
from ansible.module_utils.gpufleet.health.report_gist import attention, gist

RETURNED = ("verdict", "action", "findings", "probes", "elapsed")
NEXT_STEP_OF_BAD_INPUT = "correct what is listed, then run again; nothing was asked of the node"


def main():
    module = AnsibleModule(
        argument_spec={
            "profile": {"type": "dict", "required": True},
            "checks": {"type": "list", "elements": "str", "default": []},
            "skip": {"type": "dict", "default": {}},
            "deadline": {"type": "float"},
            "capture_to": {"type": "path"},
            "replay_from": {"type": "path"},
            "history": {"type": "path"},
        },
        supports_check_mode=True,
    )
    given = module.params
    asked = HealthInput(
        given["profile"],
        tuple(given["checks"]),
        given["skip"],
        given["deadline"],
        given["capture_to"],
        given["replay_from"],
        given["history"],
        read_only=module.check_mode,
    )
    try:
        report = run_health(asked)
    except InputError as error:
        module.fail_json(
            msg=f"{len(error.problems)} problem(s) with the input, the first: " + "\n".join(error.problems),
            problems=error.problems,
            next_step=NEXT_STEP_OF_BAD_INPUT,
        )
    for note in report["notes"]:
        module.warn(note)
    module.exit_json(
        changed=False,
        msg=gist(report),
        **{name: report[name] for name in RETURNED},
        gpufleet={"attention": attention(report), "facts": {"health": _for_the_run(report)}},
    )


def _for_the_run(report):
    """What report.json keeps of each node; what is well is counted only."""
    statuses = [finding["status"] for finding in report["findings"]]
    return {
        "verdict": report["verdict"],
        "action": report["action"],
        "ok": statuses.count("ok"),
        "skipped": {item["check"]: item["observed"] for item in report["findings"] if item["status"] == "skipped"},
        "findings": [item for item in report["findings"] if item["status"] not in ("ok", "skipped")],
        "comparison": report["comparison"],
    }


if __name__ == "__main__":
    main()
