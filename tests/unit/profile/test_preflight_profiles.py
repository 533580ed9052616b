# SPDX-License-Identifier: Apache-2.0
"""Preflight's check of a host's profile variables."""

from ansible.module_utils.gpufleet_controller.preflight_profiles import (
    name_findings,
    profile_findings,
    variable_findings,
)
from ansible.module_utils.gpufleet_controller.profile_files import DEFAULT_DIR

LAYERS = ["node_profile_overrides_fleet", "node_profile_overrides_host"]


def test_variables_of_a_good_host_pass() -> None:
    assert variable_findings({"profile": "template", "node_profile": "lab"}, "template") == []
    assert name_findings(["node_profile", "node_profile_dir", "node_profile_layers", *LAYERS, "other"], LAYERS) == []


def test_profile_set_by_hand_is_refused() -> None:
    (finding,) = variable_findings({"profile": {}, "node_profile": "lab"}, "template")
    assert finding.where == "profile" and "the inventory or the command line sets it" in finding.found
    (finding,) = variable_findings({"node_profile": "lab"}, "template")
    assert finding.found == "it is not there"


def test_missing_node_profile_names_the_variable_that_was_meant() -> None:
    (finding,) = variable_findings({"profile": "template", "node_profil": "lab"}, "template")
    assert finding.found == "it is not set; did you mean 'node_profil'?"


def test_unknown_layer_and_unknown_variable_are_refused() -> None:
    layer, variable = name_findings(["node_profile_overrides_hots", "node_profile_layer"], LAYERS)
    assert "did you mean 'node_profile_overrides_host'?" in layer.found
    assert layer.next_step == "rename it, or add 'hots' to node_profile_layers"
    assert "did you mean 'node_profile_layers'?" in variable.found


def test_problem_names_the_place_to_correct() -> None:
    fleet = {"platform": {"clock": {"max_offset_s": "1"}}}
    profile, findings = profile_findings(DEFAULT_DIR, "lab", [(LAYERS[0], fleet), (LAYERS[1], {"schema": 2})])
    assert profile is not None and profile["platform"]["cpu"]["sockets"] == 2
    assert [(finding.where, finding.next_step) for finding in findings] == [
        ("profile key schema", "correct it in node_profile_overrides_host"),
        ("profile key platform.clock.max_offset_s", "correct it in node_profile_overrides_fleet"),
    ]


def test_problem_of_the_file_itself_names_the_file(tmp_path) -> None:
    (tmp_path / "mine.yml").write_text("schema: 1\n")
    _profile, findings = profile_findings(str(tmp_path), "mine", [])
    assert {finding.next_step for finding in findings} == {"correct it in profiles/mine.yml"}


def test_unknown_profile_gives_none() -> None:
    profile, (finding,) = profile_findings(DEFAULT_DIR, "lba", [])
    assert profile is None
    assert "did you mean 'lab'?" in finding.found
