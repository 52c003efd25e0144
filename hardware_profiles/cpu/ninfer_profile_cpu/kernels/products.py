"""Products of one weight format with activations, one block of rows at a time.

`products` makes the native functions that all matrix ops of a format share:

- few tokens: the tile decodes weights in registers, so that every weight byte is read once and
  nothing is written (decode is bound by this);
- many tokens: a block of rows is decoded once into scratch memory, the *panel*, and multiplied
  from there with fp32 tiles (prefill is bound by fp32 arithmetic).

Both give the same bits: the same values in the same order in the same lanes.
"""

import functools
import typing

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .decoders import Planes, decoder
from .dot_tile import dot_tile
from .machine import LANES, TILE_ROWS, TILE_TOKENS
from .memory import arg, prefetch
from .vec import load_some, store_some, vstore
from .vec_narrow import vload_bf16_n, vload_half, vload_half_n
from .vector_ir import const, store
from .weight_block import (
    BLOCK_ROWS, CODES, HIGH, MINIMUMS, NUM_GROUPS, PADDED_WIDTH, ROW_GROUPS, SCALES, WIDTH,
)  # fmt: skip

i64 = types.int64

FUSED_TOKENS = 8
"""Up to so many tokens, decoding in registers beats decoding into scratch memory."""

FUSED_TILE = 4
"""Tokens of one tile that decodes: more of them leave no registers for decoding."""

PREFETCH_ROWS = 16
"""How far ahead of a tile its weights are asked for."""

BUFFER_BYTES = max(FUSED_TOKENS, TILE_TOKENS) * BLOCK_ROWS * 4
"""Results of one block: ``[tokens, BLOCK_ROWS]`` fp32."""

NARROW_TILE = TILE_TOKENS - 2
"""Tiles take ``TILE_TOKENS``, this many, 2 or 1 tokens; the next larger one takes what is between."""


class Products(typing.NamedTuple):
    """Native functions of one format.

    ``decode_row(weight, row, scratch, out)``: the row as fp32, padded to whole groups.
    ``prepare(weight, first_row, num_rows, num_tokens, area)``: fills the panel if there will be
    one, and returns how many tokens a `multiply` takes at a time.
    ``multiply(weight, first_row, num_rows, x, x_stride, num_tokens, step, area, out)``:
    ``out[t, n]`` of ``num_tokens <= step`` tokens, rows of ``BLOCK_ROWS`` floats.
    """

    decode_row: typing.Any
    prepare: typing.Any
    multiply: typing.Any


@intrinsic(prefer_literal=True)
def _decode_groups(typing_context, fmt, codes, high, scales, minimums, num_groups, out):
    form = decoder(fmt.literal_value)

    def generate(context, b, signature, args):
        row, (num_groups, out) = Planes(*args[1:5]), args[5:]
        with cgutils.for_range(b, num_groups) as loop:
            base = b.mul(loop.index, const(form.step * 4))
            for v, values in enumerate(form.decode(b, row, loop.index)):
                store(b, values, out, b.add(base, const(v * LANES * 4)))
        return context.get_dummy_value()

    return types.void(fmt, *[i64] * 6), generate


@njit
def _halves_to_floats(source, count, out):
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        vstore(out + 4 * i, vload_half(source + 2 * i))
    if whole < count:
        store_some(out + 4 * whole, vload_half_n(source + 2 * whole, count - whole), count - whole)


@njit
def _tile_of_panel(num_tokens, panel, width, x, x_stride, out):
    row, groups, line = 4 * width, width // LANES, 4 * BLOCK_ROWS
    n = num_tokens
    if n > NARROW_TILE:
        dot_tile("fp32", TILE_ROWS, TILE_TOKENS, panel, row, 0, 0, 0, 0, 0, 0, groups, x, x_stride, n, out, line)
    elif n > 2:
        dot_tile("fp32", TILE_ROWS, NARROW_TILE, panel, row, 0, 0, 0, 0, 0, 0, groups, x, x_stride, n, out, line)
    elif n == 2:
        dot_tile("fp32", TILE_ROWS, 2, panel, row, 0, 0, 0, 0, 0, 0, groups, x, x_stride, n, out, line)
    else:
        dot_tile("fp32", TILE_ROWS, 1, panel, row, 0, 0, 0, 0, 0, 0, groups, x, x_stride, n, out, line)


@njit
def multiply_panel(panel, width, num_rows, x, x_stride, num_tokens, out):
    """``out[t, n]`` of fp32 rows of ``width`` values, for at most ``TILE_TOKENS`` tokens.

    The last tile may go past ``num_rows``, into rows that hold anything.
    """
    for n in range(0, num_rows, TILE_ROWS):
        _tile_of_panel(num_tokens, panel + 4 * n * width, width, x, x_stride, out + 4 * n)


@njit
def _pad(x, x_stride, num_tokens, width, padded, out):
    # Rows of activations followed by zeros, for weights whose last group is not full.
    whole = width // LANES * LANES
    for t in range(num_tokens):
        source, target = x + t * x_stride, out + 4 * t * padded
        for i in range(whole, padded, LANES):
            store_some(target + 4 * i, load_some(source + 4 * i, max(0, width - i)), LANES)
        for i in range(0, whole, LANES):
            store_some(target + 4 * i, load_some(source + 4 * i, LANES), LANES)


