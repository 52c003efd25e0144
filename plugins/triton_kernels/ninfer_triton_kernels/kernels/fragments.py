"""Weights in the order in which the matrix instruction takes its first operand.

A *fragment* is 16 rows by 16 columns, of which lane ``4 g + t`` of a warp holds rows ``g`` and
``g + 8``, four columns each. Which columns these are is free as long as the activations are taken
alike: lane t has 8 neighbours, columns ``8 t`` to ``8 t + 7``, of each 32, those of two fragments:
the first four, and the last four. So activations come 16 bytes at a time from memory, and straight
into the registers where the instruction wants them; so do weights.

A *block* is 64 columns of codes of up to 6 bits or 32 of 8 bits: four or two fragments, its
*planes*. For each lane it is a run of 8 elements of 16 bits by (column half, row half, pair), where
each has a code of every plane; two elements, the pair, are a *word* of 32 bits. What is decoded
from a word are the words of its planes, and these are operands: nothing moves between lanes.

A program multiplies ``BN`` rows, and each of its warps a block of its own: tensors are
``[S, BN / 16, 32, ...]`` for ``S`` blocks, and products are batches of that many matrices.
"""

import triton
import triton.language as tl


@triton.jit
def pairs_of_words(words):
    """Two bf16 in each int32: ``[..., 2]``."""
    low = words.to(tl.int16).to(tl.bfloat16, bitcast=True)
    return tl.join(low, (words >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True))


