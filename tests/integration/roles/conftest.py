# SPDX-License-Identifier: Apache-2.0
"""Containers of one test: named after it, started from the project's base images, removed with it."""

import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
TOOLS = REPOSITORY / "tools"


class Containers:
    """Systemd containers and the inventory that reaches them. The host names are those of the inventory."""

    def __init__(self, folder: Path) -> None:
        self.inventory = folder / "inventory.yml"
        self.names: dict[str, str] = {}

    def podman(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run([TOOLS / "podman", *arguments], check=check, capture_output=True, text=True, timeout=300)

    def run(self, host: str, command: str, check: bool = True) -> str:
        """Run a shell command in a container; returns what it printed."""
        done = self.podman("exec", self.names[host], "sh", "-c", command, check=False)
        assert not check or done.returncode == 0, f"{command} in {host}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, hosts: list[str], image: str = "debian12", volumes: Sequence[str] = ()) -> None:
        """Start a container for each host and write the inventory, all in group gpu_nodes.

        volumes: folders of this machine and where they are seen, as podman's --volume takes them.
        """
        tag = subprocess.run(
            [TOOLS / "container_images", "build", image], check=True, capture_output=True, text=True
        ).stdout.strip()
        for host in hosts:
            self.names[host] = f"gpufleet-test-{uuid.uuid4().hex[:12]}"
            self.podman(
                "run", "--detach", "--systemd=always", "--hostname", host, "--name", self.names[host],
                "--cap-drop=SYS_TIME,SYS_MODULE,SYS_RAWIO", *[f"--volume={volume}" for volume in volumes], tag,
            )  # fmt: skip
        for host in hosts:
            self.run(host, "systemctl is-system-running --wait || true")
        variables = {
            "node_profile": "lab",
            "node_profile_overrides_fleet": {"platform": {"clock": {"servers": [{"address": "192.0.2.1"}]}}},
            "ansible_connection": "containers.podman.podman",
            "ansible_podman_executable": str(TOOLS / "podman"),
        }
        entries = {host: {"ansible_host": name} for host, name in self.names.items()}
        self.inventory.write_text(yaml.safe_dump({"gpu_nodes": {"vars": variables, "hosts": entries}}))

    def remove(self) -> None:
        for name in self.names.values():
            self.podman("rm", "--force", "--time", "0", name, check=False)


StartContainers = Callable[..., Containers]


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    """Nothing started yet; all that the test starts is removed."""
    mine = Containers(tmp_path)
    yield mine
    mine.remove()
