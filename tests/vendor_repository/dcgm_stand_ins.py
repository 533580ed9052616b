# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for DCGM and its exporter: NVIDIA's names, relations and units, with programs that answer.

`python -m tests.vendor_repository.dcgm_stand_ins FOLDER` writes them as a signed repository. Where each fact comes from
stands in MANIFEST.tsv.
"""

import hashlib
import sys
from pathlib import Path

from tests.vendor_repository.deb_archive import Package, SigningKey, key_ring, write_repository

PROGRAMS = Path(__file__).parent / "dcgm_programs"
# Two releases; one from which on -core has no payload; the newest of the generation before.
OLD, NEW, SPLIT, BEFORE = "4.4.2", "4.5.3", "4.7.0", "3.3.9"
# The exporters that were built for the first two.
EXPORTER_OLD, EXPORTER_NEW = "4.7.0", "4.8.2"
BUILT_FOR = {EXPORTER_OLD: OLD, EXPORTER_NEW: NEW}
NAME = "datacenter-gpu-manager"
CORE = f"{NAME}-4-core"
EXPORTER = f"{NAME}-exporter"

UNIT = """[Unit]
Description=NVIDIA DCGM service

[Service]
User=root
PrivateTmp=false
Environment="DCGM_HOME_DIR=/var/log/nvidia-dcgm"
ExecStart=/usr/bin/nv-hostengine -n --service-account nvidia-dcgm
Restart=on-abort

[Install]
Alias=dcgm.service
WantedBy=multi-user.target
"""
EXPORTER_UNIT = """[Unit]
Description=NVIDIA DCGM-exporter service
Wants=nvidia-dcgm.service
After=nvidia-dcgm.service

[Service]
User=root
PrivateTmp=false
StandardOutput=append:/var/log/dcgm-exporter.log
StandardError=append:/var/log/dcgm-exporter.log
ExecStart=/usr/bin/dcgm-exporter -f /etc/dcgm-exporter/default-counters.csv
Restart=on-abort

[Install]
WantedBy=multi-user.target
"""
ACCOUNT = """useradd -Urs /usr/sbin/nologin nvidia-dcgm
status=$?
[ $status = 0 ] || [ $status = 9 ] || exit $status
mkdir -p /var/log/nvidia-dcgm"""


def program(name: str, version: str, built_for: str = "") -> str:
    """A stand-in program of a version."""
    text = (PROGRAMS / f"{name}.py").read_text()
    text = text.replace('VERSION = "0.0.0"', f'VERSION = "{version}"', 1)
    return text.replace('BUILT_FOR = "0.0.0"', f'BUILT_FOR = "{built_for}"', 1)


def payload(version: str) -> dict[str, str]:
    """What a node needs of DCGM."""
    return {
        "/usr/bin/nv-hostengine": program("nv_hostengine", version),
        "/usr/bin/dcgmi": program("dcgmi", version),
        "/usr/lib/systemd/system/nvidia-dcgm.service": UNIT,
    }


def release(version: str) -> list[Package]:
    """A release of DCGM 4."""
    full = f"1:{version}-1"
    bound = f"{CORE} (= {full})"
    if version == SPLIT:
        core = [
            Package(CORE, full, {"Depends": f"nv-hostengine (= {full})", "Conflicts": NAME}),
            Package("nv-hostengine", full, {"Breaks": f"{CORE} (<< {full})", "Replaces": f"{CORE} (<< {full})"},
                    payload(version), ACCOUNT),
        ]  # fmt: skip
    else:
        core = [Package(CORE, full, {"Conflicts": NAME}, payload(version), ACCOUNT)]
    proprietary = f"{NAME}-4-proprietary"
    packages = [*core, Package(proprietary, full, {} if version == SPLIT else {"Depends": bound})]
    for major in (12, 13):
        own = f"{proprietary}-cuda{major}"
        relations = {"Depends": bound, "Provides": f"{NAME}-4 (= {full})", "Recommends": own}
        packages.append(Package(f"{NAME}-4-cuda{major}", full, relations, payload=50_000))
        packages.append(Package(own, full, {"Depends": f"{proprietary} (= {full})"}))
    return packages


def exporter(version: str) -> Package:
    """A release of the exporter."""
    files = {
        "/usr/bin/dcgm-exporter": program("dcgm_exporter", version, BUILT_FOR[version]),
        "/usr/lib/systemd/system/nvidia-dcgm-exporter.service": EXPORTER_UNIT,
        "/etc/dcgm-exporter/default-counters.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\n",
    }
    return Package(EXPORTER, f"{version}-1", {"Depends": f"{CORE} (>= 1:4)"}, files)


def dcgm_repository() -> list[Package]:
    """The part of NVIDIA's CUDA network repository that is DCGM's."""
    before = Package(NAME, f"1:{BEFORE}", {}, payload(BEFORE))
    packages = [package for version in (OLD, NEW, SPLIT) for package in release(version)]
    return [*packages, before, *(exporter(version) for version in BUILT_FOR)]


def write(folder: Path) -> str:
    """Write the signed repository with its key (key.asc) and the SHA-256 of that (key.sha256); returns the SHA-256."""
    with key_ring() as home:
        key = SigningKey(home, "dcgm")
        write_repository(folder, dcgm_repository(), key, {"Origin": "NVIDIA", "Label": "NVIDIA stand-in"})
    sha256 = hashlib.sha256((folder / "key.asc").read_bytes()).hexdigest()
    (folder / "key.sha256").write_text(sha256)
    return sha256


if __name__ == "__main__":
    write(Path(sys.argv[1]))
