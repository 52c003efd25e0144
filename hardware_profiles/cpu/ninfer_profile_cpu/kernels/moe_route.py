"""The most likely experts of each token, and their shares."""

from __future__ import annotations

import functools

from numba import types

from .compile import compile_native, inline
from .machine import LANES
from .memory import arg, load_float, load_int32, store_float, store_int32
from .vec import load_some, store_some, vadd, vdiv, vexp, vkeep, vsplat, vsub, vsum

f32 = types.float32

TOKENS_PER_ITEM = 8


@functools.cache
def moe_route_body() -> int:
    """Body ``(logits, stride, ids, weights, num_experts, top_k)``, item = token.

    fp32 ``logits`` [T, E], stride in bytes; int32 ``ids`` and fp32 ``weights`` [T, k].
    """
    return compile_native(_moe_route)


def _moe_route(args, begin, end, scratch):
    num_experts, top_k = arg(args, 4), arg(args, 5)
    for t in range(begin, end):
        ids, weights = arg(args, 2) + 4 * t * top_k, arg(args, 3) + 4 * t * top_k
        _choose(arg(args, 0) + t * arg(args, 1), num_experts, top_k, ids, weights)
        _share(weights, top_k)


@inline
def _choose(logits, num_experts, top_k, ids, best):
    """The largest logits, falling, in ``best``: each is inserted behind those not smaller."""
    for expert in range(num_experts):
        logit, at = load_float(logits + 4 * expert), min(expert, top_k)
        while at > 0 and logit > load_float(best + 4 * (at - 1)):
            at -= 1
            if at + 1 < top_k:
                store_float(best + 4 * (at + 1), load_float(best + 4 * at))
                store_int32(ids + 4 * (at + 1), load_int32(ids + 4 * at))
        if at < top_k:
            store_float(best + 4 * at, logit)
            store_int32(ids + 4 * at, expert)


@inline
def _share(weights, count):
    """Softmax in place: the sum over all experts cancels out of the shares."""
    largest, total = vsplat(load_float(weights)), vsplat(f32(0.0))
    for i in range(0, count, LANES):
        shares = vexp(vsub(load_some(weights + 4 * i, count - i), largest))
        total = vadd(total, vkeep(shares, count - i, f32(0.0)))
        store_some(weights + 4 * i, shares, count - i)
    whole = vsplat(vsum(total))
    for i in range(0, count, LANES):
        shares = vdiv(load_some(weights + 4 * i, count - i), whole)
        store_some(weights + 4 * i, shares, count - i)
