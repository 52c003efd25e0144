"""Weights as bf16 matrices, for products of many rows."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.decoders import affine_planes, byte_planes, e2m1_planes
from ninfer_triton_kernels.kernels.fragments import pairs_of_words
from ninfer_triton_kernels.kernels.tiled import E4M3_INPUT, fetch_step, row_factors


@triton.jit
def in_columns(one, two, BN: tl.constexpr):
    """Words of two planes ``[1, BN / 16, 32, 2, 2]`` to fp32 ``[BN, 32]``, the columns in order."""
    both = tl.join(pairs_of_words(one), pairs_of_words(two)).to(tl.float32)
    parts = tl.reshape(both, (BN // 16, 8, 4, 2, 2, 2, 2))  # tile, g, t, column half, row half
    return tl.reshape(tl.permute(parts, (0, 4, 1, 2, 6, 3, 5)), (BN, 32))


@triton.jit
def row_values(base, tile, group, num_groups, BN: tl.constexpr):
    """Of one group: ``[BN, 1]``, from pairs of rows g and g + 8."""
    row = tl.arange(0, 16)
    at = (tile * num_groups + group)[:, None] * 16 + row % 8 * 2 + row // 8
    return tl.reshape(tl.load(base + at).to(tl.float32), (BN, 1))


@triton.jit
def scaled(
    values, scales, minimums, tile, group, num_groups, OFFSET: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, BN: tl.constexpr,
):
    """What codes of one group, with ``OFFSET`` too much, stand for."""
    values = (values - OFFSET) * row_values(scales, tile, group, num_groups, BN)
    if HAS_MINIMUM:
        values += row_values(minimums, tile, group, num_groups, BN)
    return values


@triton.jit
def store_columns(out, values, first, width, depth, BN: tl.constexpr):
    """``[BN, 32]`` at these columns, where they exist, rounded once."""
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), first + tl.arange(0, 32)
    live = (n < width)[:, None] & (k < depth)[None, :]
    tl.store(out + n.to(tl.int64)[:, None] * depth + k[None, :], values.to(tl.bfloat16), mask=live)


@triton.jit
def unpack_fragments(
    codes, high, scales, minimums, divisor, out, width, depth, BITS: tl.constexpr,
    OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr, BN: tl.constexpr,
):
    """One block of columns of ``BN`` rows: ``[width, depth]``."""
    BLOCK: tl.constexpr = 32 if BITS == 8 else 64
    index = tl.program_id(1)
    tile = tl.program_id(0) * (BN // 16) + tl.arange(0, BN // 16)
    tile = tl.minimum(tile, tl.cdiv(width, 16) - 1).to(tl.int64)
    num_blocks = tl.cdiv(depth, BLOCK)
    words, more, scale, _ = fetch_step(
        codes, high, scales, minimums, tile[None, :], index + tl.arange(0, 1), num_blocks, BITS,
        GROUP, False)
    if GROUP == 0 or GROUP == 16 or GROUP == 128:
        whole = tl.reshape(row_factors(scales, divisor, tile[None, :], BITS, OFFSET, GROUP),
                           (BN, 1))
    if BITS == 8:
        p0, p1 = byte_planes(words, OFFSET == 0, 1, BN)
        values = in_columns(p0, p1, BN)
        if GROUP == 0:
            values *= whole * E4M3_INPUT
        elif GROUP == 128:
            values *= whole * E4M3_INPUT
            values = scaled(values, scales, minimums, tile, index // 4, tl.cdiv(num_blocks, 4), 0,
                            False, BN)
        else:
            values = scaled(values, scales, minimums, tile, index, num_blocks, 0, False, BN)
        store_columns(out, values, index * 32, width, depth, BN)
    else:
        if GROUP == 16:
            p0, p1, p2, p3 = e2m1_planes(words, scale[0], 1, BN)
            first, second = in_columns(p0, p1, BN) * whole, in_columns(p2, p3, BN) * whole
        else:
            p0, p1, p2, p3 = affine_planes(words, more, BITS, 1, BN)
            PER: tl.constexpr = 64 // GROUP
            first = scaled(in_columns(p0, p1, BN), scales, minimums, tile, index * PER,
                           num_blocks * PER, 128 + OFFSET, HAS_MINIMUM, BN)
            second = scaled(in_columns(p2, p3, BN), scales, minimums, tile, index * PER + PER - 1,
                            num_blocks * PER, 128 + OFFSET, HAS_MINIMUM, BN)
        store_columns(out, first, index * 64, width, depth, BN)
        store_columns(out, second, index * 64 + 32, width, depth, BN)
