"""The running softmax of attention: what is known of a query row after some of its keys.

A state is a maximum m, a sum l of ``e ** (score - m)`` and the sum of values weighted alike.
States of disjoint keys merge into the state of their union (Milakov and Gimelshein, 2018).
Attention merges them in one fixed order, so it may compute them in any.

A state in memory: a vector of which lane 0 is m and lane 1 is l, then the ``head_dim`` sums.
"""

import math

from numba import types

from .compile import inline
from .machine import LANES
from .memory import load_float, store_float
from .vec import (
    vadd,
    vexp,
    vfirst,
    vfma,
    vhmax,
    vkeep,
    vload,
    vmax,
    vmul,
    vsplat,
    vstore,
    vsub,
    vsum,
)

f32 = types.float32
NO_KEYS = -math.inf
SUMS = 4 * LANES
"""Byte offset of the sums in a state."""


@inline
def state_bytes(head_dim):
    """Bytes of one state."""
    return SUMS + 4 * head_dim


@inline
def clear_state(state, head_dim):
    """The state of no keys."""
    for i in range(0, state_bytes(head_dim), 4 * LANES):
        vstore(state + i, vsplat(f32(0.0)))
    store_float(state, f32(NO_KEYS))


@inline
def _exp(x):
    return vfirst(vexp(vsplat(x)))


@inline
def _shift(maximum):
    # Scores are taken relative to the maximum; where there is no key yet, to 0.
    return maximum if maximum > f32(NO_KEYS) else f32(0.0)


@inline
def weigh_scores(scores, num_keys, num_visible, state, old_scale, new_scale):
    """Turn a row of scores into weights, and update m and l of its state.

    ``num_keys`` (a multiple of ``LANES``) scores at ``scores`` become ``e ** (score - m_block)``,
    0 from ``num_visible`` on. What the sums of the state and of the block must be multiplied with
    is left at ``old_scale`` and ``new_scale``.
    """
    top = vsplat(f32(NO_KEYS))
    for j in range(0, num_keys, LANES):
        masked = vkeep(vload(scores + 4 * j), num_visible - j, f32(NO_KEYS))
        vstore(scores + 4 * j, masked)
        top = vmax(top, masked)
    maximum = vhmax(top)
    shift, total = vsplat(_shift(maximum)), vsplat(f32(0.0))
    for j in range(0, num_keys, LANES):
        weights = vexp(vsub(vload(scores + 4 * j), shift))
        vstore(scores + 4 * j, weights)
        total = vadd(total, weights)
    keep, add = _merge_head(state, maximum, vsum(total))
    store_float(old_scale, keep)
    store_float(new_scale, add)


@inline
def _merge_head(state, maximum, total):
    """Update m and l of a state; what the sums of the state and of the other are multiplied by."""
    old = load_float(state)
    merged = maximum if maximum > old else old
    keep, add = _exp(old - _shift(merged)), _exp(maximum - _shift(merged))
    store_float(state, merged)
    store_float(state + 4, load_float(state + 4) * keep + total * add)
    return keep, add


@inline
def merge_state(state, other, head_dim):
    """``state`` becomes the state of the keys of both."""
    keep, add = _merge_head(state, load_float(other), load_float(other + 4))
    keep, add = vsplat(keep), vsplat(add)
    for i in range(SUMS, SUMS + 4 * head_dim, 4 * LANES):
        vstore(state + i, vfma(vload(other + i), add, vmul(vload(state + i), keep)))


@inline
def copy_state(state, head_dim, to):
    for i in range(0, state_bytes(head_dim), 4 * LANES):
        vstore(to + i, vload(state + i))


@inline
def write_result(state, head_dim, out):
    """The attention output of a state."""
    total = f32(1.0) / load_float(state + 4)
    for i in range(0, head_dim, LANES):
        vstore(out + 4 * i, vmul(vload(state + SUMS + 4 * i), vsplat(total)))
