"""``rope_kv_append`` in FP32; all but the norms by single roundings, where no sum has an order."""

from collections.abc import Callable

from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.ops.pages import append_tokens
from ninfer_core.ops.rmsnorm import reference as rmsnorm
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes

Constants = tuple[Tensor | None, Tensor | None, Tensor | None]
"""``cos``, ``sin`` and ``axes`` of the contract."""


def turns_at(positions: Tensor, constants: Constants) -> list[Tensor]:
    """Cosines and sines ``[T, 1, R/2]`` at rope positions int64 ``[3, T]``, or none."""
    *tables, axes = constants
    given = [table for table in tables if table is not None]
    if axes is None:
        return [table[positions[0]].unsqueeze(1) for table in given]
    rows = positions[axes].T  # [T, R/2]
    return [table.gather(0, rows).unsqueeze(1) for table in given]


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate the first R components of ``[T, H, D]`` in place by ``[T, 1, R/2]``."""
    half = cos.shape[-1]
    a, b = heads[..., :half], heads[..., half : 2 * half]
    low, high = a * cos - b * sin, b * cos + a * sin
    heads[..., :half], heads[..., half : 2 * half] = low, high


def prepare(
    x: Tensor, head_dim: int, norm: Callable[[Tensor, Tensor], Tensor] | None, turns: list[Tensor]
) -> None:
    """Normalise and rotate the heads of ``[T, H D]`` in place, with one rounding."""
    values = x.float()
    heads = values.unflatten(1, (-1, head_dim))
    if norm is not None:
        for token in heads:
            norm(token, token)
    if turns:
        rotate(heads, *turns)
    x.copy_(values)


def bind(
    request: KernelRequest, planes: PagedPlanes, cos: Tensor | None, sin: Tensor | None,
    axes: Tensor | None, query_norm: Tensor | None, key_norm: Tensor | None,
) -> Callable[[Tensor, Tensor, Tensor, StepBatch], None]:
    head_dim = request.sizes["head_dim"]
    norms = [w if w is None else rmsnorm.bind(request, w) for w in (query_norm, key_norm)]

    def rope_kv_append(q: Tensor, k: Tensor, v: Tensor, batch: StepBatch) -> None:
        turns = turns_at(batch.rope_positions[:, : q.shape[0]], (cos, sin, axes))
        for x, norm in zip((q, k), norms, strict=True):
            prepare(x, head_dim, norm, turns)
        append_tokens(planes, "key", k.unflatten(1, (-1, head_dim)), batch)
        append_tokens(planes, "value", v.unflatten(1, (-1, head_dim)), batch)

    return rope_kv_append
