"""The gated delta rule token by token: one program for some value columns of one head."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import wait

BLOCK = tl.constexpr(64)
"""Tokens of a block of `delta_blocks`; blocks begin at multiples of it in a sequence."""

RECORDED, RECORDED_HEADS = tl.constexpr(16), tl.constexpr(4)
"""Tokens and value heads that are recorded at once."""

ALL, BEFORE, BEHIND = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""Tokens of a row that a call takes: all, or those before its whole blocks (all that has none), or
those behind them."""


@triton.jit
def normalised(x, eps):
    """fp32 ``[D]`` divided by its length."""
    return x * tl.rsqrt(tl.sum(x * x) + eps)


@triton.jit
def advance(decayed, key, value, beta):
    """S ``[Dk, BV]`` after one token, from ``e^g S``, and the correction ``[BV]``."""
    delta = beta * (value - tl.sum(decayed * key[:, None], 0))
    return tl.fma(key[:, None], delta[None, :], decayed), delta


@triton.jit
def softplus(x):
    """``log(1 + e^x)``, in the form that neither overflows nor loses small results."""
    small = tl.exp(-tl.abs(x))
    # log(1 + s) = 2 atanh(z), z = s / (2 + s) up to 1/3: what is left out is 2^-29 of it
    z = small / (2 + small)
    y = z * z
    series = tl.fma(y, 1 / 15, 1 / 13)
    series = tl.fma(y, series, 1 / 11)
    series = tl.fma(y, series, 1 / 9)
    series = tl.fma(y, series, 1 / 7)
    series = tl.fma(y, series, 1 / 5)
    series = tl.fma(y, series, 1 / 3)
    return tl.maximum(x, 0.0) + 2 * tl.fma(z * y, series, z)


@triton.jit
def blocks_of(row, row_start, context, certain):
    """First token and number of the whole blocks of a row; a row that may be rejected has none."""
    begin, end = tl.load(row_start + row), tl.load(row_start + row + 1)
    first = begin + (BLOCK - tl.load(context + row) % BLOCK) % BLOCK
    count = tl.maximum(end - first, 0) // BLOCK
    return first, tl.where(tl.load(certain + row) != 0, count, 0)


@triton.jit
def tokens_of(row, row_start, context, certain, PART: tl.constexpr):
    """Tokens of a row that a call takes, as begin and end."""
    begin, end = tl.load(row_start + row), tl.load(row_start + row + 1)
    if PART != ALL:
        first, count = blocks_of(row, row_start, context, certain)
        if PART == BEFORE:
            end = tl.where(count > 0, first, end)
        else:
            begin = tl.where(count > 0, first + count * BLOCK, end)
    return begin, end


@triton.jit
def log_decay(gate, rate, bias):
    """g of the projected ``gate``."""
    return rate * softplus(gate.to(tl.float32) + bias)


@triton.jit
def strength_of(projected):
    """Beta."""
    return 1 / (1 + tl.exp(-projected.to(tl.float32)))


@triton.jit
def below(i, size: tl.constexpr, STEP: tl.constexpr):
    """Which of ``i``, some of a number of whole steps, are below ``size``: known to be all if that
    is such a number too."""
    return (i < size) | (size % STEP == 0)


@triton.jit
def load_recorded(line, key_at, value_at, gate_at, beta_at, i, j, is_key, is_value, exists):
    """Key, value, e^g and beta of one token of a record."""
    key = tl.load(line + key_at + i, mask=is_key & exists, other=0.0)
    value = tl.load(line + value_at + j, mask=is_value & exists, other=0.0)
    decay = tl.load(line + gate_at, mask=exists, other=0.0)
    return key, value, tl.exp(decay), tl.load(line + beta_at, mask=exists, other=0.0)


@triton.jit
def load_token(q, k, v, a, b, i, j, is_key, is_value, exists):
    """What one token brings, as it is, from pointers to its part of each."""
    key = tl.load(k + i, mask=is_key & exists, other=0.0)
    query = tl.load(q + i, mask=is_key & exists, other=0.0)
    value = tl.load(v + j, mask=is_value & exists, other=0.0)
    gate = tl.load(a, mask=exists, other=0.0)
    return key, query, value, gate, tl.load(b, mask=exists, other=0.0)


