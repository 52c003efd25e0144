"""Normalise and rotate queries and keys, and append keys and values to the paged cache, token by
token."""

from __future__ import annotations

import functools

import numpy as np

from .compile import compile_native, entry, inline
from .kv_codecs import WRITE
from .launch import run
from .machine import LANES
from .memory import (
    arg,
    bits_of_float,
    call,
    load_float,
    load_int32,
    load_int64,
    pack,
    store_float,
)
from .norm import rms_normalize
from .vec import load_some, store_some, vadd, vmul, vsub

PAGE_TOKENS = 64
TOKENS_PER_ITEM = 8

(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HALF, COS, SIN, AXES, QUERY_NORM, KEY_NORM, EPS, OFFSET, KEYS,
 VALUES) = range(13)
"""Static block of one layer, see `static_block`."""

(STATIC, Q, Q_STRIDE, K, K_STRIDE, V, V_STRIDE, ROPE_POSITIONS, AXIS_STRIDE, POSITIONS, TOKEN_ROW,
 PAGE_TABLE, TABLE_STRIDE) = range(13)
"""Arguments of one call, see `rope_kv_append`."""


def static_block(
    num_heads: int, num_kv_heads: int, head_dim: int, keys: int, values: int, *,
    half: int = 0, cos: int = 0, sin: int = 0, axes: int = 0,
    query_norm: int = 0, key_norm: int = 0, eps: float = 0.0, offset: float = 0.0,
) -> np.ndarray:
    """int64 block of what does not change from call to call.

    ``keys`` and ``values`` are addresses of plane blocks (`kv_codecs.plane_block`); ``half`` pairs
    are rotated by fp32 tables ``cos`` and ``sin`` [positions, half]; ``axes`` int64 [half] (or 0);
    fp32 norms [D] (or 0), ``offset`` added to their weights.
    """
    norms = [query_norm, key_norm, bits_of_float(eps), bits_of_float(offset)]
    heads = [num_heads, num_kv_heads, head_dim]
    return np.array([*heads, half, cos, sin, axes, *norms, keys, values], dtype=np.int64)


def scratch_bytes(half: int) -> int:
    """Scratch memory a worker needs."""
    return 8 * half


@functools.cache
def rope_kv_append_body() -> int:
    """Body with the arguments above, item = token."""
    return compile_native(_rope_kv_append)


@functools.cache
def key_append_body() -> int:
    """Body ``(keys, num_heads, head_dim, key, key_stride, positions, token_row, page_table,
    table_stride)``, item = token: heads as they are into the plane ``keys``, the rest as above."""
    return compile_native(_key_append)


@entry
def rope_kv_append(
    pool, body, num_tokens, static, q, q_stride, k, k_stride, v, v_stride, rope_positions,
    axis_stride, positions, token_row, page_table, table_stride,
):
    """fp32 ``q`` [T, Hq D], rotated in place, as are ``k`` [T, Hkv D]; ``v`` [T, Hkv D];
    ``rope_positions`` int64 [3, T]; ``positions`` int64 [T]; ``token_row`` int32 [T];
    ``page_table`` int32 [B, pages]; strides in bytes.
    """
    args = pack((
        static, q, q_stride, k, k_stride, v, v_stride, rope_positions, axis_stride, positions,
        token_row, page_table, table_stride,
    ))
    run(pool, body, num_tokens, TOKENS_PER_ITEM, args)


def _rope_kv_append(args, begin, end, scratch):
    static = arg(args, STATIC)
    keys, values, size = arg(static, KEYS), arg(static, VALUES), 4 * arg(static, HEAD_DIM)
    for t in range(begin, end):
        turns = arg(args, ROPE_POSITIONS) + 8 * t
        cos, sin = angles(static, turns, arg(args, AXIS_STRIDE), scratch)
        q, k = arg(args, Q) + t * arg(args, Q_STRIDE), arg(args, K) + t * arg(args, K_STRIDE)
        v = arg(args, V) + t * arg(args, V_STRIDE)
        turn(static, q, arg(static, NUM_HEADS), arg(static, QUERY_NORM), cos, sin)
        turn(static, k, arg(static, NUM_KV_HEADS), arg(static, KEY_NORM), cos, sin)
        place = _place(arg(args, POSITIONS), arg(args, TOKEN_ROW), arg(args, PAGE_TABLE),
                       arg(args, TABLE_STRIDE), t)
        for head in range(arg(static, NUM_KV_HEADS)):
            _write(keys, place, head, k + head * size, size // 4)
            _write(values, place, head, v + head * size, size // 4)


def _key_append(args, begin, end, scratch):
    keys, num_heads, head_dim = arg(args, 0), arg(args, 1), arg(args, 2)
    for t in range(begin, end):
        place = _place(arg(args, 5), arg(args, 6), arg(args, 7), arg(args, 8), t)
        key = arg(args, 3) + t * arg(args, 4)
        for head in range(num_heads):
            _write(keys, place, head, key + 4 * head * head_dim, head_dim)


@inline
def _place(positions, token_row, page_table, table_stride, t):
    """Page of a token, and which of its tokens it is."""
    position = load_int64(positions + 8 * t)
    pages = page_table + load_int32(token_row + 4 * t) * table_stride
    return load_int32(pages + 4 * (position // PAGE_TOKENS)), position % PAGE_TOKENS


@inline
def _write(plane, place, head, source, head_dim):
    call(arg(plane, WRITE), (plane, place[0], place[1], head, source, head_dim))


@inline
def angles(static, positions, axis_stride, scratch):
    """Addresses of a token's cosines and sines: of a row of the tables, or gathered from the rows
    of its positions, int64 ``axis_stride`` bytes apart."""
    half, axes, cos, sin = arg(static, HALF), arg(static, AXES), arg(static, COS), arg(static, SIN)
    if not axes:
        row = 4 * half * load_int64(positions)
        return cos + row, sin + row
    to_sin = scratch + 4 * half
    for i in range(half):
        axis = load_int64(axes + 8 * i)
        at = 4 * (half * load_int64(positions + axis * axis_stride) + i)
        store_float(scratch + 4 * i, load_float(cos + at))
        store_float(to_sin + 4 * i, load_float(sin + at))
    return scratch, to_sin


@inline
def turn(static, heads, count, norm, cos, sin):
    """Normalise so many heads in place, if there is a norm, and rotate them."""
    head_dim = arg(static, HEAD_DIM)
    for i in range(count):
        head = heads + 4 * i * head_dim
        if norm:
            rms_normalize(head, head, norm, head_dim, arg(static, EPS), arg(static, OFFSET))
        _rotate(head, cos, sin, arg(static, HALF))


@inline
def _rotate(head, cos, sin, half):
    # Products are rounded before they are added, as in the formula written out.
    for i in range(0, half, LANES):
        count = half - i
        c, s = load_some(cos + 4 * i, count), load_some(sin + 4 * i, count)
        a, b = load_some(head + 4 * i, count), load_some(head + 4 * (half + i), count)
        store_some(head + 4 * i, vsub(vmul(a, c), vmul(b, s)), count)
        store_some(head + 4 * (half + i), vadd(vmul(b, c), vmul(a, s)), count)
