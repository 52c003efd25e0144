"""The next-token predictor against a naive one; transformers has none."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import embedding, linear

from ninfer_fixtures.predicting import (
    TOKENS,
    PredictorTests,
    predict,
    read_prompt,
    relative_error,
)


class NaivePredictor:
    """The module as its checkpoints describe it, in fp32, over whole sequences.

    Its layer and the mixer behind it are transformers', with the predictor's weights.
    """

    def __init__(self, checkpoint):
        text, mtp = checkpoint.model.model, checkpoint.mtp
        config = checkpoint.model.config
        self.table, self.head = text.embed_tokens.weight, checkpoint.model.lm_head.weight
        self.rotary, self.eps, self.count = text.rotary_emb, config.rms_norm_eps, config.hc_count
        self.weights = {name.removeprefix("mtp."): each for name, each in mtp.items()}
        index = config.layer_types.index("indexed_attention")
        self.layer = self.filled(type(text.layers[index])(config, index), "layers.0.")
        mixer = type(text.hyper_connection_mixer)
        self.mixer = self.filled(mixer(config, use_combine=False), "hyper_connection_mixer.")

    def filled(self, module, prefix):
        module.load_state_dict({
            name.removeprefix(prefix): each for name, each in self.weights.items()
            if name.startswith(prefix)
        })
        return module.eval()

    def norm(self, x, name):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * scale * (1 + self.weights[f"pre_fc_norm_{name}.weight"])

    @torch.inference_mode()
    def __call__(self, tokens, streams):
        """Logits ``[T, V]`` and streams ``[T, S H]``; token t follows the streams t."""
        embedded = self.norm(embedding(torch.tensor(tokens), self.table), "embedding")
        embedded = linear(embedded, self.weights["fc_embedding.weight"])
        normed = self.norm(streams, "hidden").unflatten(1, (self.count, -1))
        projected = linear(normed, self.weights["fc_hidden.weight"])
        x = (projected + embedded[:, None]).flatten(1)[None]
        count = len(tokens)
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        positions = torch.arange(count)[None, None].expand(3, 1, count)
        x = self.layer(x, position_embeddings=self.rotary(x, positions), attention_mask=mask)
        return linear(self.mixer(x)[0], self.head), x[0]


@pytest.fixture(scope="module")
def converted(convert_tiny):
    return convert_tiny(num_hidden_layers=4)


@pytest.fixture(params=["reference", "cpu"], scope="module")
def reader(read, converted, request):
    return read(converted[1], profile=request.param == "cpu")


@pytest.fixture(scope="module")
def naive(converted):
    return NaivePredictor(converted[0])


def test_hidden_states_are_the_streams_before_the_last_mixer(reader, converted):
    checkpoint, _ = converted
    seen = []
    mixer = checkpoint.model.model.hyper_connection_mixer
    hook = mixer.register_forward_hook(lambda module, given, made: seen.append(given[0][0]))
    with reader.reading() as reading:
        hidden = read_prompt(reader, reading, TOKENS)
    checkpoint.logits(TOKENS)
    hook.remove()
    assert relative_error(hidden, seen[0]) < 1e-5


@pytest.mark.parametrize("count", [85, 86, 87, 88])
def test_what_follows_drafts_is_read_as_if_there_had_been_none(reader, naive, count):
    """Drafts from every place in a block."""
    tokens, drafts = TOKENS[:count], []
    with reader.reading() as reading:
        hidden, following = read_prompt(reader, reading, tokens), [*tokens[1:], 7]
        reader.store.grow(reading.state, 96)
        logits, states = predict(reader, reading, 0, following, hidden, 1)
        seen = [hidden]
        for step in range(3):
            drafts.append(int(logits.argmax()))
            seen.append(states)
            logits, states = predict(reader, reading, count + step, drafts[-1:], states)
        expected, _ = naive([*following, *drafts], torch.cat(seen))
        assert relative_error(logits, expected[-1:]) < 1e-5
        assert drafts == expected[-4:-1].argmax(1).tolist()
        reader.step(reading, [7, 9])
        more = reader.model.hidden(2).clone()
        logits, _ = predict(reader, reading, count, [9, 11], more)
    expected, _ = naive([*following, 9, 11], torch.cat([hidden, more]))
    assert relative_error(logits, expected[-2:]) < 1e-5


class TestPredictor(PredictorTests):
    """What all predictors are tested for."""
