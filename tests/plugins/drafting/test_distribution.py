"""What is sampled with drafts has the distribution of what is sampled without, through the engine.

The model is a Markov chain over five tokens, so that every pair of tokens is a draw from a known
row; 10,000 pairs are counted, and compared by chi-square.
"""

from itertools import pairwise

import pytest
import torch
from attrs import evolve

from ninfer_core.api import (
    KVCodecSpec,
    PagedStateSpec,
    PreparedPrompt,
    SamplingParams,
    SpeculatorContext,
    StatePlane,
)
from ninfer_core.engine.engine import Engine
from ninfer_core.engine.request import GenerationRequest
from ninfer_core.engine.scheduler import Limits
from ninfer_core.sampling.rows import SampleRow
from ninfer_core.sampling.sampler import Sampler
from ninfer_core.state.store import StateStore
from ninfer_core.text.parsers import PlainParser
from ninfer_drafting.mtp import MtpSpeculator
from ninfer_drafting.ngram import NgramSpeculator

VOCAB, LENGTH, REQUESTS, TOGETHER = 5, 20, 500, 100
LIMIT = 45.3  # 20 degrees of freedom, p = 0.001
TARGET = 0.7 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1))
OTHER = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(2))


class Markov:
    """Logits of the next token by the last one; as its own predictor, by another table."""

    token_ids = None

    def __init__(self, table, predictor=None):
        self.table, self.predictor = table, predictor

    def forward(self, batch, hidden=None):
        last = batch.token_ids[batch.logit_rows[: batch.num_logits]]
        logits = self.table[last]
        return logits if hidden is None else (logits, torch.zeros(len(logits), 1))

    def hidden(self, num_tokens):
        return torch.zeros(num_tokens, 1)


class Frontend:
    eos_token_ids, reasoning_tokens = frozenset(), None

    class tokenizer:
        vocab_size = VOCAB
        token_bytes = staticmethod(lambda token: b"x")

    def parser(self, prompt):
        return PlainParser()


def outputs(params, speculator=None, drafts=OTHER):
    """Token ids of many requests that differ by their seeds, and all their usages."""
    model = Markov(TARGET, Markov(drafts))
    limits = Limits(64, TOGETHER, REQUESTS)
    store = StateStore(
        [PagedStateSpec("kv", 1, (StatePlane("key", (1, 1)),))],
        KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec"), num_pages=TOGETHER,
        max_sequences=TOGETHER, max_context=64, max_verify_rows=4)
    made = speculator and speculator(SpeculatorContext(
        draft_tokens=3, vocab_size=VOCAB, model=model, max_sequences=TOGETHER, max_tokens=512,
        max_context=64, device="cpu"))
    engine, ends = Engine(model, Frontend(), store, limits, speculator=made), []
    for seed in range(REQUESTS):
        request = GenerationRequest(
            PreparedPrompt((seed % VOCAB,), ""), evolve(params, seed=seed), LENGTH)
        engine.submit(request, lambda event: ends.append(event) if hasattr(event, "usage") else 0)
    engine.run_until_idle()
    engine.audit()
    assert engine._speculation.is_on == (speculator is not None)
    return [end.token_ids for end in ends], engine.drafts


def chi_square(texts, params):
    """Of all pairs of neighbours, row by row."""
    counts = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    for text in texts:
        for pair in pairwise(text):
            counts[pair] += 1
    expected = Sampler().probabilities(TARGET, [SampleRow(params, 0)] * VOCAB)
    assert counts[expected == 0].sum() == 0
    expected *= counts.sum(1, keepdim=True)
    assert expected[expected > 0].min() > 10  # else the statistic is not chi-square
    kept = expected > 0
    return ((counts - expected)[kept] ** 2 / expected[kept]).sum()


PARAMS = [
    SamplingParams(temperature=1.0), SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0, top_k=4, top_p=0.9), SamplingParams(1.2, min_p=0.2),
]


@pytest.mark.parametrize(("params", "speculator"), [
    *((params, MtpSpeculator) for params in PARAMS), (PARAMS[1], NgramSpeculator),
    (PARAMS[2], None),
])
def test_the_target_distribution_is_kept(params, speculator):
    texts, drafts = outputs(params, speculator)
    assert sum(len(text) for text in texts) == REQUESTS * LENGTH == 10_000
    assert chi_square(texts, params) < LIMIT
    if speculator:
        assert drafts.rounds > 500 and 0 < drafts.accepted < drafts.drafted


@pytest.mark.parametrize("params", PARAMS[1:3])
def test_drafts_of_the_models_own_distribution_are_all_accepted(params):
    texts, drafts = outputs(params, MtpSpeculator, TARGET)
    assert drafts.accepted == drafts.drafted > 5000
    assert chi_square(texts, params) < LIMIT


def test_the_acceptance_is_that_of_the_two_distributions():
    """One minus their total variation, for the first draft of a round."""
    params = PARAMS[0]
    texts, drafts = outputs(params, MtpSpeculator)
    before = torch.bincount(torch.tensor([t for text in texts for t in text]), minlength=VOCAB)
    rate = torch.minimum(TARGET.softmax(-1), OTHER.softmax(-1)).sum(-1)
    expected = float((rate * before).sum() / before.sum())
    assert abs(drafts.accepted_at[0] / drafts.rounds - expected) < 0.05


def test_a_draft_that_is_accepted_too_often_would_be_noticed():
    """The measure itself: texts of another model fail it."""
    texts, _ = outputs(PARAMS[1])
    assert chi_square(texts, PARAMS[0]) > LIMIT
