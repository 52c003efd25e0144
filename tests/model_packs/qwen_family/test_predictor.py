"""The next-token predictor against a naive one; transformers has none."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import embedding, linear

from ninfer_fixtures.predicting import TOKENS, PredictorTests, read_prompt, relative_error


class NaivePredictor:
    """The module as its checkpoints describe it, in fp32, over whole sequences.

    Its layer is one of transformers, with the predictor's weights.
    """

    def __init__(self, checkpoint):
        model, mtp = checkpoint.model, checkpoint.mtp
        self.table = model.model.embed_tokens.weight
        self.head = model.lm_head.weight
        self.rotary = model.model.rotary_emb
        self.eps = model.config.rms_norm_eps
        self.weights = {name.removeprefix("mtp."): each for name, each in mtp.items()}
        index = model.config.layer_types.index("full_attention")
        layer_class = type(model.model.layers[index])
        self.layer = layer_class(model.config, index).eval()
        self.layer.load_state_dict({
            name.removeprefix("layers.0."): each for name, each in self.weights.items()
            if name.startswith("layers.0.")
        })

    def norm(self, x, name):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * scale * (1 + self.weights[f"{name}.weight"])

    @torch.inference_mode()
    def __call__(self, tokens, hidden):
        """Logits and normed states ``[T, ...]``; token t follows hidden state t."""
        embedded = embedding(torch.tensor(tokens), self.table)
        stem = torch.cat([
            self.norm(embedded, "pre_fc_norm_embedding"), self.norm(hidden, "pre_fc_norm_hidden")
        ], dim=-1)
        x = linear(stem, self.weights["fc.weight"])[None]
        count = len(tokens)
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        positions = torch.arange(count)[None, None].expand(3, 1, count)
        x = self.layer(x, position_embeddings=self.rotary(x, positions), attention_mask=mask)
        out = self.norm((x[0] if isinstance(x, tuple) else x)[0], "norm")
        return linear(out, self.head), out


@pytest.fixture(params=["dense", "moe"], scope="module")
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def converted(convert_tiny, kind):
    return convert_tiny(kind, num_hidden_layers=4)


@pytest.fixture(params=["reference", "cpu"], scope="module")
def reader(read, converted, kind, request):
    return read(kind, converted[1], profile=request.param == "cpu")


@pytest.fixture(scope="module")
def naive(converted):
    return NaivePredictor(converted[0])


def test_hidden_states_are_those_behind_the_final_norm(reader, converted):
    checkpoint, _ = converted
    with reader.reading() as reading, torch.inference_mode():
        hidden = read_prompt(reader, reading, TOKENS)
        expected = checkpoint.model.model(torch.tensor([TOKENS])).last_hidden_state[0]
    assert relative_error(hidden, expected) < 1e-5


class TestPredictor(PredictorTests):
    """What all predictors are tested for."""
