#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: GPUs reach containers - runtime nvidia in daemon.json, a current CDI specification, device links."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container_toolkit
short_description: Register the runtime nvidia with Docker and keep CDI specification and device links current
description:
  - Lets C(nvidia-ctk runtime configure) work on a copy of C(daemon.json), and merges what it has set into the file. A
    file that says it all already is left as it is; other runtimes and keys are kept. An invalid file is refused.
  - Makes the CDI specification anew where the driver, the GPUs or the toolkit are others than when it was made.
  - Makes the links below C(/dev/char), without which systemd takes the GPUs from running containers at its next
    C(daemon-reload).
  - On a node whose driver has no GPU there is nothing to make, and nothing is.
  - The engine is neither reloaded nor restarted. The module C(docker_engine) sees what is pending.
author: The gpufleet authors
attributes:
  check_mode:
    description: Says what would be made.
    support: full
  diff_mode:
    description: Shows daemon.json before and after.
    support: full
options:
  docker:
    description: Whether the runtime is registered with Docker.
    type: bool
    default: true
  set_as_default:
    description: Whether the runtime becomes Docker's default.
    type: bool
    default: false
  gpus_demanded:
    description: Whether a specification that cannot be made is an error.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Bring GPUs into containers
  container_toolkit:
    docker: true
"""

RETURN = r"""
toolkit:
  description: Version that nvidia-ctk says; null in check mode on a node that lacks it.
  type: str
  returned: success
actions:
  description: What was made, or would be, with the reason.
  type: list
  elements: str
  returned: success
daemon_settings:
  description: All that daemon.json says now, or would say; null without O(docker).
  type: dict
  returned: success
gpus:
  description: Number of GPUs that the driver has.
  type: int
  returned: success
cdi_specification:
  description: The file; null where there is none.
  type: str
  returned: success
next_step:
  description: What to do about the failure.
  type: str
  returned: failure
