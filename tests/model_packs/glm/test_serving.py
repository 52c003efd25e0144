"""Engines on converted models: drafts of the predictor change no greedy answer, also where
attention is sparse (beyond 35 tokens)."""

from __future__ import annotations

import pytest

from ninfer_fixtures.served import NUM_TOKENS, serve

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


def test_drafts_change_no_greedy_answer(convert_glm, plugins):
    _, path = convert_glm(**SIZES)
    plain = serve(path, plugins)
    for drafts in (1, 3, 5):
        served = serve(path, plugins, spec="mtp", draft_tokens=drafts)
        assert served.tokens == plain.tokens
        assert served.drafted > 0


@pytest.mark.parametrize("sign", [1, -1])
def test_a_predictor_that_is_always_right_or_always_wrong(convert_glm, plugins, sign):
    _, path = convert_glm(change=follow_the_token(sign), **SIZES)
    served = serve(path, plugins, spec="mtp", draft_tokens=3)
    assert served.tokens == serve(path, plugins).tokens
    assert served.drafted > 0
    assert served.accepted == (served.drafted if sign == 1 else 0)


def test_greedy_answers_are_those_of_transformers(convert_glm, plugins):
    """Of the tokens that the tokenizer has: the table has more rows, as the published one."""
    checkpoint, path = convert_glm(**SIZES)
    served = serve(path, plugins)
    for prompt, tokens in zip(served.prompts, served.tokens, strict=True):
        logits = checkpoint.logits([*prompt, *tokens])[len(prompt) - 1 : -1, :NUM_TOKENS]
        assert logits.argmax(1).tolist() == [*tokens]
