"""Masks are functions of committed and pending tokens; only committed ones leave a trace."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import ReasoningTokens
from ninfer_core.sampling.constraint import AllOf, MinTokens
from ninfer_core.sampling.thinking import ThinkingBudget

VOCAB, SPACE, OPEN, CLOSE = 12, 9, 10, 11
MARKS = ReasoningTokens(
    opening=OPEN, closing=CLOSE, forced=(7, CLOSE, 8), spaces=frozenset({8, SPACE}))


def allowed(mask):
    return {*range(VOCAB)} if mask is None else {*mask.nonzero().flatten().tolist()}


def budget(count, *, is_open, marks=MARKS):
    return ThinkingBudget(marks, count, is_open=is_open, vocab_size=VOCAB)


def walk(constraint, tokens):
    """What is allowed before each of the tokens and after them, each committed in its turn."""
    found = [allowed(constraint.mask(()))]
    for token in tokens:
        constraint.commit([token])
        found.append(allowed(constraint.mask(())))
    return found


EVERYTHING, NO_OPENING = {*range(VOCAB)}, {*range(VOCAB)} - {OPEN}


@pytest.mark.parametrize(("count", "is_open", "tokens", "expected"), [
    (2, True, [1, 2, 7, CLOSE, 8, SPACE, 5, OPEN, 6],
     [EVERYTHING] * 2 + [{7}, {CLOSE}, {8}] + [NO_OPENING] * 2 + [EVERYTHING] * 3),
    (1, True, [OPEN], [EVERYTHING, {7}]),
    (3, True, [1, CLOSE, 5, 6, 7, 8], [EVERYTHING] * 7),
    (2, True, [1, CLOSE, SPACE, OPEN, 2], [EVERYTHING] * 5 + [{7}]),  # opened again: what is left
    (2, True, [1, CLOSE, 5, OPEN, 2, 3], [EVERYTHING] * 7),  # an answer about marks
    (1, False, [5, OPEN, 2, 3], [EVERYTHING] * 5),
    (2, False, [1, 2, 3, 4, 5], [EVERYTHING] * 6),
    (2, False, [SPACE, OPEN, 1, 2, 7], [EVERYTHING] * 4 + [{7}, {CLOSE}]),
    (2, True, [CLOSE], [EVERYTHING] * 2),
])
def test_what_a_budget_allows(count, is_open, tokens, expected):
    assert walk(budget(count, is_open=is_open), tokens) == expected


def test_a_budget_may_be_ended_by_the_mark_alone():
    marks = ReasoningTokens(OPEN, CLOSE, (CLOSE,))
    found = walk(budget(1, is_open=True, marks=marks), [1, CLOSE, 1])
    assert found == [EVERYTHING, {CLOSE}, NO_OPENING, EVERYTHING]


def all_kinds():
    ends = frozenset({0, 3, 99, -1})
    return AllOf([budget(3, is_open=True), MinTokens(4, ends, VOCAB)])


@given(data=st.data(), cuts=st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_pending_tokens_are_as_good_as_committed_ones_and_leave_no_trace(data, cuts):
    """Walking in rounds with drafts, of which some are committed, or token by token: the same."""
    one, other, said = all_kinds(), all_kinds(), []
    for cut in cuts:
        pending = ()
        for _ in range(cut):
            ids = allowed(one.mask(pending))
            pending = (*pending, data.draw(st.sampled_from(sorted(ids))))
        kept = pending[: data.draw(st.integers(1, cut))]
        one.commit(kept)
        for token in kept:
            assert token in allowed(other.mask(()))
            other.commit([token])
        said += kept
        assert allowed(one.mask(())) == allowed(other.mask(()))
    assert not {0, 3} & {*said[:4]}


@pytest.mark.parametrize("least", [1, 4])
def test_end_tokens_are_possible_first_after_the_least(least):
    ends = frozenset({0, 3})
    found = walk(MinTokens(least, ends, VOCAB), [5] * (least + 1))
    assert found == [EVERYTHING - ends] * least + [EVERYTHING] * 2


def test_end_tokens_that_do_not_exist_forbid_nothing():
    """Not the last of the vocabulary, for -1."""
    mask = MinTokens(1, frozenset({-1, VOCAB, 5}), VOCAB).mask(())
    assert allowed(mask) == EVERYTHING - {5}


def test_several_constraints_allow_what_all_allow():
    class Only:
        def __init__(self, *ids):
            self.ids, self.heard = ids, []

        def mask(self, pending):
            return torch.tensor([i in self.ids for i in range(VOCAB)]) if self.ids else None

        def commit(self, token_ids):
            self.heard += token_ids

    parts = [Only(), Only(1, 2, 3), Only(2, 3, 4)]
    both = AllOf(parts)
    assert allowed(both.mask(())) == {2, 3}
    assert AllOf(parts[:1]).mask(()) is None
    both.commit([2])
    assert [part.heard for part in parts] == [[2]] * 3
    assert allowed(parts[1].mask(())) == {1, 2, 3}
