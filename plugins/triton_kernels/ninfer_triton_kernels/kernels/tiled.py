"""Products with weights of 4 to 8 bits, stored as fragments (see `fragments`)."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.decoders import affine_planes, byte_values, e2m1_planes
from ninfer_triton_kernels.kernels.fragments import (
    byte_rows,
    fragment_rows,
    high_rows,
    load_fragments,
    load_row_values,
    tiles_of,
)
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import (
    load_columns,
    multiply,
    share_of,
    sum_splits,
    write_product,
)


@triton.jit
def load_planes(
    codes, high, scales, tile, exists, block, num_blocks, BITS: tl.constexpr, OFFSET: tl.constexpr,
    GROUP: tl.constexpr, S: tl.constexpr, BN: tl.constexpr,
):
    """The four planes of blocks ``[S]`` of 64 columns, bf16 ``[S, BN, 16]`` each; ``GROUP`` 16 is
    NVFP4, which has its scales in them."""
    words = fragment_rows(
        load_fragments(codes, tile, exists, block, num_blocks, 256), S, BN)
    if GROUP == 16:
        quads = load_row_values(scales, tile, exists, block, num_blocks, S, BN)
        spread = tl.broadcast_to(quads[:, :, None], (S, BN, 16))
        p0, p1, p2, p3 = e2m1_planes(words, spread)
    elif BITS == 4:
        p0, p1, p2, p3 = affine_planes(words, words, BITS, OFFSET)
    else:
        SIZE: tl.constexpr = 64 if BITS == 5 else 128
        more = high_rows(
            load_fragments(high, tile, exists, block, num_blocks, SIZE), BITS, S, BN)
        p0, p1, p2, p3 = affine_planes(words, more, BITS, OFFSET)
    return p0, p1, p2, p3


@triton.jit
def add_group(total, part, x_sum, scales, minimums, tile, exists, group, num_groups,
              HAS_MINIMUM: tl.constexpr, S: tl.constexpr, BN: tl.constexpr):
    """``total`` and the product of one group of each block: its codes' times their scale, and the
    minimum times the sum of the activations."""
    scale = load_row_values(scales, tile, exists, group, num_groups, S, BN)
    total += part * scale.to(tl.float32)[:, :, None]
    if HAS_MINIMUM:
        minimum = load_row_values(minimums, tile, exists, group, num_groups, S, BN)
        total += minimum.to(tl.float32)[:, :, None] * x_sum[:, None, :]
    return total


@triton.jit
def add_blocks(
    total, p0, p1, p2, p3, x, t, is_token, scales, minimums, tile, exists, block, num_blocks,
    x_stride, depth, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr, EVEN_K: tl.constexpr,
    S: tl.constexpr, BN: tl.constexpr,
):
    """Blocks ``[S]`` of 64 columns by rows ``t`` of the activations."""
    k = block[:, None] * 64 + tl.arange(0, 16)[None, :]
    x0 = load_columns(x, t, is_token, k, x_stride, depth, EVEN_K)
    x1 = load_columns(x, t, is_token, k + 16, x_stride, depth, EVEN_K)
    x2 = load_columns(x, t, is_token, k + 32, x_stride, depth, EVEN_K)
    x3 = load_columns(x, t, is_token, k + 48, x_stride, depth, EVEN_K)
    zero = tl.zeros_like(total)
    if GROUP == 16:
        total = multiply(p1, x1, multiply(p0, x0, total))
        total = multiply(p3, x3, multiply(p2, x2, total))
    else:
        sum0 = tl.sum(x0.to(tl.float32) + x1.to(tl.float32), 1) if HAS_MINIMUM else 0.0
        sum1 = tl.sum(x2.to(tl.float32) + x3.to(tl.float32), 1) if HAS_MINIMUM else 0.0
        part = multiply(p1, x1, multiply(p0, x0, zero))
        if GROUP == 64:
            part = multiply(p3, x3, multiply(p2, x2, part))
            total = add_group(total, part, sum0 + sum1, scales, minimums, tile, exists, block,
                              num_blocks, HAS_MINIMUM, S, BN)
        else:
            total = add_group(total, part, sum0, scales, minimums, tile, exists, block * 2,
                              num_blocks * 2, HAS_MINIMUM, S, BN)
            part = multiply(p3, x3, multiply(p2, x2, zero))
            total = add_group(total, part, sum1, scales, minimums, tile, exists, block * 2 + 1,
                              num_blocks * 2, HAS_MINIMUM, S, BN)
    return total


@triton.jit
def block_totals(
    x, t, is_token, codes, high, scales, minimums, tile, exists, first, last, depth, x_stride,
    BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr,
    EVEN_K: tl.constexpr, BN: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr,
):
    """Codes of 4 to 6 bits by rows ``t`` of the activations, fp32 ``[BN, len(t)]``, over steps
    ``first`` to ``last``; NVFP4 (``GROUP`` 16) lacks 2^7 / divisor."""
    total = tl.zeros((S, BN, t.shape[0]), tl.float32)
    num_blocks = tl.cdiv(depth, 64)
    for step in tl.range(first, last, num_stages=STAGES):
        block = step * S + tl.arange(0, S)
        p0, p1, p2, p3 = load_planes(
            codes, high, scales, tile, exists, block, num_blocks, BITS, OFFSET, GROUP, S, BN)
        total = add_blocks(
            total, p0, p1, p2, p3, x, t, is_token, scales, minimums, tile, exists, block,
            num_blocks, x_stride, depth, GROUP, HAS_MINIMUM, EVEN_K, S, BN)
    return tl.sum(total, 0)


@triton.jit
def byte_totals(
    x, t, is_token, codes, scales, tile, exists, first, last, depth, x_stride,
    GROUP: tl.constexpr, E4M3: tl.constexpr, EVEN_K: tl.constexpr, BN: tl.constexpr,
    S: tl.constexpr, STAGES: tl.constexpr,
):
    """As `block_totals`, for codes of 8 bits with a scale for ``GROUP`` columns (a multiple of 32),
    or with ``GROUP`` 0 for whole rows, whose scales the result lacks."""
    total = tl.zeros((S, BN, t.shape[0]), tl.float32)
    num_blocks = tl.cdiv(depth, 32)
    for step in tl.range(first, last, num_stages=STAGES):
        block = step * S + tl.arange(0, S)
        elements = load_fragments(codes, tile, exists, block, num_blocks, 512)
        values = byte_values(byte_rows(elements, S, BN), E4M3)
        k = block[:, None] * 32 + tl.arange(0, 32)[None, :]
        columns = load_columns(x, t, is_token, k, x_stride, depth, EVEN_K)
        if GROUP == 0:
            total = multiply(values, columns, total)
        else:
            scale = load_row_values(
                scales, tile, exists, block // (GROUP // 32), tl.cdiv(depth, GROUP), S, BN)
            part = multiply(values, columns, tl.zeros_like(total))
            total += part * scale.to(tl.float32)[:, :, None]
    return tl.sum(total, 0)


@triton.jit
def row_factors(scales, divisor, tile, exists, GROUP: tl.constexpr, BN: tl.constexpr):
    """What whole rows are multiplied with: their scale, or what the planes of NVFP4 lack."""
    if GROUP == 0:
        rows = tile.to(tl.int64)[:, None] * 16 + tl.arange(0, 16)[None, :]
        factor = tl.load(scales + rows, mask=exists[:, None], other=0.0).to(tl.float32)
    else:
        each = 128.0 / tl.load(divisor + tile, mask=exists, other=1.0)
        factor = tl.broadcast_to(each[:, None], (BN // 16, 16))
    return tl.reshape(factor, (BN,))


@triton.jit
def count_steps(depth, BITS: tl.constexpr, S: tl.constexpr):
    """Steps over all columns."""
    return tl.cdiv(tl.cdiv(depth, 32 if BITS == 8 else 64), S)


@triton.jit
def tiled_totals(
    x, t, is_token, codes, high, scales, minimums, divisor, tile, exists, first, last, depth,
    x_stride, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, EVEN_K: tl.constexpr, BN: tl.constexpr, S: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Tiles of any format that is stored as fragments by rows ``t`` of the activations, fp32
    ``[BN, len(t)]``, over steps ``first`` to ``last``; ``BITS`` 8 with ``OFFSET`` 0 is E4M3."""
    if BITS == 8:
        total = byte_totals(
            x, t, is_token, codes, scales, tile, exists, first, last, depth, x_stride, GROUP,
            OFFSET == 0, EVEN_K, BN, S, STAGES)
    else:
        total = block_totals(
            x, t, is_token, codes, high, scales, minimums, tile, exists, first, last, depth,
            x_stride, BITS, OFFSET, GROUP, HAS_MINIMUM, EVEN_K, BN, S, STAGES)
    if GROUP == 0 or GROUP == 16:
        total *= row_factors(scales, divisor, tile, exists, GROUP, BN)[:, None]
    return total


