"""Logprobs against their definition."""

import math

import pytest
import torch

from ninfer_core.sampling.logprobs import BLOCK_ROWS, rank


def defined(row, token):
    """Naive, in FP64."""
    values = [math.exp(float(each) - float(row.max())) for each in row.double()]
    return math.log(values[token] / sum(values))


@pytest.mark.parametrize("num_rows", [1, BLOCK_ROWS, BLOCK_ROWS + 1])
def test_logprobs_are_those_of_the_softmax_the_likeliest_first(num_rows):
    logits = torch.randn((num_rows, 50), generator=torch.Generator().manual_seed(1)) * 5
    tokens = [i * 7 % 50 for i in range(num_rows)]
    for row, token, (own, top) in zip(logits, tokens, rank(logits, tokens, 4), strict=True):
        assert own == pytest.approx(defined(row, token), abs=1e-6)
        best = sorted(range(50), key=lambda each: -row[each])[:4]
        assert [each for each, _ in top] == best
        assert [value for _, value in top] == pytest.approx([defined(row, t) for t in best])


def test_a_row_is_the_same_whatever_is_beside_it():
    logits = torch.randn((9, 1000), generator=torch.Generator().manual_seed(2))
    together = list(rank(logits, list(range(9)), 3))
    assert [next(rank(logits[i : i + 1], [i], 3)) for i in range(9)] == together


def test_ties_go_to_the_lower_id_and_no_more_are_named_than_there_are():
    [(own, top)] = rank(torch.zeros(1, 3), [2], 20)
    assert [token for token, _ in top] == [0, 1, 2]
    assert own == pytest.approx(-math.log(3))


def test_none_are_named_where_none_are_wanted():
    assert [top for _, top in rank(torch.zeros(2, 3), [0, 1], 0)] == [[], []]
