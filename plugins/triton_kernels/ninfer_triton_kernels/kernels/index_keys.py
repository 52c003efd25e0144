"""Index keys of blocks of tokens, made of the columns of their tokens.

A block that lies in a step is the work of its last token's program. One that began before is the
work of the program of its row's first token, which then writes the columns of the row: nothing
else touches its tail.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.cache import PAGE, append
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.rope import (
    head_columns,
    load_places,
    load_scales,
    load_turn,
    turned_heads,
)

COLUMNS = tl.constexpr(16)
"""Columns that are written at once."""


@triton.jit
def last_token(t, begin, end, position, block):
    """The last token of the block that the program of token ``t`` makes the key of, or -1."""
    own = tl.where((position + 1) % block == 0, t, -1)
    own = tl.where(t - begin >= block - 1, own, -1)
    open_ = t + block - 1 - position % block  # of the block that the row's first token is in
    first = tl.where((position % block != 0) & (open_ < end), open_, own)
    return tl.where(t == begin, first, own)


@triton.jit
def store_entry(
    value, codes, scales, page_stride, scale_stride, position, row, page_table, table_stride,
    block, width, CODEC: tl.constexpr, BLOCK: tl.constexpr,
):
    """The key of the block that ``position`` completes."""
    page = tl.load(page_table + row * table_stride + position // PAGE).to(tl.int64)
    entry = position % PAGE // block + tl.arange(0, 1)
    groups = (width + 63) // 64 if CODEC == "int8" else 1
    append(tl.reshape(value, (1, BLOCK)), codes, scales, page * page_stride + entry * width,
           page * scale_stride + entry * groups, entry >= 0, width, CODEC, BLOCK)


@triton.jit
def component(k, tail, s, begin, position, k_stride, tail_width, i, live, TAIL: tl.constexpr):
    """Components ``i`` of the column of token ``s`` at ``position``: new, or from the tail."""
    new = tl.load(k + s * k_stride + i, mask=live & (s >= begin), other=0.0).to(tl.float32)
    old = tl.load(
        tail + position % TAIL * tail_width + i, mask=live & (s < begin), other=0.0)
    return new + old


@triton.jit
def turn_of(
    rope_positions, rope_stride, tail, s, begin, position, tail_width, width, axis, live,
    TAIL: tl.constexpr,
):
    """Rope positions of token ``s`` at ``position`` by ``axis``."""
    new = tl.load(
        rope_positions + axis * rope_stride + s, mask=live & (s >= begin), other=0).to(tl.int64)
    old = tl.load(
        tail + position % TAIL * tail_width + width + axis, mask=live & (s < begin), other=0.0)
    return new + old.to(tl.int64)


@triton.jit
def mean_index_append(
    q, k, q_stride, k_stride, cos, sin, axes, query_norm, key_norm, tail, tail_slot, codes, scales,
    page_stride, scale_stride, positions, rope_positions, rope_stride, token_row, row_start, slots,
    page_table, table_stride, num_heads, width, half, eps, offset, block, CODEC: tl.constexpr,
    HAS_AXES: tl.constexpr, TAIL: tl.constexpr, BLOCK: tl.constexpr,
):
    """One head of one token's query; and behind the heads, the keys of blocks. With one warp: each
    component is also read as another's partner before it is written."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i, partner, pair = head_columns(half, BLOCK)
    live, turns = i < width, i < 2 * half
    if head < num_heads:
        one = tl.arange(0, 1)
        place = load_places(axes, rope_positions, rope_stride, t, pair, turns, HAS_AXES)
        scale, partner_scale = load_scales(query_norm, i, partner, width, half, offset, True)
        to = q + t * q_stride + (head + one) * width
        value = turned_heads(to, one == 0, cos, sin, place, i, partner, pair, scale, partner_scale,
                             width, half, eps, True, True)
        tl.store(to[:, None] + i[None, :], value.to(q.dtype.element_ty), mask=live[None, :])
    else:
        axis = tl.load(axes + pair, mask=turns, other=0) if HAS_AXES else (pair * 0).to(tl.int64)
        row = tl.load(token_row + t)
        begin = tl.load(row_start + row).to(tl.int64)
        end = tl.load(row_start + row + 1).to(tl.int64)
        position = tl.load(positions + t)
        own = tail + tl.load(slots + row).to(tl.int64) * tail_slot
        last = last_token(t, begin, end, position, block)
        if last >= 0:
            total = tl.zeros((BLOCK,), tl.float32)
            beside = tl.zeros((BLOCK,), tl.float32)
            for j in range(0, block):
                s = last - block + 1 + j
                at = position + s - t
                total += component(k, own, s, begin, at, k_stride, width + 3, i, live, TAIL)
                beside += component(k, own, s, begin, at, k_stride, width + 3, partner, turns, TAIL)
            value, other = total / block, beside / block
            root = tl.sqrt(tl.sum(tl.where(live, value * value, 0.0)) / width + eps)
            first = last - block + 1
            turn = turn_of(rope_positions, rope_stride, own, first, begin, position + first - t,
                           width + 3, width, axis, turns, TAIL)
            c, sine = load_turn(cos, sin, turn, i, pair, half)
            scale, partner_scale = load_scales(key_norm, i, partner, width, half, offset, True)
            value = (value * c * scale + other * sine * partner_scale) / root
            store_entry(value, codes, scales, page_stride, scale_stride, position + last - t, row,
                        page_table, table_stride, block, width, CODEC, BLOCK)
        if t == begin:
            tl.debug_barrier()  # the program has read what it overwrites
            for first_column in range(tl.maximum(begin, end - TAIL), end, COLUMNS):
                s = (first_column + tl.arange(0, COLUMNS))[:, None]
                exists = s < end
                place = (position + s - t) % TAIL * (width + 3)
                column = tl.load(
                    k + s * k_stride + i[None, :], mask=exists & live[None, :]).to(tl.float32)
                tl.store(own + place + i[None, :], column, mask=exists & live[None, :])
                a = tl.arange(0, 4)[None, :]
                turn = tl.load(rope_positions + a * rope_stride + s, mask=exists & (a < 3), other=0)
                tl.store(own + place + width + a, turn.to(tl.float32), mask=exists & (a < 3))


