"""Products with weights of 4 to 8 bits, stored as fragments (see `fragments`).

Weights go from memory into registers, some steps ahead of their use, and are decoded there: no
shared memory, no barrier. The first steps are asked for before the activations are there.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.decoders import (
    affine_planes,
    byte_planes,
    e2m1_planes,
    less_plane,
)
from ninfer_triton_kernels.kernels.fragments import (
    by_lane,
    by_row,
    load_elements,
    load_factors,
    load_high,
    load_neighbours,
    operand,
    tiles_of,
)
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import (
    INTERPRETED,
    multiply,
    share_of,
    sum_batch,
    sum_splits,
    write_product,
)

E4M3_INPUT = tl.constexpr(2.0**64)
"""What activations are multiplied with against weights that are 2^-120 times theirs: products are
then far from where fp32 loses bits, for activations up to 2^63."""
E4M3_RESULT = tl.constexpr(2.0**56)


@triton.jit
def fetch_step(
    codes, high, scales, minimums, tile, block, num_blocks, BITS: tl.constexpr,
    GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr,
):
    """What blocks ``[S]`` of tiles ``[1, BN / 16]`` are made of, as stored: elements, words
    beyond these, and scales and minimums of their one or two groups."""
    words = load_elements(codes, tile, block, num_blocks)
    more, scale, minimum = words, (words, words), (words, words)
    if BITS == 5 or BITS == 6:
        more = load_high(high, tile, block, num_blocks, BITS)
    if GROUP == 32 and BITS < 8:
        scale = (load_factors(scales, tile, block * 2, num_blocks * 2),
                 load_factors(scales, tile, block * 2 + 1, num_blocks * 2))
        if HAS_MINIMUM:
            minimum = (load_factors(minimums, tile, block * 2, num_blocks * 2),
                       load_factors(minimums, tile, block * 2 + 1, num_blocks * 2))
    elif GROUP == 128:
        scale = (load_factors(scales, tile, block // 4, tl.cdiv(num_blocks, 4)), words)
    elif GROUP != 0:
        scale = (load_factors(scales, tile, block, num_blocks), words)
        if HAS_MINIMUM:
            minimum = (load_factors(minimums, tile, block, num_blocks), words)
    return words, more, scale, minimum


@triton.jit
def add_group(
    total, p0, p1, p2, p3, x0, x1, x2, x3, scale, minimum, PLANES: tl.constexpr,
    OFFSET: tl.constexpr, HAS_MINIMUM: tl.constexpr, S: tl.constexpr, BN: tl.constexpr,
):
    """``total`` and the product of one group of each block, of two planes or four: planes are 128 +
    code, of which 128 + ``OFFSET`` times the sum of the activations is taken away at first."""
    N: tl.constexpr = total.shape[2]
    less = operand(less_plane(OFFSET, S), S, 16)
    sums = multiply(less, x1, multiply(less, x0, tl.zeros((S, 16, N), tl.float32)))
    if PLANES == 4:
        sums = multiply(less, x3, multiply(less, x2, sums))
    sums = tl.reshape(tl.broadcast_to(sums[:, None, :, :], (S, BN // 16, 16, N)), (S, BN, N))
    part = multiply(p1, x1, multiply(p0, x0, sums))
    if PLANES == 4:
        part = multiply(p3, x3, multiply(p2, x2, part))
    part = by_lane(part, S, BN, N) * by_row(scale, S, BN)
    if HAS_MINIMUM:
        part += by_lane(sums / -(128.0 + OFFSET), S, BN, N) * by_row(minimum, S, BN)
    return total + tl.reshape(part, (S, BN, N))


@triton.jit
def add_bytes(
    total, words, scale, x0, x1, GROUP: tl.constexpr, E4M3: tl.constexpr, S: tl.constexpr,
    BN: tl.constexpr,
):
    """``total`` and the product of blocks of 32 columns of codes of 8 bits."""
    N: tl.constexpr = total.shape[2]
    p0, p1 = byte_planes(words, E4M3, S, BN)
    if E4M3:
        if INTERPRETED:
            x0, x1 = x0.to(tl.float32), x1.to(tl.float32)
        x0 *= E4M3_INPUT
        x1 *= E4M3_INPUT
    p0, p1 = operand(p0, S, BN), operand(p1, S, BN)
    if GROUP == 0:
        total = multiply(p1, x1, multiply(p0, x0, total))
    else:
        part = multiply(p1, x1, multiply(p0, x0, tl.zeros_like(total)))
        part = by_lane(part, S, BN, N) * by_row(scale, S, BN)
        total += tl.reshape(part, (S, BN, N))
    return total


@triton.jit
def multiply_step(
    total, step, x, t, is_token, block, limit, x_stride, depth, BITS: tl.constexpr,
    OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr, EVEN_K: tl.constexpr,
    S: tl.constexpr, BN: tl.constexpr,
):
    """``total`` ``[S, BN, N]`` and what `fetch_step` gave for blocks ``[S]``, of these below
    ``limit``, times rows ``t`` of the activations; without what `row_factors` are."""
    words, more, scale, minimum = step
    N: tl.constexpr = total.shape[2]
    if BITS == 8:
        x0, x1 = load_neighbours(
            x, t, is_token, block, limit, 0, x_stride, depth, 32, EVEN_K, N, S)
        total = add_bytes(total, words, scale[0], x0, x1, GROUP, OFFSET == 0, S, BN)
    else:
        x0, x1 = load_neighbours(
            x, t, is_token, block, limit, 0, x_stride, depth, 64, EVEN_K, N, S)
        x2, x3 = load_neighbours(
            x, t, is_token, block, limit, 32, x_stride, depth, 64, EVEN_K, N, S)
        if GROUP == 16:
            p0, p1, p2, p3 = e2m1_planes(words, scale[0], S, BN)
        else:
            p0, p1, p2, p3 = affine_planes(words, more, BITS, S, BN)
        p0, p1 = operand(p0, S, BN), operand(p1, S, BN)
        p2, p3 = operand(p2, S, BN), operand(p3, S, BN)
        if GROUP == 16:
            total = multiply(p1, x1, multiply(p0, x0, total))
            total = multiply(p3, x3, multiply(p2, x2, total))
        elif GROUP == 64:
            total = add_group(total, p0, p1, p2, p3, x0, x1, x2, x3, scale[0], minimum[0], 4,
                              OFFSET, HAS_MINIMUM, S, BN)
        else:
            total = add_group(total, p0, p1, p0, p1, x0, x1, x0, x1, scale[0], minimum[0], 2,
                              OFFSET, HAS_MINIMUM, S, BN)
            total = add_group(total, p2, p3, p2, p3, x2, x3, x2, x3, scale[1], minimum[1], 2,
                              OFFSET, HAS_MINIMUM, S, BN)
    return total


@triton.jit
def row_factors(
    scales, divisor, tile, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
):
    """What rows of tiles ``[S, BN / 16]`` are multiplied with in the end, ``[S, BN]``: their scale,
    or what planes lack."""
    S: tl.constexpr = tile.shape[0]
    TILES: tl.constexpr = tile.shape[1]
    factor = tl.full((S, TILES, 16), 1.0, tl.float32)
    if GROUP == 0:
        factor = tl.load(scales + (tile * 16)[:, :, None] + tl.arange(0, 16)).to(tl.float32)
    if GROUP == 16:
        factor *= (128.0 / tl.load(divisor + tile))[:, :, None]
    if BITS == 8 and OFFSET == 0:
        factor *= E4M3_RESULT
    return tl.reshape(factor, (S, TILES * 16))


@triton.jit
def count_steps(depth, BITS: tl.constexpr, S: tl.constexpr):
    """Steps over all columns."""
    return tl.cdiv(tl.cdiv(depth, 32 if BITS == 8 else 64), S)


@triton.jit
def longer(steps, step):
    return steps + (step,)  # noqa: RUF005 - Triton has no starred elements


@triton.jit
def tiled_totals(
    x, t, is_token, codes, high, scales, minimums, divisor, tile, exists, first, last, depth,
    x_stride, BITS: tl.constexpr, OFFSET: tl.constexpr, GROUP: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, EVEN_K: tl.constexpr, BN: tl.constexpr, S: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Tiles of any format that is stored as fragments by rows ``t`` of the activations, fp32
    ``[BN, len(t)]``, over steps ``first`` to ``last``; ``BITS`` 8 with ``OFFSET`` 0 is E4M3.

    Waits for the kernels before once weights of ``AHEAD`` steps are asked for.
    """
    N: tl.constexpr = t.shape[0]
    num_blocks = tl.cdiv(depth, 32 if BITS == 8 else 64)
    own = tl.arange(0, S)
    begin, limit = first * S, tl.minimum(last * S, num_blocks)
    tile = tl.where(exists, tile, 0).to(tl.int64)[None, :]
    total = tl.zeros((S, BN, N), tl.float32)
    held = ()
    for i in tl.static_range(AHEAD):
        step = fetch_step(codes, high, scales, minimums, tile, begin + i * S + own, num_blocks,
                          BITS, GROUP, HAS_MINIMUM)
        held = longer(held, step)
    wait()
    for at in tl.range(begin, limit, S * AHEAD, num_stages=1):
        later = ()
        for i in tl.static_range(AHEAD):
            block = at + i * S + own
            total = multiply_step(
                total, held[i], x, t, is_token, block, limit, x_stride, depth, BITS, OFFSET, GROUP,
                HAS_MINIMUM, EVEN_K, S, BN)
            step = fetch_step(codes, high, scales, minimums, tile, block + S * AHEAD, num_blocks,
                              BITS, GROUP, HAS_MINIMUM)
            later = longer(later, step)
        held = later
    result = sum_batch(total)
    if GROUP == 0 or GROUP == 16 or (BITS == 8 and OFFSET == 0):
        factors = row_factors(scales, divisor, tile, BITS, OFFSET, GROUP)
        result *= tl.reshape(factors, (BN,))[:, None]
    return result


