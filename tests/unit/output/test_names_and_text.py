# SPDX-License-Identifier: Apache-2.0
"""Node names folded for people, and text of nodes made safe for a terminal."""

import pytest
from ansible.module_utils.gpufleet_controller.node_names import fold_names, short_names
from ansible.module_utils.gpufleet_controller.screen_text import (
    cells,
    clean_data,
    clean_text,
    cut,
    duration,
    first_line,
)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], []),
        (["gpu-001"], ["gpu-001"]),
        ([f"gpu-{n:03d}" for n in [*range(1, 201), 203]], ["gpu-[001-200,203]"]),
        (["gpu-9", "gpu-10", "gpu-11"], ["gpu-[9-11]"]),
        (["n098", "n099", "n100", "n101"], ["n[098-101]"]),
        # "7" and "07" are two nodes
        (["n07", "n7", "n8"], ["n[7-8]", "n07"]),
        (["r1-n1.rack.org", "r1-n2.rack.org", "r2-n1.rack.org"], ["r1-n[1-2].rack.org", "r2-n1.rack.org"]),
        (["login", "gpu-1", "gpu-2"], ["login", "gpu-[1-2]"]),
        (["10.0.0.1", "10.0.0.2", "fe80::1"], ["10.0.0.1", "10.0.0.2", "fe80::1"]),
        (["gpu-1", "gpu-1"], ["gpu-1"]),
    ],
)
def test_fold_names(names: list[str], folded: list[str]) -> None:
    assert fold_names(names) == folded


def test_long_lists_are_cut_with_a_count() -> None:
    odd = [f"gpu-{n:03d}" for n in range(1, 512, 2)]
    text = short_names(odd, 50)
    assert text.startswith("gpu-[001,003,")
    assert text.endswith(",...] (256 nodes)")
    assert len(text) <= 60
    words = [f"host{chr(97 + n)}x" for n in range(20)]
    assert short_names(words, 40).endswith(" ... (20 nodes)")


def test_clean_text() -> None:
    assert clean_text("\x1b[31mred\x1b[0m \x1b]0;title\x07done\x07\x00") == "red done"
    assert clean_text("a\r\nb\rc\td") == "a\nb\nc\td"
    assert clean_text("\u202egnp.exe") == "gnp.exe", "text must not run backwards"
    assert clean_text("\udcff") == "?", "bytes that are no UTF-8 can still be written"
    assert clean_text("\x9b2Jx") == "x"
    assert clean_text(5) == "5"


def test_clean_data() -> None:
    dirty = {"a\x07": ["\x1b[1mx", 1, None, True, {"b": ("\x00y",)}]}
    assert clean_data(dirty) == {"a": ["x", 1, None, True, {"b": ["y"]}]}


def test_cut_and_measures() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abc..."
    assert cells("\u6f22\u5b57e\u0301") == 5
    assert cells(cut("\u6f22" * 10, 9)) <= 9
    assert cut("abc", 0) == ""
    assert first_line("\n  \n  word \nmore") == "word"
    assert first_line(" \n") == ""
    assert [duration(seconds) for seconds in (0.4, 59, 60, 222, 7500)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "3 min 42 s",
        "2 h 05 min",
    ]
