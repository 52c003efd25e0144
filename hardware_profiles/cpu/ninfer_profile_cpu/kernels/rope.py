"""Rotate queries and keys, and append keys and values to the paged cache, token by token."""

from __future__ import annotations

import functools

from .compile import compile_native, inline
from .kv_codecs import WRITE
from .machine import LANES
from .memory import arg, call, load_int32, load_int64
from .vec import load_some, store_some, vadd, vmul, vsub

PAGE_TOKENS = 64
TOKENS_PER_ITEM = 8


@inline
def _rotate(head, cos, sin, half):
    # Products are rounded before they are added, as in the formula written out.
    for i in range(0, half, LANES):
        count = half - i
        c, s = load_some(cos + 4 * i, count), load_some(sin + 4 * i, count)
        a, b = load_some(head + 4 * i, count), load_some(head + 4 * (half + i), count)
        store_some(head + 4 * i, vsub(vmul(a, c), vmul(b, s)), count)
        store_some(head + 4 * (half + i), vadd(vmul(b, c), vmul(a, s)), count)


@functools.cache
def rope_kv_append_body() -> int:
    """Body ``(static, qkv, stride, positions, token_row, page_table, table_stride)``, item = token.

    ``static``: int64 [num_heads, num_kv_heads, head_dim, rotary_dim / 2, cos, sin, plane block of
    keys, plane block of values].  fp32 ``qkv`` [T, (Hq + 2 Hkv) D], rotated in place; ``positions``
    int64 [T]; ``token_row`` int32 [T]; ``page_table`` int32 [B, pages]; strides in bytes.
    """
    return compile_native(_rope_kv_append)


def _rope_kv_append(args, begin, end, scratch):
    static, qkv, stride, positions = arg(args, 0), arg(args, 1), arg(args, 2), arg(args, 3)
    token_row, page_table, table_stride = arg(args, 4), arg(args, 5), arg(args, 6)
    num_heads, num_kv_heads, head_dim = arg(static, 0), arg(static, 1), arg(static, 2)
    half, cos, sin = arg(static, 3), arg(static, 4), arg(static, 5)
    keys, values, size = arg(static, 6), arg(static, 7), 4 * head_dim
    for t in range(begin, end):
        row, position = qkv + t * stride, load_int64(positions + 8 * t)
        angles = 4 * position * half
        for head in range(num_heads + num_kv_heads):
            _rotate(row + head * size, cos + angles, sin + angles, half)
        pages = page_table + load_int32(token_row + 4 * t) * table_stride
        page = load_int32(pages + 4 * (position // PAGE_TOKENS))
        for head in range(num_kv_heads):
            key = row + (num_heads + head) * size
            value = key + num_kv_heads * size
            call(arg(keys, WRITE), (keys, page, position % PAGE_TOKENS, head, key, head_dim))
            call(arg(values, WRITE), (values, page, position % PAGE_TOKENS, head, value, head_dim))