@triton.jit
def operand(words, S: tl.constexpr, BN: tl.constexpr):
    """Words of a plane by lane, column half and row half, ``[S, BN / 16, 32, 2, 2]``, to bf16
    ``[S, BN, 16]``; columns by t, column half and pair, as `load_neighbours` has them."""
    parts = tl.reshape(pairs_of_words(words), (S, BN // 16, 8, 4, 2, 2, 2))
    return tl.reshape(tl.permute(parts, (0, 1, 5, 2, 3, 4, 6)), (S, BN, 16))


@triton.jit
def row_halves(words, S: tl.constexpr, BN: tl.constexpr):
    """Words ``[S, BN / 16, 128]`` as stored to those of rows ``g`` and of rows ``g + 8``,
    ``[S, BN / 16, 32, 2]`` by column half."""
    return tl.split(tl.reshape(words, (S, BN // 16, 32, 2, 2)))


@triton.jit
def load_neighbours(
    x, t, is_token, block, limit, first, x_stride, depth, WIDE: tl.constexpr, EVEN_K: tl.constexpr,
    N: tl.constexpr, S: tl.constexpr,
):
    """Rows ``t`` ``[N]`` of the activations, the 32 columns from ``first`` of blocks ``[S]`` below
    ``limit``, as two planes ``[S, 16, N]``; zeros where there are none."""
    token = tl.permute(tl.reshape(t, (N // 8, 8)), (1, 0))[None, :, None, :, None]
    live = tl.permute(tl.reshape(is_token, (N // 8, 8)), (1, 0))[None, :, None, :, None]
    live = live & (block < limit)[None, None, :, None, None]
    k = (block * WIDE)[None, None, :, None, None] + first + tl.arange(0, 8)
    lane = (tl.arange(0, 4) * 8)[:, None, None, None, None]
    if not EVEN_K:
        live = live & (k + lane < depth)
    at = tl.max_contiguous(x + token.to(tl.int64) * x_stride + lane + k, (4, 3, 2, 1, 8))
    values = tl.load(at, mask=live, other=0.0)
    parts = tl.reshape(values, (4, 8, S, N // 8, 2, 2, 2))  # t, token, plane, half, pair
    one, two = tl.split(tl.permute(parts, (2, 0, 5, 6, 3, 1, 4)))
    return tl.reshape(one, (S, 16, N)), tl.reshape(two, (S, 16, N))


@triton.jit
def tiles_of(block, width, BN: tl.constexpr, GATED: tl.constexpr):
    """Tiles of 16 rows that a program has, and whether they exist; as `stored_rows` of them."""
    tile = block * (BN // 16) + tl.arange(0, BN // 16)
    num_tiles = tl.cdiv(width, 16)
    exists = tile < num_tiles
    if GATED > 0:
        exists = tile // 2 < num_tiles
        tile = tile // 2 + tile % 2 * num_tiles
    return tile, exists


@triton.jit
def load_elements(base, tile, block, num_blocks):
    """Words ``[S, BN / 16, 128]`` of the elements of blocks ``[S]`` of tiles ``[1, BN / 16]``;
    blocks behind the last are the last. Weights are read once: they make room for others first."""
    at = (tile * num_blocks)[:, :, None] * 128 + tl.arange(0, 128)
    own = tl.minimum(block, num_blocks - 1) * 128
    words = base.to(tl.pointer_type(tl.int32), bitcast=True)
    at = tl.max_contiguous(words + at + own[:, None, None], (2, 1, 128))
    return tl.load(at, eviction_policy="evict_first")


@triton.jit
def load_high(base, tile, block, num_blocks, BITS: tl.constexpr):
    """As `load_elements`, the words that hold what codes of 5 or 6 bits have beyond these, by
    lane: ``[32, S, BN / 16]``, or with 6 bits two, by column half: ``[32, S, BN / 16, 2]``."""
    words = base.to(tl.pointer_type(tl.int32), bitcast=True)
    own, lane = tl.minimum(block, num_blocks - 1), tl.arange(0, 32)[:, None, None]
    if BITS == 5:
        # The order hides from Triton that lanes read neighbours: it would give one lane several.
        at = words + (tile * num_blocks)[None, :, :] * 32 + (lane ^ 1) + (own * 32)[None, :, None]
        at = tl.multiple_of(tl.max_contiguous(at, (3, 2, 1)), (4, 4, 4))
    else:
        at = words + ((tile * num_blocks)[None, :, :] * 64 + lane * 2)[:, :, :, None]
        at += (own * 64)[None, :, None, None] + tl.arange(0, 2)
        at = tl.multiple_of(tl.max_contiguous(at, (4, 3, 2, 8)), (8, 8, 8, 8))
    return tl.load(at, eviction_policy="evict_first")


@triton.jit
def load_factors(base, tile, group, num_groups):
    """What rows ``g`` and ``g + 8`` of groups ``[S]`` are multiplied with, by lane, ``[32, S, BN /
    16]``: words of two fp16, or of four bytes (NVFP4); or fp32 pairs ``[32, S, BN / 16, 2]``."""
    own, lane = tl.minimum(group, num_groups - 1), tl.arange(0, 32)[:, None, None]
    start = (tile * num_groups)[None, :, :]
    if base.dtype.element_ty == tl.float32:
        at = base + (start * 16 + lane // 4 * 2)[:, :, :, None] + tl.arange(0, 2)
        at += (own * 16)[None, :, None, None]
        at = tl.multiple_of(tl.max_contiguous(at, (4, 3, 2, 8)), (8, 8, 8, 8))
    elif base.dtype.element_ty == tl.int32:
        at = base + start * 16 + lane // 2 + (own * 16)[None, :, None]
        at = tl.multiple_of(tl.max_contiguous(at, (3, 2, 1)), (4, 4, 4))
    else:
        words = base.to(tl.pointer_type(tl.int32), bitcast=True)
        at = words + start * 8 + lane // 4 + (own * 8)[None, :, None]
        at = tl.multiple_of(tl.max_contiguous(at, (3, 2, 1)), (4, 4, 4))
    return tl.load(at)


@triton.jit
def by_row(factors, S: tl.constexpr, BN: tl.constexpr):
    """What `load_factors` gives of fp16 or fp32 as fp32 ``[S, BN / 16, 2, 8, 1, 4, 1]``, to be
    multiplied with a result ``[S, BN, N]`` seen as ``[.., row half, g, N / 8, t, pair]``."""
    if factors.dtype == tl.int32:
        low = factors.to(tl.int16).to(tl.float16, bitcast=True)
        factors = tl.join(low, (factors >> 16).to(tl.int16).to(tl.float16, bitcast=True))
    parts = tl.reshape(factors.to(tl.float32), (8, 4, S, BN // 16, 2))
    return tl.permute(parts, (2, 3, 4, 0, 1))[:, :, :, :, None, :, None]


@triton.jit
def by_lane(total, S: tl.constexpr, BN: tl.constexpr, N: tl.constexpr):
    """A result ``[S, BN, N]`` seen as `by_row` has it."""
    return tl.reshape(total, (S, BN // 16, 2, 8, N // 8, 4, 2))
