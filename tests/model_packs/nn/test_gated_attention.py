"""Gated attention beside the one of `transformers`, over any steps."""

import pytest
import torch
from attrs import evolve
from transformers.models.qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5Attention,
    Qwen3_5TextRotaryEmbedding,
)

from ninfer_core.api import KVCodecSpec, PagedStateSpec, StatePlane
from ninfer_core.state.step import StepBatch
from ninfer_core.state.store import StateStore
from ninfer_nn import GatedAttention, mrope_axes, rope_frequencies, rope_tables

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, TOKENS, THETA = 40, 6, 2, 24, 75, 1e4
CHUNKS = {"at once": [75], "chunks": [64, 3, 1, 7], "one by one": [9] + [1] * 66}
SECTIONS = {0.25: (1, 1, 1), 0.5: (3, 2, 1)}


@pytest.fixture(params=SECTIONS, ids=lambda factor: f"rotary {factor}")
def oracle(request):
    """The module of `transformers`, with weights at random, and the function of its positions."""
    torch.manual_seed(5)
    rope = {
        "rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": request.param,
        "mrope_section": list(SECTIONS[request.param]),
    }
    config = Qwen3_5TextConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM, rms_norm_eps=1e-4, rope_parameters=rope, attn_implementation="eager",
    )
    module = Qwen3_5Attention(config, 0).eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.normal_(std=HIDDEN**-0.5 if parameter.ndim > 1 else 1.0)
    return module, Qwen3_5TextRotaryEmbedding(config)


@pytest.fixture
def block(context, oracle):
    """Our block on the same weights."""
    module, rotary = oracle
    heads = module.q_proj.weight.view(HEADS, 2, HEAD_DIM, HIDDEN)
    parameters = {
        "query": heads[:, 0].flatten(0, 1), "gate": heads[:, 1].flatten(0, 1),
        "key": module.k_proj.weight, "value": module.v_proj.weight,
        "query_norm": module.q_norm.weight, "key_norm": module.k_norm.weight,
        "output": module.o_proj.weight,
    }
    planes = [StatePlane(name, (KV_HEADS, HEAD_DIM)) for name in ("key", "value")]
    store = StateStore(
        [PagedStateSpec("kv", 1, tuple(planes))],
        KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec"), num_pages=4, max_sequences=1,
        max_context=256, max_verify_rows=1,
    )
    parameters = {f"attention/{name}": each for name, each in parameters.items()}
    context = evolve(context, parameters=parameters, store=store)
    sections = rotary.mrope_section
    frequencies = rope_frequencies(2 * sum(sections), THETA)
    return GatedAttention(
        context, "attention", planes=store.view("kv", 0), num_heads=HEADS, num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM, rope=rope_tables(frequencies, 256, axes=mrope_axes(sections)), eps=1e-4,
    )


def step(start, count, positions):
    batch = StepBatch.allocate(max_tokens=80, max_rows=1, max_pages=4, max_logits=1)
    batch.num_tokens, batch.num_rows = count, 1
    batch.positions[:count] = torch.arange(start, start + count)
    batch.rope_positions[:, :count] = positions[:, start : start + count]
    batch.row_start[1] = count
    batch.page_table[0] = torch.tensor([2, 4, 1, 3])
    return batch


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("kind", ["text", "image"])
def test_as_transformers(chunks, kind, block, oracle):
    module, rotary = oracle
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(6))
    positions = torch.arange(TOKENS).expand(3, TOKENS).clone()
    if kind == "image":
        positions[1, 20:50], positions[2, 20:50] = torch.randint(20, 40, (2, 30))
    mask = torch.full((TOKENS, TOKENS), -torch.inf).triu(1)[None, None]
    expected, _ = module(x[None], rotary(x, positions.unsqueeze(1)), mask)
    stream, start = torch.ones(TOKENS, HIDDEN), 0
    for count in chunks:
        rows = slice(start, start + count)
        block(x[rows], step(start, count, positions), stream[rows])
        start += count
    assert torch.allclose(stream - 1, expected[0], rtol=0, atol=1e-5 * expected.abs().max())
