"""Weights as bf16 matrices, for products of many rows."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.decoders import byte_values
from ninfer_triton_kernels.kernels.fragments import (
    byte_rows,
    load_fragments,
    load_row_values,
)
from ninfer_triton_kernels.kernels.tiled import load_planes, row_factors


@triton.jit
def store_columns(out, values, row, column, width, depth, BN: tl.constexpr):
    """``[1, BN, len(column)]`` at columns of rows, where they exist, rounded once."""
    n = row + tl.arange(0, BN)
    live = (n < width)[:, None] & (column < depth)[None, :]
    at = out + n.to(tl.int64)[:, None] * depth + column[None, :]
    tl.store(at[None, :, :], values.to(tl.bfloat16), mask=live[None, :, :])


@triton.jit
def scaled(
    plane, scales, minimums, tile, exists, group, num_groups, HAS_MINIMUM: tl.constexpr,
    BN: tl.constexpr,
):
    """``[1, BN, K]`` of one group."""
    scale = load_row_values(scales, tile, exists, group, num_groups, 1, BN)
    values = plane.to(tl.float32) * scale.to(tl.float32)[:, :, None]
    if HAS_MINIMUM:
        least = load_row_values(minimums, tile, exists, group, num_groups, 1, BN)
        values += least.to(tl.float32)[:, :, None]
    return values


@triton.jit
def unpack_fragments(
    codes, high, scales, minimums, divisor, out, width, depth, BITS: tl.constexpr,
    OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr, BN: tl.constexpr,
):
    """One block of columns of ``BN`` rows: ``[width, depth]``."""
    BLOCK: tl.constexpr = 32 if BITS == 8 else 64
    block = tl.program_id(1) + tl.arange(0, 1)
    tile = tl.program_id(0) * (BN // 16) + tl.arange(0, BN // 16)
    exists = tile < tl.cdiv(width, 16)
    row = tl.program_id(0) * BN
    num_blocks = tl.cdiv(depth, BLOCK)
    first = tl.program_id(1) * BLOCK
    if BITS == 8:
        elements = load_fragments(codes, tile, exists, block, num_blocks, 512)
        plane = byte_values(byte_rows(elements, 1, BN), OFFSET == 0)
        if GROUP == 0:
            values = scaled(plane, scales, minimums, tile, exists, block * 0, 1, False, BN)
        else:
            values = scaled(plane, scales, minimums, tile, exists, block // (GROUP // 32),
                            tl.cdiv(depth, GROUP), False, BN)
        store_columns(out, values, row, first + tl.arange(0, 32), width, depth, BN)
    else:
        p0, p1, p2, p3 = load_planes(
            codes, high, scales, tile, exists, block, num_blocks, BITS, OFFSET, GROUP, 1, BN)
        column = first + tl.arange(0, 16)
        if GROUP == 16:
            factor = row_factors(scales, divisor, tile, exists, GROUP, BN)[None, :, None]
            v0, v1 = p0.to(tl.float32) * factor, p1.to(tl.float32) * factor
            v2, v3 = p2.to(tl.float32) * factor, p3.to(tl.float32) * factor
        else:
            low = block * (64 // GROUP)
            top = low + (1 if GROUP == 32 else 0)
            count = num_blocks * (64 // GROUP)
            v0 = scaled(p0, scales, minimums, tile, exists, low, count, HAS_MINIMUM, BN)
            v1 = scaled(p1, scales, minimums, tile, exists, low, count, HAS_MINIMUM, BN)
            v2 = scaled(p2, scales, minimums, tile, exists, top, count, HAS_MINIMUM, BN)
            v3 = scaled(p3, scales, minimums, tile, exists, top, count, HAS_MINIMUM, BN)
        store_columns(out, v0, row, column, width, depth, BN)
        store_columns(out, v1, row, column + 16, width, depth, BN)
        store_columns(out, v2, row, column + 32, width, depth, BN)
        store_columns(out, v3, row, column + 48, width, depth, BN)
