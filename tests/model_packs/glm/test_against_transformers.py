"""Random checkpoints of odd sizes, through converter and pack, against transformers.

The budget is 32 tokens in pools of 4: the first position that cannot attend to all is 35.
"""

from __future__ import annotations

import pytest
import torch

TOKENS = torch.randint(283, (210,), generator=torch.Generator().manual_seed(1)).tolist()
LAYERS, BUDGET, POOL = (1, 3), 8, 4
"""Layers of attention; pools that a token attends to, and their tokens."""

FEW = {
    "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"],
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
}


def relative_error(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()


@pytest.fixture(scope="module")
def converted(convert_glm):
    return convert_glm()


@pytest.fixture(scope="module")
def expected(converted):
    """Of all tokens; every remainder, below, at and above the budget."""
    return converted[0].logits(TOKENS)


@pytest.fixture(scope="module", params=["reference", "cpu"])
def reader(read_glm, converted, request):
    return read_glm(converted[1], profile=request.param == "cpu")


def test_logits(reader, expected):
    assert relative_error(reader.logits(TOKENS), expected) < 1e-5


@pytest.mark.parametrize("width", [1, 3, 63, 64, 65])
def test_logits_in_any_chunks(read_glm, converted, expected, width):
    reader = read_glm(converted[1], profile=True)
    assert relative_error(reader.logits(TOKENS[:140], width), expected[:140]) < 1e-5


@pytest.mark.parametrize("count", [1, 3, 4, 5, *range(31, 40)])
def test_logits_of_any_length(reader, expected, count):
    """A first token, and every remainder around the budget."""
    assert relative_error(reader.logits(TOKENS[:count]), expected[:count]) < 1e-5


def test_selected_pools(reader, converted):
    """Of every query the sets are equal, and it sees the tokens of its own open pool."""
    checkpoint, found, wanted, undo = converted[0], {}, {}, []
    for layer in LAYERS:
        indexer = checkpoint.model.model.language_model.layers[layer].self_attn.indexer
        hook = indexer.register_forward_hook(
            lambda _, __, out, layer=layer: wanted.__setitem__(layer, out[0]))
        undo.append(hook.remove)
        mixer = reader.model._layers[layer]._mixer
        undo.append(lambda mixer=mixer, index=mixer._index: setattr(mixer, "_index", index))
        mixer._index = _Watched(mixer._index, found, layer)
    reader.logits(TOKENS), checkpoint.logits(TOKENS)
    for each in undo:
        each()
    for layer in LAYERS:
        for position, (tokens, pools) in enumerate(
                zip(wanted[layer].tolist(), found[layer].tolist(), strict=True)):
            chosen = [pool for pool in pools if pool >= 0]
            open_pool = range(position + 1 - (position + 1) % POOL, position + 1)
            ours = {POOL * pool + i for pool in chosen for i in range(POOL)} | {*open_pool}
            assert chosen == sorted(chosen) and len(chosen) == min(BUDGET, (position + 1) // POOL)
            assert ours == {token for token in tokens if token >= 0}, (layer, position)


class _Watched:
    """An index whose choices are kept."""

    def __init__(self, index, found, layer):
        self.index, self.found, self.layer = index, found, layer

    def __call__(self, *args):
        blocks = self.index(*args)
        self.found[self.layer] = blocks.clone()
        return blocks


def test_sixty_steps_of_decoding(read_glm, converted):
    """Greedy tokens, and the logits they were chosen by."""
    checkpoint, reader = converted[0], read_glm(converted[1], profile=True)
    tokens = reader.greedy(TOKENS[:20], 60)
    expected = checkpoint.logits(tokens[:-1])[19:]
    assert relative_error(reader.logits(tokens[:-1], 1)[19:], expected) < 1e-5
    best, second = expected.topk(2).values.unbind(1)
    assert (best - second).min() > 1e-4, "no choice is a near tie"
    assert tokens[20:] == expected.argmax(1).tolist()


@pytest.mark.parametrize("streams", [1, 2])
def test_other_numbers_of_streams(convert_glm, read_glm, streams):
    checkpoint, path = convert_glm(hc_mult=streams, hc_sinkhorn_iters=20, mtp=False, **FEW)
    error = relative_error(read_glm(path).logits(TOKENS[:60]), checkpoint.logits(TOKENS[:60]))
    assert error < 1e-5


def test_half_precision_checkpoints_keep_their_bits(convert_glm, read_glm):
    checkpoint, path = convert_glm(dtype=torch.bfloat16, **FEW)
    assert relative_error(read_glm(path).logits(TOKENS), checkpoint.logits(TOKENS)) < 1e-5


def test_names_of_a_text_only_checkpoint(convert_glm, read_glm):
    def rename(name):
        return name.replace("model.language_model.", "model.")

    checkpoint, path = convert_glm(rename=rename, **FEW)
    error = relative_error(read_glm(path).logits(TOKENS[:60]), checkpoint.logits(TOKENS[:60]))
    assert error < 1e-5


def test_a_checkpoint_without_predictor(convert_glm, read_glm):
    checkpoint, path = convert_glm(mtp=False, **FEW)
    reader = read_glm(path)
    assert reader.model.predictor is None
    assert relative_error(reader.logits(TOKENS[:60]), checkpoint.logits(TOKENS[:60])) < 1e-5


def test_every_tensor_matters(tiny_glm, tmp_path):
    """What these tests compare depends on each of them by much more than the tolerance."""
    checkpoint, tokens = tiny_glm(tmp_path, mtp=False, **FEW), TOKENS[:70]
    plain = checkpoint.logits(tokens)
    language = checkpoint.model.model.language_model
    tensors = [*language.named_parameters(), *language.named_buffers(),
               ("lm_head", checkpoint.model.lm_head.weight)]
    for name, values in tensors:
        kept = values.data.clone()
        values.data += 0.3 * kept.std() * torch.randn(kept.shape)
        assert relative_error(checkpoint.logits(tokens), plain) > 2e-4, name
        values.data = kept
