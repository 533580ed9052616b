# SPDX-License-Identifier: Apache-2.0
"""Packages of engine and toolkit by real apt on stand-ins, and the toolkit's unit under a real systemd.

The engine is a stand-in that answers on its socket; what a real one does is in test_engine.py.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from ansible.module_utils.gpufleet.container_toolkit_packages import PACKAGES

from tests.integration.containers.conftest import PROFILE, EngineNode, NestedContainers
from tests.vendor_repository import container_stand_ins
from tests.vendor_repository.container_stand_ins import ENGINE_NEW, ENGINE_NEXT, ENGINE_OLD, TOOLKIT_NEW, TOOLKIT_OLD

pytestmark = pytest.mark.container

FILE = "/etc/docker/daemon.json"
UNIT = "gpufleet-nvidia-containers.service"
ENGINE = ("docker-ce", "docker-ce-cli", "containerd.io", "docker-buildx-plugin")
GPUS = r"""
set -e
for minor in 0 1; do
  mkdir -p /srv/node/proc/driver/nvidia/gpus/0000:${minor}b:00.0
  printf 'GPU UUID: \t GPU-1234567%s-aaaa-bbbb-cccc-0123456789ab\nDevice Minor: \t %s\n' $minor $minor \
    >/srv/node/proc/driver/nvidia/gpus/0000:${minor}b:00.0/information
done
echo 'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build' \
  >/srv/node/proc/driver/nvidia/version
"""


class VendorNode(EngineNode):
    """A node whose apt sees the vendors' stand-ins and nothing else."""

    repository: dict[str, Any]

    def engine(self, plan: dict[str, Any], check: bool = False) -> dict[str, Any]:
        """Have apt_stack do what docker_plan has said."""
        assert not plan.get("failed"), plan
        return self.module("apt_stack", check=check, name="docker", repository=self.repository, **plan["apt"])

    def plan(self, version: "str | None", **arguments: Any) -> dict[str, Any]:
        given = {"source": "mirror", **arguments, **({"version": version} if version else {})}
        return self.module("docker_plan", **given)

    def toolkit(self, **arguments: Any) -> dict[str, Any]:
        """Plan and install the toolkit."""
        plan = self.module("container_toolkit_plan", **arguments)
        if plan.get("failed"):
            return plan
        return self.module("apt_stack", name="nvidia-container-toolkit", repository=self.repository, **plan["apt"])

    def versions(self, *names: str) -> set[str]:
        form = "--showformat='${db:Status-Status} ${source:Upstream-Version}\n'"
        return set(self.sh(f"dpkg-query --show {form} {' '.join(names)}").splitlines())

    def held(self) -> set[str]:
        return set(self.sh("apt-mark showhold").split())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VendorNode]:
    folder = tmp_path_factory.mktemp("vendor")
    containers = NestedContainers(folder)
    try:
        sha256 = container_stand_ins.write(folder / "vendor")
        containers.start(["node"], "debian12")
        made = VendorNode(containers, folder, "debian12")
        containers.podman("cp", str(folder / "vendor"), f"{containers.names['node']}:/srv/vendor")
        made.copy_modules()
        made.sh("rm /etc/apt/sources.list; mkdir -p /srv/dockerd")
        made.repository = {
            "uri": "file:/srv/vendor/",
            "suites": ["/"],
            "components": [],
            "key_url": "file:/srv/vendor/key.asc",
            "key_sha256": sha256,
        }
        yield made
    finally:
        containers.remove()


def test_the_engine_takes_the_place_of_another_only_when_asked(node: VendorNode) -> None:
    distro = node.plan(None, source="distro")
    node.engine({"apt": {**distro["apt"], "packages": [{"name": "docker.io"}]}})
    refused = node.plan(ENGINE_OLD)
    assert refused.get("failed") and "docker.io 20.10.24+dfsg1-1, containerd" in refused["msg"]
    plan = node.plan(ENGINE_OLD, replace=True)
    foreseen = node.engine(plan, check=True)
    assert foreseen.get("changed"), foreseen
    done = node.engine(plan)
    assert sorted(done["removed"]) == ["containerd", "docker.io", "runc"], done
    assert node.versions("docker-ce", "docker-ce-cli") == {f"installed {ENGINE_OLD}"}
    assert node.held() == set(ENGINE)
    assert not node.engine(node.plan(ENGINE_OLD))["changed"]
    node.sh("rm --force /etc/docker/daemon.json")
    done = node.module("docker_engine", engine_package="docker-ce", storage_driver="overlay2", cgroup_version=2)
    assert not done.get("failed") and done["engine"]["version"] == ENGINE_OLD, done


