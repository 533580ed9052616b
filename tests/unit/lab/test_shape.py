# SPDX-License-Identifier: Apache-2.0
"""The node's shape: what is accepted, and that a refusal lists everything that is wrong."""

from typing import Any

import pytest

from lab.errors import LabError
from lab.shape import merge, parse_offset, parse_shape


def test_a_complete_shape_is_read(shape_data: dict[str, Any]) -> None:
    shape = parse_shape(shape_data, "LAB0001")
    assert shape.numa_nodes == 4
    assert shape.service_tag == "LAB0001"
    assert [disk.serial for disk in shape.data_disks] == ["DATA0001", "DATA0002"]


def test_a_shape_survives_being_written_and_read(shape_data: dict[str, Any]) -> None:
    shape = parse_shape(shape_data, "LAB0001")
    assert parse_shape(shape.as_dict(), "other") == shape


def test_a_service_tag_in_the_inventory_wins(shape_data: dict[str, Any]) -> None:
    shape_data["smbios"]["service_tag"] = "ABC1234"
    assert parse_shape(shape_data, "LAB0001").service_tag == "ABC1234"


def test_a_shape_without_spare_disks_is_valid(shape_data: dict[str, Any]) -> None:
    del shape_data["spare_disks"]
    shape = parse_shape(shape_data, "LAB0001")
    assert shape.spare_disks == () and shape.disks == shape.data_disks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"socket": 2}, "lab_node_shape.socket is unknown; did you mean sockets?"),
        ({"colour": 1}, "lab_node_shape.colour is unknown; allowed are bridges_outside_paths, clock_offset"),
        ({"sockets": "two"}, "lab_node_shape.sockets must be a int, not 'two'"),
        ({"sockets": True}, "lab_node_shape.sockets must be a int, not True"),
        ({"sockets": 0}, "lab_node_shape.sockets must be at least 1, not 0"),
        ({"cores": 7}, "cores (7) must be a multiple of sockets (2)"),
        ({"cores": 2}, "each of the 4 NUMA nodes needs equally many"),
        ({"memory_mib": 2049}, "memory_mib (2049) must divide by the 4 NUMA nodes"),
        ({"clock_offset": "3 years"}, "clock offset '3 years' is not understood"),
        ({"data_disks": [{"serial": "A B", "size_mib": 1}]}, "data_disks[0].serial 'A B'"),
        ({"data_disks": [{"serial": "A", "size_mib": 1}] * 2}, "data_disks[1].serial 'A' is used twice"),
        ({"data_disks": [{"serial": "A", "size_mib": 1, "model": "x"}]}, "data_disks[0].model is unknown"),
        ({"data_disks": [{"serial": "A"}]}, "data_disks[0].size_mib is missing"),
        ({"spare_disks": [{"serial": "DATA0001", "size_mib": 1}]}, "spare_disks[0].serial 'DATA0001' is used twice"),
        ({"spare_disks": [{"serial": "A"}]}, "spare_disks[0].size_mib is missing"),
        ({"pci_paths": [{"name": "a", "below": "bridge"}]}, "'bridge' must be one of root_ports, switch"),
        ({"bridges_outside_paths": 40}, "PCIe root ports, 28 are possible"),
        ({"smbios": {"manufacturer": "Dell Inc."}}, "lab_node_shape.smbios.product is missing"),
    ],
)
def test_a_wrong_value_is_named(shape_data: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError) as caught:
        parse_shape({**shape_data, **change}, "LAB0001")
    assert message in str(caught.value)


def test_all_problems_are_listed_at_once(shape_data: dict[str, Any]) -> None:
    with pytest.raises(LabError) as caught:
        parse_shape({**shape_data, "sockets": 0, "memory": 1, "clock_offset": "?"}, "LAB0001")
    assert len(str(caught.value).splitlines()) >= 4


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("+3y", 94608000), ("-90d", -7776000), ("2h", 7200), (45, 45), ("-1m", -60)]
)
def test_offsets(text: str | int, seconds: int) -> None:
    assert parse_offset(text) == seconds


def test_merge_keeps_what_the_override_does_not_name() -> None:
    base = {"sockets": 2, "smbios": {"product": "a", "manufacturer": "b"}, "data_disks": [1, 2]}
    merged = merge(base, {"smbios": {"product": "c"}, "data_disks": []})
    assert merged == {"sockets": 2, "smbios": {"product": "c", "manufacturer": "b"}, "data_disks": []}