@functools.cache
def products(fmt: str) -> Products:
    """The functions of the format that decoder ``fmt`` reads."""
    form = decoder(fmt)
    grouped, minimum, group_bytes = form.is_grouped, form.has_minimum, form.step_bytes
    code_bytes, high_bytes = group_bytes.codes, group_bytes.high
    element = code_bytes // LANES  # bytes of a dense value

    @njit
    def codes_stride(weight):
        return arg(weight, ROW_GROUPS) * code_bytes if grouped else arg(weight, WIDTH) * element

    @njit
    def convert_scales(weight, row, num_rows, out):
        # Rows of a plane follow each other, so a few rows are one run of fp16.
        count, start = num_rows * arg(weight, ROW_GROUPS), 2 * row * arg(weight, ROW_GROUPS)
        _halves_to_floats(arg(weight, SCALES) + start, count, out)
        if minimum:
            _halves_to_floats(arg(weight, MINIMUMS) + start, count, out + 4 * count)

    @njit
    def decode_row(weight, row, scales, out):
        row_groups = arg(weight, ROW_GROUPS)
        codes = arg(weight, CODES) + row * codes_stride(weight)
        high = arg(weight, HIGH) + row * row_groups * high_bytes
        if grouped:
            convert_scales(weight, row, 1, scales)
        _decode_groups(fmt, codes, high, scales, scales + 4 * row_groups, arg(weight, NUM_GROUPS), out)
        if not grouped:
            done = arg(weight, NUM_GROUPS) * LANES
            left = arg(weight, WIDTH) - done
            if left > 0:
                tail = codes + done * element
                values = load_some(tail, left) if element == 4 else vload_bf16_n(tail, left)
                vstore(out + 4 * done, values)

    @njit
    def tile(n, weight, row, scales, x, x_stride, out):
        row_groups, groups, line = arg(weight, ROW_GROUPS), arg(weight, NUM_GROUPS), 4 * BLOCK_ROWS
        c_stride, h_stride, s_stride = codes_stride(weight), row_groups * high_bytes, 4 * row_groups
        codes, high = arg(weight, CODES) + row * c_stride, arg(weight, HIGH) + row * h_stride
        minimums = scales + TILE_ROWS * s_stride
        if n > 2:
            dot_tile(
                fmt, TILE_ROWS, FUSED_TILE, codes, c_stride, high, h_stride, scales, s_stride,
                minimums, s_stride, groups, x, x_stride, n, out, line,
            )  # fmt: skip
        elif n == 2:
            dot_tile(
                fmt, TILE_ROWS, 2, codes, c_stride, high, h_stride, scales, s_stride,
                minimums, s_stride, groups, x, x_stride, n, out, line,
            )  # fmt: skip
        else:
            dot_tile(
                fmt, TILE_ROWS, 1, codes, c_stride, high, h_stride, scales, s_stride,
                minimums, s_stride, groups, x, x_stride, n, out, line,
            )  # fmt: skip

    @njit
    def prefetch_rows(weight, row):
        row_groups = arg(weight, ROW_GROUPS)
        prefetch(arg(weight, CODES) + row * codes_stride(weight), TILE_ROWS * codes_stride(weight))
        if high_bytes:
            prefetch(arg(weight, HIGH) + row * row_groups * high_bytes, TILE_ROWS * row_groups * high_bytes)
        if grouped:
            prefetch(arg(weight, SCALES) + row * row_groups * 2, TILE_ROWS * row_groups * 2)
        if minimum:
            prefetch(arg(weight, MINIMUMS) + row * row_groups * 2, TILE_ROWS * row_groups * 2)

    @njit
    def multiply_fused(weight, first, num_rows, x, x_stride, num_tokens, scales, out):
        for n in range(0, num_rows, TILE_ROWS):
            prefetch_rows(weight, first + n + PREFETCH_ROWS)
            if grouped:
                convert_scales(weight, first + n, TILE_ROWS, scales)
            for t in range(0, num_tokens, FUSED_TILE):
                tokens, to = min(FUSED_TILE, num_tokens - t), out + 4 * (t * BLOCK_ROWS + n)
                tile(tokens, weight, first + n, scales, x + t * x_stride, x_stride, to)

    @njit
    def is_fused(weight, num_rows, num_tokens):
        whole = arg(weight, WIDTH) == arg(weight, PADDED_WIDTH) and num_rows % TILE_ROWS == 0
        return whole and num_tokens <= FUSED_TOKENS

    @njit
    def panel_of(weight, area):
        return area + TILE_TOKENS * arg(weight, PADDED_WIDTH) * 4

    @njit
    def scales_of(weight, area):
        return panel_of(weight, area) + BLOCK_ROWS * arg(weight, PADDED_WIDTH) * 4

    @njit
    def prepare(weight, first, num_rows, num_tokens, area):
        if is_fused(weight, num_rows, num_tokens):
            return FUSED_TOKENS
        for n in range(num_rows):
            row = panel_of(weight, area) + 4 * n * arg(weight, PADDED_WIDTH)
            decode_row(weight, first + n, scales_of(weight, area), row)
        return TILE_TOKENS

    @njit
    def multiply(weight, first, num_rows, x, x_stride, num_tokens, step, area, out):
        if step == FUSED_TOKENS:
            multiply_fused(weight, first, num_rows, x, x_stride, num_tokens, scales_of(weight, area), out)
            return
        width, padded = arg(weight, WIDTH), arg(weight, PADDED_WIDTH)
        if width < padded:
            _pad(x, x_stride, num_tokens, width, padded, area)
            x, x_stride = area, 4 * padded
        multiply_panel(panel_of(weight, area), padded, num_rows, x, x_stride, num_tokens, out)

    return Products(decode_row, prepare, multiply)