@triton.jit
def prepared(key, query, value, gate, beta, rate, bias, eps, query_scale):
    """Key, query, value, e^g and beta of what `load_token` gave."""
    key = normalised(key.to(tl.float32), eps)
    query = normalised(query.to(tl.float32), eps) * query_scale
    decay = tl.exp(log_decay(gate, rate, bias))
    return key, query, value.to(tl.float32), decay, strength_of(beta)


@triton.jit
def record_values(v, log, j, is_value, count, v_stride, record_width):
    """Value columns of a row's tokens."""
    for first in range(0, count, RECORDED):
        t = (first + tl.arange(0, RECORDED))[:, None]
        live = (t < count) & is_value[None, :]
        values = tl.load(v + t * v_stride + j[None, :], mask=live)
        tl.store(log + t * record_width + j[None, :], values.to(tl.float32), mask=live)


@triton.jit
def record_keys(k, log, i, is_key, count, k_stride, record_width, eps):
    """Keys of a row's tokens, normalised as the rule normalises them, four in flight."""
    for t in range(0, count, 4):
        k0 = tl.load(k + t * k_stride + i, mask=is_key, other=0.0)
        k1 = tl.load(k + (t + 1) * k_stride + i, mask=is_key & (t + 1 < count), other=0.0)
        k2 = tl.load(k + (t + 2) * k_stride + i, mask=is_key & (t + 2 < count), other=0.0)
        k3 = tl.load(k + (t + 3) * k_stride + i, mask=is_key & (t + 3 < count), other=0.0)
        n0, n1 = normalised(k0.to(tl.float32), eps), normalised(k1.to(tl.float32), eps)
        n2, n3 = normalised(k2.to(tl.float32), eps), normalised(k3.to(tl.float32), eps)
        line = log + t * record_width + i
        tl.store(line, n0, mask=is_key)
        tl.store(line + record_width, n1, mask=is_key & (t + 1 < count))
        tl.store(line + 2 * record_width, n2, mask=is_key & (t + 2 < count))
        tl.store(line + 3 * record_width, n3, mask=is_key & (t + 3 < count))


@triton.jit
def record_gates(
    a, b, rates, biases, log, value_heads, count, group, a_stride, b_stride, record_width,
):
    """g and beta of a row's tokens, for the value heads of one key head."""
    for first in range(0, count, RECORDED):
        t = (first + tl.arange(0, RECORDED))[:, None]
        for begin in range(0, group, RECORDED_HEADS):
            h = (begin + tl.arange(0, RECORDED_HEADS))[None, :]
            live = (t < count) & (h < group)
            gates = tl.load(a + t * a_stride + h, mask=live, other=0.0)
            strengths = tl.load(b + t * b_stride + h, mask=live, other=0.0)
            rate = tl.load(rates + h, mask=h < group, other=0.0)
            bias = tl.load(biases + h, mask=h < group, other=0.0)
            line = log + t * record_width + h
            tl.store(line, log_decay(gates, rate, bias), mask=live)
            tl.store(line + value_heads, strength_of(strengths), mask=live)


