"""Index keys of blocks of tokens: means that are normed and rotated, or sums weighted by softmax.

A step is two jobs: first the blocks that it completes, of columns of the step and, before it, of
tails; then the tails themselves.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numba import types

from .compile import compile_native, entry, inline
from .launch import run
from .machine import LANES
from .memory import (
    arg,
    bits_of_float,
    float_of_bits,
    load_float,
    load_int32,
    load_int64,
    pack,
    store_float,
    store_int64,
)
from .norm import sum_squares
from .rope import KEY_NORM, PAGE_TOKENS, QUERY_NORM, angles, turn
from .vec import (
    copy_row,
    load_some,
    store_some,
    vadd,
    vdiv,
    vexp,
    vfma,
    vmax,
    vmul,
    vsplat,
    vsub,
    vsum,
)

f32 = types.float32

TOKENS_PER_ITEM = 8
AXES = 3
"""Rope positions of a token, which are kept behind its key."""

(ROPE, HEADS, HEAD_DIM, BLOCK, KEYS, PAGE_BYTES, ENTRY_BYTES, TAIL, TAIL_BYTES, TAIL_ROWS, NORM,
 NORM_BIAS, POSITION_BIAS, EPS) = range(14)
"""Static block of one layer, see `static_block`."""

(STATIC, K, K_STRIDE, OTHER, OTHER_STRIDE, ROPE_POSITIONS, AXIS_STRIDE, POSITIONS, TOKEN_ROW,
 ROW_START, SLOTS, PAGE_TABLE, TABLE_STRIDE) = range(13)
"""Arguments of one call, see `index_append`."""


def static_block(
    *, head_dim: int, block: int, keys: int, page_bytes: int, entry_bytes: int, tail: int,
    tail_bytes: int, tail_rows: int, rope: int = 0, heads: int = 0, norm: int = 0,
    norm_bias: int = 0, position_bias: int = 0, eps: float = 0.0,
) -> np.ndarray:
    """int64 block of what does not change from call to call.

    ``keys`` and ``tail``: addresses of page 0 and slot 0, fp32, with the bytes from page to page,
    entry to entry and slot to slot. For means ``rope``, the address of a block of `rope`, with the
    norms of queries and keys, and ``heads`` of a query; else it is 0, and there are ``norm``,
    ``norm_bias`` [D], ``position_bias`` [block, D] and ``eps``.
    """
    memory = [keys, page_bytes, entry_bytes, tail, tail_bytes, tail_rows]
    norms = [norm, norm_bias, position_bias, bits_of_float(eps)]
    return np.array([rope, heads, head_dim, block, *memory, *norms], dtype=np.int64)


def scratch_bytes(head_dim: int, block: int, half: int) -> int:
    """Scratch memory a worker needs: columns of a block, its key, a position and its angles."""
    return 8 * half + 8 * AXES + 4 * head_dim + block * _column_bytes(head_dim)


def _column_bytes(head_dim: int) -> int:
    return 4 * max(2 * head_dim, head_dim + AXES)


@functools.cache
def entries_body() -> int:
    """Body with the arguments above, item = token; queries are turned as well."""
    return compile_native(_entries)


@functools.cache
def tails_body() -> int:
    """Body with the arguments above, item = sequence."""
    return compile_native(_tails)


@entry
def index_append(
    pool, entries, tails, num_tokens, num_rows, static, k, k_stride, other, other_stride,
    rope_positions, axis_stride, positions, token_row, row_start, slots, page_table, table_stride,
):
    """fp32 ``k`` [T, D]; ``other``: queries [T, heads D], turned in place, or scores [T, D];
    ``rope_positions`` int64 [3, T]; ``positions`` int64 [T]; ``token_row`` int32 [T];
    ``row_start`` int32 [B + 1]; ``slots`` int32 [B]; ``page_table`` int32 [B, pages]; strides in
    bytes.
    """
    args = pack((
        static, k, k_stride, other, other_stride, rope_positions, axis_stride, positions, token_row,
        row_start, slots, page_table, table_stride,
    ))
    run(pool, entries, num_tokens, TOKENS_PER_ITEM, args)
    run(pool, tails, num_rows, 1, args)


@inline
def _width(static):
    """Values of a column."""
    return arg(static, HEAD_DIM) + (AXES if arg(static, ROPE) else arg(static, HEAD_DIM))


@inline
def _tail_row(args, row, position):
    static = arg(args, STATIC)
    slot = load_int32(arg(args, SLOTS) + 4 * row)
    at = position % arg(static, TAIL_ROWS) * 4 * _width(static)
    return arg(static, TAIL) + slot * arg(static, TAIL_BYTES) + at


@inline
def _column(args, t, to):
    """What is kept of a token of the step."""
    static = arg(args, STATIC)
    k, width = arg(args, K) + t * arg(args, K_STRIDE), arg(static, HEAD_DIM)
    if arg(static, ROPE):
        copy_row(k, width, to)
        for axis in range(AXES):
            position = load_int64(arg(args, ROPE_POSITIONS) + 8 * t + axis * arg(args, AXIS_STRIDE))
            store_float(to + 4 * (width + axis), f32(position))
    else:
        _normalise(static, k, to)
        copy_row(arg(args, OTHER) + t * arg(args, OTHER_STRIDE), width, to + 4 * width)


@inline
def _normalise(static, k, to):
    """LayerNorm."""
    width, total = arg(static, HEAD_DIM), vsplat(f32(0.0))
    for i in range(0, width, LANES):
        total = vadd(total, load_some(k + 4 * i, width - i))
    mean = vsum(total) / f32(width)
    variance = sum_squares(k, width, mean) / f32(width)
    scale = vsplat(f32(1.0) / f32(math.sqrt(variance + float_of_bits(arg(static, EPS)))))
    for i in range(0, width, LANES):
        x = vmul(vsub(load_some(k + 4 * i, width - i), vsplat(mean)), scale)
        weight = load_some(arg(static, NORM) + 4 * i, width - i)
        bias = load_some(arg(static, NORM_BIAS) + 4 * i, width - i)
        store_some(to + 4 * i, vfma(x, weight, bias), width - i)


def _entries(args, begin, end, scratch):
    static = arg(args, STATIC)
    for t in range(begin, end):
        if arg(static, ROPE):
            turns = arg(args, ROPE_POSITIONS) + 8 * t
            cos, sin = angles(arg(static, ROPE), turns, arg(args, AXIS_STRIDE), scratch)
            query = arg(args, OTHER) + t * arg(args, OTHER_STRIDE)
            norm = arg(arg(static, ROPE), QUERY_NORM)
            turn(arg(static, ROPE), query, arg(static, HEADS), norm, cos, sin)
        position = load_int64(arg(args, POSITIONS) + 8 * t)
        if (position + 1) % arg(static, BLOCK) == 0:
            _write_entry(args, t, position, scratch)


@inline
def _write_entry(args, t, position, scratch):
    static, block = arg(args, STATIC), arg(arg(args, STATIC), BLOCK)
    row = load_int32(arg(args, TOKEN_ROW) + 4 * t)
    first, size = load_int32(arg(args, ROW_START) + 4 * row), 4 * _width(static)
    for j in range(block):
        back = block - 1 - j
        if t - back >= first:
            _column(args, t - back, scratch + j * size)
        else:
            copy_row(_tail_row(args, row, position - back), size // 4, scratch + j * size)
    pages = arg(args, PAGE_TABLE) + row * arg(args, TABLE_STRIDE)
    page = load_int32(pages + 4 * (position // PAGE_TOKENS))
    entry_number = position % PAGE_TOKENS // block
    to = arg(static, KEYS) + page * arg(static, PAGE_BYTES)
    to += entry_number * arg(static, ENTRY_BYTES)
    if arg(static, ROPE):
        _mean(static, scratch, block, size, to, scratch + block * size)
    else:
        _weighted(static, scratch, block, size, to)


@inline
def _mean(static, columns, block, size, to, scratch):
    """Normed, and rotated as the first of the block's tokens."""
    width, rope = arg(static, HEAD_DIM), arg(static, ROPE)
    for i in range(0, width, LANES):
        total = vsplat(f32(0.0))
        for j in range(block):
            total = vadd(total, load_some(columns + j * size + 4 * i, width - i))
        store_some(to + 4 * i, vdiv(total, vsplat(f32(block))), width - i)
    for axis in range(AXES):
        position = load_float(columns + 4 * (width + axis))
        store_int64(scratch + 8 * axis, types.int64(position))
    cos, sin = angles(rope, scratch, 8, scratch + 8 * AXES)
    turn(rope, to, 1, arg(rope, KEY_NORM), cos, sin)


