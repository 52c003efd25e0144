"""``rope_kv_append`` in FP32, by single roundings only: no sum has an order."""

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import PAGE_TOKENS, StepBatch
from ninfer_core.state.views import PagedPlanes


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate ``[T, H, R]`` in place by ``[T, 1, R/2]``."""
    half = heads.shape[-1] // 2
    a, b = heads[..., :half].float(), heads[..., half:].float()
    low, high = a * cos - b * sin, b * cos + a * sin
    heads[..., :half], heads[..., half:] = low, high


def _append(planes: PagedPlanes, name: str, values: Tensor, batch: StepBatch) -> None:
    count = values.shape[0]
    positions = batch.positions[:count]
    pages = batch.page_table[batch.token_row[:count].long(), positions // PAGE_TOKENS].long()
    for part, stored in planes.codec.encode(values.float()).items():
        planes.planes[name][part][pages, positions % PAGE_TOKENS] = stored


def bind(
    request: KernelRequest, planes: PagedPlanes, cos: Tensor | None, sin: Tensor | None
) -> Callable[[Tensor, StepBatch], None]:
    sizes = request.sizes
    hq, hkv, rotary_dim = sizes["num_heads"], sizes["num_kv_heads"], sizes["rotary_dim"]

    def rope_kv_append(qkv: Tensor, batch: StepBatch) -> None:
        heads = qkv.view(qkv.shape[0], hq + 2 * hkv, sizes["head_dim"])
        if cos is not None and sin is not None:
            positions = batch.positions[: qkv.shape[0]]
            rows = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
            _rotate(heads[:, : hq + hkv, :rotary_dim], *rows)
        _append(planes, "key", heads[:, hq : hq + hkv], batch)
        _append(planes, "value", heads[:, hq + hkv :], batch)

    return rope_kv_append
