"""One block of keys and values against a tile of query rows.

All memory here is scratch of one worker, laid out by `layout`: query rows are contiguous, and have
room for a full register tile behind the last one, so tiles may run over.
"""

from numba import njit, types

from .dot_tile import dot_tile
from .machine import LANES, TILE_ROWS, TILE_TOKENS
from .value_tile import value_tile

i64 = types.int64

BLOCK = 64
"""Keys of a block: one page of the cache."""

LINE = 4 * BLOCK
"""Bytes of a row of scores."""

NARROW_TILE = TILE_TOKENS - 2


@njit
def score_keys(q, num_rows, head_dim, keys, key_stride, num_keys, scores):
    """``scores[r, j] = q[r] . keys[j]``; the last tile may run over in both directions."""
    row, groups = 4 * head_dim, head_dim // LANES
    for j in range(0, num_keys, TILE_ROWS):
        key, to = keys + j * key_stride, scores + 4 * j
        r = 0
        while r < num_rows:
            left = num_rows - r
            x, out = q + r * row, to + r * LINE
            if left > NARROW_TILE:
                dot_tile("fp32", TILE_ROWS, TILE_TOKENS, key, key_stride, 0, 0, 0, 0, 0, 0, groups, x, row, TILE_TOKENS, out, LINE)
                r += TILE_TOKENS
            elif left > 2:
                dot_tile("fp32", TILE_ROWS, NARROW_TILE, key, key_stride, 0, 0, 0, 0, 0, 0, groups, x, row, TILE_TOKENS, out, LINE)
                r += NARROW_TILE
            elif left == 2:
                dot_tile("fp32", TILE_ROWS, 2, key, key_stride, 0, 0, 0, 0, 0, 0, groups, x, row, TILE_TOKENS, out, LINE)
                r += 2
            else:
                dot_tile("fp32", TILE_ROWS, 1, key, key_stride, 0, 0, 0, 0, 0, 0, groups, x, row, TILE_TOKENS, out, LINE)
                r += 1


@njit
def add_values(weights, num_rows, head_dim, values, value_stride, num_keys, sums, sums_stride, old_scale, new_scale):
    """``sums[r] = old_scale[r] sums[r] + new_scale[r] sum_j weights[r, j] values[j]``."""
    strip = TILE_ROWS * LANES
    whole = head_dim // strip * strip
    for column in range(0, whole, strip):
        _add_strip(weights, num_rows, values + 4 * column, value_stride, num_keys, sums + 4 * column, sums_stride, old_scale, new_scale)
    for column in range(whole, head_dim, LANES):
        for r in range(0, num_rows, TILE_TOKENS):
            value_tile(
                TILE_TOKENS, 1, weights + r * LINE, LINE, values + 4 * column, value_stride, num_keys,
                sums + r * sums_stride + 4 * column, sums_stride, old_scale + 4 * r, new_scale + 4 * r,
            )  # fmt: skip


@njit
def _add_strip(weights, num_rows, values, value_stride, num_keys, sums, sums_stride, old_scale, new_scale):
    r = 0
    while r < num_rows:
        left = num_rows - r
        line, out, old, new = weights + r * LINE, sums + r * sums_stride, old_scale + 4 * r, new_scale + 4 * r
        if left > NARROW_TILE:
            value_tile(TILE_TOKENS, TILE_ROWS, line, LINE, values, value_stride, num_keys, out, sums_stride, old, new)
            r += TILE_TOKENS
        elif left > 2:
            value_tile(NARROW_TILE, TILE_ROWS, line, LINE, values, value_stride, num_keys, out, sums_stride, old, new)
            r += NARROW_TILE
        elif left == 2:
            value_tile(2, TILE_ROWS, line, LINE, values, value_stride, num_keys, out, sums_stride, old, new)
            r += 2
        else:
            value_tile(1, TILE_ROWS, line, LINE, values, value_stride, num_keys, out, sums_stride, old, new)
            r += 1
