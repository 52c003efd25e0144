"""Queries, keys and values of a token: norms, rotation, and the way into the cache.

Weights and places of the step are read before `wait`: the kernel before has made none of them.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.cache import PAGE, append
from ninfer_triton_kernels.kernels.overlap import release, wait


@triton.jit
def head_columns(half, BLOCK: tl.constexpr):
    """Components of a head, ``[BLOCK]``, and of the first ``2 * half`` their partners and the pairs
    that both are."""
    i = tl.arange(0, BLOCK)
    return i, tl.where(i < half, i + half, i - half), tl.where(i < half, i, i - half)


@triton.jit
def load_places(axes, rope_positions, rope_stride, t, pair, turns, HAS_AXES: tl.constexpr):
    """Where token ``t`` is on the axis that turns each of the pairs."""
    place = tl.load(rope_positions + t)
    if HAS_AXES:
        second = tl.load(rope_positions + rope_stride + t)
        third = tl.load(rope_positions + 2 * rope_stride + t)
        axis = tl.load(axes + pair, mask=turns, other=0)
        place = tl.where(axis == 0, place, tl.where(axis == 1, second, third))
    return place


@triton.jit
def load_scales(weight, i, partner, width, half, offset, HAS_NORM: tl.constexpr):
    """Of components and of their partners, by a norm's weight."""
    if HAS_NORM:
        own = tl.load(weight + i, mask=i < width, other=0.0).to(tl.float32) + offset
        other = tl.load(weight + partner, mask=i < 2 * half, other=0.0).to(tl.float32) + offset
    else:
        own, other = tl.full(i.shape, 1.0, tl.float32), tl.full(i.shape, 1.0, tl.float32)
    return own, other


@triton.jit
def load_turn(cos, sin, place, i, pair, half):
    """Factors of components and of their partners, by which a head turns."""
    at = place * half + pair
    c = tl.load(cos + at, mask=i < 2 * half, other=1.0)
    s = tl.load(sin + at, mask=i < 2 * half, other=0.0)
    return c, tl.where(i < half, -s, s)


@triton.jit
def turned_heads(
    x, exists, cos, sin, place, i, partner, pair, scale, partner_scale, width, half, eps,
    HAS_ROPE: tl.constexpr, HAS_NORM: tl.constexpr,
):
    """Heads at ``x`` ``[HEADS]``, if they exist, normed and turned: fp32 ``[HEADS, BLOCK]``. They
    are asked for first, as the place may still be on its way."""
    live, turns = exists[:, None] & (i < width)[None, :], exists[:, None] & (i < 2 * half)[None, :]
    loaded = tl.load(x[:, None] + i[None, :], mask=live, other=0.0)
    if HAS_ROPE:
        other = tl.load(x[:, None] + partner[None, :], mask=turns, other=0.0)
        c, s = load_turn(cos, sin, place, i, pair, half)
        head = loaded.to(tl.float32)
        turned = head * (c * scale)[None, :]
        turned += other.to(tl.float32) * (s * partner_scale)[None, :]
    else:
        head = loaded.to(tl.float32)
        turned = head * scale[None, :]
    if HAS_NORM:
        turned *= (1 / tl.sqrt(tl.sum(head * head, 1) / width + eps))[:, None]
    return turned


@triton.jit
def append_keys(
    k, head, cos, sin, place, i, partner, pair, key_norm, codes, scales, at, scale_at, num_kv_heads,
    width, half, eps, offset, CODEC: tl.constexpr, HAS_ROPE: tl.constexpr, HAS_NORM: tl.constexpr,
):
    """Keys ``head`` of a token at ``k``, rounded before they are encoded."""
    exists = head < num_kv_heads
    scale, partner_scale = load_scales(key_norm, i, partner, width, half, offset, HAS_NORM)
    wait()
    release()
    turned = turned_heads(k + head * width, exists, cos, sin, place, i, partner, pair, scale,
                          partner_scale, width, half, eps, HAS_ROPE, HAS_NORM)
    rounded = turned.to(k.dtype.element_ty).to(tl.float32)
    append(rounded, codes, scales, at, scale_at, exists, width, CODEC, i.shape[0])


@triton.jit
def append_values(
    v, head, i, codes, scales, at, scale_at, num_kv_heads, width, CODEC: tl.constexpr,
):
    """Values ``head`` of a token at ``v``."""
    exists = head < num_kv_heads
    wait()
    release()
    values = tl.load(v + head[:, None] * width + i[None, :],
                     mask=exists[:, None] & (i < width)[None, :], other=0.0)
    append(values.to(tl.float32), codes, scales, at, scale_at, exists, width, CODEC, i.shape[0])


@triton.jit
def rope_kv_append(
    q, k, v, q_stride, k_stride, v_stride, cos, sin, axes, query_norm, key_norm, key_codes,
    key_scales, value_codes, value_scales, key_page, key_scale_page, value_page, value_scale_page,
    positions, rope_positions, rope_stride, token_row, page_table, table_stride, num_heads,
    num_kv_heads, width, half, eps, offset, CODEC: tl.constexpr, HAS_ROPE: tl.constexpr,
    HAS_AXES: tl.constexpr, HAS_QUERY_NORM: tl.constexpr, HAS_KEY_NORM: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK: tl.constexpr,
):
    """``HEADS`` queries of one token, or ``KV_HEADS`` of its keys, or of its values."""
    t, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    query_groups = tl.cdiv(num_heads, HEADS)
    i, partner, pair = head_columns(half, BLOCK)
    place = t
    if HAS_ROPE:
        place = load_places(axes, rope_positions, rope_stride, t, pair, i < 2 * half, HAS_AXES)
    if group < query_groups:
        head = group * HEADS + tl.arange(0, HEADS)
        own, exists = q + t * q_stride + head * width, head < num_heads
        scale, partner_scale = load_scales(
            query_norm, i, partner, width, half, offset, HAS_QUERY_NORM)
        wait()
        release()
        turned = turned_heads(own, exists, cos, sin, place, i, partner, pair, scale, partner_scale,
                              width, half, eps, HAS_ROPE, HAS_QUERY_NORM)
        tl.debug_barrier()  # each component was also read as another's partner
        tl.store(own[:, None] + i[None, :], turned.to(q.dtype.element_ty),
                 mask=exists[:, None] & (i < width)[None, :])
    else:
        group -= query_groups
        key_groups = tl.cdiv(num_kv_heads, KV_HEADS)
        kv_head = group % key_groups * KV_HEADS + tl.arange(0, KV_HEADS)
        position = tl.load(positions + t)
        page = tl.load(page_table + tl.load(token_row + t) * table_stride + position // PAGE)
        page, at = page.to(tl.int64), position % PAGE * num_kv_heads + kv_head
        scale_at = at * ((width + 63) // 64 if CODEC == "int8" else 1)
        if group < key_groups:
            append_keys(
                k + t * k_stride, kv_head, cos, sin, place, i, partner, pair, key_norm, key_codes,
                key_scales, page * key_page + at * width, page * key_scale_page + scale_at,
                num_kv_heads, width, half, eps, offset, CODEC, HAS_ROPE, HAS_KEY_NORM)
        else:
            append_values(
                v + t * v_stride, kv_head, i, value_codes, value_scales,
                page * value_page + at * width, page * value_scale_page + scale_at, num_kv_heads,
                width, CODEC)
