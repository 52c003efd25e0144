"""Logprobs of prompts and answers: those of transformers, with drafts and without."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.api import PreparedPrompt, SamplingParams
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.config.resolve import resolve
from ninfer_core.engine.client import EngineClient
from ninfer_core.engine.load import load_engine
from ninfer_core.engine.request import GenerationRequest, Logprobs

LENGTHS = (1, 64, 130, 333)


@pytest.fixture(scope="module", params=["dense", "moe"])
def pair(request, convert_tiny):
    """A checkpoint of transformers, and its artifact."""
    return convert_tiny(request.param)


@pytest.fixture(scope="module")
def told(pair, plugins):
    """``(**options) -> [(tokens, their logprobs, tops)]`` of prompts and answers, all served at
    once, with the tokens of both in one sequence."""

    def serve(**options):
        config = LaunchConfig(
            model=str(pair[1]), profile="cpu", kv_dtype="fp32", max_context=512, max_concurrency=4,
            prefill_chunk=128, **options,
        )
        engine = load_engine(resolve(config, plugins, max_logits=64)).engine
        with EngineClient(engine) as client:
            runs = [list(each) for each in [client.submit(ask(n)) for n in LENGTHS]]
        assert all(events[-1].cause is None for events in runs)
        return [[t for e in events if isinstance(e, Logprobs) for t in e.tokens] for events in runs]

    return serve


def ask(length):
    ids = torch.randint(259, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    return GenerationRequest(
        PreparedPrompt(tuple(ids), ""), SamplingParams(), 12, ignore_eos=True, logprobs=3,
        prompt_logprobs=3,
    )


def test_logprobs_are_those_of_transformers(pair, told):
    for length, scores in zip(LENGTHS, told(), strict=True):
        ids = [each.token_id for each in scores]
        assert len(ids) == length + 12 and scores[0].logprob is None
        rows = torch.log_softmax(pair[0].logits(ids).double(), -1)[:-1, :259]
        rows -= rows.logsumexp(-1, keepdim=True)  # of the tokens that the tokenizer has
        expected = rows.gather(-1, torch.tensor(ids[1:]).unsqueeze(-1)).squeeze(-1)
        assert [s.logprob for s in scores[1:]] == pytest.approx(expected.tolist(), abs=2e-4)
        best = rows.topk(3).values
        found = torch.tensor([[value for _, value in s.top] for s in scores[1:]])
        torch.testing.assert_close(found.double(), best, atol=2e-4, rtol=0)


def test_drafts_change_no_logprob(told):
    """In any number: the prompt is cut where its logits fit, and a round is verified at once."""
    plain = told()
    assert told(spec="mtp", draft_tokens=3) == plain
    assert told(spec="ngram", draft_tokens=2) == plain
