"""The gated delta rules over the slots of a step: replay, then advance or record, row by row.

A work item is a key head of one sequence, with all its value heads. Tokens come in blocks; those of
a block are normalised once, then pass over the state strip by strip (`delta_tile`). The state is
read and written once a block, and its bits depend on the order of tokens alone.
"""

from __future__ import annotations

import functools

from . import delta_fields as at
from .compile import compile_native, entry, inline
from .delta_tile import STRIP
from .delta_tokens import (
    exponentiate_decays,
    gates_at,
    group_size,
    read_gates,
    read_tokens,
    recorded_key,
    recorded_value,
    write_record,
)
from .launch import run
from .machine import LANES
from .memory import arg, call, load_int32, pack
from .vec import copy_row, load_some, vstore

PADDED_STRIDE = 4 * STRIP


@functools.cache
def delta_rule_body() -> int:
    """Body with the arguments of `delta_fields`, item = sequence and key head."""
    return compile_native(_delta_rule)


@entry
def gated_delta_rule(
    pool, body, static, q, q_stride, k, k_stride, v, v_stride, a, a_stride, b, b_stride, out,
    out_stride, row_start, slots, replay, certain, num_rows,
):
    """fp32 ``q``, ``k`` [T, Hk Dk], ``v``, ``out`` [T, Hv Dv], ``a``, ``b`` [T, Hv], strides in
    bytes; int32 ``row_start`` [B + 1], ``slots``, ``replay``, ``certain`` [B]."""
    args = pack((
        static, q, q_stride, k, k_stride, v, v_stride, a, a_stride, b, b_stride, out, out_stride,
        row_start, slots, replay, certain,
    ))
    run(pool, body, num_rows * arg(static, at.NUM_KEY_HEADS), 1, args)


