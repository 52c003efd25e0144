"""A norm, the scores of all experts, and the experts of each token, in one launch."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.moe_route import TOKENS, choose_likeliest
from ninfer_triton_kernels.kernels.overlap import release, wait


@triton.jit(do_not_specialize=["num_tokens", "each"])
def moe_router(
    x, norm, weight, normed, score, logits, arrivals, ids, weights, num_tokens, each, x_stride,
    normed_stride, score_stride, num_experts, num_rows, width, eps, offset,
    HAS_SCORE: tl.constexpr, TOP_K: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):
    """``BN`` rows of the weight by ``each`` rows of activations; the last program of these tokens
    chooses. Behind the rows of the experts is that of the shared one's score, if it has one.
    ``logits`` are ``[T, BLOCK]``; ``arrivals`` are zeros before and after.

    Each program norms the rows by itself: that is sooner done than waited for.
    """
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    live = k < width
    is_weight = (n < num_rows)[:, None] & live[None, :]
    rows = tl.load(weight + n[:, None] * width + k[None, :], mask=is_weight, other=0.0)
    scale = tl.load(norm + k, mask=live, other=0.0).to(tl.float32) + offset
    first = tl.program_id(1).to(tl.int64) * each
    last = tl.minimum(first + each, num_tokens)
    wait()
    release()
    ahead = tl.load(x + first * x_stride + k, mask=live, other=0.0)
    for t in tl.range(first, last, num_stages=1):
        row = ahead.to(tl.float32)
        ahead = tl.load(x + (t + 1) * x_stride + k, mask=live & (t + 1 < last), other=0.0)
        row *= 1 / tl.sqrt(tl.sum(row * row) / width + eps) * scale
        row = row.to(normed.dtype.element_ty)
        if tl.program_id(0) == 0:
            tl.store(normed + t * normed_stride + k, row, mask=live)
        total = tl.sum(rows.to(tl.float32) * row.to(tl.float32)[None, :], 1)
        total = total.to(logits.dtype.element_ty)
        tl.store(logits + t * BLOCK + n, total, mask=n < num_experts)
        if HAS_SCORE:
            tl.store(score + t * score_stride + n * 0, total, mask=n == num_experts)
    tl.debug_barrier()  # all threads' logits are written before one of them says so
    group = arrivals + tl.program_id(1)
    if tl.atomic_add(group, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.store(group, 0)
        for begin in tl.range(first, last, TOKENS, num_stages=1):
            some = begin + tl.arange(0, TOKENS)[:, None]
            choose_likeliest(
                logits, ids, weights, some, some < last, BLOCK, num_experts, TOP_K, SLOTS, BLOCK)
