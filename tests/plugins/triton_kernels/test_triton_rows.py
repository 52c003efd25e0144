"""Norms and gates against the references."""

import pytest

from ninfer_conformance.tolerances import require_close


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("width", [16, 576, 2560, 3072])
def test_rmsnorm(offset, width, bind, randn, poisoned):
    sizes = {"eps": 1e-5, "unit_offset": offset}
    norm, reference = bind("rmsnorm", sizes, weight=randn(width, seed=2))
    x, out = randn(3, width + 8)[:, :width], poisoned(3, width + 8)
    expected = reference(x, poisoned(3, width))
    require_close(norm(x, out[:, :width]), expected, "norm", "bf16")
    assert out[:, width:].isnan().all()
    copy = x.clone()
    require_close(norm(copy, copy), expected, "norm in place", "bf16")


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_gated_rmsnorm(activation, bind, randn, poisoned):
    sizes = {"eps": 1e-5, "num_heads": 3, "activation": activation}
    norm, reference = bind("gated_rmsnorm", sizes, weight=randn(24))
    x, gate = randn(2, 72, seed=4), randn(2, 100, seed=5)[:, :72]
    require_close(
        norm(x, gate, poisoned(2, 72)), reference(x, gate, poisoned(2, 72)), "norm", "bf16")


@pytest.mark.parametrize("gate_width", [1, 40])
def test_sigmoid_gate(gate_width, bind, randn, poisoned):
    close, reference = bind("sigmoid_gate")
    x, gate = randn(3, 40, seed=4), randn(3, gate_width + 3, seed=5)[:, :gate_width]
    expected = reference(x, gate, poisoned(3, 40))
    require_close(close(x, gate, poisoned(3, 40)), expected, "gate", "bf16")
