# SPDX-License-Identifier: Apache-2.0
"""Two nodes, the server of a vendor beyond the uplink, and apt-cacher-ng before it, on a network of their own."""

import hashlib
import re
import shutil
import subprocess
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tests.integration.roles.conftest import REPOSITORY, TOOLS, Containers
from tests.playbook import PlaybookRun, run_playbook
from tests.vendor_repository.deb_archive import SigningKey, key_ring, write_repository
from tests.vendor_repository.stand_ins import NEW, doca_repository, driver

NODES = ["gpu-1", "gpu-2"]
# Repositories of the vendor's server, one for each way of asking it, so that no cache has seen it.
DRIVER_BY_MIRROR, DRIVER_BY_PROXY, RDMA_BY_MIRROR = "mirror/cuda", "proxy/cuda", "mirror/doca"
# What NVIDIA's CUDA repository, Docker's and the container toolkit's call their keys: apt-cacher-ng refuses such names
# unless it is told.
KEY_FILES = {DRIVER_BY_MIRROR: "3bf863cc.pub", DRIVER_BY_PROXY: "gpg", RDMA_BY_MIRROR: "gpgkey"}
VENDOR = Path(__file__).with_name("uplink_server.py")
# Debian's packages of the image come through whatever this machine has for that; the vendor's must not.
CACHER = """\
set -e; export DEBIAN_FRONTEND=noninteractive
systemctl is-system-running --wait >&2 || true
apt-get update >&2 || { sleep 5; apt-get update >&2; }
apt-get install --yes --no-install-recommends apt-cacher-ng >&2
"""
NODE = "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /etc/apt/apt.conf.d/99mmdebstrap /var/lib/apt/lists/*"
UPSTREAM = """\
set -e; cd /root
systemctl is-system-running --wait >&2 || true
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out certificate.pem \
  -days 365 -subj /CN=upstream -addext subjectAltName=DNS:upstream 2>/dev/null
touch sent.log
systemd-run --quiet --unit=uplink --working-directory=/root \
  python3 uplink_server.py /srv/vendor certificate.pem key.pem sent.log
"""
# What update-ca-certificates does for all authorities, in ten times the seconds.
TRUST = """\
set -e; cd /etc/ssl/certs
ln -s upstream.pem "$(openssl x509 -noout -hash -in upstream.pem).0"
systemctl restart apt-cacher-ng
"""
FRESH = r"""
names=$(dpkg-query --show --showformat='${Package} ${Maintainer}\n' | sed -n 's/ gpufleet tests .*//p')
[ -z "$names" ] || { apt-mark unhold $names; dpkg --purge --force-all $names; } >/dev/null 2>&1
rm -rf /etc/apt/*/*gpufleet* /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
"""


def documented_settings() -> str:
    """What docs/operations.md has an operator write into apt-cacher-ng's configuration."""
    text = (REPOSITORY / "docs" / "operations.md").read_text()
    found = re.search(r"```\n# /etc/apt-cacher-ng/gpufleet\.conf\n(.*?)```", text, re.DOTALL)
    assert found, "docs/operations.md no longer has the settings of apt-cacher-ng"
    return found[1]


