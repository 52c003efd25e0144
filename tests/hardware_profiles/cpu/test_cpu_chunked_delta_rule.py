"""The chunked forms of the gated delta rules are the recurrence, whatever the chunks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import KernelRequest
from ninfer_core.ops.gated_delta_rule import reference
from ninfer_core.ops.gated_delta_rule.tokens import Tokens
from ninfer_core.state.views import SlotPlanes
from ninfer_profile_cpu.chunked_delta_rule import (
    LOWEST_BOUND,
    accept_channel,
    bind_channel,
    channel_overlap,
    head_overlap,
    scan_chunks,
)


def random_tokens(count, heads, key_dim, value_dim, strength, seed, by_channel=False):
    """FP64 tokens whose decays go from almost nothing to almost all, but by channel not below the
    lowest bound."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(count, heads, *shape, generator=generator, dtype=torch.float64)

    keys, queries = (torch.nn.functional.normalize(randn(key_dim), dim=-1) for _ in range(2))
    decays = -strength * randn(*[key_dim] * by_channel).exp()
    if by_channel:
        decays = decays.clamp(min=LOWEST_BOUND)
    return Tokens(keys, randn(value_dim), decays, randn().sigmoid(), queries)


def recurrence(state, tokens):
    outputs = []
    for t in range(len(tokens.keys)):
        state = state * tokens.log_decays[t].exp().reshape(len(state), -1, 1)
        seen = torch.einsum("hkv,hk->hv", state, tokens.keys[t])
        delta = tokens.betas[t][:, None] * (tokens.values[t] - seen)
        state = state + torch.einsum("hk,hv->hkv", tokens.keys[t], delta)
        outputs.append(torch.einsum("hkv,hk->hv", state, tokens.queries[t]))
    return state, torch.stack(outputs)


@pytest.mark.parametrize("overlap", [head_overlap, channel_overlap])
@given(
    count=st.integers(1, 150), chunk=st.integers(1, 80), heads=st.integers(1, 3),
    key_dim=st.integers(1, 9), value_dim=st.integers(1, 9),
    strength=st.sampled_from([1e-4, 0.1, 1, 30]), seed=st.integers(0, 999),
)
def test_chunks_equal_the_recurrence(
    overlap, count, chunk, heads, key_dim, value_dim, strength, seed
):
    sizes = count, heads, key_dim, value_dim, strength, seed
    tokens = random_tokens(*sizes, by_channel=overlap is channel_overlap)
    generator = torch.Generator().manual_seed(seed + 1)
    state = torch.randn(heads, key_dim, value_dim, generator=generator, dtype=torch.float64)
    expected = recurrence(state, tokens)
    for own, exact in zip(scan_chunks(overlap, state, tokens, chunk), expected, strict=True):
        assert torch.allclose(own, exact, rtol=0, atol=1e-12)


def test_without_queries_nothing_is_read():
    tokens = random_tokens(9, 2, 3, 4, 0.1, 0)
    state = torch.zeros(2, 3, 4, dtype=torch.float64)
    unread = Tokens(tokens.keys, tokens.values, tokens.log_decays, tokens.betas)
    after, outputs = scan_chunks(head_overlap, state, unread, 4)
    assert outputs is None and after.equal(scan_chunks(head_overlap, state, tokens, 4)[0])


@pytest.mark.parametrize("strength", [1e-3, 1.0, 100.0])
def test_channels_in_single_precision(strength):
    """Decays at the lowest bound for whole chunks, beside those that hardly decay."""
    tokens = random_tokens(200, 2, 64, 32, strength, 3, by_channel=True)
    state = torch.zeros(2, 64, 32, dtype=torch.float64)
    expected = recurrence(state, tokens)
    single = Tokens(*[each.float() for each in (
        tokens.keys, tokens.values, tokens.log_decays, tokens.betas, tokens.queries)])
    result = scan_chunks(channel_overlap, state.float(), single)
    for own, exact in zip(result, expected, strict=True):
        assert torch.allclose(own.double(), exact, atol=1e-5)


def test_lower_bounds_that_overflow_are_refused():
    sizes = {"num_heads": 1, "key_dim": 2, "value_dim": 2, "eps": 0.0}
    for bound, word in ((-5.0, None), (-20.0, "-20.0")):
        request = KernelRequest(
            "channel_delta_rule", "cpu", "float32", sizes={**sizes, "lower_bound": bound}
        )
        reason = accept_channel(request)
        assert reason is None if word is None else word in reason


def test_bound_over_steps_as_the_reference(drive):
    """With replay, as `test_cpu_slots` has it."""
    sizes = {"num_heads": 2, "key_dim": 8, "value_dim": 4, "eps": 1e-3, "lower_bound": -5.0}
    request = KernelRequest("channel_delta_rule", "cpu", "float32", sizes=sizes)
    inputs = [torch.randn(90, w, generator=torch.Generator().manual_seed(w)) for w in (16, 17, 8)]
    q, k, v, f, b = inputs[0], inputs[1][:, :16], inputs[2], inputs[1][:, 1:], inputs[2][:, :2]
    outs = []
    for factory in (bind_channel, reference.bind_channel):
        planes = SlotPlanes(torch.zeros(2, 2, 8, 4), torch.zeros(2, 4, 16 + 8 + 16 + 2))
        op = factory(request, planes, torch.arange(2.0), torch.ones(16))
        out = torch.full((90, 8), torch.nan)
        outs.append(drive(
            lambda *a, op=op, out=out: op(*a, out[: a[-1].num_tokens]), [q, k, v, f, b],
            [(70, None), (4, 2), (3, 3), (1, None), (14, None)],
        ))
    assert torch.allclose(*outs, atol=1e-5)
