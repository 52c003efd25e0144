"""``channel_delta_rule``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import StepBatch
from ninfer_core.state.views import SlotPlanes
from ninfer_triton_kernels.bindings.launching import IS_INTERPRETED, OVERLAPPED, power
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.kernels import channel_rule

TOKENS = 512
"""Of a step that are prepared together."""

COLUMNS = 16
"""Value columns of a program: one warp, whose sums over the keys need no shared memory."""

REGISTERS = 144
"""Of a lane, half of which hold the state: so 14 programs share a processor."""

Rule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, StepBatch, Tensor], Tensor]


def bind_channel_delta_rule(
    request: KernelRequest, planes: SlotPlanes, a_log: Tensor, dt_bias: Tensor
) -> Rule:
    sizes, committed, record = request.sizes, planes.committed, planes.record
    heads, key_dim, value_dim = (sizes[n] for n in ("num_heads", "key_dim", "value_dim"))
    rates, biases = a_log.double().exp().float(), dt_bias.float().contiguous()
    columns = power(value_dim) if IS_INTERPRETED else COLUMNS

    def prepared(
        q: Tensor, k: Tensor, f: Tensor, b: Tensor, first: int, last: int
    ) -> tuple[Tensor, ...]:
        count = last - first
        keys, queries, gates = (
            shared(f"channel_{name}", count * heads * key_dim, torch.float32, q.device)
            for name in ("keys", "queries", "gates")
        )
        betas = shared("channel_betas", count * heads, torch.float32, q.device)
        channel_rule.prepare_tokens[count, heads](
            q, k, f, b, keys, queries, gates, betas, rates, biases, q.stride(0), k.stride(0),
            f.stride(0), b.stride(0), first, key_dim, sizes["eps"], key_dim**-0.5,
            sizes["lower_bound"], power(key_dim), num_warps=1, **OVERLAPPED,
        )
        return keys, queries, gates, betas

    def some(
        q: Tensor, k: Tensor, v: Tensor, f: Tensor, b: Tensor, batch: StepBatch, out: Tensor,
        first: int,
    ) -> None:
        last = min(first + TOKENS, q.shape[0])
        behind = min(last + record.shape[1], q.shape[0])  # of rows that begin before the last
        keys, queries, gates, betas = prepared(q, k, f, b, first, behind)
        rows = batch.row_start, batch.slots
        channel_rule.channel_delta_rule[-(-value_dim // columns), heads, batch.num_rows](
            keys, queries, gates, betas, v, out, committed, record, *rows, batch.replay,
            batch.certain, v.stride(0), out.stride(0), committed.stride(0), record.stride(0),
            record.shape[2], first, last, heads, key_dim, value_dim, power(key_dim), columns,
            num_warps=1, maxnreg=REGISTERS, **OVERLAPPED,
        )
        channel_rule.record_tokens[behind - first, heads](
            keys, gates, betas, v, record, batch.token_row, *rows, batch.certain, v.stride(0),
            record.stride(0), record.shape[2], first, last, key_dim, value_dim,
            power(max(key_dim, value_dim)), num_warps=1, **OVERLAPPED,
        )

    def channel_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, f: Tensor, b: Tensor, batch: StepBatch, out: Tensor
    ) -> Tensor:
        for first in range(0, q.shape[0], TOKENS):
            some(q, k, v, f, b, batch, out, first)
        return out

    return channel_delta_rule
