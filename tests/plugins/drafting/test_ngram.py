"""Prompt lookup: the longest end that occurred before, where it did so last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import Advance, DraftRequest, SpeculatorContext
from ninfer_drafting.ngram import LONGEST, SHORTEST, NgramSpeculator


def speculator(drafts=4):
    return NgramSpeculator(SpeculatorContext(
        draft_tokens=drafts, vocab_size=100, model=None, max_sequences=8, max_tokens=64,
        max_context=512, device="cpu"))


def advance(made, tokens, end, request_id=1):
    made.advance([Advance(request_id, tokens, 0, end, 0, True, None, lambda pending: None)])


def propose(made, tokens, limit=4, request_id=1):
    [draft] = made.propose([DraftRequest(request_id, tokens, limit, lambda pending: None, None)])
    assert draft.proposals is None
    return draft.token_ids


def drafts_after(tokens, limit=4):
    made = speculator()
    advance(made, tokens, len(tokens) - 1)
    return propose(made, tokens, limit)


@pytest.mark.parametrize(("tokens", "expected"), [
    ([1, 2, 3, 4, 5, 6, 1, 2, 3], (4, 5, 6, 1)),
    ([1, 2, 3, 4, 5, 9, 1, 2], ()),  # two tokens are too few
    ([9, 1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3], (8, 1, 2, 3)),  # the last of two
    ([5, 1, 2, 3, 7, 6, 1, 2, 3, 8, 5, 1, 2, 3], (7, 6, 1, 2)),  # the longer of two
    ([1, 2, 3, 4, 1, 2, 3], (4, 1, 2, 3)),
    ([7, 7, 7, 7], (7, 7, 7, 7)),  # a loop goes on
    ([1, 2, 1, 2, 1, 2], (1, 2, 1, 2)),
    ([1, 2, 3], ()), ([1], ()),
])
def test_what_follows_is_drafted(tokens, expected):
    assert drafts_after(tokens) == expected


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_there_are_no_more_drafts_than_room(limit):
    assert drafts_after([1, 2, 3, 4, 5, 6, 1, 2, 3], limit) == (4, 5, 6)[:limit]


def naive(tokens, limit):
    for length in range(LONGEST, SHORTEST - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if len(tokens) > length and tokens[end - length : end] == tokens[-length:]:
                copy = list(tokens)
                for i in range(limit):
                    copy.append(copy[end + i])
                return tuple(copy[len(tokens) :])
    return ()


@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    cuts=st.sets(st.integers(1, 39)), limit=st.integers(1, 6),
)
def test_an_index_kept_up_in_steps_finds_what_a_search_finds(tokens, cuts, limit):
    made = speculator(6)
    for end in sorted(cut for cut in cuts if cut < len(tokens)):
        advance(made, tokens, end)
        if end == len(tokens) - 1:
            break
        assert propose(made, tokens[: end + 1], limit) == naive(tokens[: end + 1], limit)
    advance(made, tokens, len(tokens) - 1)
    assert propose(made, tokens, limit) == naive(tokens, limit)


def test_requests_are_apart_and_a_released_one_is_forgotten():
    made, text = speculator(), [1, 2, 3, 4, 1, 2, 3]
    advance(made, text, 6, request_id=1)
    advance(made, [9] * 4, 3, request_id=2)
    assert propose(made, text, request_id=2) == ()
    assert propose(made, text, request_id=1)
    made.release(1)
    made.release(1)
    assert propose(made, text, request_id=1) == ()
    assert made._indexes.keys() == {2}


def test_a_step_of_many_tokens_costs_as_many_entries():
    made, tokens = speculator(), list(range(200))
    advance(made, tokens, 150)
    [index] = made._indexes.values()
    assert len(index.ends) == sum(151 - length for length in range(SHORTEST, LONGEST + 1))
    before = dict(index.ends)
    advance(made, tokens, 151)
    assert len(index.ends) - len(before) == LONGEST - SHORTEST + 1
