"""Weights in the order in which the matrix instruction takes its first operand.

A *fragment* is 16 rows by 16 elements, stored as one run of 8 elements for each of the 32 lanes of
a warp: lane ``4 g + t`` has rows ``g`` and ``g + 8``, columns ``2 t``, ``2 t + 1`` and those 8 on;
its elements go by (column half, row half, pair). What a lane loads is then what its instruction
needs: nothing moves between lanes.

An element of 16 bits is four codes of a block of 64 columns: element i holds columns i, 16 + i,
32 + i and 48 + i, the *planes*: one load gives the first operands of four instructions. Codes of
8 bits are elements of their own, in blocks of 32 columns: lane ``4 g + t`` has columns ``4 t`` to
``4 t + 3`` and those 16 on, by (column half, row half, four).

A program multiplies ``BN`` rows, and each of its warps a block of columns of its own: tensors are
``[warps, ...]``, and products are batches of that many matrices.
"""

import triton
import triton.language as tl


@triton.jit
def fragment_rows(elements, S: tl.constexpr, BN: tl.constexpr):
    """Elements ``[S, BN / 16, 256]`` as stored to ``[S, BN, 16]``."""
    parts = tl.reshape(elements, (S, BN // 16, 8, 4, 2, 2, 2))  # tile, g, t, column half, row half
    return tl.reshape(tl.permute(parts, (0, 1, 5, 2, 4, 3, 6)), (S, BN, 16))


@triton.jit
def byte_rows(elements, S: tl.constexpr, BN: tl.constexpr):
    """Bytes ``[S, BN / 16, 512]`` as stored to ``[S, BN, 32]``."""
    parts = tl.reshape(elements, (S, BN // 16, 8, 4, 2, 2, 4))  # tile, g, t, column half, row half
    return tl.reshape(tl.permute(parts, (0, 1, 5, 2, 4, 3, 6)), (S, BN, 32))


@triton.jit
def high_rows(words, BITS: tl.constexpr, S: tl.constexpr, BN: tl.constexpr):
    """The bits above the low four, ``[S, BN, 16]``: 16-bit words of both elements of a pair (6
    bits), or of the pairs of both row halves (5 bits).

    They are only copied here: Triton would move anything more through shared memory.
    """
    if BITS == 6:
        parts = tl.reshape(words, (S, BN // 16, 8, 4, 2, 2))  # tile, g, t, column half, row half
        pairs = tl.reshape(tl.permute(parts, (0, 1, 5, 2, 4, 3)), (S, BN, 8))
        spread = tl.broadcast_to(pairs[:, :, :, None], (S, BN, 8, 2))
    else:
        parts = tl.reshape(words, (S, BN // 16, 8, 4, 2))  # tile, g, t, column half
        pairs = tl.reshape(tl.permute(parts, (0, 1, 2, 4, 3)), (S, BN // 16, 8, 8))
        spread = tl.broadcast_to(pairs[:, :, None, :, :, None], (S, BN // 16, 2, 8, 8, 2))
    return tl.reshape(spread, (S, BN, 16))


@triton.jit
def tiles_of(block, width, BN: tl.constexpr, GATED: tl.constexpr):
    """Tiles of 16 rows that a program has, and whether they exist; as `stored_rows` of them."""
    tile = block * (BN // 16) + tl.arange(0, BN // 16)
    num_tiles = tl.cdiv(width, 16)
    if GATED:
        return tile // 2 + tile % 2 * num_tiles, tile // 2 < num_tiles
    return tile, tile < num_tiles


@triton.jit
def load_fragments(base, tile, exists, block, num_blocks, SIZE: tl.constexpr):
    """``[S, BN / 16, SIZE]`` elements of blocks ``[S]`` of columns."""
    at = (tile.to(tl.int64)[None, :] * num_blocks + block[:, None]) * SIZE
    live = exists[None, :] & (block < num_blocks)[:, None]
    return tl.load(
        base + at[:, :, None] + tl.arange(0, SIZE)[None, None, :], mask=live[:, :, None], other=0)


@triton.jit
def load_row_values(
    base, tile, exists, group, num_groups, S: tl.constexpr, BN: tl.constexpr,
):
    """One value for each row and group, ``[S, BN]``; stored ``[tiles, groups, 16]``."""
    at = (tile.to(tl.int64)[None, :] * num_groups + group[:, None]) * 16
    live = exists[None, :] & (group < num_groups)[:, None]
    rows = tl.load(
        base + at[:, :, None] + tl.arange(0, 16)[None, None, :], mask=live[:, :, None], other=0)
    return tl.reshape(rows, (S, BN))
