# SPDX-License-Identifier: Apache-2.0
"""Which exporter goes with which DCGM."""

import pytest
from ansible.module_utils.gpufleet.dcgm_pairing import (
    BUILT_FOR,
    ImageVersions,
    mismatch,
    needs,
    newest_for,
    parse_image,
    parse_version,
    show,
)


@pytest.mark.parametrize(
    ("dcgm", "exporter"),
    [("1:4.5.3-1", "4.8.2"), ("4.6.1", "4.8.2"), ("4.4.2", "4.7.1"), ("3.3.9", "3.6.1"), ("4.7.0", "4.9.0")],
)
def test_pairs(dcgm: str, exporter: str) -> None:
    assert mismatch(dcgm, exporter) is None


@pytest.mark.parametrize(
    ("dcgm", "exporter", "said"),
    [
        ("1:4.4.2-1", "4.8.2", "was built for DCGM 4.5.3, and the node has the older 4.4.2"),
        # NVIDIA/dcgm-exporter#530: from 3 to 4
        ("3.3.9", "4.2.0", "is for DCGM 4 (built for 4.2.3), and the node has DCGM 3.3.9, of another major"),
        ("4.5.3", "3.6.1", "is for DCGM 3 (built for 3.3.9), and the node has DCGM 4.5.3, of another major"),
        # a release that is not listed needs what the newest listed one does, at least
        ("4.5.2", "4.9.9", "was built for DCGM 4.5.3"),
    ],
)
def test_no_pairs(dcgm: str, exporter: str, said: str) -> None:
    found = mismatch(dcgm, exporter)
    assert found is not None and said in found


def test_the_image_says_its_own_pair() -> None:
    assert parse_image("nvcr.io/nvidia/k8s/dcgm-exporter:4.5.3-4.8.2-ubuntu22.04") == ImageVersions("4.5.3", "4.8.2")
    assert parse_image("registry.example.com:5000/dcgm-exporter:4.5.3-4.8.2") == ImageVersions("4.5.3", "4.8.2")
    for image in ("mirror:5000/dcgm-exporter@sha256:" + "0" * 64, "dcgm-exporter:latest", "mirror:5000/dcgm-exporter"):
        assert parse_image(image) is None
    assert mismatch("4.5.2", "4.8.2", "4.5.3") is not None
    assert mismatch("4.5.3", "9.9.9", "4.5.3") is None


def test_the_newest_for_a_dcgm() -> None:
    assert newest_for("1:4.4.2-1") == "4.7.0"
    assert newest_for("4.6.1") == "4.8.2"
    assert newest_for("2.4.7") is None


def test_each_row_is_a_pair_of_one_generation_and_they_rise_together() -> None:
    rows = sorted(BUILT_FOR.items())
    assert [built for _exporter, built in rows] == sorted(built for _exporter, built in rows)
    assert all(exporter[0] == built[0] for exporter, built in rows)
    assert needs("4.8.2") == (4, 5, 3) and show(parse_version("1:4.5.3-1")) == "4.5.3"
    with pytest.raises(ValueError, match="is no version"):
        parse_version("latest")
