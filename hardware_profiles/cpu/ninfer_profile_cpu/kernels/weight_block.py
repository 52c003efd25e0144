"""How a stored weight is described to native code: a block of int64 fields, built at bind time."""

import numpy as np

from .decoders import decoder
from .machine import LANES, TILE_ROWS, TILE_TOKENS

(CODES, HIGH, SCALES, MINIMUMS, NUM_ROWS, WIDTH, ROW_GROUPS, NUM_GROUPS, PADDED_WIDTH,
 AREA) = range(10)  # fmt: skip
"""Addresses of the four planes (0 where the format has none); rows N; logical width K; groups that
a stored row takes; groups to compute with; the width they cover; bytes of scratch memory that a
block of rows needs."""

BLOCK_ROWS = 32
"""Weight rows of one work item: 32 rows x 1536 fp32 are 192 KiB, which stay in L2."""


def weight_block(fmt, planes, num_rows, width, row_groups=0):
    """int64 block of a weight with ``planes`` (`decoders.Planes` of addresses).

    Groups of a quantised row are whole even where ``width`` ends inside one, and a row may be stored
    with more of them.  A dense row ends where its values end: the tail is not a group.
    """
    form = decoder(fmt)
    padded = -(-width // form.step) * form.step
    num_groups = padded // form.step if form.is_grouped else width // LANES
    scales = 8 * TILE_ROWS * row_groups
    area = (TILE_TOKENS + BLOCK_ROWS) * padded * 4 + -(-scales // 64) * 64
    fields = [*planes, num_rows, width, row_groups, num_groups, padded, area]
    return np.array(fields, dtype=np.int64)
