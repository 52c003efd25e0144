"""Describe a stored weight to native code, at bind time."""

from __future__ import annotations

import numpy as np

from .decoders import decoder
from .format_functions import decode_row, multiply_fused
from .machine import TILE_ROWS, TILE_TOKENS
from .panel import multiply_panel
from .planes import Planes, Scales
from .weight_fields import BLOCK_ROWS


def weight_block(
    fmt: str, planes: Planes, num_rows: int, width: int, row_steps: int = 0
) -> np.ndarray:
    """The fields of `weight_fields` for a weight of decoder ``fmt``; compiles what it needs.

    ``planes``: addresses. ``row_steps``: steps that a row takes in memory, if it is padded.
    """
    form = decoder(fmt)
    padded = -(-width // form.step) * form.step
    num_steps = (padded if form.pads_rows else width) // form.step
    strides = form.strides(width, row_steps)
    scales = 4 * TILE_ROWS * strides.scales if form.scales is Scales.HALVES else 0
    area = (TILE_TOKENS + BLOCK_ROWS) * padded * 4 + -(-scales // 64) * 64
    functions = decode_row(fmt), multiply_fused(fmt), multiply_panel()
    fields = [*planes, *strides[:3], num_rows, width, num_steps, padded, area, *functions]
    return np.array(fields, dtype=np.int64)
