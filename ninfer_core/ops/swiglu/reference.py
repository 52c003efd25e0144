"""``swiglu`` in FP32, row by row."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import silu

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight
from ninfer_core.ops.linear.reference import RowProduct


def bind(request: KernelRequest, weight: Weight) -> Callable[[Tensor, Tensor], Tensor]:
    product = RowProduct(weight)

    def swiglu(x: Tensor, out: Tensor) -> Tensor:
        for t in range(x.shape[0]):
            gate, up = product(x[t]).chunk(2)
            out[t] = silu(gate) * up
        return out

    return swiglu
