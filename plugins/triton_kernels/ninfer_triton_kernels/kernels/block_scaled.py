"""Products of E2M1 codes by E2M1 codes with a scale for 16 of them, as one instruction of Blackwell
cards: for prompts, with activations that are quantised on the way."""

import triton
import triton.language as tl

from ninfer_triton_kernels.kernels.overlap import release, wait
from ninfer_triton_kernels.kernels.products import INTERPRETED

LARGEST = tl.constexpr(6.0)
"""Of E2M1."""

LARGEST_SCALE = tl.constexpr(448.0)
"""Of E4M3."""


@triton.jit
def nearest_code(magnitude):
    """E2M1 code of values 0 to 6; halves go to the even code."""
    code = (magnitude > 0.25).to(tl.int32) + (magnitude >= 0.75).to(tl.int32)
    code += (magnitude > 1.25).to(tl.int32) + (magnitude >= 1.75).to(tl.int32)
    code += (magnitude > 2.5).to(tl.int32) + (magnitude >= 3.5).to(tl.int32)
    return code + (magnitude > 5.0).to(tl.int32)


@triton.jit
def quantise_rows(
    x, codes, scales, factors, depth, x_stride, BLOCK: tl.constexpr,
):
    """A row ``[depth]`` as codes, two a byte, the smaller column in the low half, E4M3 scales of 16
    columns, and one factor, such that the largest of the row becomes the largest of both."""
    wait()
    release()
    row = tl.program_id(0).to(tl.int64)
    largest = 0.0
    for begin in range(0, depth, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        values = tl.load(x + row * x_stride + column, mask=column < depth, other=0.0)
        largest = tl.maximum(largest, tl.max(tl.abs(values.to(tl.float32))))
    factor = tl.where(largest > 0, largest / (LARGEST * LARGEST_SCALE), 1.0)
    tl.store(factors + row, factor)
    for begin in range(0, depth, BLOCK):
        group = tl.arange(0, BLOCK // 16)[:, None]
        column = begin + group * 16 + tl.arange(0, 16)[None, :]
        values = tl.load(x + row * x_stride + column, mask=column < depth, other=0.0)
        values = values.to(tl.float32) / factor
        scale = (tl.max(tl.abs(values), 1) / LARGEST).to(tl.float8e4nv)
        own = scale.to(tl.float32)[:, None]
        shares = tl.where(own > 0, values / tl.where(own > 0, own, 1.0), 0.0)
        code = nearest_code(tl.minimum(tl.abs(shares), LARGEST)) | (shares < 0).to(tl.int32) << 3
        low, high = tl.split(tl.reshape(code, (BLOCK // 16, 8, 2)))
        packed = begin // 2 + group * 8 + tl.arange(0, 8)[None, :]
        tl.store(codes + row * (depth // 2) + packed, (low | high << 4).to(tl.uint8),
                 mask=packed < depth // 2)
        at = begin // 16 + tl.arange(0, BLOCK // 16)
        tl.store(scales + row * (depth // 16) + at, scale, mask=at < depth // 16)


@triton.jit
def code_values(packed, scales, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """fp32 of packed codes ``[ROWS, COLUMNS / 2]`` under scales ``[ROWS, COLUMNS / 16]``."""
    code = tl.join((packed & 15).to(tl.int32), (packed >> 4).to(tl.int32))
    code = tl.reshape(code, (ROWS, COLUMNS // 16, 16))
    magnitude = code & 7
    exponent = tl.maximum(magnitude >> 1, 1)
    mantissa = tl.where(magnitude > 1, 2 + (magnitude & 1), magnitude)
    value = mantissa.to(tl.float32) * tl.exp2(exponent.to(tl.float32) - 2.0)
    value = tl.where(code > 7, -value, value) * scales.to(tl.float32)[:, :, None]
    return tl.reshape(value, (ROWS, COLUMNS))


@triton.jit
def scaled_dot(a, a_scales, b, b_scales, total, BM: tl.constexpr, BN: tl.constexpr,
               BK: tl.constexpr):
    """``total + a b^T``. The interpreter takes such scales for powers of two, so it gets fp32."""
    if INTERPRETED:
        left, right = code_values(a, a_scales, BM, BK), code_values(b, b_scales, BN, BK)
        return total + tl.dot(left, right.T, input_precision="ieee")
    return tl.dot_scaled(a, a_scales, "e2m1", b.T, b_scales, "e2m1", total)


@triton.jit
def block_scaled_product(
    a, a_scales, a_factors, b, b_scales, divisor, residual, out, num_tokens, width, depth,
    residual_stride, out_stride, HAS_RESIDUAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
):
    """``out [num_tokens, width] = a b^T a_factors / divisor + residual``; ``divisor`` is of each 16
    rows of ``b``."""
    wait()
    release()
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    exists_m, exists_n = m < num_tokens, n < width
    half, group = tl.arange(0, BK // 2)[None, :], tl.arange(0, BK // 16)[None, :]
    a_row, b_row = m.to(tl.int64)[:, None], n.to(tl.int64)[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, depth, BK):
        halves, groups = begin // 2 + half, begin // 16 + group
        live, known = halves < depth // 2, groups < depth // 16
        left = tl.load(a + a_row * (depth // 2) + halves, mask=exists_m[:, None] & live, other=0)
        right = tl.load(b + b_row * (depth // 2) + halves, mask=exists_n[:, None] & live, other=0)
        left_scales = tl.load(a_scales + a_row * (depth // 16) + groups,
                              mask=exists_m[:, None] & known, other=0.0)
        right_scales = tl.load(b_scales + b_row * (depth // 16) + groups,
                               mask=exists_n[:, None] & known, other=0.0)
        total = scaled_dot(left, left_scales, right, right_scales, total, BM, BN, BK)
    factor = tl.load(a_factors + m, mask=exists_m, other=0.0)[:, None]
    result = total * factor / tl.load(divisor + n // 16, mask=exists_n, other=1.0)[None, :]
    both = exists_m[:, None] & exists_n[None, :]
    if HAS_RESIDUAL:
        at = residual + m.to(tl.int64)[:, None] * residual_stride + n[None, :]
        result += tl.load(at, mask=both, other=0.0).to(tl.float32)
    tl.store(out + m.to(tl.int64)[:, None] * out_stride + n[None, :],
             result.to(out.dtype.element_ty), mask=both)


@triton.jit
def pack_values(values, codes, count, BLOCK: tl.constexpr):
    """bf16 values that E2M1 has to codes, two a byte."""
    wait()
    release()
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[:, None]
    at = pair * 2 + tl.arange(0, 2)[None, :]
    value = tl.load(values + at, mask=pair < count, other=0.0).to(tl.float32)
    code = nearest_code(tl.abs(value)) | (value < 0).to(tl.int32) << 3
    low, high = tl.split(code)
    byte = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(codes + byte, (low | high << 4).to(tl.uint8), mask=byte < count)
