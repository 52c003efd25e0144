"""Products of one input with weights of several formats, in one launch."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import write_product
from ninfer_triton_kernels.kernels.stored import stored_product


@triton.jit
def member_of_group(
    x, t, is_token, codes, high, scales, minimums, divisor, bias, residual, out, block, x_stride,
    residual_stride, out_stride, depth: tl.constexpr, width: tl.constexpr, BITS: tl.constexpr,
    OFFSET: tl.constexpr, GROUP: tl.constexpr, HAS_MINIMUM: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, BN: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr,
):
    """Rows ``block`` of one weight by rows ``t`` of the activations, written to its columns."""
    STEP: tl.constexpr = S * 64 if BITS == 16 else 32 if BITS == 8 else 64
    if BITS == 16:
        wait()
    total = stored_product(
        x, t, is_token, codes, high, scales, minimums, divisor, block, 0, 0, width, depth,
        x_stride, BITS, OFFSET, GROUP, HAS_MINIMUM, 0.0, width % BN == 0, depth % STEP == 0, BN, S,
        STAGES)
    release()
    write_product(total, block, t, is_token, width, bias, residual, residual_stride, out,
                  out_stride, BN, 0.0, HAS_BIAS, HAS_RESIDUAL)


@triton.jit(do_not_specialize=["num_tokens"])
def linear_group(
    x, members, residual, out, num_tokens, x_stride, residual_stride, out_stride,
    depth: tl.constexpr, KINDS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, N: tl.constexpr,
):
    """``N`` rows of activations by some rows of the weight that a program belongs to.

    Of each weight ``members`` has tensors as of `stored_product` and a bias; ``KINDS``: its first
    program and that behind its last, its first column of ``out``, and what `member_of_group` is
    compiled for, from ``width`` on but for ``HAS_RESIDUAL``.
    """
    program = tl.program_id(0)
    t = tl.program_id(1) * N + tl.arange(0, N)
    for i in tl.static_range(len(KINDS)):
        if (program >= KINDS[i][0]) & (program < KINDS[i][1]):
            member_of_group(
                x, t, t < num_tokens, members[i][0], members[i][1], members[i][2], members[i][3],
                members[i][4], members[i][5], residual + KINDS[i][2], out + KINDS[i][2],
                program - KINDS[i][0], x_stride, residual_stride, out_stride, depth, KINDS[i][3],
                KINDS[i][4], KINDS[i][5], KINDS[i][6], KINDS[i][7], KINDS[i][8], HAS_RESIDUAL,
                KINDS[i][9], KINDS[i][10], KINDS[i][11])
