"""Kernels that let the next one start sooner give the bits of those that do not."""

from itertools import pairwise

import pytest
import torch

from ninfer_triton_kernels.plugin import ninfer_kernels

SOONER = {"rmsnorm": "early", "linear": "early", "linear_group": "early", "swiglu": "early"}


@pytest.fixture
def layer(bind, make_weight, randn, device):
    """``(how) -> layer``: what a layer launches between its attention and its end, and the
    products of one input, on a stream ``[T, width]``; ``how`` names the kernels of some ops."""
    width, inner = (2048, 6144) if device == "cuda" else (64, 64)

    def bound(how, op, *sizes, **constants):
        name = f"triton.{op}_{how[op]}" if op in how else f"triton.{op}"
        return bind(op, *sizes, name=name, **constants)[0]

    def layer(how):
        norms = [bound(how, "rmsnorm", {"eps": 1e-5, "unit_offset": False},
                       weight=randn(width, seed=seed)) for seed in (1, 2)]
        weights = tuple(make_weight(*each) for each in (
            ("q4_g64_fp16", width, width), ("q5_g64_fp16", inner, width), ("bf16", 32, width)))
        group = bound(how, "linear_group", weights=weights, biases=(None,) * 3)
        give = bound(how, "linear", weight=make_weight("nvfp4", width, width), bias=None)
        swiglu = bound(how, "swiglu", weight=make_weight("q4_g64_fp16", 2 * inner, width))
        down = bound(how, "linear", weight=make_weight("q5_g64_fp16", width, inner), bias=None)

        def run(stream, normed, wide, hidden):
            mixed = group(norms[0](stream, normed), wide)
            give(mixed[:, :width], stream, stream)
            down(swiglu(norms[1](stream, normed), hidden), stream, stream)

        return run

    layer.widths = width, width + inner + 32, inner
    return layer


def test_the_bits_of_a_chain_of_launches(layer, randn, poisoned, device):
    """Many layers in a row, with nothing in between that would wait."""
    runs, steps = [layer({}), layer(SOONER)], [1]
    if device == "cuda":
        runs += [layer({op: how}) for op, how in SOONER.items()]
        steps = [1, 4, 8, 16] * 40
    for seed, tokens in enumerate(steps):
        streams = []
        for run in runs:
            stream = randn(tokens, layer.widths[0], seed=seed)
            buffers = [poisoned(tokens, width) for width in layer.widths]
            for _ in range(8 if device == "cuda" else 1):
                run(stream, *buffers)
            streams.append(stream)
        assert not streams[0].isnan().any()
        assert all(torch.equal(one, other) for one, other in pairwise(streams))


def test_what_no_card_has_shown_is_chosen_by_name():
    kernels = {spec.name: spec for spec in ninfer_kernels()}
    for op, how in {**SOONER, "shared_moe_mlp": "ahead"}.items():
        assert kernels[f"triton.{op}_{how}"].priority < kernels[f"triton.{op}"].priority
    assert kernels["triton.linear_group"].priority < kernels["triton.linear_apart"].priority
