"""Ops on residuals of several streams against their references, and in any company."""

from __future__ import annotations

import pytest
import torch

from ninfer_core.api import KernelRequest
from ninfer_fixtures.contracts import CONTRACTS
from ninfer_profile_cpu.bindings import streams

S, H = 3, 37
OPS = {  # op: (sizes, widths of what it reads, width of its result)
    "grouped_rmsnorm": ({"eps": 1e-3, "groups": S, "unit_offset": True}, [S * H], S * H),
    "scaled_silu": ({"scale": 1 / S}, [H], H),
    "stream_read": ({"num_streams": S}, [S * H, S * H], H),
    "stream_add": ({"num_streams": S}, [H, S], S * H),
    "signed_sqrt_gate": ({"num_streams": S}, [S * H, S * H, H], S * H),
}


@pytest.fixture
def run(randn, poisoned):
    """``(module or None, op, rows) -> result``, of inputs and into a result that are parts of
    wider rows; ``None``: the reference."""

    def run(module, op, rows):
        sizes, widths, width = OPS[op]
        factory = getattr(module, f"bind_{op}") if module else CONTRACTS[op].reference.load()
        constants = {"weight": randn(S * H, seed=9)} if op == "grouped_rmsnorm" else {}
        call = factory(KernelRequest(op, "cpu", "float32", sizes=sizes), **constants)
        inputs = [randn(20, each + 5, seed=i)[rows, 2 : 2 + each] for i, each in enumerate(widths)]
        out = poisoned(len(inputs[0]), width + 3)
        if op == "stream_add":
            out[:, :width] = randn(20, width, seed=7)[rows]
        call(*inputs, out[:, :width])
        assert out[:, width:].isnan().all()
        return out[:, :width]

    return run


@pytest.mark.parametrize("op", OPS)
def test_as_the_reference(op, run):
    found, expected = run(streams, op, slice(0, 20)), run(None, op, slice(0, 20))
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", OPS)
def test_a_row_has_the_same_bits_in_any_company(op, run):
    together = run(streams, op, slice(0, 20))
    for begin, end in ((0, 1), (3, 4), (5, 14), (19, 20)):
        assert torch.equal(run(streams, op, slice(begin, end)), together[begin:end])


@pytest.mark.parametrize("score", [0.0, 1e-9, -1e-9, 4.0, -4.0, torch.nan])
def test_signed_roots(score):
    """Of scores that are 0, below the least, and broken."""
    k, q, v = torch.full((1, 16), score), torch.eye(16)[:1] * 4.0, torch.ones(1, 16)
    made = []
    for factory in (streams.bind_signed_sqrt_gate, CONTRACTS["signed_sqrt_gate"].reference.load()):
        gate = factory(KernelRequest("", "cpu", "float32", sizes={"num_streams": 1}))
        made.append(gate(k, q, v, torch.empty(1, 16)))
    assert torch.allclose(*made, rtol=1e-6, equal_nan=True)
