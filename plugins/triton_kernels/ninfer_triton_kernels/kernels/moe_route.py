"""The experts of each token and their shares. A warp has all logits of a token: nothing is passed
between warps."""

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


TOKENS = tl.constexpr(4)
"""Of a program, one of each warp's."""


@triton.jit
def take_largest(left, TOP_K: tl.constexpr, SLOTS: tl.constexpr):
    """The ``TOP_K`` largest keys of each row, falling, ``[W, SLOTS]``, and the first of them
    ``[W, 1]``."""
    slot = tl.arange(0, SLOTS)[None, :]
    chosen = tl.zeros((left.shape[0], SLOTS), left.dtype)
    for rank in tl.static_range(TOP_K):
        best = tl.max(left, 1)[:, None]
        chosen = tl.where(slot == rank, best, chosen)
        left = tl.where(left == best, -0x7FFFFFFF if left.dtype == tl.int32 else TAKEN, left)
        if rank == 0:
            top = best
    return chosen, top


@triton.jit
def choose_likeliest(
    logits, ids, weights, t, is_token, stride, num_experts, TOP_K: tl.constexpr,
    SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):
    """For tokens ``t`` ``[W, 1]``. Shares of the chosen are those of their own softmax."""
    i, slot = tl.arange(0, BLOCK)[None, :], tl.arange(0, SLOTS)[None, :]
    live = is_token & (i < num_experts)
    row = tl.load(logits + t * stride + i, mask=live, other=0.0, cache_modifier=".cg")
    chosen, top = take_largest(rank_keys(row, i, num_experts, BLOCK), TOP_K, SLOTS)
    expert, values = read_key(chosen, BLOCK)
    _, highest = read_key(top, BLOCK)
    shares = tl.where(slot < TOP_K, tl.exp(values - highest), 0.0)
    at, live = t * TOP_K + slot, is_token & (slot < TOP_K)
    tl.store(ids + at, expert, mask=live)
    tl.store(weights + at, shares / tl.sum(shares, 1)[:, None], mask=live)


@triton.jit(do_not_specialize=["num_tokens"])
def moe_route(
    logits, ids, weights, num_tokens, stride, num_experts, TOP_K: tl.constexpr,
    SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):
    """`choose_likeliest` for `TOKENS` tokens."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None]
    choose_likeliest(
        logits, ids, weights, t, t < num_tokens, stride, num_experts, TOP_K, SLOTS, BLOCK)


@triton.jit(do_not_specialize=["num_tokens"])
def sigmoid_route(
    logits, bias, ids, weights, num_tokens, stride, num_experts, scale, TOP_K: tl.constexpr,
    SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):
    """`TOKENS` tokens. A bias, if there is one, counts for the choice alone."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None]
    i, slot = tl.arange(0, BLOCK)[None, :], tl.arange(0, SLOTS)[None, :]
    is_token, is_expert = t < num_tokens, i < num_experts
    logits += t * stride
    row = tl.load(logits + i, mask=is_token & is_expert, other=0.0).to(tl.float32)
    wanted = 1 / (1 + tl.exp(-row))
    if bias is not None:
        wanted += tl.load(bias + i, mask=is_expert, other=0.0)
    chosen, _ = take_largest(rank_keys(wanted, i, num_experts, BLOCK), TOP_K, SLOTS)
    expert, _ = read_key(chosen, BLOCK)
    live, is_chosen = is_token & (slot < TOP_K), slot < TOP_K
    scores = tl.load(logits + expert, mask=live, other=0.0).to(tl.float32)
    scores = tl.where(is_chosen, 1 / (1 + tl.exp(-scores)), 0.0)
    at = t * TOP_K + slot
    tl.store(ids + at, expert, mask=live)
    shares = scale * (scores / (tl.sum(scores, 1)[:, None] + 1e-20))
    tl.store(weights + at, shares, mask=live)
