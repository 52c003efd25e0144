"""Feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.nn.linear import Linear


class GatedProduct:
    """``silu(gate x) * up x``: ``[T, H]`` to ``[T, F]`` in the buffer ``out``.

    One product, or two if the matrices are stored in different kinds.
    """

    def __init__(self, context: BuildContext, gate: str, up: str, *, out: str) -> None:
        weights = context.weight_runs(gate, up)
        width = sum(weight.info.shape[0] for weight in weights) // 2
        self._out = context.buffer(out, width)
        if len(weights) == 1:
            self._product = context.bind("swiglu", weight=weights[0])
        else:
            half = context.buffer(f"{out}_half", width)
            self._product = _two_products(context, weights[0], weights[1], half)

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = self._product(x, self._out(x.shape[0]))
        return product


def _two_products(
    context: BuildContext, gate: Any, up: Any, half: Callable[[int], Tensor]
) -> Callable[[Tensor, Tensor], Tensor]:
    project_gate, project_up = (
        context.bind("linear", weight=weight, bias=None) for weight in (gate, up)
    )
    scale = context.bind("sigmoid_gate")

    def product(x: Tensor, out: Tensor) -> Tensor:
        gated = project_gate(x, half(x.shape[0]))
        scale(gated, gated, out)  # silu
        return out.mul_(project_up(x, gated))

    return product


class SwiGLU:
    """The gated MLP ``down(silu(gate x) * up x)``, added to the residual stream."""

    def __init__(self, context: BuildContext, *, gate: str, up: str, down: str) -> None:
        self._product = GatedProduct(context, gate, up, out="mlp_product")
        self._down = Linear(context, down)

    def __call__(self, x: Tensor, stream: Tensor) -> None:
        """``x`` ``[T, H]``, ``stream`` ``[T, H]``."""
        self._down.add_to(stream, self._product(x))
