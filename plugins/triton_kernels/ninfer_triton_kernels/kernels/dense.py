"""Products with weights of bf16 or fp32, whose rows lie one after the other."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import (
    load_columns,
    multiply,
    share_of,
    stored_rows,
    sum_batch,
    sum_splits,
    write_product,
)


@triton.jit
def dense_totals(
    x, t, is_token, weight, rows, exists, first, last, depth, x_stride, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, S: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Rows of the weight by rows ``t`` of the activations, fp32 ``[BN, len(t)]``, over the columns
    of steps ``first`` to ``last``, each of ``S * BK``."""
    at = rows.to(tl.int64)[None, :, None] * depth
    total = tl.zeros((S, BN, t.shape[0]), tl.float32)
    for step in tl.range(first, last, num_stages=STAGES):
        k = (step * S + tl.arange(0, S))[:, None] * BK + tl.arange(0, BK)[None, :]
        if EVEN_N and EVEN_K:
            values = tl.load(weight + at + k[:, None, :])
        else:
            live = exists[None, :, None] & (k < depth)[:, None, :]
            values = tl.load(weight + at + k[:, None, :], mask=live, other=0.0)
        total = multiply(values, load_columns(x, t, is_token, k, x_stride, depth, EVEN_K), total)
    return sum_batch(total)


@triton.jit(do_not_specialize=["num_tokens"])
def dense_linear(
    x, weight, bias, residual, out, parts, arrivals, num_tokens, width, depth, x_stride,
    residual_stride, out_stride, GATED: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    N: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, S: tl.constexpr, SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A tile of ``BN`` rows of the weight by ``N`` rows of activations; ``width`` is that of the
    result."""
    block = tl.program_id(0)
    rows, exists = stored_rows(block, width, BN, GATED)
    t = tl.program_id(1) * N + tl.arange(0, N)
    first, last = share_of(tl.cdiv(depth, S * BK), SPLITS)
    wait()
    total = dense_totals(
        x, t, t < num_tokens, weight, rows, exists, first, last, depth, x_stride, EVEN_N, EVEN_K,
        BN, BK, S, STAGES)
    release()
    total, is_last = sum_splits(total, parts, arrivals, SPLITS, BN)
    if is_last:
        write_product(total, block, t, t < num_tokens, width, bias, residual, residual_stride, out,
                      out_stride, BN, GATED, HAS_BIAS, HAS_RESIDUAL)
