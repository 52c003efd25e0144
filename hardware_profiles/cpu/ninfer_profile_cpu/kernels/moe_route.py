"""The most likely experts of each token, and their shares."""

from __future__ import annotations

import functools

from numba import types

from .compile import compile_native, inline
from .machine import LANES
from .memory import arg, float_of_bits, load_float, load_int32, store_float, store_int32
from .vec import (
    load_some,
    store_some,
    vadd,
    vdiv,
    vexp,
    vkeep,
    vmul,
    vsigmoid,
    vsplat,
    vsub,
    vsum,
)

f32 = types.float32

TOKENS_PER_ITEM = 8
TINY = 1e-20
"""Added to the sum of sigmoids, which may be 0."""


@functools.cache
def moe_route_body() -> int:
    """Body ``(logits, stride, ids, weights, num_experts, top_k)``, item = token.

    fp32 ``logits`` [T, E], stride in bytes; int32 ``ids`` and fp32 ``weights`` [T, k].
    """
    return compile_native(_moe_route)


@functools.cache
def sigmoid_route_body() -> int:
    """Body ``(logits, stride, ids, weights, num_experts, top_k, bias, scale)``, as
    `moe_route_body`; fp32 ``bias`` [E], bits of the scale."""
    return compile_native(_sigmoid_route)


def sigmoid_scratch_bytes(num_experts: int) -> int:
    """Scratch memory a worker needs for the scores of a token, with and without bias."""
    return 8 * num_experts


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


def _sigmoid_route(args, begin, end, scratch):
    num_experts, top_k = arg(args, 4), arg(args, 5)
    wanted = scratch + 4 * num_experts
    for t in range(begin, end):
        ids, weights = arg(args, 2) + 4 * t * top_k, arg(args, 3) + 4 * t * top_k
        _score(arg(args, 0) + t * arg(args, 1), arg(args, 6), num_experts, scratch, wanted)
        _choose(wanted, num_experts, top_k, ids, weights)
        for i in range(top_k):
            store_float(weights + 4 * i, load_float(scratch + 4 * load_int32(ids + 4 * i)))
        _scale(weights, top_k, float_of_bits(arg(args, 7)))


@inline
def _score(logits, bias, num_experts, scores, wanted):
    for i in range(0, num_experts, LANES):
        count = num_experts - i
        score = vsigmoid(load_some(logits + 4 * i, count))
        store_some(scores + 4 * i, score, count)
        store_some(wanted + 4 * i, vadd(score, load_some(bias + 4 * i, count)), count)


@inline
def _scale(weights, count, scale):
    """Weights that sum to ``scale``, in place."""
    total = vsplat(f32(0.0))
    for i in range(0, count, LANES):
        total = vadd(total, vkeep(load_some(weights + 4 * i, count - i), count - i, f32(0.0)))
    whole = vsplat(vsum(total) + f32(TINY))
    for i in range(0, count, LANES):
        shares = vdiv(load_some(weights + 4 * i, count - i), whole)
        store_some(weights + 4 * i, vmul(shares, vsplat(scale)), count - i)
