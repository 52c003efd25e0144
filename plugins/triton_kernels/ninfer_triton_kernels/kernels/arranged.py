"""Activations as the second operand of Hopper's matrix instruction, for `hopper_tiled`."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.decoders import less_plane
from ninfer_triton_kernels.kernels.expert_groups import in_fragment_order
from ninfer_triton_kernels.kernels.fragments import load_neighbours, operand
from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import multiply
from ninfer_triton_kernels.kernels.tiled import E4M3_INPUT


@triton.jit
def less_sums(
    x, t, is_token, block, num_blocks, x_stride, depth, OFFSET: tl.constexpr, N: tl.constexpr,
):
    """What products of block ``[1]`` of 64 columns begin with, fp32 ``[1, 16, N]``, 16 times the
    same: -(128 + ``OFFSET``) times the sum of the activations, as `tiled.add_group` has it."""
    less = operand(less_plane(OFFSET, 1), 1, 16)
    total = tl.zeros((1, 16, N), tl.float32)
    for half in tl.static_range(2):
        one, two = load_neighbours(
            x, t, is_token, block, num_blocks, half * 32, x_stride, depth, 64, True, N, 1)
        total = multiply(less, two, multiply(less, one, total))
    return total


@triton.jit(do_not_specialize=["num_tokens"])
def arrange_tokens(
    x, out, sums, num_tokens, x_stride, depth, WIDE: tl.constexpr, E4M3: tl.constexpr,
    OFFSET: tl.constexpr, HAS_SUMS: tl.constexpr, N: tl.constexpr,
):
    """A block of ``WIDE`` columns of ``N`` rows of activations, zeros where there are none, to
    ``out`` ``[T / N, depth / WIDE, N, WIDE]`` as `in_fragment_order`, and what is taken away of the
    products of codes to ``sums`` ``[T / N, depth / WIDE, N]``."""
    wait()
    release()
    block, num_blocks, i = tl.program_id(0), depth // WIDE, tl.arange(0, N)
    t = tl.program_id(1) * N + i
    first = (tl.program_id(1) * num_blocks + block) * N
    if HAS_SUMS:
        total = less_sums(
            x, t, t < num_tokens, block + tl.arange(0, 1), num_blocks, x_stride, depth, OFFSET, N)
        is_first = (tl.arange(0, 16) == 0)[None, :, None]
        at = tl.broadcast_to(sums + first + i[None, None, :], total.shape)
        tl.store(at, total, mask=is_first)
    k = tl.arange(0, WIDE)[None, :]
    at = x + t.to(tl.int64)[:, None] * x_stride + block * WIDE + k
    values = tl.load(at, mask=(t < num_tokens)[:, None], other=0.0)
    if E4M3:
        values = (values.to(tl.float32) * E4M3_INPUT).to(tl.bfloat16)
    at = out + (first + i)[:, None] * WIDE + k
    tl.store(at, in_fragment_order(values, N, WIDE))
