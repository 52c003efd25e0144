"""Describe a stored weight to native code, at bind time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .decoders import decoder
from .format_functions import decode_row, multiply_fused
from .machine import LANES, TILE_ROWS, TILE_TOKENS
from .panel import multiply_panel
from .weight_fields import BLOCK_ROWS


def weight_block(
    fmt: str, planes: Iterable[int], num_rows: int, width: int, row_groups: int = 0
) -> np.ndarray:
    """The fields of `weight_fields` for a weight of decoder ``fmt``; compiles what it needs.

    ``planes``: addresses in the order of `decoders.Planes`. Groups of a quantised row are whole
    even where ``width`` ends inside one, and a row may be stored with more of them. A dense row
    ends where its values end: the tail is not a group.
    """
    form = decoder(fmt)
    padded = -(-width // form.step) * form.step
    num_groups = padded // form.step if form.is_grouped else width // LANES
    scales = 8 * TILE_ROWS * row_groups
    area = (TILE_TOKENS + BLOCK_ROWS) * padded * 4 + -(-scales // 64) * 64
    functions = decode_row(fmt), multiply_fused(fmt), multiply_panel()
    fields = [*planes, num_rows, width, row_groups, num_groups, padded, area, *functions]
    return np.array(fields, dtype=np.int64)
