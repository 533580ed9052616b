# SPDX-License-Identifier: Apache-2.0
"""The stand-ins of the vendors' packages: each says where its facts come from, and is a package that dpkg takes."""

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.vendor_repository.container_stand_ins import distribution, engine_repository, toolkit_repository
from tests.vendor_repository.dcgm_stand_ins import dcgm_repository
from tests.vendor_repository.deb_archive import Package, write_deb
from tests.vendor_repository.stand_ins import cuda_repository, doca_repository

MANIFEST = Path(__file__).resolve().parents[2] / "vendor_repository" / "MANIFEST.tsv"


def test_the_manifest_names_a_source_for_every_stand_in() -> None:
    with MANIFEST.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t", strict=True))
    assert all(set(row) == {"package", "fact", "source"} and all(row.values()) for row in rows)
    listed = {row["package"] for row in rows}
    packages = [*cuda_repository(), *doca_repository(), *dcgm_repository()]
    packages += [*engine_repository(), *distribution(), *toolkit_repository()]
    names = {package.name for package in packages}
    names = {re.sub(r"(nvidia-driver-pinning)-.*", r"\1-<version>", name) for name in names}
    assert listed - {"Release of both repositories"} == names


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="only Debian has dpkg-deb")
def test_dpkg_reads_what_is_written(tmp_path: Path) -> None:
    package = Package(
        "stand-in", "1:2.0-1", {"Depends": "x (= 1)"}, {"/etc/stand-in.conf": "text\n"}, postinst="exit 0", payload=1001
    )
    path = write_deb(package, tmp_path)
    assert path.name == "stand-in_1%3a2.0-1_all.deb"

    def dpkg_deb(*arguments: str) -> str:
        return subprocess.run(["dpkg-deb", *arguments], check=True, capture_output=True, text=True).stdout

    assert dpkg_deb("--field", str(path), "Version", "Depends") == "Version: 1:2.0-1\nDepends: x (= 1)\n"
    dpkg_deb("--raw-extract", str(path), str(tmp_path / "out"))
    assert (tmp_path / "out/etc/stand-in.conf").read_text() == "text\n"
    assert (tmp_path / "out/DEBIAN/conffiles").read_text() == "/etc/stand-in.conf\n"
    assert (tmp_path / "out/DEBIAN/postinst").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out/usr/share/doc/stand-in/payload").stat().st_size == 1001
