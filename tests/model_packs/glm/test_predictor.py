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
from ninfer_core.state.batch import Row
from ninfer_pack_glm.pack import GlmPack

TOKENS = torch.randint(283, (90,), generator=torch.Generator().manual_seed(2)).tolist()


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


def relative_error(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()


@torch.inference_mode()
def predict(reader, reading, begin, tokens, hidden, wanted=None):
    """Clones of what the predictor gives for the last ``wanted`` of some tokens."""
    wanted = wanted or len(tokens)
    batch = reader.batches.fill([Row(reading.id, reading.state, begin, tokens, wanted)])
    logits, states = reader.model.predictor.forward(batch, hidden)
    return logits.clone(), states.clone()


@torch.inference_mode()
def read_prompt(reader, reading, tokens):
    reader.step(reading, tokens)
    return reader.model.hidden(len(tokens)).clone()


def test_hidden_states_are_those_behind_the_final_norm(reader, converted):
    with reader.reading() as reading, torch.inference_mode():
        hidden = read_prompt(reader, reading, TOKENS)
        model = converted[0].model.model.language_model
        expected = model(torch.tensor([TOKENS])).last_hidden_state[0]
    assert relative_error(hidden, expected) < 1e-5


@pytest.mark.parametrize("width", [1, 3, 64, 89])
def test_logits_and_states(reader, naive, width):
    with reader.reading() as reading:
        hidden, following = read_prompt(reader, reading, TOKENS), TOKENS[1:]
        steps = [
            predict(reader, reading, begin, following[begin : begin + width],
                    hidden[begin : begin + width][: len(following) - begin])
            for begin in range(0, len(following), width)
        ]
    expected = naive(following, hidden[:-1])
    for actual, wanted in zip(map(torch.cat, zip(*steps, strict=True)), expected, strict=True):
        assert relative_error(actual, wanted) < 1e-5


def test_drafting_goes_on_with_its_own_states(reader, naive):
    """Three drafts, each read with the state that the one before gave, as it lies in memory."""
    drafts = []
    with reader.reading() as reading, torch.inference_mode():
        hidden, following = read_prompt(reader, reading, TOKENS), [*TOKENS[1:], 7]
        reader.store.grow(reading.state, len(TOKENS) + 3)
        batch = reader.batches.fill([Row(reading.id, reading.state, 0, following, 1)])
        logits, states = reader.model.predictor.forward(batch, hidden)
        states_seen = [hidden]
        for step in range(3):
            drafts.append(int(logits.argmax()))
            states_seen.append(states.clone())
            row = Row(reading.id, reading.state, len(TOKENS) + step, drafts[-1:], 1)
            logits, states = reader.model.predictor.forward(reader.batches.fill([row]), states)
    expected, _ = naive([*following, *drafts], torch.cat(states_seen))
    assert relative_error(logits, expected[-1:]) < 1e-5
    assert drafts == expected[-4:-1].argmax(1).tolist()


def test_the_model_is_not_disturbed(reader, converted):
    """Hidden states outlive the predictor's steps, and its tokens leave the model's cache alone."""
    checkpoint, _ = converted
    with reader.reading() as reading, torch.inference_mode():
        hidden = read_prompt(reader, reading, TOKENS[:80])
        predict(reader, reading, 0, TOKENS[1:81], hidden)
        assert torch.equal(reader.model.hidden(80), hidden)
        logits = reader.step(reading, TOKENS[80:])
    assert relative_error(logits, checkpoint.logits(TOKENS)[80:]) < 1e-5


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
