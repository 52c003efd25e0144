"""Rotate queries and keys, and append keys and values to the paged cache, token by token."""

import functools

from numba import njit

from .compile import compile_body, entry
from .kv_codecs import kv_codec
from .launch import launch
from .machine import LANES
from .memory import arg, load_int32, load_int64, pack
from .vec import load_some, store_some, vadd, vmul, vsub

PAGE_TOKENS = 64
TOKENS_PER_ITEM = 8


@njit
def _rotate(head, cos, sin, half):
    # Products are rounded before they are added, as in the formula written out.
    for i in range(0, half, LANES):
        count = half - i
        c, s = load_some(cos + 4 * i, count), load_some(sin + 4 * i, count)
        a, b = load_some(head + 4 * i, count), load_some(head + 4 * (half + i), count)
        store_some(head + 4 * i, vsub(vmul(a, c), vmul(b, s)), count)
        store_some(head + 4 * (half + i), vadd(vmul(b, c), vmul(a, s)), count)


@functools.cache
def rope_kv_append_body(codec: str) -> int:
    """Address of the body for one KV codec: work item = one token.

    Static arguments come in a block of their own, see `rope_kv_append`.
    """
    write = kv_codec(codec).write

    def rope_kv_append(args, begin, end, scratch):
        static, qkv, stride = arg(args, 0), arg(args, 1), arg(args, 2)
        positions, token_row, page_table, table_stride = arg(args, 3), arg(args, 4), arg(args, 5), arg(args, 6)
        num_heads, num_kv_heads, head_dim, half = arg(static, 0), arg(static, 1), arg(static, 2), arg(static, 3)
        cos, sin, keys, values = arg(static, 4), arg(static, 5), arg(static, 6), arg(static, 7)
        size = 4 * head_dim
        for t in range(begin, end):
            row, position = qkv + t * stride, load_int64(positions + 8 * t)
            for head in range(num_heads + num_kv_heads):
                _rotate(row + head * size, cos + 4 * position * half, sin + 4 * position * half, half)
            pages = page_table + load_int32(token_row + 4 * t) * table_stride
            page, token = load_int32(pages + 4 * (position // PAGE_TOKENS)), position % PAGE_TOKENS
            for head in range(num_kv_heads):
                key = row + (num_heads + head) * size
                write(keys, page, token, head, key, head_dim)
                write(values, page, token, head, key + num_kv_heads * size, head_dim)

    return compile_body(rope_kv_append, codec)


@entry(10)
def rope_kv_append(pool, body, num_tokens, static, qkv, stride, positions, token_row, page_table, table_stride):
    """Launch a `rope_kv_append_body`.

    ``static``: int64 [num_heads, num_kv_heads, head_dim, rotary_dim / 2, cos, sin, plane block of
    keys, plane block of values].  fp32 ``qkv`` [T, (Hq + 2 Hkv) D], rotated in place; ``positions``
    int64 [T]; ``token_row`` int32 [T]; ``page_table`` int32 [B, pages]; strides in bytes.
    """
    args = pack((static, qkv, stride, positions, token_row, page_table, table_stride))
    launch(pool, body, num_tokens, TOKENS_PER_ITEM, args)
