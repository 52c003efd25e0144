"""``swiglu`` in FP32, row by row."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import silu

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.linear.reference import RowProduct


def gated(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """``silu(gate) * up``, both clamped to a limit unless it is 0."""
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return silu(gate) * up


def bind(request: KernelRequest, weight: Weight) -> Callable[[Tensor, Tensor], Tensor]:
    product, limit = RowProduct(weight), request.sizes.get("limit", 0.0)

    def swiglu(x: Tensor, out: Tensor) -> Tensor:
        for t in range(x.shape[0]):
            gate, up = product(x[t]).chunk(2)
            out[t] = gated(gate, up, limit)
        return out

    return swiglu
