"""Sparse latent attention beside the one of `transformers`, over any steps."""

import pytest
import torch
from attrs import evolve
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextAttention

from ninfer_core.api import KVCodecSpec
from ninfer_core.state.store import StateStore
from ninfer_nn import IndexSizes, LatentAttention, latent_attention_states

HIDDEN, TOKENS = 40, 75
SIZES = {"num_heads": 3, "query_dim": 20, "latent_dim": 24, "key_dim": 12, "value_dim": 10}
CHUNKS = [(64, None), (3, None), (1, None), (7, None)]
INDEX = IndexSizes(num_heads=5, head_dim=16, block=4, budget=2)


@pytest.fixture(scope="module")
def oracle():
    """The module of `transformers`, with weights at random."""
    torch.manual_seed(5)
    config = Glm5NextTextConfig(
        hidden_size=HIDDEN, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=20,
        kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=0, v_head_dim=10,
        index_n_heads=INDEX.num_heads, index_head_dim=INDEX.head_dim, index_kpool=INDEX.block,
        index_topk=INDEX.block * INDEX.budget, num_hidden_layers=1,
        layer_types=["indexed_attention"], mlp_layer_types=["dense"], rms_norm_eps=1e-4,
        attn_implementation="eager",
    )
    module = Glm5NextTextAttention(config, 0).eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.normal_(std=HIDDEN**-0.5 if parameter.ndim > 1 else 1.0)
    module.indexer.index_kpool_compress_ape.normal_()
    return module


@pytest.fixture
def make_block(context, oracle):
    """``(**options) -> (block, context)`` on the same weights, in layer 1 of 2."""
    index = oracle.indexer
    keys, values = oracle.kv_b_proj.weight.unflatten(0, (3, -1)).split((12, 10), 1)
    parameters = {
        "query_down": oracle.q_a_proj.weight, "query_norm": oracle.q_a_layernorm.weight,
        "query_up": oracle.q_b_proj.weight, "latent": oracle.kv_a_proj_with_mqa.weight,
        "latent_norm": oracle.kv_a_layernorm.weight, "key_up": keys.mT.flatten(0, 1),
        "value_up": values.flatten(0, 1),
        "output": oracle.o_proj.weight, "index/query": index.wq_b.weight,
        "index/key": index.wk.weight, "index/key_norm": index.k_norm.weight,
        "index/key_norm_bias": index.k_norm.bias, "index/head_weights": index.weights_proj.weight,
        "index/pool_gate": index.index_kpool_compress_gate,
        "index/pool_bias": index.index_kpool_compress_ape,
    }

    def make(index=INDEX, **options):
        specs = latent_attention_states("kv", 2, latent_dim=24, index=index)
        store = StateStore(
            specs, KVCodecSpec("fp32", "ninfer_core.state.codecs:Fp32Codec"), num_pages=16,
            max_sequences=3, max_context=256, max_verify_rows=5,
        )
        own = evolve(
            context, parameters={f"attention/{n}": each for n, each in parameters.items()},
            store=store, buffers={},
        )
        return LatentAttention(
            own, "attention", state="kv", layer=1, **SIZES, index=index, eps=1e-4, **options
        ), own

    return make


def inputs():
    return torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(6))


def expected_of(oracle, x):
    """Outputs, and which tokens each one attends to, of the whole sequence at once."""
    mask = torch.ones(1, len(x), dtype=torch.bool)
    low = oracle.q_a_layernorm(oracle.q_a_proj(x))
    tokens = oracle.indexer(x.unsqueeze(0), low.unsqueeze(0), mask, None)[0]
    chosen = torch.zeros(len(x), len(x) + 1).scatter(1, tokens.long() % (len(x) + 1), 1)
    return oracle(x.unsqueeze(0), mask)[0][0], chosen[:, :-1]


def test_as_transformers(sparse_steps, oracle, make_block, run_sparse):
    out, chosen = run_sparse(*make_block(), inputs(), sparse_steps)
    expected, tokens = expected_of(oracle, inputs())
    assert chosen.equal(tokens[: len(out)])
    assert not tokens[20:].sum(1).eq(torch.arange(21, TOKENS + 1)).any()
    assert (out - expected[: len(out)]).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("length", range(66, 76))
def test_bits_do_not_depend_on_steps(length, make_block, run_sparse):
    """At every remainder of a block, with and without drafts behind the end of it."""
    x = inputs()[:length]
    whole = run_sparse(*make_block(), x, [(length, None)])
    for rest in (length - 64, length - 65):
        steps = [(64, None), (5, 0), (rest, None), *[(5, 0), (3, length - 64 - rest), (1, 0)]]
        again = run_sparse(*make_block(), x, steps)
        for own, other in zip(whole, again, strict=True):
            assert own.equal(other)


def test_a_large_budget_is_dense_attention(oracle, make_block, run_sparse):
    """Without absorption, in FP64."""
    x, index = inputs(), evolve(INDEX, budget=18)
    out, chosen = run_sparse(*make_block(index), x, CHUNKS)
    assert chosen.bool().equal(torch.ones(TOKENS, TOKENS).tril().bool())
    module = oracle.double()
    low = module.q_a_layernorm(module.q_a_proj(x.double()))
    latent = module.kv_a_layernorm(module.kv_a_proj_with_mqa(x.double()))
    q = module.q_b_proj(low).view(TOKENS, 3, 12)
    k, v = module.kv_b_proj(latent).view(TOKENS, 3, 22).split((12, 10), -1)
    scores = torch.einsum("thd,shd->hts", q, k) / 12**0.5
    hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    expected = module.o_proj(torch.einsum("hts,shd->thd", shares, v).flatten(1))
    oracle.float()
    assert (out - expected).abs().max() < 1e-5 * expected.abs().max()


def test_written_instead_of_added(make_block, step_batch):
    outs = []
    for adds in (True, False):
        block, _ = make_block(adds=adds)
        outs.append(torch.ones(5, HIDDEN) if adds else torch.full((5, HIDDEN), torch.nan))
        block(inputs()[:5], step_batch((1, 0, 5, 0, True)), outs[-1])
    assert torch.allclose(outs[0] - 1, outs[1], atol=1e-5)
