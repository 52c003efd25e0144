"""The tokens of a block: normalised keys and queries, decays and betas, and their record.

What a token does to the state is worked out from fp32 that a record can hold (key, value, g, beta),
and the transcendental functions of it are taken in fp64: replayed tokens leave the same bits.
"""

import math

from numba import types

from . import delta_fields as at
from .compile import inline
from .machine import LANES
from .memory import arg, float_of_bits, load_float, store_float
from .norm import sum_squares
from .vec import copy_row, load_some, store_some, vmul, vsplat

f32, f64 = types.float32, types.float64


@inline
def group_size(static):
    """Value heads of a key head."""
    return arg(static, at.NUM_VALUE_HEADS) // arg(static, at.NUM_KEY_HEADS)


@inline
def gates_at(static, scratch, index, token):
    """Where decays and beta of a token are, for value head ``index`` of the group."""
    place = index * arg(static, at.BLOCK) + token
    decays = scratch + arg(static, at.DECAYS) + 4 * place * arg(static, at.DECAY_DIM)
    return decays, scratch + arg(static, at.BETAS) + 4 * place


@inline
def read_tokens(args, head, first, count, scratch):
    """Keys, queries, g (in the place of decays) and betas of new tokens, to scratch memory."""
    static = arg(args, at.STATIC)
    dim, one = arg(static, at.KEY_DIM), f32(1.0)
    for j in range(count):
        offset = 4 * head * dim
        k = arg(args, at.K) + (first + j) * arg(args, at.K_STRIDE) + offset
        q = arg(args, at.Q) + (first + j) * arg(args, at.Q_STRIDE) + offset
        _normalise(static, k, one, scratch + arg(static, at.KEYS) + 4 * j * dim)
        scale = float_of_bits(arg(static, at.SCALE))
        _normalise(static, q, scale, scratch + arg(static, at.QUERIES) + 4 * j * dim)
    group = group_size(static)
    for i in range(group):
        offset = 4 * (head * group + i)
        for j in range(count):
            b = load_float(arg(args, at.B) + (first + j) * arg(args, at.B_STRIDE) + offset)
            decays, beta = gates_at(static, scratch, i, j)
            _read_decays(args, head * group + i, first + j, decays)
            store_float(beta, f32(_sigmoid(f64(b))))


@inline
def _read_decays(args, head, token, to):
    """g of one token and value head."""
    static = arg(args, at.STATIC)
    dim, bound = arg(static, at.DECAY_DIM), f64(float_of_bits(arg(static, at.LOWER_BOUND)))
    rate, offset = f64(load_float(arg(static, at.RATES) + 4 * head)), 4 * head * dim
    gates = arg(args, at.A) + token * arg(args, at.A_STRIDE) + offset
    for i in range(0, 4 * dim, 4):
        a = f64(load_float(gates + i)) + f64(load_float(arg(static, at.BIASES) + offset + i))
        store_float(to + i, f32(bound * _sigmoid(rate * a) if bound else rate * _softplus(a)))


@inline
def _normalise(static, x, scale, to):
    dim = arg(static, at.KEY_DIM)
    total = sum_squares(x, dim, f32(0.0)) + float_of_bits(arg(static, at.EPS))
    factor = vsplat(scale / f32(math.sqrt(total)))
    for i in range(0, dim, LANES):
        store_some(to + 4 * i, vmul(load_some(x + 4 * i, dim - i), factor), dim - i)


@inline
def _sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x))


@inline
def _softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@inline
def read_gates(static, record, head, count, scratch):
    """g (in the place of decays) and betas of recorded tokens, to scratch memory."""
    group = group_size(static)
    for i in range(group):
        for j in range(count):
            row = record + j * arg(static, at.ROW_BYTES)
            g, beta = _recorded_gates(static, row, head * group + i)
            to_decays, to_beta = gates_at(static, scratch, i, j)
            copy_row(g, arg(static, at.DECAY_DIM), to_decays)
            store_float(to_beta, load_float(beta))


@inline
def recorded_key(static, row, head):
    """Where a record row has the key of a key head."""
    return row + 4 * head * arg(static, at.KEY_DIM)


@inline
def recorded_value(static, row, head):
    """Where a record row has the value of a value head."""
    values = row + 4 * arg(static, at.NUM_KEY_HEADS) * arg(static, at.KEY_DIM)
    return values + 4 * head * arg(static, at.VALUE_DIM)


@inline
def _recorded_gates(static, row, head):
    num_heads, dim = arg(static, at.NUM_VALUE_HEADS), arg(static, at.DECAY_DIM)
    g = recorded_value(static, row, num_heads)
    return g + 4 * head * dim, g + 4 * (num_heads * dim + head)


@inline
def write_record(args, record, head, first, count, scratch):
    """Keep new tokens as `read_tokens` left them."""
    static = arg(args, at.STATIC)
    dim, group = arg(static, at.KEY_DIM), group_size(static)
    for j in range(count):
        row = record + j * arg(static, at.ROW_BYTES)
        copy_row(scratch + arg(static, at.KEYS) + 4 * j * dim, dim, recorded_key(static, row, head))
        width = group * arg(static, at.VALUE_DIM)
        v = arg(args, at.V) + (first + j) * arg(args, at.V_STRIDE) + 4 * head * width
        copy_row(v, width, recorded_value(static, row, head * group))
        for i in range(group):
            g, beta = _recorded_gates(static, row, head * group + i)
            from_decays, from_beta = gates_at(static, scratch, i, j)
            copy_row(from_decays, arg(static, at.DECAY_DIM), g)
            store_float(beta, load_float(from_beta))


@inline
def exponentiate_decays(static, count, scratch):
    """g to ``e^g``."""
    for i in range(group_size(static)):
        for j in range(count):
            decays, _ = gates_at(static, scratch, i, j)
            for c in range(0, 4 * arg(static, at.DECAY_DIM), 4):
                store_float(decays + c, f32(math.exp(f64(load_float(decays + c)))))
