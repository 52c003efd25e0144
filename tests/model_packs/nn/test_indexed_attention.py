"""Sparse attention by blocks beside the one of `transformers`, over any steps."""

import pytest
import torch
from attrs import evolve
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import (
    Qwen4ExpTextAttention,
    Qwen4ExpTextRotaryEmbedding,
)

from ninfer_core.api import KernelRequest, KVCodecSpec
from ninfer_core.ops.slot_rows import require_tail
from ninfer_core.state.store import StateStore
from ninfer_core.state.views import SlotPlanes
from ninfer_nn import (
    IndexedAttention,
    IndexSizes,
    indexed_attention_states,
    mrope_axes,
    rope_frequencies,
    rope_tables,
)

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, TOKENS, THETA = 40, 6, 2, 24, 75, 1e4
SECTIONS = (3, 2, 1)
MOST_DRAFTS = 15
"""That an engine can be asked for."""
DRAFTS = 5  # tokens of a step that may lie behind the last
CHUNKS = [(64, None), (3, None), (1, None), (7, None)]
INDEX = IndexSizes(num_heads=6, head_dim=16, block=4, budget=2)


@pytest.fixture(scope="module")
def oracle():
    """The module of `transformers`, with weights at random, and the function of its positions."""
    torch.manual_seed(5)
    rope = {
        "rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": 0.5,
        "mrope_section": list(SECTIONS),
    }
    config = Qwen4ExpTextConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM, rms_norm_eps=1e-4, rope_parameters=rope, attn_implementation="eager",
        num_hidden_layers=1, layer_types=["full_attention"], indexer_n_heads=INDEX.num_heads,
        indexer_kv_heads=1, indexer_head_dim=INDEX.head_dim, indexer_compress_ratio=INDEX.block,
        indexer_budget=INDEX.block * INDEX.budget,
    )
    module = Qwen4ExpTextAttention(config, 0).eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.normal_(std=HIDDEN**-0.5 if parameter.ndim > 1 else 0.5)
    return module, Qwen4ExpTextRotaryEmbedding(config)


@pytest.fixture
def make_block(context, oracle):
    """``(**options) -> (block, context)`` on the same weights, in layer 1 of 2."""
    module, _ = oracle
    heads = module.q_proj.weight.view(HEADS, 2, HEAD_DIM, HIDDEN)
    query, key = module.indexer.index_qk_proj.weight.split(
        (INDEX.num_heads * INDEX.head_dim, INDEX.head_dim)
    )
    parameters = {
        "query": heads[:, 0].flatten(0, 1), "gate": heads[:, 1].flatten(0, 1),
        "key": module.k_proj.weight, "value": module.v_proj.weight,
        "query_norm": module.q_norm.weight, "key_norm": module.k_norm.weight,
        "output": module.o_proj.weight, "index/query": query, "index/key": key,
        "index/query_norm": module.indexer.q_layernorm.weight,
        "index/key_norm": module.indexer.k_layernorm.weight,
    }

    def make(index=INDEX, **options):
        specs = indexed_attention_states(
            "kv", 2, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, index=index
        )
        store = StateStore(
            specs, KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec"), num_pages=16,
            max_sequences=3, max_context=256, max_verify_rows=5,
        )
        own = evolve(
            context, parameters={f"attention/{n}": each for n, each in parameters.items()},
            store=store, buffers={},
        )
        rope = rope_tables(
            rope_frequencies(2 * sum(SECTIONS), THETA), 256, axes=mrope_axes(SECTIONS)
        )
        return IndexedAttention(
            own, "attention", state="kv", layer=1, num_heads=HEADS, num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM, index=index, rope=rope, eps=1e-4, **options,
        ), own

    return make


def positions_of(kind):
    positions = torch.arange(TOKENS + DRAFTS).expand(3, TOKENS + DRAFTS).clone()
    if kind == "image":
        positions[1:, 20:50] = torch.randint(
            20, 40, (2, 30), generator=torch.Generator().manual_seed(1)
        )
        positions[:, 50:] -= 10
    return positions


def expected_of(oracle, x, positions):
    """Outputs, and which tokens each one attends to, of the whole sequence at once."""
    module, rotary = oracle
    count = len(x)
    mask = torch.full((1, 1, count, count), torch.finfo(torch.float32).min).triu(1)
    embeddings = rotary(x, positions[:, None, :count])
    out = module(x.unsqueeze(0), embeddings, mask, None)[0][0]
    return out, module.indexer(x.unsqueeze(0), embeddings, mask, None)[0, 0]


@pytest.mark.parametrize("kind", ["text", "image"])
def test_as_transformers(kind, sparse_steps, oracle, make_block, run_sparse):
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(6))
    positions = positions_of(kind)
    out, chosen = run_sparse(*make_block(), x, sparse_steps, rope_positions=positions)
    count = len(out)
    expected, tokens = expected_of(oracle, x, positions)
    assert chosen.bool().equal(tokens[:count])
    assert not tokens[20:].sum(1).eq(torch.arange(21, TOKENS + 1)).any()
    assert (out - expected[:count]).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("length", range(66, 76))
def test_bits_do_not_depend_on_steps(length, make_block, run_sparse):
    """At every remainder of a block, with and without drafts behind the end of it."""
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(6))[:length]
    whole = run_sparse(*make_block(), x, [(length, None)])
    for rest in (length - 64, length - 65):
        steps = [(64, None), (5, 0), (rest, None), *[(5, 0), (3, length - 64 - rest), (1, 0)]]
        again = run_sparse(*make_block(), x, steps)
        for own, other in zip(whole, again, strict=True):
            assert own.equal(other)


def test_a_large_budget_is_dense_attention(make_block, context, drive):
    """Bit for bit, because it attends to the same tokens in the same order."""
    from ninfer_nn import GatedAttention

    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(6))
    block, own = make_block(evolve(INDEX, budget=18))
    rope = rope_tables(rope_frequencies(12, THETA), 256, axes=mrope_axes(SECTIONS))
    dense = GatedAttention(
        own, "attention", planes=own.state("kv", 0), num_heads=HEADS, num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM, rope=rope, eps=1e-4,
    )

    def caller(each):
        def call(part, batch):
            stream = torch.zeros_like(part)
            each(part, batch, stream)
            return stream
        return call

    outs = [drive(caller(each), [x], CHUNKS) for each in (block, dense)]
    assert outs[0].equal(outs[1])


def test_written_instead_of_added(make_block, step_batch):
    x = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(6))
    outs = []
    for adds in (True, False):
        block, _ = make_block(adds=adds)
        outs.append(torch.ones_like(x) if adds else torch.full_like(x, torch.nan))
        block(x, step_batch((1, 0, 5, 0, True)), outs[-1])
    assert torch.allclose(outs[0] - 1, outs[1], atol=1e-6)


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16, 32, 64])
def test_tails_hold_an_open_block_and_as_many_drafts_as_there_may_be(block):
    index = IndexSizes(num_heads=1, head_dim=4, block=block, budget=1)
    *_, tail = indexed_attention_states("kv", 1, num_kv_heads=1, head_dim=4, index=index)
    request = KernelRequest("mean_index_append", "cpu", "float32", sizes={"block": block})
    columns = torch.empty(2, *tail.shape)
    require_tail(request, SlotPlanes(columns, torch.empty(2, 1 + MOST_DRAFTS, 0)))
