"""Gates on rows of activations, against the references."""

import pytest
import torch

from ninfer_core.api import KernelRequest
from ninfer_fixtures.contracts import CONTRACTS
from ninfer_profile_cpu.accepts import accept_gated_rmsnorm
from ninfer_profile_cpu.bindings.rows import bind_gated_rmsnorm, bind_sigmoid_gate

SHAPES = [(1, 1, 1), (3, 5, 7), (20, 3, 40), (2, 48, 128), (5, 1, 3000)]


def columns(randn, poisoned, count, width, seed):
    """Rows with something between them, that nobody reads."""
    wide = poisoned(count, width + 9)
    wide[:, 4:-5] = 3 * randn(count, width, seed=seed)
    return wide[:, 4:-5]


@pytest.mark.parametrize(("count", "heads", "width"), SHAPES)
@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_gated_rmsnorm(count, heads, width, activation, randn, poisoned):
    sizes = {"eps": 1e-5, "num_heads": heads, "activation": activation}
    request, weight = KernelRequest("gated_rmsnorm", "cpu", "float32", sizes=sizes), randn(width)
    own, reference = (
        factory(request, weight)
        for factory in (bind_gated_rmsnorm, CONTRACTS["gated_rmsnorm"].reference.load())
    )
    check(own, reference, heads * width, heads * width, count, randn, poisoned)


@pytest.mark.parametrize(("count", "heads", "width"), SHAPES)
@pytest.mark.parametrize("is_scalar", [False, True])
def test_sigmoid_gate(count, heads, width, is_scalar, randn, poisoned):
    request = KernelRequest("sigmoid_gate", "cpu", "float32")
    own = bind_sigmoid_gate(request)
    reference = CONTRACTS["sigmoid_gate"].reference.load()(request)
    gates = 1 if is_scalar else heads * width
    check(own, reference, heads * width, gates, count, randn, poisoned)


def check(own, reference, width, gate_width, count, randn, poisoned):
    """Values, nothing else written, in place, and row by row the same bits."""
    x = columns(randn, poisoned, count, width, 1)
    gate = columns(randn, poisoned, count, gate_width, 2)
    expected = reference(x, gate, poisoned(count, width))
    wide = poisoned(count, width + 2)
    out = own(x, gate, wide[:, 1:-1])
    assert torch.allclose(out, expected, rtol=1e-5, atol=1e-6)
    assert wide[:, 0].isnan().all() and wide[:, -1].isnan().all()
    for t in range(count):
        alone = own(x[t : t + 1], gate[t : t + 1], poisoned(1, width))
        assert alone.equal(out[t : t + 1])
    assert own(x, gate, x) is x and x.equal(out)


def test_far_gates(poisoned):
    gate = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4]])
    out = bind_sigmoid_gate(KernelRequest("sigmoid_gate", "cpu", "float32"))(
        torch.ones(1, 5), gate, poisoned(1, 5))
    assert torch.allclose(out, gate.sigmoid(), atol=1e-30)


def test_unknown_activations_are_refused():
    sizes = {"eps": 1e-5, "num_heads": 1, "activation": "tanh"}
    request = KernelRequest("gated_rmsnorm", "cpu", "float32", sizes=sizes)
    assert "tanh" in (accept_gated_rmsnorm(request) or "")
