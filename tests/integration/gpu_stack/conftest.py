# SPDX-License-Identifier: Apache-2.0
"""A container with the vendors' stand-in repositories behind an HTTP server, in which apt_stack runs with real apt.

The module runs in the container by itself, as Ansible would run it, since a whole playbook costs ten times the seconds.
"""

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ansible
import pytest

from tests.integration.roles.conftest import REPOSITORY, Containers
from tests.vendor_repository.deb_archive import SigningKey, key_ring, write_repository
from tests.vendor_repository.stand_ins import cuda_repository, doca_repository

PORT = 8080
DEBIAN_SOURCES = "/root/sources.list"
ADDRESS = f"http://127.0.0.1:{PORT}"
RUNNER = """\
import base64, json, runpy, sys
sys.path.insert(0, "/opt/run")
from ansible.module_utils.testing import patch_module_args
with patch_module_args(json.loads(base64.b64decode(sys.argv[1]))):
    runpy.run_path("/opt/run/apt_stack.py", run_name="__main__")
"""
# What a test may have left, back to a node without any of it.
FRESH = r"""
rm -rf /run/vendor-repository-build-fails /etc/apt/*/*gpufleet* /etc/apt/sources.list.d/* /etc/apt/preferences.d/* \
  /etc/apt/apt.conf.d/*test* /var/cache/apt/archives/*.deb
rm -rf /var/lib/apt/lists/127.0.0.1* /etc/apt/sources.list
systemctl stop holder 2>/dev/null; systemctl reset-failed
names=$(dpkg-query --show --showformat='${Package} ${Maintainer}\n' | sed -n 's/ gpufleet tests .*//p')
[ -z "$names" ] || { apt-mark unhold $names; dpkg --purge --force-all $names; } >/dev/null 2>&1
holds=$(apt-mark showhold); [ -z "$holds" ] || apt-mark unhold $holds >/dev/null
"""


class AptNode:
    """The container, and the ways of a test to it."""

    def __init__(self, containers: Containers, keys: dict[str, str]) -> None:
        self._containers, self.keys = containers, keys

    def sh(self, command: str, check: bool = True) -> str:
        """Run a shell command; returns what it printed."""
        return self._containers.run("node", command, check=check)

    def apply(self, check: bool = False, **arguments: Any) -> dict[str, Any]:
        """Run apt_stack and return its answer."""
        full = {"name": "nvidia-driver", "repository": self.repository("cuda"), **arguments}
        words = {**full, "_ansible_check_mode": check}
        encoded = base64.b64encode(json.dumps(words).encode()).decode()
        answer: dict[str, Any] = json.loads(self.sh(f"python3 -B /opt/run/run.py {encoded} 2>&1", check=False))
        assert "exception" not in answer, answer
        return answer

    def reset(self) -> None:
        """Take away all that belongs to the vendors, and what a test has put below /etc/apt."""
        self.sh(FRESH)

    def serve(self) -> None:
        """Start the vendors' server."""
        self.sh(f"systemd-run --quiet --unit=vendor python3 -m http.server --bind 127.0.0.1 -d /srv/vendor {PORT}")
        self.sh(f"until python3 -c 'import urllib.request as u; u.urlopen(\"{ADDRESS}/\")' 2>/dev/null; do :; done")

    def repository(self, name: str, key: str = "", **other: Any) -> dict[str, Any]:
        """The `repository` of a folder that the server has."""
        uri = f"{ADDRESS}/{name}/"
        given = {"uri": uri, "suites": ["/"], "key_url": f"{uri}key.asc", "key_sha256": self.keys[key or name]}
        return {**given, **other}

    def version(self, package: str) -> str:
        """Installed version, "" where there is none."""
        form = "--showformat='${db:Status-Status} ${Version}'"
        status, _blank, version = self.sh(f"dpkg-query --show {form} {package}", check=False).partition(" ")
        return version if status == "installed" else ""

    def held(self) -> list[str]:
        """Packages on hold."""
        return sorted(self.sh("apt-mark showhold").split())

    def state(self) -> str:
        """All that a run could alter, to compare."""
        return self.sh(
            "dpkg-query --show --showformat='${Package} ${db:Status-Abbrev} ${Version}\n'; find /etc/apt /var/lib/apt "
            "-type f ! -name lock ! -path '*/periodic/*' | sort | xargs sha256sum; ls /var/tmp"
        )


def copy_module(containers: Containers, folder: Path) -> None:
    """Put the module with what it imports of Ansible and of the repository into the container."""
    utils = folder / "run" / "ansible" / "module_utils"
    ignore = shutil.ignore_patterns("__pycache__", "powershell", "csharp", "facts")
    shutil.copytree(Path(ansible.__file__).parent / "module_utils", utils, ignore=ignore)
    shutil.copytree(REPOSITORY / "plugins/module_utils/gpufleet", utils / "gpufleet", ignore=ignore)
    (utils.parent / "__init__.py").touch()
    shutil.copy(REPOSITORY / "library/apt_stack.py", folder / "run")
    (folder / "run" / "run.py").write_text(RUNNER)
    containers.podman("cp", str(folder / "run"), f"{containers.names['node']}:/opt/run")


def write_repositories(folder: Path) -> dict[str, str]:
    """The stand-in repositories; returns the SHA-256 of each key."""
    packages = {"cuda": cuda_repository(), "doca": doca_repository()}
    release = {"Origin": "NVIDIA", "Label": "NVIDIA stand-in"}
    with key_ring() as home:
        valid = SigningKey(home, "valid")
        for name, content in packages.items():
            write_repository(folder / name, content, valid, release)
        expired = SigningKey(home, "expired", "20200101T000000")
        write_repository(folder / "expired", cuda_repository()[:7], expired, release)
        expired.expire("20200101T010000")
        (folder / "expired" / "key.asc").write_bytes(expired.public())
        stale = {**release, "Valid-Until": "Thu, 08 Jan 2026 00:00:00 UTC"}
        write_repository(folder / "stale", cuda_repository()[:7], valid, stale)
        shutil.copytree(folder / "cuda", folder / "mirror")
        other = SigningKey(home, "other")
        (folder / "other.asc").write_bytes(other.public())
    keys = {path.parent.name: path for path in folder.glob("*/key.asc")} | {"other": folder / "other.asc"}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in keys.items()}


@pytest.fixture(scope="module", params=["debian12", "debian13"])
def shared_node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AptNode]:
    """One container for all tests of a file."""
    folder = tmp_path_factory.mktemp(request.param)
    containers = Containers(folder)
    try:
        containers.start(["node"], request.param)
        keys = write_repositories(folder / "vendor")
        containers.podman("cp", str(folder / "vendor"), f"{containers.names['node']}:/srv/vendor")
        copy_module(containers, folder)
        containers.run(
            "node",
            "export DEBIAN_FRONTEND=noninteractive; apt-get update >&2; "
            "apt-get install --yes --no-install-recommends unattended-upgrades >&2; "
            # Debian's lists cost each test seconds; a test that wants them puts them back.
            f"mv /etc/apt/sources.list {DEBIAN_SOURCES}",
        )
        node = AptNode(containers, keys)
        node.serve()
        yield node
    finally:
        containers.remove()


@pytest.fixture
def node(shared_node: AptNode) -> AptNode:
    """The container, without anything of the vendors."""
    shared_node.reset()
    return shared_node
