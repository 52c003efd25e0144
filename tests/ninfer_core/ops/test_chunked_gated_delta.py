"""The chunked form of the gated delta rule is the recurrence, whatever the chunks."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.ops.gated_delta_rule.chunked import scan_chunks
from ninfer_core.ops.gated_delta_rule.tokens import Tokens


def random_tokens(count, heads, key_dim, value_dim, strength, seed):
    """FP64 tokens whose decays go from almost nothing to almost all."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(count, heads, *shape, generator=generator, dtype=torch.float64)

    keys, queries = (torch.nn.functional.normalize(randn(key_dim), dim=-1) for _ in range(2))
    return Tokens(keys, randn(value_dim), -strength * randn().exp(), randn().sigmoid(), queries)


def recurrence(state, tokens):
    outputs = []
    for t in range(len(tokens.keys)):
        state = state * tokens.log_decays[t].exp()[:, None, None]
        seen = torch.einsum("hkv,hk->hv", state, tokens.keys[t])
        delta = tokens.betas[t][:, None] * (tokens.values[t] - seen)
        state = state + torch.einsum("hk,hv->hkv", tokens.keys[t], delta)
        outputs.append(torch.einsum("hkv,hk->hv", state, tokens.queries[t]))
    return state, torch.stack(outputs)


@given(
    count=st.integers(1, 150), chunk=st.integers(1, 80), heads=st.integers(1, 3),
    key_dim=st.integers(1, 9), value_dim=st.integers(1, 9),
    strength=st.sampled_from([1e-4, 0.1, 1, 30]), seed=st.integers(0, 999),
)
def test_chunks_equal_the_recurrence(count, chunk, heads, key_dim, value_dim, strength, seed):
    tokens = random_tokens(count, heads, key_dim, value_dim, strength, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    state = torch.randn(heads, key_dim, value_dim, generator=generator, dtype=torch.float64)
    expected = recurrence(state, tokens)
    for own, exact in zip(scan_chunks(state, tokens, chunk), expected, strict=True):
        assert torch.allclose(own, exact, rtol=0, atol=1e-12)


def test_without_queries_nothing_is_read():
    tokens = random_tokens(9, 2, 3, 4, 0.1, 0)
    state = torch.zeros(2, 3, 4, dtype=torch.float64)
    unread = Tokens(tokens.keys, tokens.values, tokens.log_decays, tokens.betas)
    after, outputs = scan_chunks(state, unread, 4)
    assert outputs is None and after.equal(scan_chunks(state, tokens, 4)[0])
