"""``mean_index_append`` and ``softmax_index_append`` in FP64, token by token."""

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.ops.rmsnorm import reference as rmsnorm
from ninfer_core.ops.rope_kv_append.reference import prepare, rotate, turns_at
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import PagedPlanes, SlotPlanes
from ninfer_ops.index_keys.tails import IndexTail

Append = Callable[[Tensor, Tensor, StepBatch], None]


def bind_mean(
    request: KernelRequest, planes: PagedPlanes, tail: SlotPlanes, cos: Tensor, sin: Tensor,
    axes: Tensor | None, query_norm: Tensor, key_norm: Tensor,
) -> Append:
    sizes, constants = request.sizes, (cos, sin, axes)
    head_dim, norm_query = sizes["head_dim"], rmsnorm.bind(request, query_norm)
    scale = key_norm.double() + (1.0 if sizes["unit_offset"] else 0.0)

    def reduce(columns: Tensor) -> Tensor:
        mean = columns[:, :head_dim].double().mean(0)
        key = mean / (mean.square().mean() + sizes["eps"]).sqrt() * scale
        turns = turns_at(columns[:1, head_dim:].T.long(), constants)
        rotate(key.view(1, 1, -1), *turns)
        return key

    append = IndexTail(request, planes, tail, reduce).append

    def mean_index_append(q: Tensor, k: Tensor, batch: StepBatch) -> None:
        turns = batch.rope_positions[:, : len(q)]
        prepare(q, head_dim, norm_query, turns_at(turns, constants))
        append(torch.cat((k.float(), turns.T.float()), 1), batch)

    return mean_index_append


def bind_softmax(
    request: KernelRequest, planes: PagedPlanes, tail: SlotPlanes, norm: Tensor,
    norm_bias: Tensor, position_bias: Tensor,
) -> Append:
    head_dim, eps = request.sizes["head_dim"], request.sizes["eps"]
    scale, shift, bias = norm.double(), norm_bias.double(), position_bias.double()

    def normalised(k: Tensor) -> Tensor:
        centred = k.double() - k.double().mean()
        return centred / (centred.square().mean() + eps).sqrt() * scale + shift

    def reduce(columns: Tensor) -> Tensor:
        keys, scores = columns.double().split(head_dim, 1)
        return ((scores + bias).softmax(0) * keys).sum(0)

    append = IndexTail(request, planes, tail, reduce).append

    def softmax_index_append(k: Tensor, s: Tensor, batch: StepBatch) -> None:
        keys = torch.stack([normalised(row) for row in k])
        append(torch.cat((keys.float(), s.float()), 1), batch)

    return softmax_index_append
