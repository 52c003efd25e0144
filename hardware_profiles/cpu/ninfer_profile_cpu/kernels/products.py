"""Products of a stored weight with activations, one block of rows at a time.

- Few tokens: tiles decode weights in registers, so that every weight byte is read once and nothing
  is written (decode is bound by this).
- Many tokens: a block of rows is decoded once into scratch memory, the *panel*, and multiplied from
  there with fp32 tiles (prefill is bound by fp32 arithmetic).

Both give the same bits: the same values in the same order in the same lanes.
"""


from .compile import inline
from .machine import LANES, TILE_ROWS, TILE_TOKENS
from .memory import arg, call
from .vec import load_some, vstore
from .weight_fields import (
    BLOCK_ROWS,
    DECODE_ROW,
    LINE,
    MULTIPLY_FUSED,
    MULTIPLY_PANEL,
    PADDED_WIDTH,
    WIDTH,
)

FUSED_TOKENS = 8
"""Up to so many tokens, decoding in registers beats decoding into scratch memory."""

BUFFER_BYTES = max(FUSED_TOKENS, TILE_TOKENS) * LINE
"""Results of one block of rows for the tokens of one `multiply`."""


@inline
def prepare(weight, first_row, num_rows, num_tokens, area):
    """Fill the panel of a block, if there will be one; how many tokens `multiply` takes at a time.

    ``area`` is scratch memory of the size that the weight says.
    """
    whole = arg(weight, WIDTH) == arg(weight, PADDED_WIDTH) and num_rows % TILE_ROWS == 0
    if whole and num_tokens <= FUSED_TOKENS:
        return FUSED_TOKENS
    row_bytes = 4 * arg(weight, PADDED_WIDTH)
    for n in range(num_rows):
        to = _panel(weight, area) + n * row_bytes
        call(arg(weight, DECODE_ROW), (weight, first_row + n, _scales(weight, area), to))
    return TILE_TOKENS


@inline
def multiply(weight, first_row, num_rows, x, x_stride, num_tokens, step, area, out):
    """``out[t, n]`` (rows of ``LINE`` bytes) of a block, for ``num_tokens <= step`` tokens."""
    if step == FUSED_TOKENS:
        scales = _scales(weight, area)
        call(
            arg(weight, MULTIPLY_FUSED),
            (weight, first_row, num_rows, x, x_stride, num_tokens, scales, out),
        )
        return
    width, padded = arg(weight, WIDTH), arg(weight, PADDED_WIDTH)
    if width < padded:
        _pad(x, x_stride, num_tokens, width, padded, area)
        x, x_stride = area, 4 * padded
    panel = _panel(weight, area)
    call(arg(weight, MULTIPLY_PANEL), (panel, padded, num_rows, x, x_stride, num_tokens, out))


@inline
def _panel(weight, area):
    return area + TILE_TOKENS * 4 * arg(weight, PADDED_WIDTH)


@inline
def _scales(weight, area):
    return _panel(weight, area) + BLOCK_ROWS * 4 * arg(weight, PADDED_WIDTH)


@inline
def _pad(x, x_stride, num_tokens, width, padded, out):
    # Activations followed by zeros, for weights whose last group is not full.
    for t in range(num_tokens):
        for i in range(0, padded, LANES):
            count = max(0, width - i)
            vstore(out + 4 * (t * padded + i), load_some(x + t * x_stride + 4 * i, count))
