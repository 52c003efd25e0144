"""Rows of a weight of any format by some rows of activations."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.dense import dense_totals
from ninfer_triton_kernels.kernels.fragments import tiles_of
from ninfer_triton_kernels.kernels.products import stored_rows
from ninfer_triton_kernels.kernels.tiled import count_steps, tiled_totals


@triton.jit
def stored_product(
    x, t, exists, codes, high, scales, minimums, divisor, block, expert, rows_each, width, depth,
    x_stride, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, GATED: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    BN: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr,
):
    """The rows ``block`` of one expert of a bank, ``rows_each`` for each (of a matrix: of the first
    and only one), by rows ``t`` of the activations: fp32 ``[BN, len(t)]``; ``BITS`` 16 is a weight
    of bf16 or fp32. Others wait for the kernels before when their first weights are asked for."""
    if BITS == 16:
        rows, is_row = stored_rows(block, width, BN, GATED)
        total = dense_totals(
            x, t, exists, codes, rows + expert * rows_each, is_row, 0, tl.cdiv(depth, S * 64),
            depth, x_stride, EVEN_N, EVEN_K, BN, 64, S, STAGES)
    else:
        tile, is_tile = tiles_of(block, width, BN, GATED)
        total = tiled_totals(
            x, t, exists, codes, high, scales, minimums, divisor,
            tile + expert * (rows_each // 16), is_tile, 0, count_steps(depth, BITS, S), depth,
            x_stride, BITS, OFFSET, GROUP, HAS_MINIMUM, EVEN_K, BN, S, STAGES)
    return total
