"""``embedding`` from a table in FP32."""

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.artifact.weight import Weight


def bind(request: KernelRequest, weight: Weight) -> Callable[[Tensor, Tensor], Tensor]:
    table = weight.dense()  # [V, H]
    return lambda ids, out: out.copy_(table.index_select(0, ids))
