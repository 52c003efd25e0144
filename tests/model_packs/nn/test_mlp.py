"""Feed-forward blocks of matrices that are stored in different kinds."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import silu

from ninfer_nn import SwiGLU


def test_a_gate_and_an_up_of_different_kinds_are_two_products(context, parameters):
    parameters["up"] = parameters["up"].double()  # no longer a neighbour that stacks
    generator = torch.Generator().manual_seed(1)
    x, stream = torch.randn(2, 9, 24, generator=generator)
    gate, up, down = (parameters[name].double() for name in ("gate", "up", "down"))
    values = x.double()
    expected = stream.double() + (silu(values @ gate.T) * (values @ up.T)) @ down.T
    SwiGLU(context, gate="gate", up="up", down="down")(x, stream)
    assert (stream - expected).abs().max() < 1e-4
    assert {choice.request.op for choice in context.binder.choices} == {"linear", "sigmoid_gate"}


@pytest.mark.parametrize("together", [True, False])
def test_products_may_be_clamped_and_written(together, context, parameters):
    if not together:
        parameters["up"] = parameters["up"].double()
    x = torch.randn(9, 24, generator=torch.Generator().manual_seed(1))
    gate, up, down = (parameters[name].double() for name in ("gate", "up", "down"))
    values, out = x.double(), torch.full((9, 24), torch.nan)
    product = silu((values @ gate.T).clamp(max=1.5)) * (values @ up.T).clamp(-1.5, 1.5)
    SwiGLU(context, gate="gate", up="up", down="down", limit=1.5, adds=False)(x, out)
    assert (out - product @ down.T).abs().max() < 1e-4
