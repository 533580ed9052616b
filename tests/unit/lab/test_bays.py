# SPDX-License-Identifier: Apache-2.0
"""Which disk is in which bay: moves, refusals, and a shape that changed under a node's state."""

import json
from pathlib import Path

import pytest

from lab.bays import DiskBays, parse_shown
from lab.errors import LabError
from lab.supervisor import NodeState, load_state


@pytest.fixture
def disks() -> DiskBays:
    """Three bays with their disks, two spares in the drawer."""
    return DiskBays(["D1", "D2", "D3"], ["S1", "S2"], [], [])


def test_a_new_node_has_its_disks_in_their_bays_and_spares_in_the_drawer(disks: DiskBays) -> None:
    assert disks.bays == ["D1", "D2", "D3"]
    assert disks.drawer == ["S1", "S2"]


def test_a_disk_goes_back_to_its_own_bay_although_an_earlier_one_is_empty(disks: DiskBays) -> None:
    disks.take_out("D1")
    disks.take_out("D3")
    assert disks.bay_for("D3") == 2
    assert disks.bay_for("S2") == 0


def test_a_disk_whose_bay_is_taken_goes_into_the_first_empty_one(disks: DiskBays) -> None:
    for serial in ("D1", "D2"):
        disks.take_out(serial)
    disks.put_in("S1", 0)
    assert disks.bay_for("D1") == 1
    assert disks.drawer == ["S2", "D1", "D2"]


def test_a_full_node_says_what_to_do(disks: DiskBays) -> None:
    with pytest.raises(LabError, match=r"no bay is free for disk S1 \(D1, D2, D3\); pull one first: disk-pull SERIAL"):
        disks.bay_for("S1")


def test_a_disk_in_a_bay_has_no_other_place(disks: DiskBays) -> None:
    disks.take_out("D1")
    with pytest.raises(LabError, match="disk D2 is in bay 2 already"):
        disks.bay_for("D2")


def test_taking_out_twice_is_taking_out_once(disks: DiskBays) -> None:
    disks.take_out("D2")
    disks.take_out("D2")
    assert disks.drawer == ["S1", "S2", "D2"]


def test_an_unknown_disk_is_refused_with_those_there_are(disks: DiskBays) -> None:
    for act in (disks.bay_of, disks.bay_for, disks.take_out, disks.require_out):
        with pytest.raises(LabError, match="no disk 'D9'; it has D1, D2, D3, S1, S2"):
            act("D9")


def test_only_a_disk_in_the_drawer_passes_for_out(disks: DiskBays) -> None:
    disks.require_out("S1")
    with pytest.raises(LabError, match="disk D2 is in bay 2; pull it first: disk-pull D2"):
        disks.require_out("D2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("D1", "name the two disks to swap as SERIAL,SERIAL"),
        ("D1,D1", "name the two disks to swap"),
        ("D1,D2,D3", "name the two disks to swap"),
        ("D1,D9", "no disk 'D9'"),
        ("D1,S1", "disk S1 is in no bay"),
    ],
)
def test_a_pair_that_cannot_be_swapped(disks: DiskBays, text: str, message: str) -> None:
    with pytest.raises(LabError, match=message):
        disks.pair_to_swap(text)


def test_a_pair_to_swap(disks: DiskBays) -> None:
    assert disks.pair_to_swap("D3,D1") == ("D3", "D1")


def test_moves_outlive_a_restart() -> None:
    disks = DiskBays(["D1", "D2"], ["S1"], ["D2", "S1"], ["D1"])
    assert (disks.bays, disks.drawer) == (["D2", "S1"], ["D1"])


def test_a_changed_shape_moves_no_disk_that_stays() -> None:
    grown = DiskBays(["D1", "D2", "D3"], ["S1", "S2"], ["D2", ""], ["S1", "D1"])
    assert (grown.bays, grown.drawer) == (["D2", "", "D3"], ["S1", "D1", "S2"])
    shrunk = DiskBays(["D1", "D2"], [], ["", "D2", "D1"], ["S1", "D3"])
    assert (shrunk.bays, shrunk.drawer) == (["", "D2"], ["D1"]), "bay 3 is gone, its disk is not"


def test_a_state_of_an_older_lab_keeps_its_pulled_disks(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"power": "off", "pulled": ["D2"]}))
    state = load_state(path)
    assert state == NodeState(power="off", reason="never started", drawer=["D2"])
    assert DiskBays(["D1", "D2"], ["S1"], state.bays, state.drawer).bays == ["D1", ""]


@pytest.mark.parametrize(("text", "parsed"), [("D1=D2", ("D1", "D2")), ("D1=", ("D1", "")), ("D1=a=b", ("D1", "a=b"))])
def test_a_shown_serial(text: str, parsed: tuple[str, str]) -> None:
    assert parse_shown(text) == parsed


@pytest.mark.parametrize("text", ["D1", "=D1", "D1=a b", "D1=" + "x" * 21, "D1=ä"])
def test_a_shown_serial_that_is_none(text: str) -> None:
    with pytest.raises(LabError):
        parse_shown(text)
