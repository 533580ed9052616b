# SPDX-License-Identifier: Apache-2.0
"""The merge of a profile with its override layers, and the reading of profile files."""

from pathlib import Path

import pytest
from ansible.module_utils.gpufleet_controller.profile_files import DEFAULT_DIR, load_profile, profile_names
from ansible.module_utils.gpufleet_controller.profile_merge import (
    ProfileError,
    layer_variables,
    merge,
    merge_layers,
    unknown_layers,
)


def test_dicts_are_merged_and_everything_else_is_replaced() -> None:
    base = {"a": {"x": 1, "y": {"p": 1, "q": 2}}, "list": [1, 2], "kept": 0}
    override = {"a": {"y": {"q": 3}, "z": 4}, "list": [9], "new": {"k": None}}
    assert merge(base, override) == {
        "a": {"x": 1, "y": {"p": 1, "q": 3}, "z": 4},
        "list": [9],
        "kept": 0,
        "new": {"k": None},
    }
    assert base == {"a": {"x": 1, "y": {"p": 1, "q": 2}}, "list": [1, 2], "kept": 0}


def test_null_replaces_a_section() -> None:
    assert merge({"limits": {"gpu": {"memory_mib": 1}}}, {"limits": {"gpu": None}}) == {"limits": {"gpu": None}}


def test_later_layer_wins_and_an_empty_one_changes_nothing() -> None:
    layers = [("node_profile_overrides_fleet", {"a": 1, "b": 1}), ("node_profile_overrides_group", None)]
    layers.append(("node_profile_overrides_host", {"b": 2}))
    assert merge_layers({"c": 0}, layers) == {"c": 0, "a": 1, "b": 2}


def test_layer_that_is_no_section_is_refused_by_name() -> None:
    with pytest.raises(ProfileError, match=r"node_profile_overrides_host must be a section .* found list \['x'\]"):
        merge_layers({}, [("node_profile_overrides_host", ["x"])])


@pytest.mark.parametrize("layers", ["fleet", ["a", "a"], ["a b"], [1], {"a": 1}, None])
def test_list_of_layers_must_be_different_names(layers: object) -> None:
    with pytest.raises(ProfileError, match="node_profile_layers must be a list"):
        layer_variables(layers)


def test_unknown_layer_is_named_with_the_one_meant() -> None:
    layers = layer_variables(["fleet", "rack"])
    assert layers == ["node_profile_overrides_fleet", "node_profile_overrides_rack"]
    variables = ["node_profile_overrides_flet", "node_profile_overrides_rack", "other"]
    assert unknown_layers(variables, layers) == {
        "node_profile_overrides_flet": "did you mean 'node_profile_overrides_fleet'?"
    }


def test_repository_profiles_are_found() -> None:
    assert profile_names(DEFAULT_DIR) == ["lab", "xe9680-h100"]
    assert load_profile(DEFAULT_DIR, "lab") is load_profile(DEFAULT_DIR, "lab"), "read once per process"


def test_unknown_profile_lists_what_there_is() -> None:
    with pytest.raises(ProfileError, match="profiles in .*: lab, xe9680-h100; did you mean 'xe9680-h100'"):
        load_profile(DEFAULT_DIR, "xe9860-h100")


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=f"there are no profiles in {tmp_path}/none"):
        load_profile(f"{tmp_path}/none", "lab")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: the key 'a' is there twice"),
        ("- a\n", "must be a YAML mapping, found list"),
        ("a: [1\n", "cannot be read"),
        ("a: !!python/name:os.system x\n", "cannot be read"),
    ],
)
def test_broken_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p.yml").write_text(text)
    with pytest.raises(ProfileError, match=message):
        load_profile(str(tmp_path), "p")
