"""The experts of each token and their shares."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait


@triton.jit
def swap_order(bits):
    """Bits of fp32 to integers of the same order, and back."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def moe_route(
    logits, ids, weights, stride, num_experts, TOP_K: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One token. Logits are compared as integers, NaN below all of them, and expert by expert from
    the last, so that one that was taken can be told from any that was not. Shares of the chosen are
    those of their own softmax."""
    wait()
    release()
    t = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    row = tl.load(logits + t * stride + i, mask=i < num_experts, other=0.0).to(tl.float32)
    row = tl.where(row == 0, 0.0, row)  # there are two zeros, which are equal
    order = tl.where(row == row, swap_order(row.to(tl.int32, bitcast=True)), -0x7FFFFFFF)
    order = tl.where(i < num_experts, order, -0x7FFFFFFF - 1)
    left = (order.to(tl.int64) << 32) | (BLOCK - 1 - i)
    slot = tl.arange(0, SLOTS)
    chosen = tl.zeros((SLOTS,), tl.int64)
    for rank in tl.static_range(TOP_K):
        best = tl.max(left, 0)
        chosen = tl.where(slot == rank, best, chosen)
        left = tl.where(left == best, -0x7FFFFFFFFFFFFFFF, left)
        if rank == 0:
            top = best
    values = swap_order((chosen >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
    highest = swap_order((top >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
    shares = tl.where(slot < TOP_K, tl.exp(values - highest), 0.0)
    expert = (BLOCK - 1 - (chosen & 0x7FFFFFFF)).to(tl.int32)
    tl.store(ids + t * TOP_K + slot, expert, mask=slot < TOP_K)
    tl.store(weights + t * TOP_K + slot, shares / tl.sum(shares, 0), mask=slot < TOP_K)