@triton.jit
def layer_normed(k, norm, norm_bias, i, live, width, eps):
    """fp32 ``[BLOCK]``."""
    x = tl.load(k + i, mask=live, other=0.0).to(tl.float32)
    centred = tl.where(live, x - tl.sum(x) / width, 0.0)
    root = tl.sqrt(tl.sum(centred * centred) / width + eps)
    scale = tl.load(norm + i, mask=live, other=0.0).to(tl.float32)
    shift = tl.load(norm_bias + i, mask=live, other=0.0).to(tl.float32)
    return centred / root * scale + shift


@triton.jit
def softmax_index_append(
    k, scores, k_stride, score_stride, norm, norm_bias, position_bias, tail, tail_slot, codes,
    page_scales, page_stride, scale_stride, positions, token_row, row_start, slots, page_table,
    table_stride, width, eps, block, CODEC: tl.constexpr, TAIL: tl.constexpr, BLOCK: tl.constexpr,
):
    """The keys of blocks, one program for each token, with one warp."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    live = i < width
    row = tl.load(token_row + t)
    begin = tl.load(row_start + row).to(tl.int64)
    end = tl.load(row_start + row + 1).to(tl.int64)
    position = tl.load(positions + t)
    own = tail + tl.load(slots + row).to(tl.int64) * tail_slot
    last = last_token(t, begin, end, position, block)
    if last >= 0:
        top = tl.full((BLOCK,), float("-inf"), tl.float32)
        mass = tl.zeros((BLOCK,), tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        for j in range(0, block):
            s = last - block + 1 + j
            at = (position + s - t) % TAIL * (2 * width)
            if s >= begin:
                key = layer_normed(k + s * k_stride, norm, norm_bias, i, live, width, eps)
                score = tl.load(scores + s * score_stride + i, mask=live, other=0.0).to(tl.float32)
            else:
                key = tl.load(own + at + i, mask=live, other=0.0)
                score = tl.load(own + at + width + i, mask=live, other=0.0)
            score += tl.load(position_bias + j * width + i, mask=live, other=0.0).to(tl.float32)
            higher = tl.maximum(top, score)
            faded, weight = tl.exp(top - higher), tl.exp(score - higher)
            mass = mass * faded + weight
            total = total * faded + weight * key
            top = higher
        store_entry(total / mass, codes, page_scales, page_stride, scale_stride,
                    position + last - t, row, page_table, table_stride, block, width, CODEC, BLOCK)
    if t == begin:
        tl.debug_barrier()  # the program has read what it overwrites
        for s in range(tl.maximum(begin, end - TAIL), end):
            at = (position + s - t) % TAIL * (2 * width)
            key = layer_normed(k + s * k_stride, norm, norm_bias, i, live, width, eps)
            score = tl.load(scores + s * score_stride + i, mask=live, other=0.0).to(tl.float32)
            tl.store(own + at + i, key, mask=live)
            tl.store(own + at + width + i, score, mask=live)
