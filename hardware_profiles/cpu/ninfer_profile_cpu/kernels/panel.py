"""Products from a panel: rows of a weight decoded to fp32 in scratch memory."""

from __future__ import annotations

import functools

from .compile import compile_native
from .dot_tile import dense_tile
from .machine import LANES, TILE_ROWS, TILE_TOKENS
from .weight_fields import LINE

NARROW_TILE = TILE_TOKENS - 2
"""Tiles take ``TILE_TOKENS``, this many, 2 or 1 tokens; what is between, the next larger one."""


@functools.cache
def multiply_panel() -> int:
    """Native ``(panel, width, num_rows, x, x_stride, num_tokens, out)``:

    ``out[t, n]`` (rows of ``LINE`` bytes) of at most ``TILE_TOKENS`` tokens with ``num_rows`` rows
    of ``width`` values, a multiple of ``LANES``. The last tile may read and write past the last
    row, as far as the next multiple of ``TILE_ROWS``.
    """
    return compile_native(_multiply_panel)


def _multiply_panel(panel, width, num_rows, x, x_stride, num_tokens, out):
    row, vectors, tokens = 4 * width, width // LANES, num_tokens
    for n in range(0, num_rows, TILE_ROWS):
        w, y = panel + n * row, out + 4 * n
        if tokens > NARROW_TILE:
            dense_tile(TILE_ROWS, TILE_TOKENS, w, row, vectors, x, x_stride, tokens, y, LINE)
        elif tokens > 2:
            dense_tile(TILE_ROWS, NARROW_TILE, w, row, vectors, x, x_stride, tokens, y, LINE)
        elif tokens == 2:
            dense_tile(TILE_ROWS, 2, w, row, vectors, x, x_stride, tokens, y, LINE)
        else:
            dense_tile(TILE_ROWS, 1, w, row, vectors, x, x_stride, tokens, y, LINE)