def test_an_upgrade_has_to_be_asked_for_and_spares_containers(node: VendorNode) -> None:
    refused = node.engine(node.plan(ENGINE_NEW))
    assert refused.get("failed") and "has to be asked for" in refused["msg"], refused
    node.sh("echo job >/srv/dockerd/running")
    refused = node.plan(ENGINE_NEW, upgrade=True)
    assert refused.get("failed") and "live restore is off in the running engine" in refused["msg"], refused
    node.module("docker_daemon_json", settings={"live-restore": True})
    assert node.module("docker_engine")["actions"] == ["reload docker.service (live-restore)"]
    done = node.engine(node.plan(ENGINE_NEW, upgrade=True))
    assert not done.get("failed"), done
    assert node.versions("docker-ce", "docker-ce-cli") == {f"installed {ENGINE_NEW}"} and set(ENGINE) <= node.held()
    assert node.module("docker_engine", engine_package="docker-ce", live_restore=True)["engine"]["running"] == 1
    # Another release train: the engine would not find the containers again.
    refused = node.plan(ENGINE_NEXT, upgrade=True)
    assert refused.get("failed") and f"from {ENGINE_NEW} to {ENGINE_NEXT}" in refused["msg"]
    assert not node.engine(node.plan(ENGINE_NEXT, upgrade=True, restart_allowed=True)).get("failed")
    back = node.engine(node.plan(ENGINE_OLD, downgrade_to=ENGINE_OLD, restart_allowed=True))
    assert not back.get("failed") and node.versions("docker-ce", "docker-ce-cli") == {f"installed {ENGINE_OLD}"}, back
    node.sh("rm --force /srv/dockerd/running")