@triton.jit(do_not_specialize=["num_tokens"])
def tiled_linear(
    x, codes, high, scales, minimums, divisor, bias, residual, out, parts, arrivals, num_tokens,
    width, x_stride, residual_stride, out_stride, depth: tl.constexpr, BITS: tl.constexpr,
    OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr, GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, EVEN_K: tl.constexpr, N: tl.constexpr,
    BN: tl.constexpr, S: tl.constexpr, SPLITS: tl.constexpr, AHEAD: tl.constexpr,
):
    """A tile of ``BN`` rows of the weight by ``N`` rows of activations; ``width`` is that of the
    result."""
    block = tl.program_id(0)
    tile, exists = tiles_of(block, width, BN, GATED)
    t = tl.program_id(1) * N + tl.arange(0, N)
    first, last = share_of(count_steps(depth, BITS, S), SPLITS)
    total = tiled_totals(
        x, t, t < num_tokens, codes, high, scales, minimums, divisor, tile, exists, first, last,
        depth, x_stride, BITS, OFFSET, GROUP, HAS_MINIMUM, EVEN_K, BN, S, AHEAD)
    release()
    total, is_last = sum_splits(total, parts, arrivals, SPLITS, BN)
    if is_last:
        write_product(total, block, t, t < num_tokens, width, bias, residual, residual_stride, out,
                      out_stride, BN, GATED, HAS_BIAS, HAS_RESIDUAL)
