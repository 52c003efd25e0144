"""One block of keys and values against query rows: the two products of attention.

Query rows, scores and sums are scratch memory of one worker with room for a full register tile
behind the last row, so the last tile may run over.
"""

from __future__ import annotations

import functools

from .compile import compile_native
from .dot_tile import dense_tile
from .machine import LANES, TILE_ROWS, TILE_TOKENS
from .value_tile import value_tile

BLOCK = 64
"""Keys of a block: one page of the cache."""

LINE = 4 * BLOCK
"""Bytes of a row of scores."""

NARROW_TILE = TILE_TOKENS - 2


@functools.cache
def score_keys() -> int:
    """Native ``(q, num_rows, head_dim, keys, key_stride, num_keys, scores)``:

    ``scores[r, j] = q[r] . keys[j]``; rows of ``q`` follow each other, those of ``scores`` are
    ``LINE`` bytes apart. Keys are read as far as the next multiple of ``TILE_ROWS``.
    """
    return compile_native(_score_keys)


def _score_keys(q, num_rows, head_dim, keys, key_stride, num_keys, scores):
    row, vectors = 4 * head_dim, head_dim // LANES
    for j in range(0, num_keys, TILE_ROWS):
        k, ks = keys + j * key_stride, key_stride
        r = 0
        while r < num_rows:
            left, x, y = num_rows - r, q + r * row, scores + r * LINE + 4 * j
            if left > NARROW_TILE:
                dense_tile(TILE_ROWS, TILE_TOKENS, k, ks, vectors, x, row, TILE_TOKENS, y, LINE)
            elif left > 2:
                dense_tile(TILE_ROWS, NARROW_TILE, k, ks, vectors, x, row, TILE_TOKENS, y, LINE)
            else:
                dense_tile(TILE_ROWS, 2, k, ks, vectors, x, row, 2, y, LINE)
            r += TILE_TOKENS if left > NARROW_TILE else NARROW_TILE if left > 2 else 2


@functools.cache
def add_values() -> int:
    """Native ``(weights, num_rows, head_dim, values, value_stride, num_keys, sums, sums_stride,
    old_scale, new_scale)``:

    ``sums[r] = old_scale[r] sums[r] + new_scale[r] sum_j weights[r, j] values[j]``.
    """
    return compile_native(_add_values)


def _add_values(
    weights, num_rows, head_dim, values, value_stride, num_keys, sums, sums_stride, old_scale,
    new_scale,
):
    strip = TILE_ROWS * LANES
    column = 0
    while column < head_dim:
        wide, v = column + strip <= head_dim, values + 4 * column
        r = 0
        while r < num_rows:
            left, w, y = num_rows - r, weights + r * LINE, sums + r * sums_stride + 4 * column
            old, new = old_scale + 4 * r, new_scale + 4 * r
            if not wide:
                value_tile(
                    TILE_TOKENS, 1, w, LINE, v, value_stride, num_keys, y, sums_stride, old, new
                )
            elif left > NARROW_TILE:
                value_tile(
                    TILE_TOKENS, TILE_ROWS, w, LINE, v, value_stride, num_keys, y, sums_stride,
                    old, new,
                )
            elif left > 2:
                value_tile(
                    NARROW_TILE, TILE_ROWS, w, LINE, v, value_stride, num_keys, y, sums_stride,
                    old, new,
                )
            else:
                value_tile(
                    2, TILE_ROWS, w, LINE, v, value_stride, num_keys, y, sums_stride, old, new
                )
            full = left > NARROW_TILE or not wide
            r += TILE_TOKENS if full else NARROW_TILE if left > 2 else 2
        column += strip if wide else LANES
