"""Feed-forward blocks."""

from __future__ import annotations

from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.nn.linear import Linear


class SwiGLU:
    """The gated MLP ``down(silu(gate x) * up x)``, added to the residual stream."""

    def __init__(self, context: BuildContext, *, gate: str, up: str, down: str) -> None:
        weight = context.weight(gate, up)
        self._product = context.bind("swiglu", weight=weight)
        self._out = context.buffer("mlp_product", weight.info.shape[0] // 2)
        self._down = Linear(context, down)

    def __call__(self, x: Tensor, stream: Tensor) -> None:
        """``x`` ``[T, H]``, ``stream`` ``[T, H]``."""
        self._down.add_to(stream, self._product(x, self._out(x.shape[0])))
