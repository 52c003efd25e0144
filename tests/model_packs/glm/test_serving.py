"""Engines on converted models: drafts of the predictor change no greedy answer, also where
attention is sparse (beyond 35 tokens)."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.api import PreparedPrompt, SamplingParams
from ninfer_core.config.launch import LaunchConfig
from ninfer_core.config.resolve import resolve
from ninfer_core.engine.client import EngineClient
from ninfer_core.engine.load import load_engine
from ninfer_core.engine.request import Finished, GenerationRequest

LENGTHS = (1, 2, 30, 33, 62, 63, 64, 131)
NUM_TOKENS = 259
SIZES = {
    "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"],
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
}
PASSED_ON = ("o_proj.weight", "down_proj", "down_proj.weight")
NORMS = ("language_model.norm.weight", "enorm.weight", "shared_head.norm.weight")


def follow_the_token(sign):
    """Make what follows a token depend on that token alone, for the model and, with ``sign`` 1, for
    its predictor too, which then is always right; with -1 it is always wrong."""

    def change(name, values):
        if name.endswith(PASSED_ON):
            values.zero_()
        elif name == "eh_proj.weight":
            values.zero_()
            values[:, : len(values)].fill_diagonal_(sign)
        elif name.endswith(NORMS):
            values.fill_(1)

    return change


@pytest.fixture
def answers(plugins):
    """``(artifact, **options) -> (tokens of eight answers, their usages)``, all served at once."""

    def serve(path, **options):
        config = LaunchConfig(
            model=str(path), profile="cpu", kv_dtype="fp32", max_context=256, max_concurrency=8,
            **options,
        )
        engine = load_engine(resolve(config, plugins)).engine
        with EngineClient(engine) as client:
            running = [client.submit(request_of(length)) for length in LENGTHS]
            ends = [[event for event in each if isinstance(event, Finished)] for each in running]
        assert all(end.cause is None for [end] in ends)
        return [end.token_ids for [end] in ends], [end.usage for [end] in ends]

    return serve


def request_of(length):
    generator = torch.Generator().manual_seed(length)
    prompt = torch.randint(NUM_TOKENS, (length,), generator=generator).tolist()
    return GenerationRequest(
        PreparedPrompt(tuple(prompt), ""), SamplingParams(), 16 + length % 5, ignore_eos=True
    )


def accepted(usages):
    return sum(each.accepted_tokens for each in usages), sum(each.drafted_tokens for each in usages)


def test_drafts_change_no_greedy_answer(convert_glm, answers):
    _, path = convert_glm(**SIZES)
    plain, _ = answers(path)
    for drafts in (1, 3, 5):
        drafted, usages = answers(path, spec="mtp", draft_tokens=drafts)
        assert drafted == plain
        assert accepted(usages)[1] > 0


@pytest.mark.parametrize("sign", [1, -1])
def test_a_predictor_that_is_always_right_or_always_wrong(convert_glm, answers, sign):
    _, path = convert_glm(change=follow_the_token(sign), **SIZES)
    plain, _ = answers(path)
    drafted, usages = answers(path, spec="mtp", draft_tokens=3)
    assert drafted == plain
    right, count = accepted(usages)
    assert count > 0
    assert right == (count if sign == 1 else 0)


def test_greedy_answers_are_those_of_transformers(convert_glm, answers):
    """Of the tokens that the tokenizer has: the table has more rows, as the published one."""
    checkpoint, path = convert_glm(**SIZES)
    for length, tokens in zip(LENGTHS, answers(path)[0], strict=True):
        known = [*request_of(length).prompt.token_ids, *tokens]
        logits = checkpoint.logits(known)[length - 1 : -1, :NUM_TOKENS]
        assert logits.argmax(1).tolist() == [*tokens]
