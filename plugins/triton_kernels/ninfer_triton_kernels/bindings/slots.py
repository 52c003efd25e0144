"""``causal_conv1d`` and ``gated_delta_rule``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ninfer_core.api import KernelRequest
from ninfer_core.state.step import ROW_TOKENS, StepBatch
from ninfer_core.state.views import SlotPlanes
from ninfer_triton_kernels.bindings.descriptors import HOPPER, is_copied, swizzled
from ninfer_triton_kernels.bindings.launching import (
    IS_INTERPRETED,
    OVERLAPPED,
    capability,
    num_processors,
    power,
)
from ninfer_triton_kernels.bindings.shared import shared
from ninfer_triton_kernels.kernels import convolution, delta_blocks, delta_rule, hopper_delta
from ninfer_triton_kernels.kernels.warp_groups import WARPS

VALUE_COLUMNS, VALUE_WARPS = 16, 1
"""Of one program: one warp, whose sums over the keys need no shared memory."""

VALUE_REGISTERS = {14: 144, 16: 128}
"""Of a lane, by how many programs a processor holds then; 64 hold the state. With 128 the columns
of a token are summed up one after the other."""

WARP = 32
"""Lanes; fewer key components would be loaded in two layouts, and summed up in two orders."""

PREPARE_WARPS = 2
BLOCK_COLUMNS, BLOCK_WARPS = 32, 4
"""Of programs that go by blocks; see `kernels.delta_blocks` before changing them."""

HOPPER_DIM, GROUP_COLUMNS = 128, 32
"""Of what `kernels.hopper_delta` takes: both dimensions, and value columns of a group of warps."""

CONVOLVED_TOKENS, CONVOLVED_CHANNELS = 16, 128
"""Of a tile of one program."""

CONVOLVED_RUN, RUN_TOKENS, RUN_CHANNELS = 8, 16, 64
"""Of prompts: tokens in a row, how many such rows a tile has, and channels."""

PROMPT_PROGRAMS = 4096
"""Of the convolution of a prompt, at most."""

Rule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, StepBatch, Tensor], Tensor]


def bind_causal_conv1d(
    request: KernelRequest, weight: Tensor, planes: SlotPlanes
) -> Callable[[Tensor, StepBatch, Tensor], Tensor]:
    taps, width = weight.shape
    committed, record = planes.committed, planes.record
    dilation = request.sizes.get("dilation", 1)
    kept = (taps - 1) * dilation
    most = power(kept, CONVOLVED_TOKENS)

    def causal_conv1d(x: Tensor, batch: StepBatch, out: Tensor) -> Tensor:
        run, tokens = 0, min(most, power(-(-x.shape[0] // batch.num_rows), 1))
        on_card, parts = CONVOLVED_CHANNELS, 1
        if x.shape[0] > most * batch.num_rows:
            run, tokens, on_card = CONVOLVED_RUN, power(kept, RUN_TOKENS), RUN_CHANNELS
        block = min(power(width), 512 if IS_INTERPRETED else on_card)
        channels = -(-width // block)
        if run:
            parts = min(-(-x.shape[0] // (run * tokens)), -(-PROMPT_PROGRAMS // channels))
        convolution.causal_conv1d[batch.num_rows, channels, parts](
            x, out, weight, committed, record, batch.row_start, batch.slots, batch.replay,
            batch.certain, width, x.stride(0), out.stride(0), committed.stride(0),
            record.stride(0), taps, dilation, tokens, run, block, num_warps=4, **OVERLAPPED,
        )
        return out

    return causal_conv1d


def bind_gated_delta_rule(
    request: KernelRequest, planes: SlotPlanes, a_log: Tensor, dt_bias: Tensor
) -> Rule:
    rule = _DeltaRule(request, planes, a_log, dt_bias)

    def gated_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, batch: StepBatch, out: Tensor
    ) -> Tensor:
        rule.by_token(delta_rule.ALL.value, q, k, v, a, b, batch, out)
        return out

    return gated_delta_rule


def bind_gated_delta_rule_blocks(
    request: KernelRequest, planes: SlotPlanes, a_log: Tensor, dt_bias: Tensor
) -> Rule:
    """Whole blocks of tokens of prompts go as blocks, all others one by one."""
    rule = _DeltaRule(request, planes, a_log, dt_bias)

    def gated_delta_rule(
        q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, batch: StepBatch, out: Tensor
    ) -> Tensor:
        if q.shape[0] < max(delta_rule.BLOCK.value, ROW_TOKENS * batch.num_rows):
            rule.by_token(delta_rule.ALL.value, q, k, v, a, b, batch, out)
            return out
        rule.by_token(delta_rule.BEFORE.value, q, k, v, a, b, batch, out)
        rule.by_block(q, k, v, a, b, batch, out)
        rule.by_token(delta_rule.BEHIND.value, q, k, v, a, b, batch, out)
        return out

    return gated_delta_rule


class _DeltaRule:
    def __init__(
        self, request: KernelRequest, planes: SlotPlanes, a_log: Tensor, dt_bias: Tensor
    ) -> None:
        sizes = request.sizes
        self._committed, self._record, self._eps = planes.committed, planes.record, sizes["eps"]
        self._rates, self._biases = (-a_log.double().exp()).float(), dt_bias.float().contiguous()
        self._heads = sizes["num_key_heads"], sizes["num_value_heads"]
        self._dims = sizes["key_dim"], sizes["value_dim"]
        self._query_scale = self._dims[0] ** -0.5
        self._max_blocks = request.max_tokens // delta_rule.BLOCK.value

    def by_token(
        self, part: int, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, batch: StepBatch,
        out: Tensor,
    ) -> None:
        committed, record, rows = self._committed, self._record, batch.num_rows
        (key_heads, value_heads), (key_dim, value_dim) = self._heads, self._dims
        columns = _columns(value_dim, VALUE_COLUMNS)
        parts = -(-value_dim // columns)
        registers = _value_registers(parts * value_heads * rows, num_processors(q.device))
        arrivals = shared("delta_arrivals", rows * key_heads, torch.int32, q.device)
        delta_rule.gated_delta_rule[parts, value_heads, rows](
            q, k, v, a, b, out, committed, record, self._rates, self._biases, batch.row_start,
            batch.context_len, batch.slots, batch.replay, batch.certain, arrivals, q.stride(0),
            k.stride(0), v.stride(0), a.stride(0), b.stride(0), out.stride(0),
            committed.stride(0), record.stride(0), record.shape[2], self._eps, self._query_scale,
            key_heads, value_heads, key_dim, value_dim, part, power(key_dim, WARP), columns,
            num_warps=VALUE_WARPS, maxnreg=registers, **OVERLAPPED,
        )

    def by_block(
        self, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, batch: StepBatch, out: Tensor
    ) -> None:
        block, value_heads = delta_rule.BLOCK.value, self._heads[1]
        most = max(q.shape[0] // block, self._max_blocks) * value_heads * block
        matrices = shared("delta_matrices", most * 4 * block, torch.bfloat16, q.device)
        size = most * delta_blocks.FACTORS.value
        kept = matrices, shared("delta_factors", size, torch.float32, q.device)
        is_hopper = capability(q.device) == HOPPER and self._dims == (HOPPER_DIM, HOPPER_DIM)
        if is_hopper and is_copied(q, k, v):
            self._by_block_on_hopper(q, k, v, a, b, batch, out, *kept)
        else:
            self._by_block(q, k, v, a, b, batch, out, *kept)

    def _by_block(
        self, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, batch: StepBatch, out: Tensor,
        matrices: Tensor, factors: Tensor,
    ) -> None:
        (key_heads, value_heads), (key_dim, value_dim) = self._heads, self._dims
        committed, columns = self._committed, _columns(value_dim, BLOCK_COLUMNS)
        rows = batch.row_start, batch.context_len
        delta_blocks.prepare_block[q.shape[0] // delta_rule.BLOCK.value, value_heads](
            q, k, a, b, matrices, factors, self._rates, self._biases, *rows, batch.certain,
            q.stride(0), k.stride(0), a.stride(0), b.stride(0), batch.num_rows,
            key_heads, value_heads, key_dim, self._eps, self._query_scale, power(key_dim),
            num_warps=PREPARE_WARPS,
        )
        delta_blocks.advance_blocks[batch.num_rows, value_heads, -(-value_dim // columns)](
            q, k, v, out, committed, matrices, factors, *rows, batch.slots,
            batch.certain, q.stride(0), k.stride(0), v.stride(0), out.stride(0),
            committed.stride(0), key_heads, value_heads, key_dim, value_dim, power(key_dim),
            columns, num_warps=BLOCK_WARPS,
        )

    def _by_block_on_hopper(
        self, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, batch: StepBatch, out: Tensor,
        matrices: Tensor, factors: Tensor,
    ) -> None:
        (key_heads, value_heads), (key_dim, value_dim) = self._heads, self._dims
        block, committed, warps = delta_rule.BLOCK.value, self._committed, WARPS.value
        strips = batch.num_rows * value_heads * value_dim // GROUP_COLUMNS
        groups = _groups(strips, num_processors(q.device))
        rows = batch.row_start, batch.context_len
        queries, keys = (swizzled(each, [block, key_dim]) for each in (q, k))
        stored = swizzled(matrices.view(-1, block), [block, block])
        hopper_delta.prepare_block[q.shape[0] // block, value_heads](
            queries, keys, a, b, stored, factors, self._rates, self._biases, *rows, batch.certain,
            a.stride(0), b.stride(0), batch.num_rows, key_heads, value_heads, self._eps,
            self._query_scale, key_dim, num_warps=warps,
        )
        parts = value_dim // (groups * GROUP_COLUMNS)
        hopper_delta.advance_blocks[batch.num_rows, value_heads, parts](
            queries, keys, swizzled(v, [block, GROUP_COLUMNS]), out, committed, stored, factors,
            *rows, batch.slots, batch.certain, out.stride(0), committed.stride(0), key_heads,
            value_heads, key_dim, GROUP_COLUMNS, groups, num_warps=warps,
        )


def _value_registers(programs: int, processors: int) -> int:
    """The fewer only where by that all programs are on the processors at once."""
    few, many = VALUE_REGISTERS
    return VALUE_REGISTERS[many if few * processors < programs <= many * processors else few]


def _groups(strips: int, processors: int) -> int:
    """Groups of warps of a program on Hopper, each with a strip of columns. A multiprocessor has
    one program at a time, and two groups take about 1.5 times as long as one."""
    alone, paired = -(-strips // processors), -(-strips // (2 * processors))
    return 1 if alone <= 1.5 * paired else 2


def _columns(value_dim: int, on_card: int) -> int:
    """Value columns of a program; the interpreter pays for every program."""
    return power(value_dim) if IS_INTERPRETED else on_card
