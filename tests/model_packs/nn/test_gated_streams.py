"""Gated streams and n-gram embeddings beside the modules of `transformers`."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from transformers import DynamicCache
from transformers.models.qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import (
    Qwen4ExpTextGatedResidual,
    Qwen4ExpTextPLELayer,
)

from ninfer_core.api import KVCodecSpec
from ninfer_core.state.store import StateStore
from ninfer_nn import GatedStreams, NgramEmbedding, NgramHash, ngram_states

H, S, RANK, EOS = 20, 3, 7, 5
CHUNKS = {
    "at once": [(50, None)],
    "chunks": [(30, None), (3, None), (1, None), (16, None)],
    "drafts": [(20, None), (4, 2), (4, 4), (4, 0), (4, 1), (1, None), (3, 3), (19, None)],
}


def randn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def config():
    return Qwen4ExpTextConfig(
        vocab_size=100, hidden_size=H, hc_count=S, hc_lowrank=RANK, ple_layer_ids=[1],
        ple_embed_dim=24, ple_conv_kernel_size=4, ngram_size=3, heads_per_ngram=2,
        ngram_vocab_size_base=60, make_ngram_vocab_size_divisible_by=8, eos_token_id=EOS,
        num_hidden_layers=1, layer_types=["linear_attention"], rms_norm_eps=1e-4,
    )


def with_random_weights(module):
    torch.manual_seed(11)
    for parameter in module.eval().requires_grad_(False).parameters():
        parameter.normal_(std=1.0 if parameter.ndim == 1 else 2 * parameter.shape[-1] ** -0.5)
    return module


@pytest.mark.parametrize("writes", [True, False])
def test_reading_and_writing(context, config, writes):
    module = with_random_weights(Qwen4ExpTextGatedResidual(config, use_combine=writes))
    parameters = {
        "norm": module.hc_norm.weight, "down": module.input_mix_weight_down.weight,
        "up": module.input_mix_weight_up.weight,
        **({"inject": module.block_inject_weight.weight} if writes else {}),
    }
    context = evolve(context, parameters={f"c/{name}": each for name, each in parameters.items()})
    connection = GatedStreams(
        context, "c", num_streams=S, hidden_size=H, rank=RANK, eps=1e-4, writes=writes)
    streams, y = randn(6, S * H), randn(6, H, seed=2)
    read, *written = module(streams) if writes else (module(streams),)
    assert torch.allclose(connection.read(streams), read, atol=1e-5)
    if writes:
        before, shares = written
        expected = before + (y.unsqueeze(1) * shares.unsqueeze(2)).flatten(1)
        connection.write(streams, y)
        assert torch.allclose(streams, expected, atol=1e-5)


@pytest.fixture
def ngrams(context, config):
    """The module of `transformers`, our block on the same weights, and its states."""
    module = with_random_weights(Qwen4ExpTextPLELayer(config, 0, 0))
    embedding = module.ple_embedding
    parameters = {
        "table": embedding.ngram_embedding.weight, "key": module.key_proj.weight,
        "value": module.value_proj.weight, "convolution": module.conv1d.weight.squeeze(1).T,
        **{f"{name}_norm": getattr(module, f"norm_{theirs}").weight for name, theirs in (
            ("key", "key"), ("query", "query"), ("convolution", "conv"))},
    }
    specs = ngram_states(1, ngram_size=3, channels=S * H, taps=4)
    codec = KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec")
    store = StateStore(
        specs, codec, num_pages=1, max_sequences=1, max_context=256, max_verify_rows=4)
    assert store.open().slot == 1
    context = evolve(
        context, parameters={f"n/{name}": each for name, each in parameters.items()}, store=store)
    hash = NgramHash(
        3, 2, EOS, embedding.layer_multipliers.tolist(),
        embedding.ngram_heads_vocab_sizes.tolist(), embedding.ngram_heads_offsets.tolist())
    block = NgramEmbedding(
        context, "n", layer=0, hash=hash, num_streams=S, hidden_size=H, eps=1e-4)
    return module, block, [store.view(spec.name, 0).committed[1] for spec in specs]


@pytest.mark.parametrize("steps", CHUNKS)
def test_n_grams(ngrams, config, drive, steps):
    module, block, (tokens, columns) = ngrams
    ids = torch.randint(100, (50, 1), generator=torch.Generator().manual_seed(3))
    ids[[0, 7, 8, 33, 49]] = EOS
    streams, cache = randn(50, S * H), DynamicCache(config=config)
    expected = module(streams[None], ids.T, cache)[0]

    def call(ids, streams, batch):
        batch.token_ids[: batch.num_tokens] = ids[:, 0].abs().long()
        added = streams.clone()
        block(added, batch)
        return added - streams

    found = drive(call, [ids.float(), streams], CHUNKS[steps])
    assert torch.allclose(found, expected, atol=1e-5)
    assert (tokens - 1).tolist() == ids[-2:, 0].tolist()
    last = cache.get_conv_state(0, state_idx=1)[0, :, -9:].T
    assert torch.allclose(columns, last, atol=1e-5)
