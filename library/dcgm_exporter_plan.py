#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: which DCGM exporter this node gets, and what stands against it, before anything is touched."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dcgm_exporter_plan
short_description: Say which DCGM exporter this node gets, and refuse what cannot work
description:
  - Reads the installed packages, the listeners of the port and the PCI bus, and alters nothing.
  - Refuses an exporter that does not go with the installed DCGM, a port that another program has (which is named), and
    metrics that the installed exporter does not know (each is named, with the nearest that it knows).
author: The gpufleet authors
attributes:
  check_mode:
    description: The same. On a node without DCGM, which a run would have installed by now, pairing is not judged.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
options:
  run_as:
    description: V(service) is NVIDIA's package under systemd, V(container) an image under Docker.
    type: str
    choices: [service, container]
    required: true
  version:
    description: Exact version of the package. Without it the installed one is kept, else the newest that goes with the
      node's DCGM is installed.
    type: str
  image:
    description: The image, with O(run_as=container).
    type: str
  metrics:
    description: The metrics, each with C(field), C(type), C(help) and, where it need not be served, C(optional).
    type: list
    elements: dict
    required: true
  profiling:
    description: Whether profiling metrics are wanted.
    type: bool
    default: false
  host_engine:
    description: Address of the host engine that the exporter connects to. Empty means one of its own, in a container.
    type: str
    default: ""
  port:
    description: TCP port to listen on.
    type: int
    required: true
  upgrade:
    description: Whether an upgrade of what is installed is wanted.
    type: bool
    default: false
  downgrade_to:
    description: Version that the exporter may go back to. Must be O(version).
    type: str
  supported_os:
    description: Operating systems as C(<ID> <VERSION_ID>) of os-release. Any other is refused. Empty means any.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Plan the exporter
  dcgm_exporter_plan:
    run_as: service
    version: 4.8.2
    metrics: [{field: DCGM_FI_DEV_GPU_TEMP, type: gauge, help: GPU temperature (in C).}]
    host_engine: localhost:5555
    port: 9400
"""

RETURN = r"""
apt:
  description: Arguments for C(apt_stack), without source and name; null with O(run_as=container).
  type: dict
  returned: success
gpus:
  description: PCI addresses of the node's GPUs.
  type: list
  elements: str
  returned: success
csv:
  description: Content of the exporter's file of metrics.
  type: str
  returned: success
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.apt_packages import ENVIRONMENT, PackageError, read_offers
from ansible.module_utils.gpufleet.apt_stack_versions import by_age
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.dcgm_metrics import known_fields, list_faults, render_csv, unknown_fields
from ansible.module_utils.gpufleet.dcgm_node import gpus_on_bus, installed_packages
from ansible.module_utils.gpufleet.dcgm_packages import CORE, OLDER, DcgmError
from ansible.module_utils.gpufleet.dcgm_pairing import mismatch, newest_for, parse_image
from ansible.module_utils.gpufleet.listening_port import find_listeners
from ansible.module_utils.gpufleet.os_release import read_os_release, unsupported
from ansible.module_utils.gpufleet.package_version import upstream_version
from ansible.module_utils.gpufleet.planned_downgrade import goes_back

PACKAGE = f"{OLDER}-exporter"
UNIT = "nvidia-dcgm-exporter.service"
PROGRAM = "/usr/bin/dcgm-exporter"
# The kernel keeps 15 characters of a program's name.
COMMAND = "dcgm-exporter"
UNIT_LIMIT_S = 60


