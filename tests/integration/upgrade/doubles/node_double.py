# SPDX-License-Identifier: Apache-2.0
"""A node as a file: what the doubles of the roles' modules read and alter in place of a machine.

{"installed": {package: version}, "loaded": driver in the kernel, "requests": [reasons for a reboot],
 "upgrades": how often packages changed, "reboots": how often it was rebooted, "fault": what is wrong with it}

Faults: "role" (the role fails), "lost" (does not come back), "unreachable", "vanishes" (becomes so when the role has
run), "sick" (fails the health check), "stuck" (its packages do not change, and nobody says so).
"""

import json
import os
from pathlib import Path


def node_file(variables):
    """The file of the host that a task is for."""
    return Path(os.environ["GPUFLEET_DOUBLES"]) / "nodes" / f"{variables['inventory_hostname']}.json"


def read(variables):
    return json.loads(node_file(variables).read_text())


def write(variables, node):
    """Whole or not at all: runs are killed."""
    file = node_file(variables)
    new = file.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(node))
    new.replace(file)
