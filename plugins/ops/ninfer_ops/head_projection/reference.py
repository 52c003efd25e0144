"""``head_projection`` in FP64, token by token."""

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight


def bind(request: KernelRequest, weight: Weight) -> Callable[[Tensor, Tensor], Tensor]:
    matrices = weight.dense().double().unflatten(0, (request.sizes["num_heads"], -1))
    heads = (matrices.shape[0], matrices.shape[2], 1)

    def head_projection(x: Tensor, out: Tensor) -> Tensor:
        for t in range(x.shape[0]):
            out[t] = (matrices @ x[t].double().view(heads)).flatten()
        return out

    return head_projection
