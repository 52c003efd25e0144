"""The next-token predictor against a naive one; transformers has none."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import embedding, linear

from ninfer_core.state.batch import Row

TOKENS = torch.randint(283, (90,), generator=torch.Generator().manual_seed(2)).tolist()


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
    checkpoint, _ = converted
    with reader.reading() as reading, torch.inference_mode():
        hidden = read_prompt(reader, reading, TOKENS)
        expected = checkpoint.model.model(torch.tensor([TOKENS])).last_hidden_state[0]
    assert relative_error(hidden, expected) < 1e-5


@pytest.mark.parametrize("width", [1, 3, 64, 89])
def test_logits_and_states(reader, converted, width):
    naive = NaivePredictor(converted[0])
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


def test_drafting_goes_on_with_its_own_states(reader, converted):
    """Three drafts, each read with the state that the one before gave, as it lies in memory."""
    naive, drafts = NaivePredictor(converted[0]), []
    with reader.reading() as reading, torch.inference_mode():
        hidden, following = read_prompt(reader, reading, TOKENS), [*TOKENS[1:], 7]
        reader.store.grow(reading.state, len(TOKENS) + 3)
        batch = reader.batches.fill(
            [Row(reading.id, reading.state, 0, following, 1)])
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
