"""Losses and divergences against sums written out."""

import math

import numpy as np
import pytest
import torch

from ninfer_perplexity.scorer import Block
from ninfer_perplexity.scores import Scores, join, score, summarize


def log_probs(rows, width=7, seed=0, scale=3.0):
    logits = scale * torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return torch.log_softmax(logits.double(), -1)


def test_losses():
    own, targets = log_probs(3), torch.tensor([2, 0, 6])
    scores = score(Block(targets, own), None)
    assert scores.nll.tolist() == [-own[0, 2], -own[1, 0], -own[2, 6]]
    assert scores.divergence is None and scores.agreement is None


def test_divergence_from_a_reference():
    own, theirs = log_probs(4), log_probs(4, seed=1)
    scores = score(Block(torch.zeros(4, dtype=torch.int64), own), theirs)
    for row in range(4):
        pairs = zip(theirs[row].tolist(), own[row].tolist(), strict=True)
        expected = sum(math.exp(p) * (p - q) for p, q in pairs)
        assert scores.divergence[row] == pytest.approx(expected, abs=1e-12)
        assert scores.agreement[row] == (own[row].argmax() == theirs[row].argmax())


def test_rounding_of_a_stored_reference_is_far_below_what_quantising_does():
    own = log_probs(50, width=5000)
    scores = score(Block(torch.zeros(50, dtype=torch.int64), own), own.half())
    assert np.abs(scores.divergence).max() < 1e-6
    assert scores.agreement.all()


def test_equally_likely_tokens_agree_either_way():
    own = torch.log_softmax(torch.tensor([[1.0, 2.0, 2.0001]], dtype=torch.float64), -1)
    for theirs, agrees in (([0.0, 3.0, 3.0], True), ([0.0, 3.0, 2.9], False)):
        reference = torch.tensor([theirs], dtype=torch.float16)
        assert score(Block(torch.tensor([0]), own), reference).agreement.tolist() == [agrees]


def test_impossible_tokens_of_the_reference_add_nothing():
    own = log_probs(1, width=3)
    reference = torch.tensor([[0.0, -math.inf, -math.inf]], dtype=torch.float16)
    scores = score(Block(torch.tensor([0]), own), reference)
    assert scores.divergence[0] == pytest.approx(-own[0, 0].item())


def test_summary():
    parts = [Scores(np.array([1.0, 2.0]), np.array([0.1, 0.3]), np.array([True, False])),
             Scores(np.array([6.0]), np.array([0.2]), np.array([True]))]
    summary = summarize(join(parts))
    assert (summary.targets, summary.nll) == (3, 3.0)
    assert summary.perplexity == pytest.approx(math.exp(3))
    assert summary.divergence == pytest.approx(0.2)
    assert summary.divergence_p99 == pytest.approx(0.298)
    assert summary.agreement == pytest.approx(2 / 3)
    assert summarize(join([Scores(np.array([1.0]))])).divergence is None
