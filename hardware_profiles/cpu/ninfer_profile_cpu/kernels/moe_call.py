"""A call of a mixture of experts: sort the choices of its tokens, and run the jobs on them."""

from __future__ import annotations

from numba import types

from .compile import entry, inline
from .launch import run
from .memory import arg, load_int32, load_int64, pack, store_int64
from .moe_mlp import (
    ACTIVE,
    COPY_ROWS,
    GATED_PRODUCTS,
    IDS,
    INNER,
    NUM_EXPERTS,
    NUM_TOKENS,
    PASS,
    PLACES,
    ROW,
    ROW_STRIDE,
    ROWS,
    STARTS,
    STATIC,
    TOKENS,
    TOP_K,
    WEIGHTED_SUMS,
    WIDTH,
    start_of,
)
from .weight_fields import BLOCK_ROWS

i64 = types.int64

ROWS_PER_COPY = 4


@inline
def _add(address, value):
    total = load_int64(address) + value
    store_int64(address, total)
    return total


@inline
def _sort(args):
    """Sort the choices by expert, those of one in order of tokens; how many experts have any."""
    static, ids = arg(args, STATIC), arg(args, IDS)
    num_experts, choices = arg(static, NUM_EXPERTS), arg(args, NUM_TOKENS) * arg(static, TOP_K)
    starts = arg(static, STARTS)
    for expert in range(num_experts + 1):
        store_int64(starts + 8 * expert, 0)
    for i in range(choices):
        _add(starts + 8 * load_int32(ids + 4 * i), 1)
    end = i64(0)
    for expert in range(num_experts + 1):
        end = _add(starts + 8 * expert, end)  # for now, where its choices end
    for i in range(choices - 1, -1, -1):
        place = _add(starts + 8 * load_int32(ids + 4 * i), -1)
        store_int64(arg(static, PLACES) + 8 * i, place)
        store_int64(arg(static, TOKENS) + 8 * place, i // arg(static, TOP_K))
    num_active = i64(0)
    for expert in range(num_experts):
        if start_of(static, expert) < start_of(static, expert + 1):
            store_int64(arg(static, ACTIVE) + 8 * num_active, expert)
            num_active += 1
    store_int64(arg(static, ACTIVE) + 8 * num_active, -1)
    return num_active


@inline
def _run_pass(pool, args):
    static = arg(args, STATIC)
    num_active = _sort(args)
    if arg(args, NUM_TOKENS) == 1:  # all of its experts read the one row where it is
        store_int64(args + 8 * ROW_STRIDE, 0)
    else:
        choices = arg(args, NUM_TOKENS) * arg(static, TOP_K)
        run(pool, arg(static, COPY_ROWS), choices, ROWS_PER_COPY, args)
        store_int64(args + 8 * ROW, arg(static, ROWS))
        store_int64(args + 8 * ROW_STRIDE, 4 * arg(static, WIDTH))
    blocks = -(-arg(static, INNER) // BLOCK_ROWS)
    run(pool, arg(static, GATED_PRODUCTS), num_active * blocks, 1, args)
    run(pool, arg(static, WEIGHTED_SUMS), -(-arg(static, WIDTH) // BLOCK_ROWS), 1, args)


@entry
def moe_mlp(
    pool, static, x, x_stride, num_tokens, ids, shares, out, out_stride, residual, residual_stride
):
    """fp32 ``x``, ``out`` and ``residual`` [T, H] (0 for none; may be ``out``), strides in bytes;
    int32 ``ids`` and fp32 ``shares`` [T, k]."""
    for t in range(0, num_tokens, arg(static, PASS)):
        tokens, choices = min(arg(static, PASS), num_tokens - t), 4 * t * arg(static, TOP_K)
        args = pack((
            static, x + t * x_stride, x_stride, tokens, ids + choices, shares + choices,
            out + t * out_stride, out_stride, residual + t * residual_stride if residual else 0,
            residual_stride,
        ))
        _run_pass(pool, args)
