# SPDX-License-Identifier: Apache-2.0
"""Every recorded or written output says where it comes from and how it is to be read."""

import csv
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def test_the_manifest_lists_every_file_once():
    with (FIXTURES / "MANIFEST.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t", strict=True))
    assert all(all(value and value.strip() for value in row.values()) and None not in row for row in rows)
    listed = [row["file"] for row in rows if row["file"].startswith("zfs/")]
    there = [str(path.relative_to(FIXTURES)) for path in (FIXTURES / "zfs").rglob("*") if path.is_file()]
    assert sorted(listed) == sorted(there)
