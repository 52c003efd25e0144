"""Feed-forward blocks of matrices that are stored in different kinds."""

from __future__ import annotations

import torch
from torch.nn.functional import silu

from ninfer_core.nn import SwiGLU


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
