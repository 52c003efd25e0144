"""The delta rule with decays by channel, token by token.

Tokens are prepared first: their normalised keys and queries, g and betas, in fp32. What a record
keeps is a copy of that, so that a replayed token leaves the bits that it would have left at once.
A call takes the tokens ``first`` to ``last`` of a step; rows that may be rejected go with their
first token.
"""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.delta_rule import below, normalised, strength_of
from ninfer_triton_kernels.kernels.overlap import release, wait


@triton.jit
def prepare_tokens(
    q, k, f, b, keys, queries, gates, betas, rates, biases, q_stride, k_stride, f_stride, b_stride,
    first, key_dim, eps, query_scale, lower_bound, BLOCK: tl.constexpr,
):
    """One head of one token: ``keys``, ``queries`` and ``gates`` ``[N, H, Dk]``, ``betas``
    ``[N, H]``."""
    wait()
    release()
    n = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    t = first + n
    i = tl.arange(0, BLOCK)
    live = i < key_dim
    own = head * key_dim + i
    key = tl.load(k + t * k_stride + own, mask=live, other=0.0).to(tl.float32)
    query = tl.load(q + t * q_stride + own, mask=live, other=0.0).to(tl.float32)
    gate = tl.load(f + t * f_stride + own, mask=live, other=0.0).to(tl.float32)
    grown = tl.load(rates + head) * (gate + tl.load(biases + own, mask=live, other=0.0))
    at = n * tl.num_programs(1) + head
    to = at * key_dim + i
    tl.store(keys + to, normalised(key, eps), mask=live)
    tl.store(queries + to, normalised(query, eps) * query_scale, mask=live)
    tl.store(gates + to, lower_bound * strength_of(grown), mask=live)
    tl.store(betas + at, strength_of(tl.load(b + t * b_stride + head)))


@triton.jit
def tokens_of(begin, end, certain, first, last):
    """Tokens of a row that a call takes, and whether it takes the row's replay."""
    starts = tl.where(begin == end, first == 0, (begin >= first) & (begin < last))
    own_first, own_last = tl.maximum(begin, first), tl.minimum(end, last)
    own_first = tl.where(certain, own_first, begin)
    own_last = tl.where(certain, own_last, tl.where(starts, end, begin))
    return own_first, own_last, starts


@triton.jit
def advance(state, key, value, gate, beta):
    """S ``[Dk, BV]`` after one token."""
    state = state * tl.exp(gate)[:, None]
    delta = beta * (value - tl.sum(state * key[:, None], 0))
    return tl.fma(key[:, None], delta[None, :], state)


@triton.jit
def channel_delta_rule(
    keys, queries, gates, betas, v, out, committed, record, row_start, slots, replay, certain,
    v_stride, out_stride, slot_stride, record_stride, record_width, first, last,
    num_heads: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr, BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Some value columns of one head of one row; those of a head lie side by side in the grid."""
    wait()
    part, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = tl.arange(0, BLOCK)
    j = part * COLUMNS + tl.arange(0, COLUMNS)
    is_key, is_value = below(i, key_dim, BLOCK), below(j, value_dim, COLUMNS)
    live = is_key[:, None] & is_value[None, :]
    begin, end = tl.load(row_start + row), tl.load(row_start + row + 1)
    is_certain = tl.load(certain + row) != 0
    own_first, own_last, starts = tokens_of(begin, end, is_certain, first, last)
    applied = tl.where(starts, tl.load(replay + row), 0)
    if (applied > 0) | (own_first < own_last):
        slot = tl.load(slots + row).to(tl.int64)
        at = committed + slot * slot_stride + head * key_dim * value_dim
        at += i[:, None] * value_dim + j[None, :]
        state = tl.load(at, mask=live, other=0.0)
        log = record + slot * record_stride
        value_at = num_heads * key_dim + head * value_dim
        gate_at = num_heads * (key_dim + value_dim) + head * key_dim
        beta_at = num_heads * (2 * key_dim + value_dim) + head
        for r in range(0, applied):
            line = log + r * record_width
            key = tl.load(line + head * key_dim + i, mask=is_key, other=0.0)
            gate = tl.load(line + gate_at + i, mask=is_key, other=0.0)
            value = tl.load(line + value_at + j, mask=is_value, other=0.0)
            state = advance(state, key, value, gate, tl.load(line + beta_at))
        if (applied > 0) & (is_certain == 0):
            tl.store(at, state, mask=live)
        for t in range(own_first, own_last):
            n = (t - first) * num_heads + head
            key = tl.load(keys + n * key_dim + i, mask=is_key, other=0.0)
            query = tl.load(queries + n * key_dim + i, mask=is_key, other=0.0)
            gate = tl.load(gates + n * key_dim + i, mask=is_key, other=0.0)
            place = t * v_stride + head * value_dim + j
            value = tl.load(v + place, mask=is_value, other=0.0).to(tl.float32)
            state = advance(state, key, value, gate, tl.load(betas + n))
            result = tl.sum(state * query[:, None], 0).to(out.dtype.element_ty)
            to = t * out_stride + head * value_dim + j
            tl.store(out + to, result, mask=is_value)
        if is_certain:
            tl.store(at, state, mask=live)


@triton.jit
def record_tokens(
    keys, gates, betas, v, record, token_row, row_start, slots, certain, v_stride, record_stride,
    record_width, first, last, key_dim, value_dim, BLOCK: tl.constexpr,
):
    """One head of one token of a row that may be rejected."""
    wait()
    release()
    n = tl.program_id(0).to(tl.int64)
    head, num_heads = tl.program_id(1), tl.num_programs(1)
    t = first + n
    row = tl.load(token_row + t)
    begin = tl.load(row_start + row)
    if (tl.load(certain + row) == 0) & (begin >= first) & (begin < last):
        i = tl.arange(0, BLOCK)
        slot = tl.load(slots + row).to(tl.int64)
        line = record + slot * record_stride + (t - begin) * record_width
        at = n * num_heads + head
        is_key, is_value = i < key_dim, i < value_dim
        key = tl.load(keys + at * key_dim + i, mask=is_key)
        tl.store(line + head * key_dim + i, key, mask=is_key)
        line += num_heads * key_dim
        value = tl.load(v + t * v_stride + head * value_dim + i, mask=is_value).to(tl.float32)
        tl.store(line + head * value_dim + i, value, mask=is_value)
        line += num_heads * value_dim
        gate = tl.load(gates + at * key_dim + i, mask=is_key)
        tl.store(line + head * key_dim + i, gate, mask=is_key)
        tl.store(line + num_heads * key_dim + head, tl.load(betas + at))