"""

import os
import re
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpufleet.bounded_command import run_bounded
from ansible.module_utils.gpufleet.container_toolkit_cdi import (
    NVIDIA_CTK,
    SPEC,
    outdated,
    read_gpus,
    read_spec,
    static_specs,
)
from ansible.module_utils.gpufleet.container_toolkit_devices import nodes, remove_wrong_links, unlinked
from ansible.module_utils.gpufleet.container_toolkit_error import ToolkitError
from ansible.module_utils.gpufleet.docker_daemon_file import DaemonFile
from ansible.module_utils.gpufleet.docker_daemon_json import merge, parse, render
from ansible.module_utils.gpufleet.docker_engine_start import note_start
from ansible.module_utils.gpufleet.docker_error import DockerError
from ansible.module_utils.gpufleet.docker_service import read_service

ROOT = ""
LIMIT_S = 120
# From this engine on dockerd resolves CDI devices where features.cdi says so; from 28.2 on without being told.
CDI_SINCE = 25


class ToolkitOnNode:
    """What the toolkit has set up on this node; `actions` grows with each step."""

    def __init__(self, module):
        self.module, self.wanted = module, module.params
        self.actions, self.diff, self.warnings = [], [], []
        self.settings = None
        self.gpus = read_gpus(ROOT)
        self.version = self.read_version()

    def read_version(self):
        said = run_bounded(["nvidia-ctk", "--version"], LIMIT_S)
        if said.outcome == "missing":
            if self.module.check_mode:
                return None
            raise ToolkitError("there is no nvidia-ctk", "run the role's part nvidia_container_toolkit_install first")
        found = re.search(r"version\s+v?(\d[\w.~+-]*)", said.stdout)
        if said.rc != 0 or not found:
            raise ToolkitError(
                f"nvidia-ctk --version does not say a version: {said.said()}",
                "install the package nvidia-container-toolkit-base anew",
            )
        return found.group(1)

    def ctk(self, *words):
        said = run_bounded(["nvidia-ctk", *words], LIMIT_S)
        if said.outcome != "done" or said.rc != 0:
            raise ToolkitError(
                f"nvidia-ctk {' '.join(words)} failed: {said.said()}",
                "see nvidia-smi and dmesg on the node: the driver has to answer first",
            )
        return said

    def register_runtime(self):
        """What nvidia-ctk sets, merged into daemon.json by the rules of that file."""
        file = DaemonFile(root=ROOT)
        self.settings = file.settings
        if self.version is None:
            self.actions.append("register the runtime nvidia with Docker")
            return
        set_up = merge(file.settings, self.of_nvidia_ctk(file), file.path)
        if engine_major() >= CDI_SINCE:
            # Not by nvidia-ctk --cdi.enabled, which drops the other features of the file (pkg/config/engine/docker).
            set_up = merge(set_up, {"features": {"cdi": True}}, file.path)
        self.settings = set_up
        if set_up == file.settings:
            return
        file.refuse_clashes(set_up)
        file.validate(set_up)
        self.actions.append(f"register the runtime nvidia with Docker, in {file.path}")
        self.diff.append(file.diff(set_up))
        if not self.module.check_mode:
            note_start(file, read_service(), ROOT)
            if file.content is not None:
                self.module.backup_local(ROOT + file.path)
            file.write(set_up)

    def of_nvidia_ctk(self, file):
        """The keys that `nvidia-ctk runtime configure` sets in a copy of the file."""
        folder = tempfile.mkdtemp(prefix="gpufleet-ctk-")
        try:
            copy = os.path.join(folder, "daemon.json")
            with open(copy, "wb") as handle:
                handle.write(render(file.settings))
            default = ["--nvidia-set-as-default"] if self.wanted["set_as_default"] else []
            self.ctk("runtime", "configure", "--runtime=docker", f"--config={copy}", *default)
            with open(copy, "rb") as handle:
                found = parse(handle.read(), copy)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        runtime = found.get("runtimes", {}).get("nvidia")
        if runtime is None:
            raise ToolkitError(
                f"nvidia-ctk {self.version} did not add the runtime nvidia to a copy of {file.path}",
                "try nvidia-ctk runtime configure --runtime=docker --dry-run on the node",
            )
        keys = {"runtimes": {"nvidia": runtime}}
        if self.wanted["set_as_default"]:
            keys["default-runtime"] = found.get("default-runtime", "nvidia")
        return keys

    def make_links(self):
        found = nodes(ROOT)
        wrong = unlinked(found, ROOT)
        if not wrong:
            return
        self.actions.append(f"make the links below /dev/char ({', '.join(wrong)} had none)")
        if self.module.check_mode or self.version is None:
            return
        remove_wrong_links(wrong, found, ROOT)
        self.ctk("system", "create-dev-char-symlinks", "--create-all")
        left = unlinked(found, ROOT)
        if left:
            raise ToolkitError(
                f"nvidia-ctk made no link below /dev/char for {', '.join(left)}: systemctl daemon-reload would "
                "take these from running containers",
                "update the toolkit (1.12 or later), or give the engine the cgroup driver cgroupfs "
                "(docker_daemon_settings: exec-opts [native.cgroupdriver=cgroupfs])",
            )

    def make_specification(self):
        since = os.stat(ROOT + NVIDIA_CTK).st_ctime if os.path.exists(ROOT + NVIDIA_CTK) else None
        reasons = outdated(read_spec(SPEC, ROOT), self.gpus, since)
        if not reasons:
            return
        self.actions.append(f"make {SPEC} ({'; '.join(reasons)})")
        if self.module.check_mode or self.version is None:
            return
        try:
            self.ctk("cdi", "generate", f"--output={ROOT}{SPEC}")
        except ToolkitError:
            if self.wanted["gpus_demanded"]:
                raise
            self.warnings.append("the CDI specification cannot be made, and no GPU is demanded here")
            return
        left = outdated(read_spec(SPEC, ROOT), self.gpus, None)
        if left:
            raise ToolkitError(
                f"nvidia-ctk has made {SPEC}, and {'; '.join(left)}",
                "see nvidia-smi -L on the node; a reboot brings driver and libraries together",
            )

    def attention(self):
        """Specifications that nobody keeps current, once they are wrong."""
        found = []
        for path in static_specs(ROOT):
            spec = read_spec(path, ROOT)
            reasons = outdated(spec, self.gpus, None)
            if reasons:
                found.append(
                    {
                        "reason": f"the CDI specification {path} is outdated: {'; '.join(reasons)}",
                        "next_step": f"remove it; {SPEC} is kept current by the role",
                        "severity": "warn",
                    }
                )
        return found


def engine_major():
    """First number of the installed engine's version; 0 where none is installed."""
    said = run_bounded(["dockerd", "--version"], LIMIT_S)
    found = re.search(r"version (\d+)\.", said.stdout)
    return int(found.group(1)) if found else 0


def apply(module):
    node = ToolkitOnNode(module)
    if module.params["docker"]:
        node.register_runtime()
    node.make_links()
    node.make_specification()
    for text in node.warnings:
        module.warn(text)
    result = {
        "changed": bool(node.actions),
        "toolkit": node.version,
        "actions": node.actions,
        "daemon_settings": node.settings,
        "gpus": len(node.gpus.minors),
        "cdi_specification": SPEC if os.path.exists(ROOT + SPEC) else None,
        "diff": node.diff,
    }
    attention = node.attention()
    if attention:
        result["gpufleet"] = {"attention": attention}
    return result


def main():
    module = AnsibleModule(
        argument_spec={
            "docker": {"type": "bool", "default": True},
            "set_as_default": {"type": "bool", "default": False},
            "gpus_demanded": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    try:
        result = apply(module)
    except (ToolkitError, DockerError) as error:
        module.fail_json(msg=str(error), next_step=error.next_step)
    except OSError as error:
        module.fail_json(
            msg=f"container toolkit: {error}", next_step="see whether that path can be used (df -h, mount)"
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
