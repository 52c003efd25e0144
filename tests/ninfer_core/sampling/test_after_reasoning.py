"""An answer that is held to something behind reasoning that is free."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ReasoningTokens
from ninfer_core.sampling.thinking import AfterReasoning

OPEN, CLOSE, LINE, LINES, END, TEXT = range(6)
TOKENS = ReasoningTokens(OPEN, CLOSE, (CLOSE,), frozenset({LINE, LINES}), frozenset({LINE, LINES}))


class Counted:
    """Allows the token of as many as it has seen; 0 is forbidden at last."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def mask(self, pending):
        mask = torch.zeros(6, dtype=torch.bool)
        mask[TEXT if len(self.seen) + len(pending) < 3 else END] = True
        return mask

    def commit(self, token_ids):
        self.seen += token_ids


def after(ids=()):
    answer = Counted()
    made = AfterReasoning(answer, TOKENS, frozenset({END, -1, 99}), 6)
    made.commit(ids)
    return made, answer


def allowed(constraint, *pending):
    return {*constraint.mask(pending).nonzero().flatten().tolist()}


def test_the_block_is_free_and_does_not_end_the_output():
    made, answer = after()
    assert allowed(made) == allowed(made, TEXT, OPEN, LINE) == {OPEN, CLOSE, LINE, LINES, TEXT}
    made.commit([TEXT, OPEN, LINE])
    assert allowed(made) == {OPEN, CLOSE, LINE, LINES, TEXT} and answer.seen == []


@pytest.mark.parametrize("newlines", [[], [LINE], [LINES], [LINE, LINES]])
def test_newlines_behind_it_are_not_the_answers(newlines):
    made, answer = after([TEXT, CLOSE, *newlines])
    assert allowed(made) == {TEXT} | ({LINE, LINES} if len(newlines) < 2 else set())
    made.commit([TEXT])
    assert allowed(made) == {TEXT} and answer.seen == [TEXT]
    made.commit([TEXT, TEXT])
    assert allowed(made) == {END} and answer.seen == [TEXT] * 3


def test_a_second_closing_mark_is_the_answers_affair():
    made, answer = after([CLOSE])
    made.commit([CLOSE, CLOSE])
    assert answer.seen == [CLOSE, CLOSE]


def test_an_answer_that_may_be_anything_is():
    class Free(Counted):
        def mask(self, pending):
            return None

    made = AfterReasoning(Free(), TOKENS, frozenset({END}), 6)
    assert made.mask((CLOSE,)) is None and made.mask(()) is not None


@given(ids=st.lists(st.sampled_from([CLOSE, LINE, LINES, TEXT]), max_size=9), data=st.data())
def test_it_does_not_matter_how_tokens_come(ids, data):
    """Committed at once, in pieces, or pending."""
    whole, answer = after(ids)
    pieces, other = after()
    cut = data.draw(st.integers(0, len(ids)))
    asked = pieces.mask(tuple(ids))
    pieces.commit(ids[:cut])
    assert torch.equal(pieces.mask(tuple(ids[cut:])), asked)
    pieces.commit(ids[cut:])
    assert torch.equal(pieces.mask(()), asked) and torch.equal(whole.mask(()), asked)
    assert answer.seen == other.seen
