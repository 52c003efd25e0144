"""Streams of Sinkhorn hyper-connections against the references."""

import pytest
import torch

from ninfer_conformance.tolerances import require_close

SIZES = {"iterations": 20, "eps": 1e-6, "norm_eps": 1e-5}


@pytest.fixture(params=[(1, 40), (2, 1100), (4, 96)], ids=str)
def case(request, randn, device):
    """Number of streams, their width, and strided streams with products of them."""
    count, width = request.param
    products = 3 * randn(3, count * (count + 2) + 1, seed=2)[:, 1:].float()
    return count, width, randn(3, count * width + 7)[:, 7:], products


def read(op, case, poisoned, device):
    count, width, streams, products = case
    mix = torch.full((3, count + count * count), torch.nan, device=device)
    out = poisoned(3, width)
    op(products, streams, out, mix)
    return out, mix


def test_read_and_write(case, bind, randn, poisoned, device):
    count, width, streams, _ = case
    numbers = count * (count + 2)
    constants = {"base": randn(numbers, seed=3).float(), "scale": randn(3, seed=4).float()}
    ops = bind("sinkhorn_read", {"num_streams": count, **SIZES}, **constants)
    (out, mix), (expected, expected_mix) = (read(op, case, poisoned, device) for op in ops)
    require_close(out, expected, "what is read", "bf16")
    require_close(mix, expected_mix, "mix", "fp32")
    write, reference = bind("sinkhorn_write", {"num_streams": count})
    written, wanted, y = streams.clone(), streams.clone(), randn(3, width, seed=5)
    write(y, mix, written)
    reference(y, expected_mix, wanted)
    require_close(written, wanted, "streams", "bf16")


def test_bits_of_a_token_do_not_depend_on_its_company(case, bind, randn, poisoned, device):
    """Nor on how many programs share it."""
    count, width, streams, products = case
    numbers = count * (count + 2)
    constants = {"base": randn(numbers, seed=3).float(), "scale": randn(3, seed=4).float()}
    op, _ = bind("sinkhorn_read", {"num_streams": count, **SIZES}, **constants)
    alone = read(op, case, poisoned, device)
    many = case[0], case[1], streams.repeat(22, 1), products.repeat(22, 1)
    out = poisoned(66, width)
    mix = torch.full((66, count + count * count), torch.nan, device=device)
    op(many[3], many[2], out, mix)
    assert torch.equal(out[63:], alone[0]) and torch.equal(mix[63:], alone[1])


def test_mean(case, bind, poisoned):
    count, width, streams, _ = case
    mean, reference = bind("stream_mean", {"num_streams": count})
    out = mean(streams, poisoned(3, width))
    require_close(out, reference(streams, poisoned(3, width)), "mean", "bf16")
