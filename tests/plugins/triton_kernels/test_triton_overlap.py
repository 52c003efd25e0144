"""Kernels that begin before the one before has ended give the bits of those that wait for it."""

import pytest
import torch


@pytest.fixture
def launches(bind, make_weight, randn, device):
    """``(stream) -> calls``: what a layer launches between its attention and its end, on a stream
    ``[T, width]``."""
    width, inner = 2048, 6144

    def bound(op, *sizes, **constants):
        return bind(op, *sizes, **constants)[0]

    norms = [bound("rmsnorm", {"eps": 1e-5, "unit_offset": False}, weight=randn(width, seed=seed))
             for seed in (1, 2)]
    weights = tuple(make_weight(*each) for each in (
        ("q4_g64_fp16", width, width), ("q5_g64_fp16", inner, width), ("bf16", 32, width)))
    group = bound("linear_group", weights=weights, biases=(None,) * 3)
    give = bound("linear", weight=make_weight("nvfp4", width, width), bias=None)
    swiglu = bound("swiglu", weight=make_weight("q4_g64_fp16", 2 * inner, width))
    down = bound("linear", weight=make_weight("q5_g64_fp16", width, inner), bias=None)

    def launches(stream):
        normed, wide, hidden = (
            torch.empty(len(stream), columns, dtype=stream.dtype, device=device)
            for columns in (width, width + inner + 32, inner))
        return [
            lambda: norms[0](stream, normed), lambda: group(normed, wide),
            lambda: give(wide[:, :width], stream, stream), lambda: norms[1](stream, normed),
            lambda: swiglu(normed, hidden), lambda: down(hidden, stream, stream),
        ]

    launches.width = width
    return launches


@pytest.mark.skipif(not torch.cuda.is_available(), reason="nothing overlaps without a card")
@pytest.mark.parametrize("tokens", [1, 4, 8, 16, 32])
def test_the_bits_of_a_chain_of_launches(tokens, launches, randn):
    for seed in range(20):
        streams = []
        for waits in (True, False):
            stream = randn(tokens, launches.width, seed=seed)
            for launch in launches(stream) * 8:
                launch()
                if waits:
                    torch.cuda.synchronize()
            streams.append(stream)
        assert not streams[0].isnan().any()
        assert torch.equal(*streams)