def test_unattended_upgrades_leave_engine_and_toolkit_alone(node: VendorNode) -> None:
    node.toolkit(version=TOOLKIT_OLD)
    dump = node.sh("apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert '"docker[.-]"' in dump and '"nvidia-container-"' in dump and '"libnvidia-container"' in dump
    said = node.sh("apt-get --simulate upgrade")
    assert "0 upgraded, 0 newly installed" in said


def test_the_four_packages_of_the_toolkit_have_one_version(node: VendorNode) -> None:
    assert node.versions(*PACKAGES) == {f"installed {TOOLKIT_OLD}"} and set(PACKAGES) <= node.held()
    assert not node.toolkit(version=TOOLKIT_OLD)["changed"]
    refused = node.toolkit(version=TOOLKIT_NEW)
    assert refused.get("failed") and "has to be asked for" in refused["msg"]
    # As after an upgrade by hand of what apt lets be upgraded alone.
    node.sh(
        f"rm /etc/apt/preferences.d/gpufleet-nvidia-container-toolkit; apt-mark unhold libnvidia-container1; "
        f"apt-get install --yes libnvidia-container1={TOOLKIT_NEW}-1"
    )
    refused = node.toolkit()
    assert refused.get("failed") and f"libnvidia-container1 {TOOLKIT_NEW}" in refused["msg"], refused
    assert not node.toolkit(version=TOOLKIT_NEW, upgrade=True).get("failed")
    assert node.versions(*PACKAGES) == {f"installed {TOOLKIT_NEW}"} and set(PACKAGES) <= node.held()
    back = node.toolkit(version=TOOLKIT_OLD, downgrade_to=TOOLKIT_OLD)
    assert not back.get("failed") and node.versions(*PACKAGES) == {f"installed {TOOLKIT_OLD}"}, back


def test_the_toolkits_role_and_its_unit(node: VendorNode) -> None:
    """GPUs are files below /srv/node, which the unit's condition and the stand-in for nvidia-ctk look at."""
    toolkit = {"manage": True, "source": "mirror", "version": TOOLKIT_OLD, "repository": node.repository}
    docker = {"source": "mirror", "version": ENGINE_OLD, "repository": node.repository}
    profile = {**PROFILE, "packages": {"container_toolkit": toolkit, "docker": docker}}
    profile["platform"] = {**PROFILE["platform"]}
    profile["platform"]["docker"] = {**PROFILE["platform"]["docker"], "default_runtime": "nvidia"}
    node.containers.configure(profile, {})
    run = node.play("nvidia_container_toolkit")
    assert run.code == 0, run.output
    engine = node.module("docker_engine", runtime="nvidia", default_runtime="nvidia")
    assert not engine["changed"] and engine["engine"]["live_restore"], engine

    # Without a GPU it is skipped, at a boot too.
    node.sh(f"systemctl start {UNIT}; systemctl stop docker.service docker.socket")
    state = f"systemctl show --value --property=ActiveState,Result,ConditionResult {UNIT} | sort | xargs"
    assert node.sh(state) == "inactive no success"
    assert node.sh("ls /run/cdi 2>/dev/null", check=False) == ""
    said = node.sh(f"systemd-analyze verify /etc/systemd/system/{UNIT} 2>&1", check=False)
    assert UNIT not in said
    rules = "/etc/udev/rules.d/71-gpufleet-nvidia-containers.rules"
    assert f'ENV{{SYSTEMD_WANTS}}+="{UNIT}"' in node.sh(f"cat {rules}")

    # With GPUs the specification is there before the engine starts.
    node.sh(GPUS)
    edit = "s,NotEmpty=/proc,NotEmpty=/srv/node/proc,; /^Type=/a Environment=NVIDIA_STAND_IN_ROOT=/srv/node"
    node.sh(
        f"sed -i '{edit}' /etc/systemd/system/{UNIT}; "
        "mkdir -p /etc/systemd/system/docker.service.d; printf '[Service]\\nExecStartPre=/bin/grep -q 580.95.05 "
        "/run/cdi/nvidia.yaml\\n' >/etc/systemd/system/docker.service.d/test.conf; "
        f"printf '[Unit]\\nWants=docker.service {UNIT}\\n' >/etc/systemd/system/as-at-boot.target; "
        "systemctl daemon-reload; systemctl start as-at-boot.target; systemctl start docker.service"
    )
    assert node.sh("systemctl is-active docker.service") == "active"
    specification = node.sh("cat /run/cdi/nvidia.yaml")
    assert "/dev/nvidia1" in specification and "libcuda.so.580.95.05" in specification
    # A driver that is loaded anew: udev asks for the unit, which has ended, so it runs again.
    node.sh(f"sed -i s/580.95.05/580.105.08/ /srv/node/proc/driver/nvidia/version; systemctl start {UNIT}")
    assert "libcuda.so.580.105.08" in node.sh("cat /run/cdi/nvidia.yaml")
    # A driver that fails shows in the list of failed units.
    node.sh(f"rm /srv/node/proc/driver/nvidia/version; systemctl start {UNIT}", check=False)
    assert UNIT in node.sh("systemctl --failed --no-legend")


def test_the_second_run_of_both_roles_changes_nothing(node: VendorNode) -> None:
    """Both set keys of one file; the docker role comes first and does not take the toolkit's away."""
    node.sh("rm -f /etc/systemd/system/docker.service.d/test.conf; systemctl daemon-reload; systemctl reset-failed")
    runtimes = json.loads(node.sh(f"cat {FILE}"))["runtimes"]
    assert runtimes["nvidia"]["path"] == "nvidia-container-runtime"
    first = node.play("docker nvidia_container_toolkit")
    assert first.code == 0, first.output
    second = node.play("docker nvidia_container_toolkit")
    assert second.code == 0 and second.host("node")["changed"] == 0, second.output
    after = json.loads(node.sh(f"cat {FILE}"))
    assert after["runtimes"] == runtimes and after["default-runtime"] == "nvidia"
    assert after["log-opts"] == {"max-size": "10m", "max-file": "3"}
