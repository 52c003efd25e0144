"""Queries, keys and values of a token: norms, rotation, and the way into the cache."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.cache import PAGE, append
from ninfer_triton_kernels.kernels.overlap import release, wait


@triton.jit
def load_head(x, weight, i, width, eps, offset, partner, HAS_NORM: tl.constexpr):
    """A head and its components in the order of ``partner``, normed, fp32."""
    live = i < width
    head = tl.load(x + i, mask=live, other=0.0).to(tl.float32)
    other = tl.load(x + partner, mask=live, other=0.0).to(tl.float32)
    if HAS_NORM:
        root = tl.sqrt(tl.sum(head * head) / width + eps)
        head = head / root * (tl.load(weight + i, mask=live, other=0.0).to(tl.float32) + offset)
        scale = tl.load(weight + partner, mask=live, other=0.0).to(tl.float32) + offset
        other = other / root * scale
    return head, other


@triton.jit
def rope_kv_append(
    q, k, v, q_stride, k_stride, v_stride, cos, sin, axes, query_norm, key_norm, key_codes,
    key_scales, value_codes, value_scales, key_page, key_scale_page, value_page, value_scale_page,
    positions, rope_positions, rope_stride, token_row, page_table, table_stride, num_heads,
    num_kv_heads, width, half, eps, offset, CODEC: tl.constexpr, HAS_ROPE: tl.constexpr,
    HAS_AXES: tl.constexpr, HAS_QUERY_NORM: tl.constexpr, HAS_KEY_NORM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One head of one token: queries, then keys, then values.

    Runs with one warp: a head is read, each component also as another's partner, before any of it
    is written.
    """
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    live = i < width
    position = tl.load(positions + t)
    row = tl.load(token_row + t)
    page = tl.load(page_table + row * table_stride + position // PAGE).to(tl.int64)
    slot = position % PAGE
    groups = (width + 63) // 64 if CODEC == "int8" else 1
    if head >= num_heads + num_kv_heads:
        own = head - num_heads - num_kv_heads
        values = tl.load(v + t * v_stride + own * width + i, mask=live, other=0.0).to(tl.float32)
        at = slot * num_kv_heads + own
        append(values, value_codes, value_scales, page * value_page + at * width,
               page * value_scale_page + at * groups, width, CODEC, BLOCK)
    else:
        turns = i < 2 * half
        partner = tl.where(turns, tl.where(i < half, i + half, i - half), i)
        if head < num_heads:
            base = q + t * q_stride + head * width
            value, other = load_head(
                base, query_norm, i, width, eps, offset, partner, HAS_QUERY_NORM)
        else:
            base = k + t * k_stride + (head - num_heads) * width
            value, other = load_head(base, key_norm, i, width, eps, offset, partner, HAS_KEY_NORM)
        if HAS_ROPE:
            pair = tl.where(i < half, i, i - half)
            axis = tl.load(axes + pair, mask=turns, other=0) if HAS_AXES else pair * 0
            turn = tl.load(rope_positions + axis * rope_stride + t, mask=turns, other=0)
            c = tl.load(cos + turn * half + pair, mask=turns, other=1.0)
            s = tl.load(sin + turn * half + pair, mask=turns, other=0.0)
            value = value * c + tl.where(i < half, -other, other) * s
        rounded = value.to(q.dtype.element_ty)
        if head < num_heads:
            tl.store(base + i, rounded, mask=live)
        else:
            at = slot * num_kv_heads + head - num_heads
            append(rounded.to(tl.float32), key_codes, key_scales, page * key_page + at * width,
                   page * key_scale_page + at * groups, width, CODEC, BLOCK)
