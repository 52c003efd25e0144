"""``head_projection`` in FP64, token by token."""

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest


def bind(request: KernelRequest, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    matrices, heads = weight.double(), (weight.shape[0], weight.shape[2], 1)

    def head_projection(x: Tensor, out: Tensor) -> Tensor:
        for t in range(x.shape[0]):
            out[t] = (matrices @ x[t].double().view(heads)).flatten()
        return out

    return head_projection
