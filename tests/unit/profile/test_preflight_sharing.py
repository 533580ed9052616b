# SPDX-License-Identifier: Apache-2.0
"""Which hosts preflight may judge once: those whose values depend on the same things."""

from typing import Any

import pytest
from ansible.module_utils.gpufleet_controller.preflight_sharing import signature

KNOWN = {"{{ lookup('known') }}": ["known_input"]}


def same(one: dict[str, Any], other: dict[str, Any], names: tuple[str, ...] = ("a",)) -> bool:
    first, second = (signature(variables, names, KNOWN) for variables in (one, other))
    return first is not None and first == second


def test_unused_variables_do_not_count() -> None:
    assert same({"a": "{{ b }}", "b": 1, "c": 1}, {"a": "{{ b }}", "b": 1, "c": 2})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"a": True}),
        ({"a": "{{ b }}", "b": 1}, {"a": "{{ b }}", "b": 2}),
        ({"a": "{{ b }}", "b": 1}, {"a": "{{ b }}"}),
        ({"a": [{"k": "x{{ b.y[0] | int }}"}], "b": 1}, {"a": [{"k": "x{{ b.y[0] | int }}"}], "b": 2}),
        ({"a": "{% if b %}1{% endif %}", "b": 1}, {"a": "{% if b %}1{% endif %}", "b": 2}),
        ({"a": "{{ b }}", "b": "{{ c }}", "c": 1}, {"a": "{{ b }}", "b": "{{ c }}", "c": 2}),
        ({"a": "{{ lookup('known') }}", "known_input": 1}, {"a": "{{ lookup('known') }}", "known_input": 2}),
        (
            {"a": "{{ x[inventory_hostname] }}", "inventory_hostname": 1},
            {"a": "{{ x[inventory_hostname] }}", "inventory_hostname": 2},
        ),
    ],
    ids=str,
)
def test_what_a_value_depends_on_counts(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert not same(one, other)


@pytest.mark.parametrize("text", ["{{ lookup('vars', 'b') }}", "{{ q('x') }}", "{{ hostvars['z'].b }}", "{{ now() }}"])
def test_opaque_template_is_never_shared(text: str) -> None:
    assert signature({"a": "{{ z }}", "z": text}, ["a"], KNOWN) is None


@pytest.mark.parametrize("text", ["{{ lookup('env', 'B') }}", "{{ query( \"ansible.builtin.file\", b ~ '/x') }}"])
def test_lookup_that_reads_no_variable_is_shared(text: str) -> None:
    assert same({"a": text, "b": 1, "c": 1}, {"a": text, "b": 1, "c": 2})
    assert not same({"a": text + "{{ b }}", "b": 1}, {"a": text + "{{ b }}", "b": 2})
    mixed = text + "{{ lookup('vars', 'b') }}"
    assert signature({"a": mixed}, ["a"], KNOWN) is None


def test_templates_that_refer_to_each_other_end() -> None:
    assert signature({"a": "{{ b }}", "b": "{{ a }}"}, ["a"], KNOWN)
