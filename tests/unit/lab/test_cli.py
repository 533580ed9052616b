# SPDX-License-Identifier: Apache-2.0
"""The lab's command line."""

import pytest

from lab.cli import _fault, _parser
from lab.errors import LabError
from lab.lab_directory import LabDirectory


@pytest.mark.parametrize("when", ["-3y", "+3y", "reset"])
def test_a_clock_in_the_past_is_no_option(when: str) -> None:
    assert _parser().parse_args(["fault", "lab-node-1", "clock", when]).what == [when]


@pytest.mark.parametrize("words", [[], ["cut", "now"]])
def test_a_fault_takes_one_word(words: list[str]) -> None:
    with pytest.raises(LabError, match="one word: cut | restore"):
        _fault(LabDirectory(), "lab-node-1", "network", words)
