"""The ops of gated hyper-connections against their formulas in FP64."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import rms_norm, silu

from ninfer_fixtures.contracts import CONTRACTS

S, H, T = 4, 10, 3


def randn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def bind(make_request):
    def bound(op, *, sizes, **constants):
        return CONTRACTS[op].reference.load()(make_request(op, sizes=sizes), **constants)

    return bound


def poisoned(*shape):
    """Rows of a larger matrix, so that no op may take them for contiguous."""
    return torch.full((shape[0], shape[1] + 5), torch.nan)[:, 2 : 2 + shape[1]]


def near(actual, expected):
    return torch.allclose(actual.double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("offset", [False, True])
def test_a_norm_of_each_group(bind, offset):
    x, weight = randn(T, S * H), randn(S * H, seed=2)
    op = bind("grouped_rmsnorm", sizes={"eps": 0.1, "groups": S, "unit_offset": offset},
              weight=weight)
    groups = [rms_norm(each, (H,), eps=0.1) for each in x.double().chunk(S, 1)]
    expected = torch.cat(groups, 1) * (weight + offset)
    assert near(op(x, poisoned(T, S * H)), expected)
    assert near(op(x, x), expected)


def test_silu_of_a_part(bind):
    x = randn(T, H)
    op = bind("scaled_silu", sizes={"scale": 0.25})
    expected = silu(x.double() / 4)
    assert near(op(x, poisoned(T, H)), expected)
    assert near(op(x, x), expected)


def test_reading_is_a_gated_mean(bind):
    gates, normed = randn(T, S * H), randn(T, S * H, seed=2)
    found = bind("stream_read", sizes={"num_streams": S})(gates, normed, poisoned(T, H))
    parts = zip(gates.double().chunk(S, 1), normed.double().chunk(S, 1), strict=True)
    assert near(found, sum(gate.sigmoid() * part for gate, part in parts) / S)


def test_adding_leaves_each_stream_itself(bind):
    y, logits, streams = randn(T, H), randn(T, 7, seed=2)[:, 1 : 1 + S], randn(T, S * H, seed=3)
    before = streams.double()
    bind("stream_add", sizes={"num_streams": S})(y, logits, streams)
    for s, (new, old) in enumerate(zip(streams.chunk(S, 1), before.chunk(S, 1), strict=True)):
        assert near(new, old + 2 * (logits[:, s : s + 1].double() / S).sigmoid() * y)


def test_a_gate_by_the_root_of_a_product(bind):
    k, q, v = randn(T, S * H), randn(T, S * H, seed=2), randn(T, H, seed=3)
    k[0, :H] = 0  # a product of nothing opens the gate by half
    k[1, :H] *= 1e-9  # one below the least counts as that
    found = bind("signed_sqrt_gate", sizes={"num_streams": S})(k, q, v, poisoned(T, S * H))
    scores = (k.double() * q).unflatten(1, (S, H)).sum(2) / H**0.5
    roots = torch.where(scores.abs() < 1e-6, 1e-3, scores.abs().sqrt()) * scores.sign()
    assert scores[0, 0] == 0 and 0 < scores[1, 0].abs() < 1e-6
    assert near(found, (roots.sigmoid()[..., None] * v[:, None]).flatten(1))
    assert near(found[0, :H], v[0].double() / 2)
