# SPDX-License-Identifier: Apache-2.0
"""The words that are looked for first stand in whatever the expression behind them fits, or a fault would go unseen."""

import pytest
from ansible.module_utils.gpufleet.health.kernel_message_catalog import _KINDS
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(("kind", "words", "pattern"), _KINDS, ids=[row[0] for row in _KINDS])
def test_each_message_of_a_kind_has_one_of_its_words(kind: str, words: tuple[str, ...], pattern: str) -> None:
    @settings(max_examples=200, derandomize=True, deadline=None)
    @given(st.from_regex(pattern))
    def has_a_word(message: str) -> None:
        assert any(word in message for word in words), f"{kind}: {message!r} has none of {words}"

    has_a_word()
