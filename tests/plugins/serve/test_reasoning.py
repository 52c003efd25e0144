"""Tokens of reasoning."""

from __future__ import annotations

import pytest

from ninfer_core.api import ReasoningTokens
from ninfer_serve.reasoning import reasoning_tokens

MARKS = ReasoningTokens(opening=1, closing=2, forced=(9, 2), spaces=frozenset({3}))


@pytest.mark.parametrize(("ids", "is_open", "expected"), [
    ((7, 7, 2, 3, 8, 8), True, 3), ((7, 7), True, 2), ((8, 8), False, 0), ((), True, 0),
    ((1, 7, 2, 8), False, 3), ((3, 1, 7, 2, 8), False, 3), ((7, 2, 3, 1, 7, 2, 8), True, 5),
    ((7, 2, 8, 1, 8, 2), True, 2), ((8, 1, 7, 2), False, 0), ((2, 8), True, 1),
])
def test_blocks_count_with_their_marks_until_the_answer_begins(ids, is_open, expected):
    assert reasoning_tokens(ids, MARKS, is_open) == expected


def test_a_model_without_marks_has_none():
    assert reasoning_tokens((1, 2, 3), None, False) == 0
