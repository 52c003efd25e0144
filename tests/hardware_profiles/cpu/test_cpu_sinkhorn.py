"""Mixing streams against the references, and in any company."""

import pytest
import torch

from ninfer_core.api import KernelRequest
from ninfer_fixtures.contracts import CONTRACTS
from ninfer_profile_cpu.bindings import sinkhorn
from ninfer_profile_cpu.kernels.pool import pool

SHAPES = [(1, 1), (2, 17), (4, 37), (4, 160), (5, 24), (17, 3)]
TOKENS = 20


@pytest.fixture
def run(randn, poisoned):
    """``(own, op, S, H, rows) -> results``, of parts of wider rows and into such; ``own`` False:
    the reference."""

    def run(own, op, count, width, rows):
        sizes = {"num_streams": count, "iterations": 7, "eps": 1e-6, "norm_eps": 1e-5}
        factory = getattr(sinkhorn, f"bind_{op}") if own else CONTRACTS[op].reference.load()
        size = count * (count + 2)
        given = op == "sinkhorn_read"
        constants = {"base": randn(size, seed=3), "scale": randn(3, seed=4)} if given else {}
        call = factory(KernelRequest(op, "cpu", "float32", sizes=sizes), **constants)

        def part(width, seed):
            return randn(TOKENS, width + 5, seed=seed)[rows, 2 : 2 + width]

        streams = 3 * part(count * width, 1)
        wide = poisoned(len(streams), width + 3)
        if op == "sinkhorn_read":
            mix = poisoned(len(streams), count * (count + 1) + 2)
            call(4 * part(size, 2), streams, wide[:, :width], mix[:, :-2])
            assert mix[:, -2:].isnan().all() and wide[:, width:].isnan().all()
            return wide[:, :width], mix[:, :-2]
        if op == "sinkhorn_write":
            call(part(width, 5), part(count * (count + 1), 6).abs(), streams)
            return (streams,)
        call(streams, wide[:, :width])
        assert wide[:, width:].isnan().all()
        return (wide[:, :width],)

    return run


OPS = ("sinkhorn_read", "sinkhorn_write", "stream_mean")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_as_the_reference(op, count, width, run):
    found, expected = (run(own, op, count, width, slice(0, TOKENS)) for own in (True, False))
    for own, wanted in zip(found, expected, strict=True):
        assert torch.allclose(own, wanted, rtol=1e-5, atol=1e-6 * wanted.abs().max())


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("count", "width"), [(4, 37), (4, 160)])
def test_a_token_has_the_same_bits_in_any_company(op, count, width, run):
    together, before = run(True, op, count, width, slice(0, TOKENS)), pool().num_threads
    for num_threads, begin, end in ((1, 0, 1), (3, 3, 4), (3, 5, 14), (1, 19, 20)):
        pool().set_num_threads(num_threads)
        for own, wanted in zip(
            run(True, op, count, width, slice(begin, end)), together, strict=True
        ):
            assert torch.equal(own, wanted[begin:end])
    pool().set_num_threads(before)
