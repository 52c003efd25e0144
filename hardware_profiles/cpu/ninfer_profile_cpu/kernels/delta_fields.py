"""What the parts of the gated delta rules know of a layer and of a call: fields of two blocks."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from .delta_tile import STRIP, read_strip, update_strip
from .memory import bits_of_float

BLOCK_TOKENS = 32
"""Tokens of a block, at least: their keys and queries lie in L2, and the state's way is short."""

(NUM_KEY_HEADS, NUM_VALUE_HEADS, KEY_DIM, VALUE_DIM, EPS, SCALE, RATES, BIASES, COMMITTED,
 SLOT_BYTES, RECORD, RECORD_BYTES, ROW_BYTES, BLOCK, READ_STRIP, UPDATE_STRIP, DECAY_DIM,
 LOWER_BOUND) = range(18)
"""Static block of one layer, see `static_block`; behind it, where things lie in the scratch memory
of a worker:"""
KEYS, QUERIES, DECAYS, BETAS, WORK, PADDED_STATE, PADDED_VALUES, PADDED_OUT, END = range(18, 27)
"""fp32 [B, Dk] normalised keys and queries of a block; [G, B, n] decays and [G, B] betas of the
value heads of a key head; [Dk, STRIP] the strip at work; a strip that ends early, its values and
outputs."""

(STATIC, Q, Q_STRIDE, K, K_STRIDE, V, V_STRIDE, A, A_STRIDE, B, B_STRIDE, OUT, OUT_STRIDE,
 ROW_START, SLOTS, REPLAY, CERTAIN) = range(17)
"""Arguments of one call, see `delta_rule.gated_delta_rule`."""


def static_block(
    *, num_key_heads: int, num_value_heads: int, key_dim: int, value_dim: int, eps: float,
    rates: int, biases: int, committed: int, slot_bytes: int, record: int, record_bytes: int,
    record_rows: int, decay_dim: int = 1, lower_bound: float = 0.0,
) -> np.ndarray:
    """int64 block of what does not change from call to call.

    ``rates`` (``-e^a_log``), ``biases``, ``committed``, ``record``: addresses of fp32;
    ``slot_bytes``, ``record_bytes``: from slot to slot of the two; ``record_rows``: of a slot, and
    so the most tokens of an uncertain row. ``decay_dim``: decays of a value head; ``lower_bound``
    (negative): they are by channel, ``rates`` are ``e^a_log`` then.
    """
    row_bytes = 4 * (num_key_heads * key_dim + num_value_heads * (value_dim + decay_dim + 1))
    block, group = max(BLOCK_TOKENS, record_rows), num_value_heads // num_key_heads
    tokens, strip, by_channel = 4 * block, 4 * STRIP, lower_bound != 0.0
    areas = (
        tokens * key_dim, tokens * key_dim, tokens * group * decay_dim, tokens * group,
        strip * key_dim, strip * key_dim, strip * block, strip * block,
    )
    return np.array([
        num_key_heads, num_value_heads, key_dim, value_dim, bits_of_float(eps),
        bits_of_float(key_dim**-0.5), rates, biases, committed, slot_bytes, record, record_bytes,
        row_bytes, block, read_strip(by_channel), update_strip(by_channel), decay_dim,
        bits_of_float(lower_bound), 0, *accumulate(areas),
    ], dtype=np.int64)


def scratch_bytes(static: np.ndarray) -> int:
    """Scratch memory a worker needs."""
    return int(static[END])
