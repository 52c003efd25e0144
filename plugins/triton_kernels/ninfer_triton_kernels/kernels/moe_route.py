"""The experts of each token and their shares."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait

TAKEN = tl.constexpr(-0x7FFFFFFFFFFFFFFF)


@triton.jit
def swap_order(bits, MOST: tl.constexpr):
    """Bits of a float to integers of the same order, and back; all but the sign are ``MOST``."""
    return tl.where(bits < 0, bits ^ MOST, bits)


@triton.jit
def rank_keys(row, i, num_experts, BLOCK: tl.constexpr):
    """Different integers of the order of logits, of bf16 in 32 bits; NaN is below all of them, and
    of equal ones the last is lowest, so that one that was taken can be told from any other."""
    row = tl.where(row == 0, 0.0, row)  # there are two zeros, which are equal
    if row.dtype == tl.bfloat16:
        order = swap_order(row.to(tl.int16, bitcast=True).to(tl.int32), 0x7FFF)
        order = tl.where(row == row, order, -0x7FFF)
        keys = (tl.where(i < num_experts, order, -0x8000) << 15) | (BLOCK - 1 - i)
    else:
        order = swap_order(row.to(tl.float32).to(tl.int32, bitcast=True), 0x7FFFFFFF)
        order = tl.where(row == row, order, -0x7FFFFFFF)
        order = tl.where(i < num_experts, order, -0x7FFFFFFF - 1)
        keys = (order.to(tl.int64) << 32) | (BLOCK - 1 - i)
    return keys


@triton.jit
def read_key(key, BLOCK: tl.constexpr):
    """The expert and the logit of a key."""
    if key.dtype == tl.int32:
        bits, expert = swap_order(key >> 15, 0x7FFF) << 16, key & 0x7FFF
    else:
        bits = swap_order((key >> 32).to(tl.int32), 0x7FFFFFFF)
        expert = (key & 0x7FFFFFFF).to(tl.int32)
    return BLOCK - 1 - expert, bits.to(tl.float32, bitcast=True)


@triton.jit
def moe_route(
    logits, ids, weights, stride, num_experts, TOP_K: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One token. Shares of the chosen are those of their own softmax."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    row = tl.load(logits + t * stride + i, mask=i < num_experts, other=0.0)
    left = rank_keys(row, i, num_experts, BLOCK)
    slot = tl.arange(0, SLOTS)
    chosen = tl.zeros((SLOTS,), left.dtype)
    for rank in tl.static_range(TOP_K):
        best = tl.max(left, 0)
        chosen = tl.where(slot == rank, best, chosen)
        left = tl.where(left == best, -0x7FFFFFFF if left.dtype == tl.int32 else TAKEN, left)
        if rank == 0:
            top = best
    expert, values = read_key(chosen, BLOCK)
    _, highest = read_key(top, BLOCK)
    shares = tl.where(slot < TOP_K, tl.exp(values - highest), 0.0)
    tl.store(ids + t * TOP_K + slot, expert, mask=slot < TOP_K)
    tl.store(weights + t * TOP_K + slot, shares / tl.sum(shares, 0), mask=slot < TOP_K)


@triton.jit
def sigmoid_route(
    logits, bias, ids, weights, stride, num_experts, scale, TOP_K: tl.constexpr,
    SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):
    """One token. A bias, if there is one, counts for the choice alone."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    logits += t * stride
    row = tl.load(logits + i, mask=i < num_experts, other=0.0).to(tl.float32)
    wanted = 1 / (1 + tl.exp(-row))
    if bias is not None:
        wanted += tl.load(bias + i, mask=i < num_experts, other=0.0)
    left = rank_keys(wanted, i, num_experts, BLOCK)
    slot = tl.arange(0, SLOTS)
    chosen = tl.zeros((SLOTS,), left.dtype)
    for rank in tl.static_range(TOP_K):
        best = tl.max(left, 0)
        chosen = tl.where(slot == rank, best, chosen)
        left = tl.where(left == best, TAKEN, left)
    expert, _ = read_key(chosen, BLOCK)
    live = slot < TOP_K
    scores = tl.load(logits + expert, mask=live, other=0.0).to(tl.float32)
    scores = tl.where(live, 1 / (1 + tl.exp(-scores)), 0.0)
    tl.store(ids + t * TOP_K + slot, expert, mask=live)
    shares = scale * (scores / (tl.sum(scores, 0) + 1e-20))
    tl.store(weights + t * TOP_K + slot, shares, mask=live)
