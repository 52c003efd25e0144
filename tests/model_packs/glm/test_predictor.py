"""The next-token predictor against a naive one; transformers has none."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.functional import embedding, linear
from transformers.models.glm5_next.modeling_glm5_next import (
    Glm5NextTextAttention,
    Glm5NextTextMoE,
)

from ninfer_convert.conversion import convert
from ninfer_fixtures.predicting import (
    TOKENS,
    PredictorTests,
    predict,
    read_prompt,
    relative_error,
)
from ninfer_pack_glm.pack import GlmPack


class NaivePredictor:
    """The module as its checkpoints describe it, in fp32, over whole sequences: attention and
    experts of transformers, with the predictor's weights, on a plain residual stream."""

    def __init__(self, checkpoint):
        config, model = checkpoint.model.config.text_config, checkpoint.model
        self.table = model.model.language_model.embed_tokens.weight
        self.head, self.eps = model.lm_head.weight, config.rms_norm_eps
        self.weights = checkpoint.mtp
        index = config.layer_types.index("indexed_attention")
        self.attention = Glm5NextTextAttention(config, index).eval()
        self.experts = Glm5NextTextMoE(config).eval()
        self.attention.load_state_dict(self._below("self_attn."))
        parts = self._below("mlp.")
        banks = {"experts.gate_up_proj": self._bank("gate", "up"),
                 "experts.down_proj": self._bank("down")}
        others = {name: each for name, each in parts.items() if not name.startswith("experts.")}
        self.experts.load_state_dict(others | banks)

    def _below(self, prefix):
        return {name.removeprefix(prefix): each for name, each in self.weights.items()
                if name.startswith(prefix)}

    def _bank(self, *parts):
        experts = range(self.experts.config.n_routed_experts)
        return torch.stack([
            torch.cat([self.weights[f"mlp.experts.{e}.{part}_proj.weight"] for part in parts])
            for e in experts
        ])

    def norm(self, x, name):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * scale * self.weights[f"{name}.weight"]

    @torch.inference_mode()
    def __call__(self, tokens, hidden):
        """Logits and normed states ``[T, ...]``; token t follows hidden state t."""
        stem = torch.cat([
            self.norm(embedding(torch.tensor(tokens), self.table), "enorm"),
            self.norm(hidden, "hnorm"),
        ], dim=-1)
        x = linear(stem, self.weights["eh_proj.weight"])[None]
        seen = torch.ones(1, len(tokens), dtype=torch.bool)
        x = x + self.attention(self.norm(x, "input_layernorm"), attention_mask=seen)[0]
        x = x + self.experts(self.norm(x, "post_attention_layernorm"))
        out = self.norm(x[0], "shared_head.norm")
        return linear(out, self.head), out


@pytest.fixture(scope="module")
def converted(convert_glm):
    return convert_glm()


@pytest.fixture(params=["reference", "cpu"], scope="module")
def reader(read_glm, converted, request):
    return read_glm(converted[1], profile=request.param == "cpu")


@pytest.fixture(scope="module")
def naive(converted):
    return NaivePredictor(converted[0])


def test_hidden_states_are_those_behind_the_final_norm(reader, converted):
    with reader.reading() as reading, torch.inference_mode():
        hidden = read_prompt(reader, reading, TOKENS)
        model = converted[0].model.model.language_model
        expected = model(torch.tensor([TOKENS])).last_hidden_state[0]
    assert relative_error(hidden, expected) < 1e-5


class TestPredictor(PredictorTests):
    """What all predictors are tested for."""


def test_it_may_read_the_mean_of_the_streams_instead(plugins, tiny_glm, read_glm, tmp_path):
    """By a key of the checkpoint's config, which the artifact keeps."""
    checkpoint = tiny_glm(tmp_path / "hf")
    file = checkpoint.path / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["mtp_hidden"] = "pre_norm"
    file.write_text(json.dumps(config))
    path = tmp_path / "model.ninfer"
    convert(checkpoint.path, path, pack=GlmPack(), registry=plugins.registry)
    reader, naive = read_glm(path), NaivePredictor(checkpoint)
    with reader.reading() as reading:
        hidden = read_prompt(reader, reading, TOKENS)
        logits, _ = predict(reader, reading, 0, TOKENS[1:], hidden[:-1])
        assert torch.equal(reader.model.hidden(len(TOKENS)), hidden)
    model = checkpoint.model.model.language_model
    with torch.inference_mode():
        means = []
        model.norm.register_forward_pre_hook(lambda _, inputs: means.append(inputs[0][0].clone()))
        model(torch.tensor([TOKENS]))
    assert relative_error(hidden, means[0]) < 1e-5
    assert relative_error(logits, naive(TOKENS[1:], means[0][:-1])[0]) < 1e-5