@inline
def _weighted(static, columns, block, size, to):
    """By the softmax of scores over the tokens, for each component by itself."""
    width, bias = arg(static, HEAD_DIM), arg(static, POSITION_BIAS)
    for i in range(0, width, LANES):
        largest = vsplat(f32(-math.inf))
        for j in range(block):
            largest = vmax(_score(columns + j * size, bias, width, i, j), largest)
        total = mixed = vsplat(f32(0.0))
        for j in range(block):
            share = vexp(vsub(_score(columns + j * size, bias, width, i, j), largest))
            total = vadd(total, share)
            mixed = vfma(share, load_some(columns + j * size + 4 * i, width - i), mixed)
        store_some(to + 4 * i, vdiv(mixed, total), width - i)


@inline
def _score(column, bias, width, i, token):
    score = load_some(column + 4 * (width + i), width - i)
    return vadd(score, load_some(bias + 4 * (token * width + i), width - i))


def _tails(args, begin, end, scratch):
    for row in range(begin, end):
        first = load_int32(arg(args, ROW_START) + 4 * row)
        last = load_int32(arg(args, ROW_START) + 4 * (row + 1))
        for t in range(max(first, last - arg(arg(args, STATIC), TAIL_ROWS)), last):
            position = load_int64(arg(args, POSITIONS) + 8 * t)
            _column(args, t, _tail_row(args, row, position))
