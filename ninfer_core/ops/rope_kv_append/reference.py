"""``rope_kv_append`` in FP32; all but the norms by single roundings, where no sum has an order."""

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.ops.rmsnorm import reference as rmsnorm
from ninfer_core.state.step import PAGE_TOKENS, StepBatch
from ninfer_core.state.views import PagedPlanes


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate fp32 ``[T, H, R]`` in place by ``[T, 1, R/2]``."""
    half = heads.shape[-1] // 2
    a, b = heads[..., :half], heads[..., half:]
    low, high = a * cos - b * sin, b * cos + a * sin
    heads[..., :half], heads[..., half:] = low, high


def _append(planes: PagedPlanes, name: str, values: Tensor, batch: StepBatch) -> None:
    count = values.shape[0]
    positions = batch.positions[:count]
    pages = batch.page_table[batch.token_row[:count].long(), positions // PAGE_TOKENS].long()
    for part, stored in planes.codec.encode(values.float()).items():
        planes.planes[name][part][pages, positions % PAGE_TOKENS] = stored


def bind(
    request: KernelRequest, planes: PagedPlanes, cos: Tensor | None, sin: Tensor | None,
    axes: Tensor | None, query_norm: Tensor | None, key_norm: Tensor | None,
) -> Callable[[Tensor, Tensor, Tensor, StepBatch], None]:
    head_dim, rotary_dim = request.sizes["head_dim"], request.sizes["rotary_dim"]
    norms = [w if w is None else rmsnorm.bind(request, w) for w in (query_norm, key_norm)]

    def angles(batch: StepBatch, count: int) -> list[Tensor]:
        """Cosines and sines ``[T, 1, R/2]``, or none."""
        tables = [table for table in (cos, sin) if table is not None]
        positions = batch.rope_positions[:, :count]
        if axes is None:
            return [table[positions[0]].unsqueeze(1) for table in tables]
        rows = positions[axes].T  # [T, R/2]
        return [table.gather(0, rows).unsqueeze(1) for table in tables]

    def rope_kv_append(q: Tensor, k: Tensor, v: Tensor, batch: StepBatch) -> None:
        turns = angles(batch, q.shape[0])
        for x, norm in zip((q, k), norms, strict=True):
            values = x.float()
            heads = values.unflatten(1, (-1, head_dim))
            if norm is not None:
                for token in heads:
                    norm(token, token)
            if turns:
                _rotate(heads[..., :rotary_dim], *turns)
            x.copy_(values)
        _append(planes, "key", k.unflatten(1, (-1, head_dim)), batch)
        _append(planes, "value", v.unflatten(1, (-1, head_dim)), batch)

    return rope_kv_append
