# SPDX-License-Identifier: Apache-2.0
"""Systemd containers in which Debian's real engine runs containers of its own, and a way to run modules there."""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ansible
import pytest
import yaml

from tests.integration.roles.conftest import REPOSITORY, Containers
from tests.playbook import PlaybookRun, run_playbook

# What an engine needs to start containers inside one: mounts, a network of its own, device rules that it may pass on.
# The data roots lie in memory, since overlay2 cannot lie on another overlay. Clock, modules and ports of the machine
# stay out of reach.
NESTED = (
    "--cap-add=SYS_ADMIN,NET_ADMIN",
    "--cgroupns=private",
    "--device-cgroup-rule=c *:* rwm",
    "--device-cgroup-rule=b *:* m",
    "--security-opt=seccomp=unconfined",
    "--security-opt=unmask=ALL",
    "--tmpfs=/var/lib/docker",
    "--tmpfs=/var/lib/containerd",
)
# On a machine with cgroups v1 podman mounts the controllers read-only.
WRITABLE_CGROUPS = (
    'for place in $(awk \'$5 ~ "^/sys/fs/cgroup/" && $6 ~ "^ro" {print $5}\' /proc/self/mountinfo); do '
    "mount -o remount,rw,bind $place; done"
)
RUNNER = """\
import base64, json, runpy, sys
sys.path.insert(0, "/opt/run")
from ansible.module_utils.testing import patch_module_args
with patch_module_args(json.loads(base64.b64decode(sys.argv[2]))):
    runpy.run_path(f"/opt/run/{sys.argv[1]}.py", run_name="__main__")
"""
MODULES = (
    "apt_stack",
    "container_toolkit",
    "container_toolkit_plan",
    "docker_daemon_json",
    "docker_engine",
    "docker_plan",
)
# No pool and no firewall here, and the machine's own version of control groups.
PROFILE: dict[str, Any] = {
    "platform": {
        "clock": {"servers": [{"address": "192.0.2.1"}]},
        "docker": {"storage_driver": None, "cgroup_version": None},
    },
    "storage": {"pool": {"manage": False}},
}
VARIABLES: dict[str, Any] = {"docker_daemon_settings": {"iptables": False, "bridge": "none"}}
IMAGE = "gpufleet/test:1"
# A static busybox is all that an image needs.
MAKE_IMAGE = (
    "mkdir -p /srv/tree/bin && cp /bin/busybox /srv/tree/bin/ && for name in sh sleep; do ln -sf busybox "
    f"/srv/tree/bin/$name; done && tar -C /srv/tree -c . | docker import - {IMAGE}"
)


class NestedContainers(Containers):
    """Containers in which an engine can run."""

    def podman(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        if arguments[0] == "run":
            arguments = ("run", *NESTED, *arguments[1:])
        return super().podman(*arguments, check=check)

    def configure(self, profile: dict[str, Any], variables: dict[str, Any]) -> None:
        """Write profile overrides and variables into the inventory."""
        inventory = yaml.safe_load(self.inventory.read_text())
        inventory["gpu_nodes"]["vars"] |= {"node_profile_overrides_fleet": profile, **variables}
        self.inventory.write_text(yaml.safe_dump(inventory))


class EngineNode:
    """One such container, called `node`."""

    def __init__(self, containers: NestedContainers, folder: Path, image: str) -> None:
        self.containers, self.image, self._folder, self._runs = containers, image, folder, 0

    def sh(self, command: str, check: bool = True) -> str:
        """Run a shell command; returns what it printed, without the blanks around it."""
        return self.containers.run("node", command, check=check).strip()

    def copy_modules(self) -> None:
        """Put the modules with what they import of Ansible and of the repository into the container."""
        run = self._folder / "run"
        utils = run / "ansible" / "module_utils"
        ignore = shutil.ignore_patterns("__pycache__", "powershell", "csharp", "facts", "health")
        shutil.copytree(Path(ansible.__file__).parent / "module_utils", utils, ignore=ignore)
        shutil.copytree(REPOSITORY / "plugins/module_utils/gpufleet", utils / "gpufleet", ignore=ignore)
        (utils.parent / "__init__.py").touch()
        for name in MODULES:
            shutil.copy(REPOSITORY / "library" / f"{name}.py", run)
        (run / "run.py").write_text(RUNNER)
        self.containers.podman("cp", str(run), f"{self.containers.names['node']}:/opt/run")

    def module(self, module: str, check: bool = False, **arguments: Any) -> dict[str, Any]:
        """Run a module and return its answer."""
        words = {**arguments, "_ansible_check_mode": check}
        encoded = base64.b64encode(json.dumps(words).encode()).decode()
        said = self.sh(f"python3 -B /opt/run/run.py {module} {encoded} 2>&1", check=False)
        assert said.startswith("{"), said
        answer: dict[str, Any] = json.loads(said)
        assert "exception" not in answer, answer
        return answer

    def play(self, roles: str, *options: str) -> PlaybookRun:
        """Apply roles, named with blanks between them, as a playbook does."""
        self._runs += 1
        tasks = [
            {"name": "Role", "ansible.builtin.import_role": {"name": role, "rolespec_validate": False}}
            for role in roles.split()
        ]
        play = self._folder / "play.yml"
        play.write_text(json.dumps([{"name": "Role", "hosts": "gpu_nodes", "gather_facts": False, "tasks": tasks}]))
        return run_playbook(
            str(play), self._folder / f"reports-{self._runs}", "-i", str(self.containers.inventory), "--diff", *options
        )


@pytest.fixture(scope="module", params=["debian12", "debian13"])
def fresh_node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    """A node without an engine, with Debian's package lists and busybox; one for all tests of a file."""
    folder = tmp_path_factory.mktemp(request.param)
    containers = NestedContainers(folder)
    try:
        containers.start(["node"], request.param)
        containers.configure(PROFILE, VARIABLES)
        node = EngineNode(containers, folder, request.param)
        node.copy_modules()
        node.sh(WRITABLE_CGROUPS)
        node.sh("apt-get update >&2 && apt-get install --yes --no-install-recommends busybox-static >&2")
        yield node
    finally:
        containers.remove()