@triton.jit
def tiled_linear(
    x, codes, high, scales, minimums, divisor, bias, residual, out, parts, arrivals, num_tokens,
    width, depth, x_stride, residual_stride, out_stride, BITS: tl.constexpr, OFFSET: tl.constexpr,
    GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, EVEN_K: tl.constexpr, N: tl.constexpr, BN: tl.constexpr,
    S: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
):
    """A tile of ``BN`` rows of the weight by ``N`` rows of activations; ``width`` is that of the
    result."""
    block = tl.program_id(0)
    tile, exists = tiles_of(block, width, BN, GATED)
    t = tl.program_id(1) * N + tl.arange(0, N)
    first, last = share_of(count_steps(depth, BITS, S), SPLITS)
    wait()
    total = tiled_totals(
        x, t, t < num_tokens, codes, high, scales, minimums, divisor, tile, exists, first, last,
        depth, x_stride, BITS, OFFSET, GROUP, HAS_MINIMUM, EVEN_K, BN, S, STAGES)
    release()
    total, is_last = sum_splits(total, parts, arrivals, SPLITS, BN)
    if is_last:
        write_product(total, block, t, t < num_tokens, width, bias, residual, residual_stride, out,
                      out_stride, BN, GATED, HAS_BIAS, HAS_RESIDUAL)