class Uplink(Containers):
    """The containers, and what crossed the uplink."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self._network = f"gpufleet-test-{uuid.uuid4().hex[:12]}"
        self._key_sha256 = ""

    def set_up(self, payload_bytes: int) -> None:
        """Start everything; a package of the vendor has a payload of that size, which does not compress."""
        self.podman("network", "create", self._network)
        image = subprocess.run(
            [TOOLS / "container_images", "build", "debian12"], check=True, capture_output=True, text=True
        ).stdout.strip()
        known = self._start(image, "upstream", {})
        known |= self._start(image, "cacher", known)
        with ThreadPoolExecutor() as pool:  # the cacher's installation takes longer than all the rest
            installation = pool.submit(self.run, "cacher", CACHER)
            self._serve(payload_bytes)
            for node in NODES:
                self._start(image, node, known)
                self.run(node, NODE)
            installation.result()
        self._configure_cacher()

    def _start(self, image: str, host: str, known: dict[str, str]) -> dict[str, str]:
        """Start a container that knows others by name; returns its own name and address."""
        self.names[host] = f"gpufleet-test-{uuid.uuid4().hex[:12]}"
        self.podman(
            "run", "--detach", "--systemd=always", "--hostname", host, "--name", self.names[host],
            "--network", self._network, "--cap-drop=SYS_TIME,SYS_MODULE,SYS_RAWIO",
            *[f"--add-host={name}:{address}" for name, address in known.items()], image,
        )  # fmt: skip
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return {host: self.podman("inspect", "--format", form, self.names[host]).stdout.strip()}

    def _serve(self, payload_bytes: int) -> None:
        """The signed repositories, behind the vendor's server."""
        vendor = self._folder / "vendor"
        cuda = [
            replace(package, payload=payload_bytes) if package.name == "nvidia-driver-cuda" else package
            for package in driver(NEW)
        ]
        with key_ring() as home:
            key = SigningKey(home, "vendor")
            write_repository(vendor / DRIVER_BY_MIRROR, cuda, key, {"Origin": "NVIDIA"})
            write_repository(vendor / RDMA_BY_MIRROR, doca_repository(), key, {"Origin": "Mellanox"})
            self._key_sha256 = hashlib.sha256(key.public()).hexdigest()
        shutil.copytree(vendor / DRIVER_BY_MIRROR, vendor / DRIVER_BY_PROXY)
        for name, key_file in KEY_FILES.items():
            (vendor / name / "key.asc").rename(vendor / name / key_file)
        self.podman("cp", str(vendor), f"{self.names['upstream']}:/srv/vendor")
        self.podman("cp", str(VENDOR), f"{self.names['upstream']}:/root/")
        self.run("upstream", UPSTREAM)
        self._wait_for_port("upstream", 443)

    def _configure_cacher(self) -> None:
        settings, certificate = self._folder / "gpufleet.conf", self._folder / "certificate.pem"
        settings.write_text(documented_settings())
        self.podman("cp", f"{self.names['upstream']}:/root/certificate.pem", str(certificate))
        self.podman("cp", str(settings), f"{self.names['cacher']}:/etc/apt-cacher-ng/gpufleet.conf")
        self.podman("cp", str(certificate), f"{self.names['cacher']}:/etc/ssl/certs/upstream.pem")
        self.run("cacher", TRUST)
        self._wait_for_port("cacher", 3142)

    def _wait_for_port(self, host: str, port: int) -> None:
        self.run(host, f"timeout 60 bash -c 'until (: </dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.2; done'")

    def repository(self, name: str, server: str) -> dict[str, Any]:
        """A repository of the vendor as the profile names it; `server` is what stands before its name."""
        uri = f"{server}/{name}/"
        key = {"key_url": f"{uri}{KEY_FILES[name]}", "key_sha256": self._key_sha256}
        return {"uri": uri, "suites": ["/"], "components": [], **key}

    def install(self, tags: str, packages: dict[str, Any], **variables: Any) -> PlaybookRun:
        """Have both nodes install parts of the GPU stack, as an operator does.

        packages: deviations from the section `packages` of the lab's profile. Further arguments go into the inventory.
        """
        for node in NODES:
            self.run(node, FRESH)
        self.run("upstream", ": >/root/sent.log")
        clock = {"clock": {"servers": [{"address": "192.0.2.1"}]}}
        group = {
            "ansible_connection": "containers.podman.podman",
            "ansible_podman_executable": str(TOOLS / "podman"),
            "node_profile": "lab",
            "node_profile_overrides_fleet": {"platform": clock, "packages": packages},
            **variables,
        }
        hosts = {node: {"ansible_host": self.names[node]} for node in NODES}
        self.inventory.write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": group}}))
        work = self._folder / f"reports-{uuid.uuid4().hex[:8]}"
        return run_playbook("playbooks/gpu_stack.yml", work, "-i", str(self.inventory), "--tags", tags)

    def crossed(self) -> dict[str, list[int]]:
        """Bytes of each body that crossed the uplink since the last installation began, by the file's name."""
        found: dict[str, list[int]] = defaultdict(list)
        for line in self.run("upstream", "cat /root/sent.log").splitlines():
            size, path = line.split(" ", 1)
            found[path.rpartition("/")[2]].append(int(size))
        return found

    def remove(self) -> None:
        """Take away the containers, then their network."""
        super().remove()
        self.podman("network", "rm", "--force", self._network, check=False)
