# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for docker-ce and the NVIDIA Container Toolkit: names and relations, with programs that answer.

`python -m tests.vendor_repository.container_stand_ins FOLDER` writes both as one signed repository and prints the
SHA-256 of its key. Where each fact comes from stands in MANIFEST.tsv.
"""

import hashlib
import sys
from pathlib import Path

from tests.vendor_repository.deb_archive import Package, SigningKey, key_ring, write_repository

PROGRAMS = Path(__file__).parent / "container_programs"
# Two patch releases of the engine, and the next release after them.
ENGINE_OLD, ENGINE_NEW, ENGINE_NEXT = "28.5.1", "28.5.2", "29.0.1"
TOOLKIT_OLD, TOOLKIT_NEW = "1.17.8", "1.18.2"
TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)

ENGINE_UNIT = """[Unit]
Description=Docker Application Container Engine
After=network-online.target docker.socket containerd.service
Wants=containerd.service
Requires=docker.socket
StartLimitBurst=3
StartLimitIntervalSec=60

[Service]
Type=notify
ExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock
ExecReload=/bin/kill -s HUP $MAINPID
RestartSec=2
Restart=always
KillMode=process

[Install]
WantedBy=multi-user.target
"""
ENGINE_SOCKET = """[Unit]
Description=Docker Socket for the API

[Socket]
ListenStream=/run/docker.sock
SocketMode=0660

[Install]
WantedBy=sockets.target
"""
CONTAINERD_UNIT = """[Unit]
Description=containerd container runtime

[Service]
ExecStart=/bin/sleep infinity

[Install]
WantedBy=multi-user.target
"""
# What debhelper makes of a service: enabled when it is installed first, restarted when it is upgraded.
START = """systemctl daemon-reload
for unit in {units}; do
  [ -n "$2" ] || systemctl enable --quiet $unit
  systemctl restart $unit || true
done"""


def program(name: str, version: str) -> str:
    """A stand-in program of a version."""
    return (PROGRAMS / f"{name}.py").read_text().replace('VERSION = "0.0.0"', f'VERSION = "{version}"', 1)


def engine(version: str) -> list[Package]:
    """A release of docker-ce and its CLI."""
    full = f"5:{version}-1~debian.12~bookworm"
    files = {
        "/usr/bin/dockerd": program("dockerd", version),
        "/usr/lib/systemd/system/docker.service": ENGINE_UNIT,
        "/usr/lib/systemd/system/docker.socket": ENGINE_SOCKET,
    }
    start = START.format(units="docker.socket docker.service")
    others = "docker (<< 1.5~), docker-engine, docker.io"
    return [
        Package(
            "docker-ce",
            full,
            {"Depends": "containerd.io (>= 1.7.27), docker-ce-cli", "Conflicts": others},
            files,
            start,
        ),
        Package("docker-ce-cli", full, {"Conflicts": others}),
    ]


def engine_repository() -> list[Package]:
    """Docker's own repository, and docker.io as the distribution has it."""
    packages = [package for version in (ENGINE_OLD, ENGINE_NEW, ENGINE_NEXT) for package in engine(version)]
    relations = {"Provides": "containerd, runc", "Conflicts": "containerd, runc", "Replaces": "containerd, runc"}
    unit = {"/usr/lib/systemd/system/containerd.service": CONTAINERD_UNIT}
    for version in ("1.7.27", "1.7.28"):
        start = START.format(units="containerd.service")
        packages.append(Package("containerd.io", f"{version}-1~debian.12~bookworm", relations, unit, start))
    packages.append(Package("docker-buildx-plugin", "0.29.1-1~debian.12~bookworm", {"Enhances": "docker-ce-cli"}))
    return packages


def distribution() -> list[Package]:
    """Of the distribution's packages those that stand against docker-ce."""
    return [
        Package("docker.io", "20.10.24+dfsg1-1", {"Depends": "containerd, runc"}),
        Package("containerd", "1.6.20~ds1-1"),
        Package("runc", "1.1.5+ds1-1"),
    ]


def toolkit(version: str) -> list[Package]:
    """A release of the toolkit."""
    full = f"{version}-1"
    old = {"Breaks": "nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook"}
    main, base, tools, library = TOOLKIT
    bound = f"{base} (= {full}), {tools} (= {full}), {tools} (<< 2.0.0)"
    files = {
        "/usr/bin/nvidia-ctk": program("nvidia_ctk", version),
        "/usr/bin/nvidia-container-runtime": '#!/bin/sh\nexec runc "$@"\n',
    }
    return [
        Package(main, full, {"Depends": bound, **old}, {"/usr/bin/nvidia-container-runtime-hook": "#!/bin/sh\n"}),
        Package(base, full, old, files),
        Package(tools, full, {"Depends": f"{library} (>= {full})"}),
        Package(library, full),
    ]


def toolkit_repository() -> list[Package]:
    """NVIDIA's repository of the toolkit."""
    return [package for version in (TOOLKIT_OLD, TOOLKIT_NEW) for package in toolkit(version)]


def write(folder: Path) -> str:
    """Write the signed repository; returns the SHA-256 of its key, which lies in it as key.asc."""
    packages = [*engine_repository(), *distribution(), *toolkit_repository()]
    with key_ring() as home:
        key = SigningKey(home, "containers")
        write_repository(folder, packages, key, {"Origin": "Docker", "Label": "Docker and toolkit stand-in"})
    return hashlib.sha256((folder / "key.asc").read_bytes()).hexdigest()


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