class Plan:
    """What the node has, and what it gets."""

    def __init__(self, module):
        self.module, self.wanted = module, module.params
        self.installed = installed_packages()
        self.dcgm = self.installed.get(CORE)
        self.has = upstream_version(self.installed[PACKAGE]) if PACKAGE in self.installed else None
        self.attention = []

    def refuse_metrics(self):
        faults = list_faults(self.wanted["metrics"], self.wanted["profiling"])
        if not self.wanted["metrics"]:
            faults = ["the list is empty"]
        if faults:
            raise DcgmError(
                f"the exporter's metrics cannot be used: {'; '.join(faults)}. Nothing was changed",
                "correct dcgm_exporter_metrics and dcgm_exporter_extra_metrics",
            )

    def refuse_port(self):
        """Raise where another program has the port."""
        listeners = find_listeners(self.wanted["port"])
        if not listeners:
            return
        shown = run_bounded(["systemctl", "show", "--property=MainPID,ActiveState", UNIT], UNIT_LIMIT_S)
        facts = dict(line.partition("=")[::2] for line in shown.stdout.splitlines())
        active = facts.get("ActiveState") in ("active", "activating", "reloading", "deactivating")
        others = []
        for listener in listeners:
            own = active and str(listener.pid) == facts.get("MainPID")
            # Under Docker the unit's process is the client, and the exporter is below containerd.
            own = own or (active and (listener.command == COMMAND or listener.pid is None))
            if not own:
                others.append(listener)
        if others:
            raise DcgmError(
                f"port {self.wanted['port']} is in use by {', '.join(map(str, others))}. Nothing was changed",
                "stop that program, or set dcgm_exporter_port. A second exporter (of Kubernetes' GPU operator, or in a "
                "container that was started by hand) would take the GPUs' counters twice",
            )

    def refuse_pair(self, exporter, built_for, where):
        """Raise where the exporter does not go with the node's DCGM."""
        if self.dcgm is None:
            if self.module.check_mode:
                return
            older = self.installed.get(OLDER)
            raise DcgmError(
                f"the exporter needs DCGM 4 on the node, which has {f'DCGM {older}' if older else 'none'}. Nothing was "
                "changed",
                "run role dcgm first (playbooks/monitoring.yml does)",
            )
        why = mismatch(self.dcgm, exporter, built_for)
        if why:
            newest = newest_for(self.dcgm)
            such = f" (such as exporter {newest})" if newest else ""
            raise DcgmError(
                f"exporter and DCGM do not go together: {why}. Nothing was changed",
                f"set {where} in the profile to one for this DCGM{such}, or bring a newer DCGM (packages.dcgm.version) "
                "first",
            )

    def newest_offered(self):
        """The newest version in the node's package lists that goes with its DCGM; None where they know none.

        Role dcgm has read the lists of the same repository; check mode on a fresh node has not.
        """
        if self.dcgm is None:
            return None

        def run(argv):
            return self.module.run_command(list(argv), environ_update=ENVIRONMENT)

        try:
            offered = read_offers([PACKAGE], run)[PACKAGE].versions
        except PackageError:
            return None
        for version in sorted(offered, key=by_age, reverse=True):
            if mismatch(self.dcgm, upstream_version(version)) is None:
                return upstream_version(version)
        if offered:
            self.refuse_pair(upstream_version(max(offered, key=by_age)), None, "packages.dcgm_exporter.version")
        return None

    def service(self):
        wanted = self.wanted
        going_back = goes_back(
            wanted, DcgmError, "the exporter", "packages.dcgm_exporter.version", "dcgm_exporter_downgrade_to"
        )
        version = wanted["version"]
        if version is None and self.has is not None and not wanted["upgrade"]:
            version = self.has
        if version is None:
            version = self.newest_offered()
        if version is not None:
            self.refuse_pair(version, None, "packages.dcgm_exporter.version")
        elif self.dcgm is None:
            self.refuse_pair("", None, "")
        if version == self.has:
            self.refuse_unknown_fields()
        return {
            "packages": [{"name": PACKAGE, **({"upstream": version} if version else {})}],
            "never_upgraded": [f"{PACKAGE}$"],
            "upgrade": wanted["upgrade"] or going_back,
            "downgrade": [PACKAGE] if going_back else [],
        }

    def refuse_unknown_fields(self):
        try:
            with open(PROGRAM, "rb") as file:
                known = known_fields(file.read())
        except OSError:
            return
        # A program without a single name is none whose names can be read; its start will tell.
        unknown = unknown_fields([metric["field"] for metric in self.wanted["metrics"]], known) if known else []
        if unknown:
            raise DcgmError(
                f"DCGM exporter {self.has} does not know {', '.join(unknown)}. The running exporter was not touched",
                "correct dcgm_exporter_metrics and dcgm_exporter_extra_metrics; names are those of dcgm_fields.h of "
                "the DCGM that the exporter was built for",
            )

    def container(self):
        versions = parse_image(self.wanted["image"])
        if not self.wanted["host_engine"]:
            return
        if versions is None:
            self.attention.append(
                {
                    "reason": f"image {self.wanted['image']} does not say its versions, so whether it goes with the "
                    "node's DCGM is known only by its answer",
                    "next_step": "name it by a tag such as 4.5.3-4.8.2-ubuntu22.04",
                    "severity": "warn",
                }
            )
            return
        self.refuse_pair(versions.exporter, versions.dcgm, "packages.dcgm_exporter.image")

    def make(self):
        if self.wanted["run_as"] == "container" and not self.wanted["image"]:
            raise DcgmError("no image is named. Nothing was changed", "set packages.dcgm_exporter.image in the profile")
        self.refuse_metrics()
        self.refuse_port()
        apt = self.service() if self.wanted["run_as"] == "service" else self.container()
        result = {"changed": False, "apt": apt, "gpus": gpus_on_bus(), "csv": render_csv(self.wanted["metrics"])}
        if self.attention:
            result["gpufleet"] = {"attention": self.attention}
        return result


def main():
    module = AnsibleModule(
        argument_spec={
            "run_as": {"type": "str", "choices": ["service", "container"], "required": True},
            "version": {"type": "str"},
            "image": {"type": "str"},
            "metrics": {"type": "list", "elements": "dict", "required": True},
            "profiling": {"type": "bool", "default": False},
            "host_engine": {"type": "str", "default": ""},
            "port": {"type": "int", "required": True},
            "upgrade": {"type": "bool", "default": False},
            "downgrade_to": {"type": "str"},
            "supported_os": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    refusal = unsupported(read_os_release(), module.params["supported_os"])
    if refusal:
        module.fail_json(msg=refusal, next_step="see docs/compatibility.md")
    try:
        result = Plan(module).make()
    except DcgmError as error:
        module.fail_json(msg=str(error), next_step=error.next_step)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