def _delta_rule(args, begin, end, scratch):
    num_heads = arg(arg(args, at.STATIC), at.NUM_KEY_HEADS)
    for item in range(begin, end):
        _run_head(args, item // num_heads, item % num_heads, scratch)


@inline
def _run_head(args, row, head, scratch):
    static = arg(args, at.STATIC)
    slot = load_int32(arg(args, at.SLOTS) + 4 * row)
    record = arg(static, at.RECORD) + slot * arg(static, at.RECORD_BYTES)
    committed = arg(static, at.COMMITTED) + slot * arg(static, at.SLOT_BYTES)
    _replay(static, committed, record, head, load_int32(arg(args, at.REPLAY) + 4 * row), scratch)
    certain = load_int32(arg(args, at.CERTAIN) + 4 * row)
    first = load_int32(arg(args, at.ROW_START) + 4 * row)
    last = load_int32(arg(args, at.ROW_START) + 4 * (row + 1))
    for t in range(first, last, arg(static, at.BLOCK)):
        count = min(arg(static, at.BLOCK), last - t)
        read_tokens(args, head, t, count, scratch)
        if not certain:  # all tokens of the row are in this block
            write_record(args, record, head, t, count, scratch)
        _advance_new(args, committed, head, t, count, certain, scratch)


@inline
def _replay(static, committed, record, head, count, scratch):
    """Apply recorded tokens to the value heads of a key head."""
    if count <= 0:
        return
    read_gates(static, record, head, count, scratch)
    exponentiate_decays(static, count, scratch)
    keys, stride = recorded_key(static, record, head), arg(static, at.ROW_BYTES)
    group = group_size(static)
    for i in range(group):
        values = recorded_value(static, record, head * group + i)
        _advance(
            static, committed, head, i, count, keys, stride, values, stride, 0, 0, True, scratch
        )


@inline
def _advance_new(args, committed, head, first, count, keeps, scratch):
    """Pass new tokens over the value heads of a key head."""
    static = arg(args, at.STATIC)
    exponentiate_decays(static, count, scratch)
    keys, key_stride = scratch + arg(static, at.KEYS), 4 * arg(static, at.KEY_DIM)
    value_stride, out_stride = arg(args, at.V_STRIDE), arg(args, at.OUT_STRIDE)
    group, size = group_size(static), 4 * arg(static, at.VALUE_DIM)
    for i in range(group):
        values = arg(args, at.V) + first * value_stride + (head * group + i) * size
        out = arg(args, at.OUT) + first * out_stride + (head * group + i) * size
        _advance(
            static, committed, head, i, count, keys, key_stride, values, value_stride, out,
            out_stride, keeps, scratch,
        )


@inline
def _advance(
    static, committed, head, index, count, keys, key_stride, values, value_stride, out, out_stride,
    keeps, scratch,
):
    """Pass tokens over the state of value head ``index`` of a group.

    Without ``out`` (0) nothing is read; without ``keeps`` the state stays.
    """
    width, work = arg(static, at.VALUE_DIM), scratch + arg(static, at.WORK)
    value_head, stride = head * group_size(static) + index, 4 * width
    state = committed + value_head * arg(static, at.KEY_DIM) * stride
    whole = width // STRIP * STRIP
    for column in range(0, whole, STRIP):
        strip = state + 4 * column
        _pass(
            static, index, count, strip, stride, strip if keeps else work,
            stride if keeps else PADDED_STRIDE, keys, key_stride, values + 4 * column, value_stride,
            out + 4 * column if out else 0, out_stride, scratch,
        )
    if whole < width:
        _advance_rest(
            static, index, count, state + 4 * whole, width - whole, keys, key_stride,
            values + 4 * whole, value_stride, out + 4 * whole if out else 0, out_stride, keeps,
            scratch,
        )


@inline
def _advance_rest(
    static, index, count, strip, columns, keys, key_stride, values, value_stride, out, out_stride,
    keeps, scratch,
):
    """`_advance` the last columns of a state, fewer than a strip, on copies with room for one."""
    dim, stride = arg(static, at.KEY_DIM), 4 * arg(static, at.VALUE_DIM)
    padded = scratch + arg(static, at.PADDED_STATE)
    padded_values = scratch + arg(static, at.PADDED_VALUES)
    padded_out = scratch + arg(static, at.PADDED_OUT)
    _pad(strip, stride, dim, columns, padded)
    _pad(values, value_stride, count, columns, padded_values)
    _pass(
        static, index, count, padded, PADDED_STRIDE, padded, PADDED_STRIDE, keys, key_stride,
        padded_values, PADDED_STRIDE, padded_out if out else 0, PADDED_STRIDE, scratch,
    )
    if keeps:
        _unpad(padded, dim, columns, strip, stride)
    if out:
        _unpad(padded_out, count, columns, out, out_stride)


@inline
def _pass(
    static, index, count, source, source_stride, target, target_stride, keys, key_stride, values,
    value_stride, out, out_stride, scratch,
):
    dim, work = arg(static, at.KEY_DIM), scratch + arg(static, at.WORK)
    decays, betas = gates_at(static, scratch, index, 0)
    queries, function = scratch + arg(static, at.QUERIES), at.READ_STRIP if out else at.UPDATE_STRIP
    call(
        arg(static, function),
        (source, source_stride, target, target_stride, work, dim, count, keys, key_stride, values,
         value_stride, decays, betas, queries, 4 * dim, out, out_stride),
    )


@inline
def _pad(source, stride, rows, columns, to):
    """Rows of fewer columns than a strip to rows of a strip, zeros behind them."""
    for row in range(rows):
        for i in range(0, STRIP, LANES):
            part = load_some(source + row * stride + 4 * i, columns - i)
            vstore(to + row * PADDED_STRIDE + 4 * i, part)


@inline
def _unpad(source, rows, columns, to, stride):
    """The first columns of rows of a strip."""
    for row in range(rows):
        copy_row(source + row * PADDED_STRIDE, columns, to + row * stride)
