"""The two native functions of a weight format: decode a row, and multiply while decoding."""

from __future__ import annotations

import functools

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compile import compile_native, named
from .decoders import decoder
from .dot_tile import PREFETCH_ROWS, dot_tile
from .machine import LANES, TILE_ROWS
from .memory import arg
from .planes import Planes
from .scale_rows import find_scales, prefetch_scales, scales_stride
from .vector_ir import I8, I64, const, load, store
from .weight_fields import (
    CODES,
    CODES_STRIDE,
    HIGH,
    HIGH_STRIDE,
    LINE,
    NUM_STEPS,
    TABLE,
    WIDTH,
)

i64 = types.int64

FUSED_TILE = 4
"""Tokens of one tile that decodes: more of them would leave no registers for decoding."""


@functools.cache
def decode_row(fmt: str) -> int:
    """Native ``(weight, row, scratch, out)``: a row as fp32, in whole steps.

    ``scratch``: memory for the row's scales and minimums in fp32.
    """
    form, find, distance = decoder(fmt), find_scales(fmt), scales_stride(fmt)
    step, step_bytes = form.step, form.step_bytes.codes

    def decode_row(weight, row, scratch, out):
        codes = arg(weight, CODES) + row * arg(weight, CODES_STRIDE)
        high = arg(weight, HIGH) + row * arg(weight, HIGH_STRIDE)
        table, steps = arg(weight, TABLE), arg(weight, NUM_STEPS)
        scales = find(weight, row, 1, scratch)
        minimums = scales + distance(weight)
        _decode(fmt, codes, high, scales, minimums, table, steps, out)
        left = arg(weight, WIDTH) - steps * step
        if left > 0:
            nbytes = left * step_bytes // step
            _decode_tail(fmt, codes, nbytes, scales, minimums, table, steps, out)

    return compile_native(named(decode_row, fmt))


@functools.cache
def multiply_fused(fmt: str) -> int:
    """Native ``(weight, first_row, num_rows, x, x_stride, num_tokens, scratch, out)``:

    ``out[t, n]`` (rows of ``LINE`` bytes). ``num_rows`` is a multiple of ``TILE_ROWS``, and rows
    are whole steps. ``scratch``: memory for fp32 scales and minimums of ``TILE_ROWS`` rows.
    """
    find, distance, ask = find_scales(fmt), scales_stride(fmt), prefetch_scales(fmt)

    def multiply_fused(weight, first_row, num_rows, x, x_stride, num_tokens, scratch, out):
        cs, hs, qs = arg(weight, CODES_STRIDE), arg(weight, HIGH_STRIDE), distance(weight)
        table, steps = arg(weight, TABLE), arg(weight, NUM_STEPS)
        for n in range(0, num_rows, TILE_ROWS):
            row = first_row + n
            codes, high = arg(weight, CODES) + row * cs, arg(weight, HIGH) + row * hs
            ask(weight, row + PREFETCH_ROWS, TILE_ROWS)
            scales = find(weight, row, TILE_ROWS, scratch)
            minimums = scales + TILE_ROWS * qs
            for t in range(0, num_tokens, FUSED_TILE):
                tokens, xt, y = num_tokens - t, x + t * x_stride, out + t * LINE + 4 * n
                if tokens > 2:
                    dot_tile(
                        fmt, TILE_ROWS, FUSED_TILE, codes, cs, high, hs, scales, qs, minimums, qs,
                        table, steps, xt, x_stride, tokens, y, LINE,
                    )
                elif tokens == 2:
                    dot_tile(
                        fmt, TILE_ROWS, 2, codes, cs, high, hs, scales, qs, minimums, qs,
                        table, steps, xt, x_stride, tokens, y, LINE,
                    )
                else:
                    dot_tile(
                        fmt, TILE_ROWS, 1, codes, cs, high, hs, scales, qs, minimums, qs,
                        table, steps, xt, x_stride, tokens, y, LINE,
                    )

    return compile_native(named(multiply_fused, fmt))


@intrinsic(prefer_literal=True)
def _decode(typing_context, fmt, codes, high, scales, minimums, table, count, out):
    """fp32 values of the first ``count`` steps of a row."""
    form = decoder(fmt.literal_value)

    def generate(context, b, signature, args):
        row, (count, out) = Planes(*args[1:6]), args[6:]
        with cgutils.for_range(b, count) as loop:
            _store_step(b, form, row, loop.index, out)
        return context.get_dummy_value()

    return types.void(fmt, *[i64] * 7), generate


@intrinsic(prefer_literal=True)
def _decode_tail(typing_context, fmt, codes, num_bytes, scales, minimums, table, step, out):
    """The values of a last step of which a row has ``num_bytes`` of codes only, then zeros."""
    form = decoder(fmt.literal_value)
    typ = ir.ArrayType(I8, form.step_bytes.codes)

    def generate(context, b, signature, args):
        codes, num_bytes, scales, minimums, table, step, out = args[1:]
        buffer = b.ptrtoint(cgutils.alloca_once(b, typ), I64)
        store(b, ir.Constant(typ, None), buffer)
        before = b.mul(step, const(form.step_bytes.codes))
        with cgutils.for_range(b, num_bytes) as loop:
            byte = load(b, I8, codes, b.add(before, loop.index))
            store(b, byte, buffer, loop.index)
        row = Planes(b.sub(buffer, before), const(0), scales, minimums, table)
        _store_step(b, form, row, step, out)
        return context.get_dummy_value()

    return types.void(fmt, *[i64] * 7), generate


def _store_step(b, form, row, step, out):
    base = b.mul(step, const(form.step * 4))
    for v, values in enumerate(form.decode(b, row, step)):
        store(b, values, out, b.add(base, const(v * LANES * 4)))
