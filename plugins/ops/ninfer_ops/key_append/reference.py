"""``key_append``."""

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.ops.pages import append_tokens
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes


def bind(request: KernelRequest, planes: PagedPlanes) -> Callable[[Tensor, StepBatch], None]:
    heads = request.sizes["num_kv_heads"], request.sizes["head_dim"]

    def key_append(key: Tensor, batch: StepBatch) -> None:
        append_tokens(planes, "key", key.unflatten(1, heads), batch)

    return key_append