@triton.jit
def gated_delta_rule(
    q, k, v, a, b, out, committed, record, rates, biases, row_start, context, slots, replay,
    certain, arrivals, q_stride, k_stride, v_stride, a_stride, b_stride, out_stride, slot_stride,
    record_stride, record_width, eps, query_scale, key_heads: tl.constexpr,
    value_heads: tl.constexpr, key_dim: tl.constexpr, value_dim: tl.constexpr,
    PART: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):
    """Replays, advances and records ``BV`` columns of one value head for one row of the batch.

    Each token is loaded and prepared while the one before it is applied: a program is one warp,
    which would else wait for it. The parts of a head lie side by side in the grid, so that what
    they read at a time is whole rows of the state, which is read and replayed before `wait`:
    nothing writes it but this kernel, which never calls `release`, so that whatever comes behind it
    finds it written.

    What all programs of a key head read of the record is overwritten by the last of them to have
    read it, which ``arrivals`` ``[rows, key heads]`` tells: zeros before and after.
    """
    if PART == BEHIND:  # `delta_blocks` wrote it
        wait()
    part, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group = value_heads // key_heads
    key_head = head // group
    slot = tl.load(slots + row).to(tl.int64)
    first, end = tokens_of(row, row_start, context, certain, PART)
    begin = first.to(tl.int64)
    count = end - first
    applied = 0 if PART == BEHIND else tl.load(replay + row)
    is_certain = tl.load(certain + row) != 0
    i = tl.arange(0, BK)
    j = part * BV + tl.arange(0, BV)
    is_key, is_value = below(i, key_dim, BK), below(j, value_dim, BV)
    at = committed + slot * slot_stride + head * key_dim * value_dim
    at = at + i[:, None] * value_dim + j[None, :]
    live = is_key[:, None] & is_value[None, :]
    state = tl.load(at, mask=live, other=0.0)
    log = record + slot * record_stride
    key_at, value_at = key_head * key_dim, key_heads * key_dim + head * value_dim
    gates_at = key_heads * key_dim + value_heads * value_dim
    gate_at, beta_at = gates_at + head, gates_at + value_heads + head
    key, value, decay, beta = load_recorded(
        log, key_at, value_at, gate_at, beta_at, i, j, is_key, is_value, applied > 0)
    for t in range(0, applied):
        own_key, own_value, own_decay, own_beta = key, value, decay, beta
        key, value, decay, beta = load_recorded(
            log + (t + 1) * record_width, key_at, value_at, gate_at, beta_at, i, j, is_key,
            is_value, t + 1 < applied)
        state, _ = advance(state * own_decay, own_key, own_value, own_beta)
    rate, bias = tl.load(rates + head), tl.load(biases + head)
    q += begin * q_stride + key_at
    k += begin * k_stride + key_at
    v += begin * v_stride + head * value_dim
    a += begin * a_stride + head
    b += begin * b_stride + head
    out += begin * out_stride + head * value_dim
    wait()
    raw_key, raw_query, raw_value, raw_gate, raw_beta = load_token(
        q, k, v, a, b, i, j, is_key, is_value, count > 0)
    if (applied > 0) & ((count == 0) | (not is_certain)):
        tl.store(at, state, mask=live)
    key, query, value, decay, beta = prepared(
        raw_key, raw_query, raw_value, raw_gate, raw_beta, rate, bias, eps, query_scale)
    for t in range(0, count):
        raw_key, raw_query, raw_value, raw_gate, raw_beta = load_token(
            q + (t + 1) * q_stride, k + (t + 1) * k_stride, v + (t + 1) * v_stride,
            a + (t + 1) * a_stride, b + (t + 1) * b_stride, i, j, is_key, is_value, t + 1 < count)
        state *= decay
        asked = tl.sum(state * query[:, None], 0)
        met = tl.sum(key * query)
        state, delta = advance(state, key, value, beta)
        result = tl.fma(delta, met, asked).to(out.dtype.element_ty)
        tl.store(out + t * out_stride + j, result, mask=is_value)
        key, query, value, decay, beta = prepared(
            raw_key, raw_query, raw_value, raw_gate, raw_beta, rate, bias, eps, query_scale)
    if is_certain:
        if count > 0:
            tl.store(at, state, mask=live)
    elif count > 0:
        tl.debug_barrier()  # all of this program has read what it overwrites
        record_values(v, log + value_at, j, is_value, count, v_stride, record_width)
        arrival = arrivals + row * key_heads + key_head
        before = tl.atomic_add(arrival, 1, sem="acq_rel")
        if before == group * tl.num_programs(0) - 1:
            tl.store(arrival, 0)
            record_keys(k, log + key_at, i, is_key, count, k_stride, record_width, eps)
            own = key_head * group
            record_gates(
                a - head + own, b - head + own, rates + own, biases + own, log + gates_at + own,
                value_heads, count, group, a_stride, b_stride, record_width)
