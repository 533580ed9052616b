#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: step the node's clock. The action plugin of the same name compares it with the controller's first."""

from __future__ import annotations

DOCUMENTATION = r"""
module: clock_step
short_description: Step the node's clock when it is far off from the controller's
description:
  - The action plugin compares the node's clock with the controller's with C(date), which needs neither Python nor a
    module on the node, and takes the round trip into account, so that a slow link does not look like a wrong clock.
    A clock within the limit costs this one round trip.
  - A clock that is certainly further off is stepped, and the hardware clock is written, since the next boot starts
    from it. A running chrony is restarted, so that it follows its servers again within seconds.
  - For nodes whose clock is years off, before anything that needs TLS or signed package lists. Keeping time is the
    job of chrony.
  - Refuses to act where it is the controller's clock that is wrong. That is the case where the controller lives
    before this code was written, and where chrony on the node follows its servers and these contradict the
    controller.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says by how much the clock would be stepped.
    support: full
  diff_mode:
    description: Shows the time before and after.
    support: full
options:
  max_offset_s:
    description: Seconds. A clock that is further off is stepped.
    type: float
    required: true
  supported_os:
    description: Operating systems as C(<ID> <VERSION_ID>) of os-release, such as C(debian 12). Any other is refused
      before anything is changed. Empty means any.
    type: list
    elements: str
    default: []
  correction_s:
    description: Seconds to add to the clock. Set by the action plugin.
    type: float
"""

EXAMPLES = r"""
- name: Step a clock that is off
  clock_step:
    max_offset_s: 1.0
"""

RETURN = r"""
offset_s:
  description: Seconds that the node was ahead of the controller (negative = behind).
  type: float
  returned: success
uncertainty_s:
  description: Seconds by which RV(offset_s) may be wrong; half the round trip of the comparison.
  type: float
  returned: success
hardware_clock:
  description: C(written), or why it could not be written.
  type: str
  returned: when the clock was stepped
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.chrony import TRACKING, ChronyParseError, parse_tracking
from ansible.module_utils.gpufleet.hardware_clock import write_hardware_clock


def utc(seconds):
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def chrony_reference(max_offset_s):
    """Name of the server that chrony follows within the limit, or None: it proves that the node's clock is right."""
    result = run_bounded(TRACKING, timeout_s=10)
    if result.outcome != "done" or result.rc != 0:
        return None
    try:
        tracking = parse_tracking(result.stdout)
    except ChronyParseError:
        return None
    if tracking.synchronised and abs(tracking.offset_s) <= max_offset_s:
        return tracking.reference
    return None


def main():
    module = AnsibleModule(
        argument_spec={
            "max_offset_s": {"type": "float", "required": True},
            "supported_os": {"type": "list", "elements": "str", "default": []},
            "correction_s": {"type": "float"},
        },
        supports_check_mode=True,
    )
    correction = module.params["correction_s"]
    if correction is None:
        module.fail_json(msg="this module needs its action plugin: run it from the gpufleet repository (ansible.cfg)")
    reference = chrony_reference(module.params["max_offset_s"])
    if reference is not None:
        module.fail_json(
            msg=(
                f"the node's clock is {-correction:+.1f} s off from the controller's, but chrony on the node follows "
                f"the time server {reference}: the controller's clock is wrong, or that server's is. Nothing was "
                "changed. Set the controller's clock (timedatectl on the controller), then run again."
            )
        )
    before = time.time()
    result = {
        "changed": True,
        "diff": {"before": f"clock: {utc(before)}\n", "after": f"clock: {utc(before + correction)}\n"},
    }
    if module.check_mode:
        module.exit_json(**result)
    try:
        time.clock_settime(time.CLOCK_REALTIME, time.time() + correction)
    except OSError as error:
        module.fail_json(
            msg=f"the clock could not be set: {error.strerror}. Expected a machine of its own; a container has the "
            "clock of its host, which is to be set there."
        )
    # A running chrony drops its samples at a step, and then needs many minutes to follow its servers again; at a start
    # it asks them in a burst. Does nothing where chrony does not run.
    run_bounded(("systemctl", "try-restart", "chrony.service"), timeout_s=60)
    result["hardware_clock"] = write_hardware_clock() or "written"
    module.exit_json(**result)


if __name__ == "__main__":
    main()
