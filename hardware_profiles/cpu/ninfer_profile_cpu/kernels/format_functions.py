"""The two native functions of a weight format: decode a row, and multiply while decoding."""

from __future__ import annotations

import functools

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compile import compile_native, inline, named
from .decoders import Planes, decoder
from .dot_tile import dot_tile
from .machine import LANES, TILE_ROWS
from .memory import arg, prefetch
from .vec import load_some, store_some, vstore
from .vec_narrow import vload_bf16_n, vload_half, vload_half_n
from .vector_ir import const, store
from .weight_fields import (
    CODES,
    HIGH,
    LINE,
    MINIMUMS,
    NUM_GROUPS,
    ROW_GROUPS,
    SCALES,
    WIDTH,
)

i64 = types.int64

FUSED_TILE = 4
"""Tokens of one tile that decodes: more of them would leave no registers for decoding."""

PREFETCH_ROWS = 8
"""How far ahead of a tile its weights are asked for."""


@functools.cache
def decode_row(fmt: str) -> int:
    """Native ``(weight, row, scales, out)``: a row as fp32, padded to whole groups.

    ``scales``: memory for the row's scales and minimums in fp32.
    """
    form = decoder(fmt)
    code_bytes, high_bytes = form.step_bytes.codes, form.step_bytes.high
    grouped, element = form.is_grouped, form.step_bytes.codes // LANES
    convert_scales = _convert_scales(form.is_grouped, form.has_minimum)

    def decode_groups(weight, row, scales, out):
        groups = arg(weight, ROW_GROUPS)
        convert_scales(weight, row, 1, scales)
        codes = arg(weight, CODES) + row * groups * code_bytes
        high = arg(weight, HIGH) + row * groups * high_bytes
        _decode(fmt, codes, high, scales, scales + 4 * groups, arg(weight, NUM_GROUPS), out)

    def decode_dense(weight, row, out):
        width, done = arg(weight, WIDTH), arg(weight, NUM_GROUPS)
        codes = arg(weight, CODES) + row * width * element
        _decode(fmt, codes, 0, 0, 0, done, out)
        left, tail = width - done * LANES, codes + done * code_bytes
        if left > 0:
            values = load_some(tail, left) if element == 4 else vload_bf16_n(tail, left)
            vstore(out + 4 * done * LANES, values)

    grouped_rows, dense_rows = inline(named(decode_groups, fmt)), inline(named(decode_dense, fmt))

    def decode_row(weight, row, scales, out):
        if grouped:
            grouped_rows(weight, row, scales, out)
        else:
            dense_rows(weight, row, out)

    return compile_native(named(decode_row, fmt))


@functools.cache
def multiply_fused(fmt: str) -> int:
    """Native ``(weight, first_row, num_rows, x, x_stride, num_tokens, scales, out)``:

    ``out[t, n]`` (rows of ``LINE`` bytes). ``num_rows`` is a multiple of ``TILE_ROWS``, and ``x``
    as wide as the groups. ``scales``: memory for fp32 scales and minimums of ``TILE_ROWS`` rows.
    """
    form = decoder(fmt)
    code_bytes, high_bytes = form.step_bytes.codes, form.step_bytes.high
    grouped, element = form.is_grouped, form.step_bytes.codes // LANES
    convert_scales = _convert_scales(form.is_grouped, form.has_minimum)
    prefetch_scales = _prefetch_scales(form.is_grouped, form.has_minimum)

    def multiply_fused(weight, first_row, num_rows, x, x_stride, num_tokens, scales, out):
        row_groups, groups = arg(weight, ROW_GROUPS), arg(weight, NUM_GROUPS)
        cs = row_groups * code_bytes if grouped else arg(weight, WIDTH) * element
        hs, qs = row_groups * high_bytes, 4 * row_groups
        minimums = scales + TILE_ROWS * qs
        for n in range(0, num_rows, TILE_ROWS):
            row = first_row + n
            codes, high = arg(weight, CODES) + row * cs, arg(weight, HIGH) + row * hs
            prefetch(codes + PREFETCH_ROWS * cs, TILE_ROWS * cs)
            prefetch(high + PREFETCH_ROWS * hs, TILE_ROWS * hs)
            prefetch_scales(weight, row + PREFETCH_ROWS, TILE_ROWS)
            convert_scales(weight, row, TILE_ROWS, scales)
            for t in range(0, num_tokens, FUSED_TILE):
                tokens, xt, y = num_tokens - t, x + t * x_stride, out + t * LINE + 4 * n
                if tokens > 2:
                    dot_tile(
                        fmt, TILE_ROWS, FUSED_TILE, codes, cs, high, hs, scales, qs, minimums, qs,
                        groups, xt, x_stride, tokens, y, LINE,
                    )
                elif tokens == 2:
                    dot_tile(
                        fmt, TILE_ROWS, 2, codes, cs, high, hs, scales, qs, minimums, qs,
                        groups, xt, x_stride, tokens, y, LINE,
                    )
                else:
                    dot_tile(
                        fmt, TILE_ROWS, 1, codes, cs, high, hs, scales, qs, minimums, qs,
                        groups, xt, x_stride, tokens, y, LINE,
                    )

    return compile_native(named(multiply_fused, fmt))


def _convert_scales(grouped, minimum):
    # Rows of a plane follow each other, so the scales of a few rows are one run of fp16.
    def convert_scales(weight, row, num_rows, out):
        if grouped:
            count, start = num_rows * arg(weight, ROW_GROUPS), 2 * row * arg(weight, ROW_GROUPS)
            _halves_to_floats(arg(weight, SCALES) + start, count, out)
            if minimum:
                _halves_to_floats(arg(weight, MINIMUMS) + start, count, out + 4 * count)

    return inline(named(convert_scales, f"{grouped}.{minimum}"))


def _prefetch_scales(grouped, minimum):
    def prefetch_scales(weight, row, num_rows):
        nbytes = 2 * arg(weight, ROW_GROUPS)
        if grouped:
            prefetch(arg(weight, SCALES) + row * nbytes, num_rows * nbytes)
        if minimum:
            prefetch(arg(weight, MINIMUMS) + row * nbytes, num_rows * nbytes)

    return inline(named(prefetch_scales, f"{grouped}.{minimum}"))


@inline
def _halves_to_floats(source, count, out):
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        vstore(out + 4 * i, vload_half(source + 2 * i))
    if whole < count:
        rest = count - whole
        store_some(out + 4 * whole, vload_half_n(source + 2 * whole, rest), rest)


@intrinsic(prefer_literal=True)
def _decode(typing_context, fmt, codes, high, scales, minimums, num_groups, out):
    """fp32 values of ``num_groups`` whole groups of one row to ``out``."""
    form = decoder(fmt.literal_value)

    def generate(context, b, signature, args):
        row, (num_groups, out) = Planes(*args[1:5]), args[5:]
        with cgutils.for_range(b, num_groups) as loop:
            base = b.mul(loop.index, const(form.step * 4))
            for v, values in enumerate(form.decode(b, row, loop.index)):
                store(b, values, out, b.add(base, const(v * LANES * 4)))
        return context.get_dummy_value()

    return types.void(fmt, *[i64] * 6), generate
