"""Feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ninfer_core.api import BuildContext
from ninfer_core.artifact.weight import Weight
from ninfer_nn.linear import Linear


class GatedProduct:
    """``silu(gate x) * up x``: ``[T, H]`` to ``[T, F]`` in the buffer ``out``.

    :param weights: both matrices as one, or two that are stored in different kinds.
    :param limit: of ``gate x`` from above and ``up x`` on both sides; 0: none.
    """

    def __init__(
        self, context: BuildContext, weights: Sequence[Weight], *, out: str, limit: float = 0.0
    ) -> None:
        width = sum(weight.info.shape[0] for weight in weights) // 2
        self._out = context.buffer(out, width)
        if len(weights) == 1:
            self._product = context.bind(
                "swiglu", weight=weights[0], sizes={"limit": limit}
            )
        else:
            half = context.buffer(f"{out}_half", width)
            self._product = _two_products(context, weights[0], weights[1], half, limit)

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = self._product(x, self._out(x.shape[0]))
        return product


def _two_products(
    context: BuildContext, gate: Any, up: Any, half: Callable[[int], Tensor], limit: float
) -> Callable[[Tensor, Tensor], Tensor]:
    project_gate, project_up = (
        context.bind("linear", weight=weight, bias=None) for weight in (gate, up)
    )
    scale = context.bind("sigmoid_gate")

    def product(x: Tensor, out: Tensor) -> Tensor:
        gated = project_gate(x, half(x.shape[0]))
        if limit:
            gated.clamp_(max=limit)
        scale(gated, gated, out)  # silu
        rest = project_up(x, gated)
        return out.mul_(rest.clamp_(-limit, limit) if limit else rest)

    return product


class SwiGLU:
    """The gated MLP ``down(silu(gate x) * up x)``, added to the residual stream.

    :param limit: as of `GatedProduct`. :param adds: False: written there instead.
    """

    def __init__(
        self, context: BuildContext, *, gate: str, up: str, down: str, limit: float = 0.0,
        adds: bool = True,
    ) -> None:
        weights = context.weight_runs(gate, up)
        self._product = GatedProduct(context, weights, out="mlp_product", limit=limit)
        output = Linear(context, down)
        self._give = output.add_to if adds else output.write

    def __call__(self, x: Tensor, stream: Tensor) -> None:
        """``x`` ``[T, H]``, ``stream`` ``[T, H]``."""
        self._give(stream, self._product(x))
