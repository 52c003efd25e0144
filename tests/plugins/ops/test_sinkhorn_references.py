"""Streams of Sinkhorn hyper-connections against FP64 formulas over whole batches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ninfer_core.api import KernelRequest
from ninfer_ops.hyper_connection import sinkhorn_reference as sinkhorn

SIZES = {"iterations": 20, "eps": 1e-6, "norm_eps": 1e-5}


def randn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def request(op, count, **sizes):
    return KernelRequest(op, "cpu", "float32", sizes={"num_streams": count, **SIZES, **sizes})


def poisoned(*shape):
    return torch.full(shape, torch.nan)


def read(products, streams, base, scale, count, **sizes):
    """What a token's block reads, and its mix."""
    op = sinkhorn.bind_read(request("sinkhorn_read", count, **sizes), base, scale)
    out = poisoned(len(streams), streams.shape[1] // count)
    mix = poisoned(len(streams), count + count * count)
    op(products, streams, out, mix)
    return out, mix


@pytest.fixture(params=[1, 2, 4])
def count(request):
    return request.param


@pytest.fixture
def case(count):
    """Strided streams, products, base and scale."""
    width = count * (count + 2)
    streams = 3 * randn(9, 12 * count + 5)[:, 5:]
    return 4 * randn(9, width, seed=2), streams, randn(width, seed=3), randn(3, seed=4), count


def formula(products, streams, base, scale, count, iterations=20):
    x = streams.double()
    m = products.double() * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-5)
    pre = torch.sigmoid(m[:, :count] * scale[0] + base[:count]) + 1e-6
    post = torch.sigmoid(m[:, count : 2 * count] * scale[1] + base[count : 2 * count])
    logits = (m[:, 2 * count :] * scale[2] + base[2 * count :]).view(-1, count, count)
    comb = logits.softmax(-1) + 1e-6
    for step in range(2 * iterations - 1):
        comb = comb / (comb.sum(-1 if step % 2 else -2, keepdim=True) + 1e-6)
    return torch.einsum("ts,tsh->th", pre, x.view(len(x), count, -1)), 2 * post, comb


def test_what_is_read_and_how_streams_mix(case, count):
    out, mix = read(*case)
    expected, post, comb = formula(*case)
    assert torch.allclose(out.double(), expected, rtol=0, atol=1e-6 * expected.abs().max())
    assert torch.allclose(mix[:, :count].double(), post, atol=1e-6)
    assert torch.allclose(mix[:, count:].view(-1, count, count).double(), comb, atol=1e-6)


@given(seed=st.integers(0, 1000), factor=st.floats(0, 8))
def test_mixes_are_doubly_stochastic(seed, factor):
    """Whatever the weights, as nearly as so many iterations come."""
    streams, products = randn(3, 20, seed=seed), factor * randn(3, 24, seed=seed + 1)
    _, mix = read(products, streams, torch.zeros(24), torch.ones(3), 4, iterations=200)
    comb = mix[:, 4:].view(3, 4, 4)
    assert (comb.sum(1) - 1).abs().max() < 1e-4 and (comb.sum(2) - 1).abs().max() < 0.02
    assert mix.min() >= 0 and mix[:, :4].max() <= 2


def test_outputs_are_added_to_mixed_streams(case, count):
    _, mix = read(*case)
    y, streams = randn(9, 12, seed=8), case[1].clone()
    sinkhorn.bind_write(request("sinkhorn_write", count))(y, mix, streams)
    comb = mix[:, count:].view(-1, count, count).double()  # [source, destination]
    mixed = torch.einsum("tsd,tsh->tdh", comb, case[1].double().view(9, count, 12))
    expected = (mixed + mix[:, :count, None].double() * y.double()[:, None]).flatten(1)
    assert torch.allclose(streams.double(), expected, rtol=0, atol=1e-6 * expected.abs().max())


def test_the_mean_of_streams(case, count):
    out = poisoned(9, 12)
    assert sinkhorn.bind_mean(request("stream_mean", count))(case[1], out) is out
    assert torch.allclose(out, case[1].reshape(9, count, 12).mean(1), atol=1e-5)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_bits_of_a_token_do_not_depend_on_its_company(case, count, width):
    products, streams, base, scale, _ = case
    whole = read(*case)
    written = streams.clone()
    write = sinkhorn.bind_write(request("sinkhorn_write", count))
    write(whole[0], whole[1], written)
    for start in range(0, 9, width):
        rows = slice(start, start + width)
        part = read(products[rows], streams[rows], base, scale, count)
        assert all(torch.equal(one, all_[rows]) for one, all_ in zip(part, whole, strict=True))
        alone = streams[rows].clone()
        write(*part, alone)
        assert torch.equal(alone, written[rows])
