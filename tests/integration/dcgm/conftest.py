# SPDX-License-Identifier: Apache-2.0
"""Containers with the stand-ins of DCGM as a mirror, and a PCI bus that shows GPUs when a test says so."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.roles.conftest import Containers
from tests.playbook import PlaybookRun, run_playbook
from tests.vendor_repository.dcgm_stand_ins import write

BUS = "/sys/bus/pci/devices"
# A listing of what a run could alter, to compare.
STATE = (
    "dpkg-query --show --showformat='${Package} ${db:Status-Abbrev} ${Version}\\n'; apt-mark showhold; "
    "find /etc /usr/local -type f ! -name '*.dpkg-*' | sort | xargs sha256sum"
)
MONITORING = ("dcgm", "dcgm_exporter")


class MountingContainers(Containers):
    """Containers whose systemd may mount, as on a node: without that systemd 257 ends hardened units with 217/USER."""

    def podman(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command, *rest = arguments
        more = ["--cap-add=SYS_ADMIN"] if command == "run" else []
        return super().podman(command, *more, *rest, check=check)


class DcgmNodes:
    """The containers, by their image, and the ways of a test to them."""

    def __init__(self, containers: Containers, folder: Path, sha256: str) -> None:
        self._containers, self._folder, self._runs = containers, folder, iter(range(1000))
        self._repository = {
            "uri": "file:/srv/vendor/", "suites": ["/"], "components": [], "key_url": "file:/srv/vendor/key.asc",
            "key_sha256": sha256,
        }  # fmt: skip

    @property
    def hosts(self) -> list[str]:
        """Their names."""
        return list(self._containers.names)

    def sh(self, command: str, host: str, check: bool = True) -> str:
        """Run a shell command as root; returns what it printed."""
        return self._containers.run(host, command, check=check).strip()

    def says(self, command: str, check: bool = True) -> str:
        """What a command prints on each node, which must be the same."""
        told = {self.sh(command, host, check) for host in self.hosts}
        assert len(told) == 1, told
        return told.pop()

    def gpus(self, count: int) -> None:
        """Lay a PCI bus with as many GPUs over each container's own."""
        devices = "".join(
            f"mkdir {BUS}/0000:{number + 25:02x}:00.0; echo 0x10de >{BUS}/0000:{number + 25:02x}:00.0/vendor; "
            f"echo 0x030200 >{BUS}/0000:{number + 25:02x}:00.0/class; "
            for number in range(count)
        )
        command = f"mountpoint -q {BUS} || mount -t tmpfs -o mode=755 none {BUS}; rm -rf {BUS}/*; {devices}"
        self.says(command)

    def run(
        self, roles: tuple[str, ...] = MONITORING, dcgm: Any = (), exporter: Any = (), limit: str = "", **variables: Any
    ) -> PlaybookRun:
        """Apply roles. dcgm, exporter: what differs in packages.dcgm and packages.dcgm_exporter of the profile."""
        packages = {
            "dcgm": {
                "manage": True, "source": "mirror", "cuda_major": 13, "watches": ["pcie", "thermal"],
                "repository": self._repository, **dict(dcgm),
            },
            "dcgm_exporter": {"manage": True, "run_as": "service", **dict(exporter)},
        }  # fmt: skip
        tasks = [
            {"name": role, "ansible.builtin.import_role": {"name": role, "rolespec_validate": False}} for role in roles
        ]
        number = next(self._runs)
        playbook = self._folder / f"play{number}.yml"
        playbook.write_text(
            json.dumps([{"name": "Roles", "hosts": "gpu_nodes", "gather_facts": False, "tasks": tasks}])
        )
        extra = json.dumps({"node_profile_overrides_group": {"packages": packages}, **variables})
        options = ["-i", str(self._containers.inventory), "-e", extra, *(["--limit", limit] if limit else [])]
        return run_playbook(str(playbook), self._folder / f"run{number}", *options)

    def apply(self, **words: Any) -> int:
        """Apply roles, which must succeed; returns how many tasks changed something, all nodes together."""
        run = self.run(**words)
        assert run.code == 0, run.output
        return sum(run.host(host)["changed"] for host in ([words["limit"]] if words.get("limit") else self.hosts))

    def refused(self, *texts: str, **words: Any) -> None:
        """Apply roles, which must fail with each text and alter nothing."""
        hosts = [words["limit"]] if words.get("limit") else self.hosts
        before = [self.sh(STATE, host) for host in hosts]
        run = self.run(**words)
        told = json.dumps(run.report)
        assert run.code != 0, run.output
        for text in texts:
            assert text in told, run.output
        assert [self.sh(STATE, host) for host in hosts] == before


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[DcgmNodes]:
    """A fresh container of Debian 12 and one of Debian 13, without GPUs."""
    containers = MountingContainers(tmp_path)
    try:
        for image in ("debian12", "debian13"):
            containers.start([image], image)
        sha256 = write(tmp_path / "vendor")
        for name in containers.names.values():
            containers.podman("cp", str(tmp_path / "vendor"), f"{name}:/srv/")
            # Debian's own lists cost each run seconds; a test that wants them puts them back.
            containers.podman("exec", name, "mv", "/etc/apt/sources.list", "/root/")
        yield DcgmNodes(containers, tmp_path, sha256)
    finally:
        containers.remove()
